"""What users declared to treat each row of a batch alone."""

from collections.abc import Iterable
from typing import Any, TypeVar

Declared = TypeVar("Declared")

# By identity: a subclass, or another function of the same name, may compute something else.
_DECLARED: dict[int, Any] = {}


def row_wise(declared: Declared) -> Declared:
    """Declares that a layer type, a loss type or a function treats each row of a batch alone, so that it runs as it is.

    What is neither Keras' nor lipdp's runs one row at a time while a model trains, so that it cannot mix examples. That
    costs time. A declaration saves it; nothing checks it, so the privacy statement names whatever was declared.

    Args:
        declared: A class of layers, operations or losses, exactly this one without its subclasses; or a function: an
            activation, what a `keras.layers.Lambda` calls, or a loss `(y_true, y_pred)`.

    Returns:
        What was passed, so that this is a decorator.

    Raises:
        ValueError: something else, such as a layer in place of its class.

    **Guarantee.** None of its own: a declaration is trusted. One that is wrong makes epsilon too small, by up to the
    number of examples in a batch.

    Example:
        >>> import keras
        >>> import lipdp
        >>> @lipdp.row_wise
        ... class Halved(keras.layers.Layer):
        ...     def call(self, inputs):
        ...         return 0.5 * inputs
        >>> Halved.__name__
        'Halved'
    """
    if isinstance(declared, type) == hasattr(declared, "get_config") and callable(declared):
        _DECLARED[id(declared)] = declared
        return declared
    raise ValueError(
        "`row_wise` takes a class of layers or losses, or a function. Received: "
        f"{declared!r}. Pass the class itself: it is declared for all of its objects."
    )


def is_declared(thing: Any) -> bool:
    """Whether a class or function was declared to treat each row alone."""
    return id(thing) in _DECLARED


def declared(things: Iterable) -> tuple[str, ...]:
    """Returns the names, in order, of those among some classes and functions that were declared."""
    return tuple(sorted({_name(thing) for thing in things if is_declared(thing)}))


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '?')}.{getattr(thing, '__qualname__', type(thing).__name__)}"
