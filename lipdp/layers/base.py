"""The contract of every Lipschitz layer."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import backend, checks
from lipdp.norms import SpectralBall, spectral_norm

_OF_KERAS = [p for p in inspect.signature(keras.layers.Layer.__init__).parameters if p != "kwargs"]
_OF_KERAS += ["input_shape", "input_dim"]
# What Keras' layers take and these do not.
_CURES = {
    "activation": "Put the activation behind it as a layer: lipdp.layers.Abs(), GroupSort() or ReLU().",
    "use_bias": "It has no bias inside: put lipdp.layers.Bias() behind it, or leave that out.",
    "bias_initializer": "It has no bias inside: put lipdp.layers.Bias() behind it.",
    **dict.fromkeys(
        ("kernel_regularizer", "bias_regularizer"),
        "Its weights have bounds already: leave that out, or use `weight_decay` of the optimizer.",
    ),
    "activity_regularizer": "A penalty on outputs is a loss without a bound: leave that out.",
    **dict.fromkeys(
        ("kernel_constraint", "bias_constraint"), "Its constraint is its own, as its bounds rest on it: leave that out."
    ),
    "data_format": "It works on channels-last data: leave that out, and transpose images that have channels first.",
}


class LipschitzLayer(keras.layers.Layer):
    """Base of the layers that carry their own bounds, and their own export to stock Keras.

    A layer states three bounds for one example, in L2 norms, as plain floats. `input_bounds` is a tuple with one
    norm bound per input tensor. The defaults describe a parameter-free layer with one input that is 1-Lipschitz and
    maps zero to zero. `export` writes its `call` in stock operations; a layer with weights, or whose `call` does
    not consist of `keras.ops` alone, overrides `stock_layer`, `export_call` or both.

    Example:
        >>> import keras, lipdp
        >>> class Half(lipdp.layers.LipschitzLayer):
        ...     lipschitz_formula = "1/2"  # what tables show
        ...     def call(self, inputs):
        ...         return 0.5 * inputs
        ...     def input_lipschitz(self, input_bounds):
        ...         return (0.5,)
        >>> model = keras.Sequential([keras.Input((3,)), Half()])
        >>> round(lipdp.certify.lipschitz(model), 3), lipdp.export(model).output_shape
        (0.5, (None, 3))

    **Guarantee.** None of its own: `bounds.propagate` trusts what a subclass states. It proves its bounds in its
    docstring, and `tests/layers/test_adversarial.py` searches for a violation of each. What the constructor was given
    cannot be changed once the layer is built: bounds would follow, and constraints and compiled steps would not.
    """

    # For tables: the Lipschitz constant, and the largest gradient norm of the weights, "-" without weights.
    lipschitz_formula = "1"
    gradient_formula = "-"

    def __init__(self, **kwargs: Any):
        own = _settings(type(self))  # type: ignore[arg-type]
        try:
            super().__init__(**kwargs)
        except ValueError:
            for name in kwargs:
                if name not in _OF_KERAS:
                    raise checks.unexpected(type(self).__name__, name, [*sorted(own), *_OF_KERAS[1:]], _CURES) from None
            raise
        policy = self.dtype_policy
        if policy.compute_dtype != "float32" or policy.variable_dtype != "float32":
            raise ValueError(
                f"Layer '{self.name}' computes in {policy.compute_dtype}, where rounding breaks the norm bounds or "
                f"the projection. Received: dtype policy {policy.name!r}. Use float32: "
                "keras.config.set_dtype_policy('float32')."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "built", False) and name in _settings(type(self)):  # type: ignore[arg-type]
            raise AttributeError(
                f"`{name}` of layer '{self.name}' is fixed once the layer is built: its bounds would change, and its "
                f"constraints and compiled steps would not. Received: {type(self).__name__}.{name} = {value!r}. Make a "
                "new layer, in a new model, and give it the weights with `set_weights`."
            )
        held = self.__dict__.get(name)
        if getattr(self, "built", False) and isinstance(held, keras.Variable) and value is not held:
            raise AttributeError(
                f"`{name}` of layer '{self.name}' is a weight: what takes its place would be neither projected nor "
                f"trained. Received: {type(self).__name__}.{name} = ... of type {type(value).__name__}. Set its values "
                f"with `{name}.assign`."
            )
        super().__setattr__(name, value)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        variable = super().add_weight(*args, **kwargs)
        constraint = getattr(variable, "constraint", None)
        # By identity, in what Keras does not track.
        self.__dict__.setdefault("_lipdp_constraints", {})[id(variable)] = constraint, _described(constraint)
        return variable

    def refuse_other_constraints(self) -> None:
        """Refuses weights whose constraint is not what the layer gave them: training bounds rest on it."""
        given = self.__dict__.get("_lipdp_constraints", {})
        for variable in self.weights:
            if id(variable) not in given:
                continue
            (constraint, before), now = given[id(variable)], _described(variable.constraint)
            if variable.constraint is not constraint or now != before:
                raise ValueError(
                    f"The bounds of layer '{self.name}' rest on the constraint that it gives its weights. Received: "
                    f"'{variable.path}' with {now} in the place of {before}. Leave constraints as they are, or train "
                    "with a strategy that clips, such as strategy='dpsgd'."
                )

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        """Returns the Lipschitz constant with respect to each input, the others fixed, for every allowed weight."""
        return (1.0,) * len(input_bounds)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        """Returns the largest norm of the output when each input obeys its bound."""
        lipschitz = self.input_lipschitz(input_bounds)
        return sum(times(c, x) for c, x in zip(lipschitz, input_bounds, strict=True))

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        """Returns the largest gradient norm of each trainable variable, for a cotangent of this norm."""
        return ()

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        """Returns how many float32 terms are added up, for one example, to an entry of a parameter's gradient.

        `bounds.propagate` charges the rounding of that sum. Default: as many as the largest input or output has
        entries; a layer that reads each parameter less often says so.

        Args:
            input_shapes: One shape per input tensor, batch included.
            output_shape: Shape of the output.
        """
        return max(entries(shape, self) for shape in (*input_shapes, output_shape))

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        """Returns how many float32 terms are added up, one after the other, to an entry of the output; None: not known.

        `bounds.propagate` and certificates charge the rounding of that sum. Default: 1; a layer that takes means or
        sums of many entries says so.

        Args:
            input_shapes: One shape per input tensor, batch included.
            output_shape: Shape of the output.
        """
        return 1

    def cotangent_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        """Returns the largest norm of the cotangent that the backward pass sends to each input."""
        return tuple(times(constant, cotangent_bound) for constant in self.input_lipschitz(input_bounds))

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        """Returns `input_lipschitz` of the current weights: what certificates use.

        Raises:
            ValueError: they were set to what their constraints would change, which `input_lipschitz` does not know.
        """
        # Those of lipdp override this, or none of their weights counts.
        if not type(self).__module__.startswith("lipdp."):
            self._refuse_longer()
        return self.input_lipschitz(input_bounds)

    def _refuse_longer(self) -> None:
        """Refuses weights that were set by hand past their constraints."""
        for weight in self.weights:
            constraint, value = getattr(weight, "constraint", None), ops.convert_to_numpy(weight)
            if constraint is None:
                continue
            changed = np.abs(ops.convert_to_numpy(constraint(weight.value)) - value).max(initial=0.0)
            if not changed <= 1e-5 * np.abs(value).max(initial=0.0):
                raise ValueError(
                    "A layer without a `trained_lipschitz` of its own is certified for weights within their "
                    f"constraints. Received: layer '{self.name}' of type {type(self).__name__}, whose weight "
                    f"'{weight.name}' is not within {_described(constraint)}. Assign what that makes of it, or "
                    "override `trained_lipschitz` with the constant of the present weights."
                )

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        """Returns the stock Keras layer that takes this one's place in an export, and its weights; None for none."""
        return None, []

    def export_call(self, stock: keras.layers.Layer | None, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for symbolic inputs, computed by `stock` and stock operations only.

        Args:
            stock: The layer that `stock_layer` returned, the same one in every call, or None.
            *args: Arguments of `call`.
            **kwargs: Arguments of `call`.

        Raises:
            ValueError: the layer has weights and no stock layer, or its `call` takes no symbolic tensors.
        """
        if stock is not None:
            return stock(*args, **kwargs)
        layer = f"Layer '{self.name}' of type {type(self).__name__}"
        if self.weights:
            raise ValueError(f"{layer} has weights but no export. Override `stock_layer` or `export_call`.")
        try:
            return self.call(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"{layer} cannot be exported: its `call` must consist of `keras.ops` on tensors (no "
                f"`custom_gradient`). Override `export_call`. Received: {error}"
            ) from error


def _described(constraint: Any) -> str:
    """Returns the type of a constraint and what it was set to."""
    if constraint is None:
        return "none"
    held = getattr(constraint, "__dict__", {})
    parts = [f"{k}={v!r}" for k, v in held.items() if v is None or isinstance(v, (bool, int, float, str, tuple))]
    parts += [f"own {name}" for name in held if callable(held[name])]
    return f"{type(constraint).__name__}{'(' * bool(parts)}{', '.join(parts)}{')' * bool(parts)}"


@functools.cache
def _settings(cls: type) -> frozenset[str]:
    """Returns the names of the arguments that the constructors of a class and of its parents take."""
    names: set[str] = set()
    for parent in inspect.getmro(cls):
        if parent is LipschitzLayer:
            break
        if "__init__" in vars(parent):
            parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
            names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    # What every layer has is Keras' affair: `trainable` may change at any time.
    return frozenset(names - set(inspect.signature(keras.layers.Layer.__init__).parameters))


class ShapePreserving(LipschitzLayer):
    """Base of the layers whose output has the shape of their input.

    **Guarantee.** None of its own, see `LipschitzLayer`.
    """

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape


class KernelLayer(LipschitzLayer):
    """Base of the layers with one kernel W, kept at `||W||_2 <= 1` unless `projected` is False.

    Its defaults describe a product with W over the last axis.

    **Guarantee.** None of its own, see `LipschitzLayer`.
    """

    gradient_formula = "‖x‖ ‖g‖"
    projected = True

    def add_kernel(self, shape: tuple[int, ...], ball: SpectralBall, first: SpectralBall | None = None) -> None:
        """Adds the kernel and, if it is projected, its constraint `ball`; `first` projects the initial values."""
        initializer, constraint = self.kernel_initializer, None
        if self.projected:
            initializer, constraint = StartedIn((first or ball).start, initializer), ball
        self.kernel = self.add_weight(shape, initializer, constraint=constraint, name="kernel")

    def refuse_other_constraints(self) -> None:
        super().refuse_other_constraints()
        inherited = type(self).input_lipschitz is KernelLayer.input_lipschitz
        if inherited and self.projected and not hasattr(self.kernel.constraint, "holds"):
            raise ValueError(
                f"The bounds of layer '{self.name}' rest on a kernel that is projected. Received: a "
                f"{type(self).__name__} whose kernel has the constraint {_described(self.kernel.constraint)}, by a "
                "`build` of its own. Leave `build` out and pass kernel_initializer=, or train with a strategy that "
                "clips, such as strategy='dpsgd'."
            )

    def stock_layer(self) -> tuple[keras.layers.Layer | None, list]:
        kernel = ops.convert_to_numpy(self.kernel)
        return keras.layers.Dense(kernel.shape[-1], use_bias=False, name=self.name), [kernel]

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (1.0 if self.projected else float("inf"),)

    def parameter_bounds(self, input_bounds: tuple[float, ...], cotangent_bound: float) -> tuple[float, ...]:
        return (input_bounds[0] * cotangent_bound,)

    def gradient_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int:
        return positions(output_shape, self)

    def output_terms(self, input_shapes: tuple[tuple, ...], output_shape: tuple) -> int | None:
        return of_products(math.prod(self.kernel.shape[:-1]))

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (spectral_norm(ops.convert_to_numpy(self.kernel)),)


class StartedIn(keras.initializers.Initializer):
    """Values of an initializer, brought into a ball.

    In NumPy: one operation at a time, JAX would take half a second. Keras may build a layer while it traces a step.

    Args:
        project: Brings an array into the ball.
        initializer: As of Keras.
    """

    def __init__(self, project: Callable, initializer: Callable):
        self.project, self.initializer = project, initializer

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None) -> Any:
        with backend.concrete():
            values = self.project(ops.convert_to_numpy(self.initializer(shape, dtype=dtype)))
            return ops.convert_to_tensor(values, dtype=dtype or "float32")


def times(factor: float, bound: float) -> float:
    """Returns the product of a constant and a norm bound; 0 * inf is 0, not NaN."""
    return 0.0 if factor == 0 or bound == 0 else factor * bound


def of_products(terms: int) -> int:
    """Returns how many of the terms of a sum of products are added up one after the other, as for `output_terms`.

    Matrix products and convolutions keep several sums at once: four where a row is alone in its batch, else more.
    """
    return -(-terms // 4)


def sizes(name: str, value: Any, rank: int) -> tuple[int, ...]:
    """Returns a positive integer, or `rank` of them, as a tuple of `rank` integers; ValueError otherwise."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) != rank:
        several = "" if rank == 1 else f" or {rank} of them"
        raise ValueError(f"`{name}` must be a positive integer{several}. Received: {name}={value!r}.")
    return tuple(checks.integer(name, v, 1) for v in values)


def integer_between(name: str, value: Any, low: int, high: int) -> int:
    """Returns an integer in [low, high]; ValueError otherwise."""
    if checks.integer(name, value, low) > high:
        raise ValueError(f"`{name}` must be an integer in [{low}, {high}]. Received: {name}={value!r}.")
    return int(value)


def require_channels_last(what: Any) -> None:
    """Refuses the image format of Keras' configuration unless it is channels last, for an object or the name of one."""
    if keras.config.image_data_format() != "channels_last":
        name = what if isinstance(what, str) else type(what).__name__
        raise ValueError(
            f"{name} works on channels-last images only. Received: image_data_format="
            f"{keras.config.image_data_format()!r}. Call keras.config.set_image_data_format('channels_last')."
        )


def refuse_empty(layer: keras.layers.Layer, input_shape: tuple[int | None, ...], sizes: Sequence[int]) -> None:
    """Refuses an input that is smaller than the window of a layer."""
    if any(size is not None and size < 1 for size in sizes):
        raise ValueError(
            f"The window of layer '{layer.name}' does not fit into its input. Received: input shape "
            f"{tuple(input_shape)}. Use a smaller window or a larger input."
        )


def positions(shape: tuple[int | None, ...], layer: keras.layers.Layer) -> int:
    """Returns the number of positions between the batch axis and the last axis; refuses unknown sizes."""
    return entries(shape[:-1], layer)


def entries(shape: tuple[int | None, ...], layer: keras.layers.Layer) -> int:
    """Returns the number of entries of one example; refuses unknown sizes."""
    inner = tuple(shape)[1:]
    if any(size is None for size in inner):
        raise ValueError(
            f"Layer '{layer.name}' needs a known size on every axis but the batch: its bound depends on it. "
            f"Received: input shape {tuple(shape)}. Give the input a full shape."
        )
    return math.prod(inner)
