"""Writes the reports into a run folder."""

import pathlib

from lipdp.privacy import files
from lipdp.report import folder as folders
from lipdp.report.html import to_html
from lipdp.report.markdown import to_markdown


def render(folder: str | pathlib.Path) -> pathlib.Path:
    """Writes `report.html` and `report.md` from the other files of a run folder.

    Args:
        folder: a run folder; see `folder.read`.

    Returns:
        The path of `report.html`.

    Raises:
        FileNotFoundError, ValueError: see `folder.read`.
    """
    folder = pathlib.Path(folder)
    run = folders.read(folder)
    for name, text in ((folders.HTML, to_html(run)), (folders.MARKDOWN, to_markdown(run))):
        files.write_text(folder / name, text, folders.is_private(run))
    return folder / folders.HTML
