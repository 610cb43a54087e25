"""Several private models in one process on the same rows: each ledger counts its own model, and nobody adds them up."""

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from lipdp import checks
from lipdp.privacy import Ledger

_MOST = 100  # arrays of one nest that are looked at


class _Seen:
    """What this process has trained on. Arrays are held weakly; `told` after the one warning."""

    def __init__(self):
        self.told, self.meant = False, 0
        self.ledgers: dict[tuple, tuple[weakref.ref, list[Ledger]]] = {}


_SEEN = _Seen()


@contextlib.contextmanager
def meant() -> Iterator[None]:
    """Inside, several models on the same rows are what was asked for, as by an audit, and nothing is said."""
    _SEEN.meant += 1
    try:
        yield
    finally:
        _SEEN.meant -= 1


def note(model: keras.Model, *data: Any) -> None:
    """Warns of rows that another private model has trained on, once in a process; an ensemble is told once as well.

    Models whose cost the ledger of this one counts, as where they share weights, are no others. Rows are the same where
    an array begins at the same place in memory, or where it is the same object: copies are not seen.

    Args:
        model: The model that is about to train.
        *data: Inputs that `fit` was given, and what they were computed from.
    """
    if _SEEN.told or _SEEN.meant:
        return
    _SEEN.ledgers = {key: kept for key, kept in _SEEN.ledgers.items() if kept[0]() is not None}
    own = model.run.ledgers
    for key, owner in itertools.islice(_places(data), _MOST):
        held, ledgers = _SEEN.ledgers.setdefault(key, (weakref.ref(owner), []))
        if held() is not owner:
            continue
        if any(other.releases and not any(one.covers(other) for one in own) for other in ledgers):
            _SEEN.told = True
            _SEEN.ledgers.clear()
            warnings.warn(
                "Another private model in this process was trained on the same rows, and each ledger counts its own "
                "model alone. If several are shown, or one is chosen by private rows, what holds is the epsilon of all "
                "of them together: lipdp.privacy.Ledger.joined([m.privacy.ledger for m in models]).epsilon(delta). A "
                "search of which only the best is shown can cost less, see accounting.search_epsilon in "
                "docs/howto/learning-rate.md. This is said once.",
                stacklevel=checks.users_line(),
            )
            return
        if not any(model.run.ledger is ledger for ledger in ledgers):
            ledgers.append(model.run.ledger)


def _places(x: Any) -> Iterator[tuple[tuple, Any]]:
    """Yields where the arrays of a nest begin, or what else holds rows, each with the object that keeps it alive."""
    if isinstance(x, Mapping | list | tuple):
        for part in itertools.islice(x.values() if isinstance(x, Mapping) else x, _MOST):
            yield from _places(part)
    elif isinstance(x, np.ndarray):
        owner = x
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        yield (x.ctypes.data,), owner
    elif x is not None:
        with contextlib.suppress(TypeError):  # texts and numbers take no weak references
            weakref.ref(x)
            yield (id(x), type(x)), x
