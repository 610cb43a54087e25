"""Memory that the process holds and does not use."""

import contextlib
import ctypes


def give_back() -> None:
    """Gives freed memory back to the system; does nothing where the C library has no such function.

    What a compiler has freed stays in many small pieces, beside which large tensors are made anew.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # Windows wants the name of a library
        ctypes.CDLL(None).malloc_trim(0)
