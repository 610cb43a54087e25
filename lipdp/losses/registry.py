"""From a name, a configuration or an object to a loss with a known bound."""

import difflib
from collections.abc import Iterable
from typing import Any

import keras

from lipdp import checks
from lipdp.losses.base import Loss
from lipdp.losses.binary_crossentropy import BinaryCrossentropy
from lipdp.losses.categorical_crossentropy import CategoricalCrossentropy
from lipdp.losses.cosine_similarity import CosineSimilarity
from lipdp.losses.huber import Huber
from lipdp.losses.mean_absolute_error import MeanAbsoluteError
from lipdp.losses.multiclass_hinge import MulticlassHinge
from lipdp.losses.multiclass_hkr import MulticlassHKR
from lipdp.losses.multiclass_kr import MulticlassKR
from lipdp.losses.sparse_categorical_crossentropy import SparseCategoricalCrossentropy

LOSSES = (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    CosineSimilarity,
    Huber,
    MeanAbsoluteError,
    MulticlassHinge,
    MulticlassHKR,
    MulticlassKR,
    SparseCategoricalCrossentropy,
)

# What to use instead of losses that lipdp does not have, by their name in Keras, and why.
REPLACEMENTS = {
    "MeanSquaredError": ("Huber", "its gradient grows with the error, so it is not Lipschitz"),
    "MSE": ("Huber", "its gradient grows with the error, so it is not Lipschitz"),
    "MeanSquaredLogarithmicError": ("Huber", "it is not Lipschitz"),
    "MSLE": ("Huber", "it is not Lipschitz"),
    "MeanAbsolutePercentageError": ("MeanAbsoluteError", "its gradient grows as the label shrinks"),
    "MAPE": ("MeanAbsoluteError", "its gradient grows as the label shrinks"),
    "LogCosh": ("Huber", "it has no bound here"),
    "Poisson": ("Huber", "it is not Lipschitz"),
    "KLDivergence": ("CategoricalCrossentropy", "it is not Lipschitz in probabilities"),
    "KLD": ("CategoricalCrossentropy", "it is not Lipschitz in probabilities"),
    "BinaryFocalCrossentropy": ("BinaryCrossentropy", "it has no bound here"),
    "CategoricalFocalCrossentropy": ("CategoricalCrossentropy", "it has no bound here"),
    "Hinge": ("MulticlassHinge", "it has no bound here"),
    "SquaredHinge": ("MulticlassHinge", "it is not Lipschitz"),
    "CategoricalHinge": ("MulticlassHinge", "it has no bound here"),
}

SHORT_NAMES = {"mae": MeanAbsoluteError, "bce": BinaryCrossentropy}


def get(identifier: str | dict | type | Loss) -> Loss:
    """Returns the lipdp loss that `identifier` means.

    Args:
        identifier: a `lipdp.losses.Loss` (returned as it is), one of its classes, the name of one of lipdp's
            losses in CamelCase or snake_case, or a configuration (`keras.saving.serialize_keras_object` of
            one, or `{"class_name": ..., "config": {...}}`).

    Returns:
        A `lipdp.losses.Loss`.

    Raises:
        ValueError: if it is anything else, such as a loss of Keras; the message names the replacement. Or methods were
            replaced on the object.

    Example:
        >>> from lipdp import losses
        >>> round(losses.get("sparse_categorical_crossentropy").lipschitz(10), 4)
        1.4142
    """
    if isinstance(identifier, Loss):
        if found := checks.replaced(identifier):
            where = "an object" if found[0] in vars(identifier) else "a class"
            raise ValueError(
                f"The bound of {type(identifier).__name__} does not follow what was put in the place of its methods. "
                f"Received: {where} with a `{found[0]}` of its own. Write a subclass of lipdp.losses.Loss, or train "
                "with a strategy that clips, such as strategy='dpsgd'."
            )
        _refuse_inherited_bound(identifier)
        return identifier
    if isinstance(identifier, type) and issubclass(identifier, Loss):
        return identifier()
    if isinstance(identifier, str):
        return _named(identifier, identifier)()
    if isinstance(identifier, dict):
        return _from_config(identifier)
    # A function has its own name, an object that of its class.
    raise ValueError(_refusal(identifier, getattr(identifier, "__name__", type(identifier).__name__)))


