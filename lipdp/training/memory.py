"""Memory that is kept from one update to the next."""

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator

# Of glibc's `mallopt`: when free memory at the top of the heap goes back to the system, how much more than is asked for
# the heap grows by, from which size an array gets pages of its own, and how many arrays may.
_TRIM, _PAD, _OWN_PAGES, _MOST = -1, -2, -3, -4
_NEVER = -1
# More than a heap of a thread can hold, so that none is given back.
_WIDE = 1 << 27
# What glibc itself arrives at after large arrays have been freed.
_USUAL = ((_OWN_PAGES, 1 << 25), (_TRIM, 1 << 26), (_PAD, 1 << 17), (_MOST, 1 << 16))
_LOCK = threading.Lock()
_holders = 0


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Keeps the memory of arrays that are freed, and gives it back at the end.

    glibc returns that of large arrays to the system at once. The next update then gets it again page by page, each
    filled with zeros first, which can take longer than all that is computed. Other allocators stay as they are, and so
    does glibc's where variables `MALLOC_...` or `GLIBC_TUNABLES` of the environment set it.
    """
    library = _glibc()
    if library is None:
        yield
        return
    _hold(library, 1)
    try:
        yield
    finally:
        _hold(library, -1)


def _hold(library: ctypes.CDLL, change: int) -> None:
    global _holders
    with _LOCK:
        before, _holders = _holders, _holders + change
        if not before:
            for option, value in ((_MOST, 0), (_TRIM, _NEVER), (_PAD, _WIDE)):
                library.mallopt(option, value)
        elif not _holders:
            for option, value in _USUAL:
                library.mallopt(option, value)
            library.malloc_trim(ctypes.c_size_t(0))


def _glibc() -> ctypes.CDLL | None:
    set_by_user = any(name.startswith("MALLOC_") for name in os.environ)
    if not sys.platform.startswith("linux") or set_by_user or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
