"""Run folders, and the report that a person reads."""

from lipdp.report.folder import RunFolder, read, write
from lipdp.report.html import to_html
from lipdp.report.markdown import to_markdown
from lipdp.report.place import claim, clear, finish
from lipdp.report.render import render
from lipdp.report.tightness import plot_tightness

__all__ = [
    "RunFolder",
    "claim",
    "clear",
    "finish",
    "plot_tightness",
    "read",
    "render",
    "to_html",
    "to_markdown",
    "write",
]
