"""Loading Keras without what TensorFlow says about the machine."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

import lipdp
from lipdp import _register


@contextlib.contextmanager
def stderr() -> Iterator[None]:
    """Keeps what is written to file descriptor 2, from C++ as well, and shows it only when the block fails.

    TF_CPP_MIN_LOG_LEVEL does not reach the messages of TensorFlow's first import: they are written before its
    logging is set up.
    """
    try:
        saved = os.dup(2)
    except OSError:  # closed: there is nobody to be quiet towards
        yield
        return
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def load_keras() -> None:
    """Imports Keras, its backend and the classes that lipdp's model files name."""
    if "lipdp.model" not in sys.modules:
        try:
            with stderr():
                _register.register()
        except ModuleNotFoundError as error:
            if error.name in lipdp._BACKENDS:
                raise lipdp._without_backend(error.name) from error
            raise
