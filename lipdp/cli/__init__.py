"""The command line: `lipdp train | epsilon | calibrate | certify | report`."""

from lipdp.cli.entry import main as main
