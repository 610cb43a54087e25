"""Where the files of the named data sets come from: the folder in LIPDP_DATA, or a download through Keras."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


def local(file: str, advice: str) -> pathlib.Path | None:
    """Returns the path of a file in the folder that LIPDP_DATA names; None when it names none.

    Args:
        file: name of the file, below that folder.
        advice: what to do when it is not there.

    Raises:
        FileNotFoundError: when the folder lacks the file.
    """
    folder = os.environ.get("LIPDP_DATA")
    if not folder:
        return None
    path = pathlib.Path(folder) / file
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder in LIPDP_DATA has no {file}. Received: LIPDP_DATA={folder!r}. Put the file {advice}."
        )
    return path


@contextlib.contextmanager
def download(name: str) -> Iterator[None]:
    """Turns what goes wrong in a download of `name` into a `ConnectionError` that says what to do."""
    try:
        yield
    except Exception as error:  # Keras raises a bare Exception when the download fails
        raise ConnectionError(
            f"{name} could not be downloaded: {error}. Connect to the network, or put {name}.npz into a folder and set "
            "LIPDP_DATA to it."
        ) from error
