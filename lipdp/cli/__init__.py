"""The command line: `lipdp train | epsilon | calibrate | group | plan | certify | sample | report`."""

from lipdp.cli.entry import main as main
