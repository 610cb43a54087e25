"""The contract every Lipschitz layer answers."""

import math

import keras
from keras import ops


class LipschitzLayer(keras.layers.Layer):
    """Base of the layers that carry their own bounds.

    A layer answers three questions about one example, in L2 norms, with plain floats. `input_bounds` is
    a tuple with one norm bound per input tensor. The defaults describe a parameter-free layer with one
    input that is 1-Lipschitz and maps zero to zero.

    Guarantee:
        `bounds.propagate` trusts these answers: a subclass proves them in its docstring, and
        `tests/layers/test_adversarial.py` searches for a violation of each.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        policy = self.dtype_policy
        if policy.compute_dtype != "float32" or policy.variable_dtype != "float32":
            raise ValueError(
                f"Layer '{self.name}' computes in {policy.compute_dtype}, where rounding breaks the norm bounds or "
                f"the projection. Received: dtype policy {policy.name!r}. Use float32: "
                "keras.config.set_dtype_policy('float32')."
            )

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        """Lipschitz constant with respect to each input, the others fixed, for every allowed weight."""
        return (1.0,) * len(input_bounds)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        """Largest norm of the output when each input obeys its bound."""
        lipschitz = self.input_lipschitz(input_bounds)
        return sum(times(c, x) for c, x in zip(lipschitz, input_bounds, strict=True))

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        """Largest gradient norm of each variable of `weights`, for a cotangent of the given norm."""
        return ()

    def cotangent_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        """Largest norm of the cotangent that the backward pass hands to each input."""
        return tuple(times(constant, cotangent_bound) for constant in self.input_lipschitz(input_bounds))

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        """As `input_lipschitz`, for the weights of the moment: what certificates use."""
        return self.input_lipschitz(input_bounds)


def times(factor: float, bound: float) -> float:
    """Product of a constant and a norm bound; 0 * inf is 0, not NaN."""
    return 0.0 if factor == 0 or bound == 0 else factor * bound


def whole(value, name: str, rank: int) -> tuple[int, ...]:
    """A positive integer or `rank` of them, as a tuple."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank or not all(isinstance(v, int) and v > 0 for v in values):
        several = {1: "one", 2: "a pair of them"}.get(rank, f"{rank} of them")
        raise ValueError(f"`{name}` must be a positive integer or {several}. Received: {name}={value!r}.")
    return values


def pair(value, name: str) -> tuple[int, int]:
    """A positive integer or two of them, as two."""
    return whole(value, name, 2)


def start(variable, constraint) -> None:
    """Brings a new variable into its ball, in numpy: its operations one by one take JAX half a second."""
    variable.assign(constraint.start(ops.convert_to_numpy(variable)).astype("float32"))


def refuse_empty(layer: keras.layers.Layer, input_shape, sizes) -> None:
    """Refuses an image that is smaller than the window of a layer."""
    if any(size is not None and size < 1 for size in sizes):
        raise ValueError(
            f"The window of layer '{layer.name}' does not fit into its input. Received: input shape "
            f"{tuple(input_shape)}. Use a smaller window or a larger image."
        )


def positions(shape: tuple[int | None, ...], layer: keras.layers.Layer) -> int:
    """Number of positions between the batch axis and the last axis; refuses unknown sizes."""
    return entries(shape[:-1], layer)


def entries(shape: tuple[int | None, ...], layer: keras.layers.Layer) -> int:
    """Number of entries of one example; refuses unknown sizes."""
    inner = tuple(shape)[1:]
    if any(size is None for size in inner):
        raise ValueError(
            f"Layer '{layer.name}' needs to know every size but the batch to state its bound. "
            f"Received: input shape {tuple(shape)}. Give the input a full shape."
        )
    return math.prod(inner)
