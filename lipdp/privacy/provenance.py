"""Which ledgers the weights of a model were charged to.

A ledger belongs to the variables that its releases changed and to the layers that hold them, not only to the model that
made them: layers are shared by models that know nothing of each other, and `quantize` gives a layer other variables.
What comes in by value (arrays, files of plain Keras models) cannot be followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lipdp.privacy.ledger import Ledger

if TYPE_CHECKING:
    import keras

_ATTRIBUTE = "_lipdp_ledgers"


def ledgers_of(model: keras.Model) -> tuple[Ledger, ...]:
    """Returns the ledgers that hold releases behind the weights of a model, each once.

    Example:
        >>> import keras
        >>> model, ledger = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), Ledger()
        >>> attribute(model, [ledger])
        >>> ledgers_of(model)  # nothing was released yet
        ()
    """
    from lipdp import _keras  # only here: the rest of this package needs no Keras

    holders = [*_keras.walk(model, include_self=True), *model.weights]
    found = {id(ledger): ledger for holder in holders for ledger in getattr(holder, _ATTRIBUTE, ())}
    return tuple(ledger for ledger in found.values() if ledger.releases)


def attribute(model: keras.Model, ledgers: Iterable[Ledger], variables: Iterable[Any] | None = None) -> None:
    """Adds `ledgers` to those that a model, some of its variables, or all, and the layers that hold them stand for."""
    from lipdp import _keras

    variables, ledgers = list(model.weights if variables is None else variables), tuple(ledgers)
    changed = {id(variable) for variable in variables}
    layers = [layer for layer in _keras.walk(model) if changed & set(map(id, _keras.all_own_variables(layer)))]
    for holder in (model, *layers, *variables):
        before = getattr(holder, _ATTRIBUTE, ())
        known = set(map(id, before))
        # Past Keras' attribute tracking, which is closed once a layer is built.
        object.__setattr__(holder, _ATTRIBUTE, (*before, *(ledger for ledger in ledgers if id(ledger) not in known)))


def distinct(own: Ledger, others: Iterable[Ledger]) -> tuple[Ledger, ...]:
    """Returns `own` and what others hold beyond it: of two moments of one history the later."""
    kept = [own]
    for ledger in sorted(others, key=lambda each: -each.releases):
        if not any(one is ledger or one.covers(ledger) for one in kept):
            kept.append(ledger)
    return tuple(kept)
