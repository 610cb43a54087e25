"""`lipdp report`: rebuilds the report of a run folder."""

import argparse

from lipdp import report
from lipdp.cli import output


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Rebuilds the reports of a run folder and writes its privacy statement."""
    path = report.render(options.run)
    content = report.read(options.run)
    if options.json:
        output.write_json({"report": str(path), "held_out": content.results["held_out"], "privacy": content.privacy})
        return
    output.write(content.statement.rstrip("\n"), "", f"Written to {path}")
