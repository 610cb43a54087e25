"""Which ledgers the values of variables were charged to.

A ledger belongs to the variables that its releases changed, not to the model that made them: layers are shared by
models that know nothing of each other. What comes in by value (arrays, files of plain Keras models) cannot be followed.
"""

from collections.abc import Iterable
from typing import Any

from lipdp.privacy.ledger import Ledger

_ATTRIBUTE = "_lipdp_ledgers"


def ledgers_of(variables: Iterable[Any]) -> tuple[Ledger, ...]:
    """Returns the ledgers that hold releases behind the values of variables, each once.

    Example:
        >>> import keras
        >>> variable, ledger = keras.Variable([1.0]), Ledger()
        >>> attribute([variable], [ledger])
        >>> ledgers_of([variable])  # nothing was released yet
        ()
    """
    found = {id(ledger): ledger for variable in variables for ledger in getattr(variable, _ATTRIBUTE, ())}
    return tuple(ledger for ledger in found.values() if ledger.releases)


def attribute(variables: Iterable[Any], ledgers: Iterable[Ledger]) -> None:
    """Adds `ledgers` to those that the values of `variables` were charged to."""
    ledgers = tuple(ledgers)
    for variable in variables:
        before = getattr(variable, _ATTRIBUTE, ())
        known = set(map(id, before))
        setattr(variable, _ATTRIBUTE, (*before, *(ledger for ledger in ledgers if id(ledger) not in known)))


def distinct(own: Ledger, others: Iterable[Ledger]) -> tuple[Ledger, ...]:
    """Returns `own` and what others hold beyond it: of two moments of one history the later."""
    kept = [own]
    for ledger in sorted(others, key=lambda each: -each.releases):
        if not any(one is ledger or one.covers(ledger) for one in kept):
            kept.append(ledger)
    return tuple(kept)