def _refuse_inherited_bound(loss: Loss) -> None:
    """Refuses a class of the user's that computes something else, with the bound of the class that it is made of."""
    kinds = type(loss).__mro__

    def level(*names):
        return next(i for i, kind in enumerate(kinds) if not vars(kind).keys().isdisjoint(names))

    for name in ("call", "limited", "bounded_gradient", "_limited_gradient"):
        if level(name) < level("lipschitz", "exact_lipschitz"):
            raise ValueError(
                f"`{name}` of a loss limits its gradient to the bound that noise is made for. Received: "
                f"{type(loss).__name__} with a `{name}` of its own, and the bound of another class. Override `value`, "
                "`gradient` and `exact_lipschitz` instead, state `lipschitz` beside it, or train with a strategy that "
                "clips, such as strategy='dpsgd'."
            )


def of_places(identifier: Any, probabilities: bool) -> Any:
    """Returns the loss of Keras that a name means for outputs of several places; lipdp's are for `(batch, outputs)`.

    Args:
        identifier: What `compile` was given; anything but a name that both have is returned as it is.
        probabilities: Whether the output ends in softmax or sigmoid; if not, a cross-entropy takes logits, as lipdp's.

    Returns:
        A `keras.losses.Loss`, or `identifier` itself.

    Example:
        >>> from lipdp.losses.registry import of_places
        >>> of_places("binary_crossentropy", probabilities=False).from_logits
        True
    """
    key = _key(identifier) if isinstance(identifier, str) else ""
    known = _by_key().get(key) or SHORT_NAMES.get(key)
    theirs = getattr(keras.losses, known.__name__, None) if known else None
    if theirs is None:
        return identifier
    return theirs(from_logits=not probabilities) if key.endswith(("crossentropy", "bce")) else theirs()


def _named(name: str, identifier: object) -> type[Loss]:
    loss = _by_key().get(_key(name)) or SHORT_NAMES.get(_key(name))
    if loss is None:
        raise ValueError(_refusal(identifier, name))
    return loss


def _from_config(config: dict) -> Loss:
    class_name = config.get("class_name")
    if not isinstance(class_name, str):
        raise ValueError(f"A loss configuration must have a `class_name`. Received: {config!r}")
    # Keras writes these two keys, and they tell our Huber from its own. A person may leave them out.
    if not config.get("registered_name") and not config.get("module"):
        return _named(class_name, config).from_config(config.get("config", {}))
    if str(config.get("module")).split(".")[0] == "keras":
        raise ValueError(_refusal(config, class_name))
    try:
        loss = keras.saving.deserialize_keras_object(config)
    except TypeError as error:  # what Keras raises for a class that it cannot find
        raise ValueError(_refusal(config, class_name)) from error
    if not isinstance(loss, Loss):
        raise ValueError(_refusal(config, class_name))
    return loss


def _close(key: str, known: Iterable[str]) -> str | None:
    """Returns the name that somebody meant who wrote another one; if any begin alike, the closest of these."""
    alike = [name for name in known if name[:6] == key[:6]]
    found = difflib.get_close_matches(key, alike or known, n=1, cutoff=0.4 if alike else 0.6)
    return found[0] if found else None


def _refusal(identifier: object, name: str) -> str:
    """Returns the message that says what to use in the place of `identifier`, a loss called `name`."""
    key = _key(name)
    known = _by_key()
    # Keras writes the address of a function in the place of the name of a loss.
    theirs = isinstance(identifier, keras.losses.Loss) and type(identifier).__module__.startswith("keras.")
    received = f"keras.losses.{name}" if theirs else repr(identifier)
    if key in ("ce", "crossentropy"):
        return (
            f"Keras chooses this loss by the labels, which `compile` does not see. Received: {identifier!r}. Pass "
            "'sparse_categorical_crossentropy' for class ids, 'categorical_crossentropy' for one-hot labels, or "
            "'binary_crossentropy' for truth values."
        )
    others = {_key(name): name for name in REPLACEMENTS}
    replacement = REPLACEMENTS.get(others.get(key, ""))
    if replacement is not None:
        advice = f"Use lipdp.losses.{replacement[0]} instead of {name}: {replacement[1]}."
    elif key in known:
        advice = f"Use lipdp.losses.{known[key].__name__}, which knows its bound."
    elif (close := _close(key, [*known, *others])) is not None:
        meant = f"lipdp.losses.{known[close].__name__}" if close in known else f"keras.losses.{others[close]}"
        advice = f"Did you mean {meant}?"
    else:
        advice = f"Use one of lipdp.losses: {', '.join(loss.__name__ for loss in LOSSES)}."
    return f"The loss must be a lipdp.losses.Loss, which knows its Lipschitz constant. Received: {received}. {advice}"


def _by_key() -> dict[str, type[Loss]]:
    return {_key(loss.__name__): loss for loss in LOSSES}


def _key(name: str) -> str:
    return name.replace("_", "").lower()
