"""Registry of layer bounds: those a layer carries itself, or an entry here by type."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras

from lipdp import _keras, checks
from lipdp.layers.base import LipschitzLayer, times
from lipdp.layers.released import ReleasedConstants
from lipdp.layers.unbounded import Unbounded

Norms = tuple[float, ...]


@dataclass(frozen=True)
class BoundRules:
    """The bounds of one layer, as functions of norm bounds (see `LipschitzLayer`).

    `cotangent_bounds` is for layers whose backward pass is not the derivative of the forward pass; without it the
    cotangent is multiplied by `input_lipschitz`. `trained_output_bound` is for layers that do not map zero to zero, and
    whose output is bounded only for the present weights, or otherwise for these. `refusal` says why a layer may stand
    only where nothing trainable lies upstream. `gradient_terms` is that of `LipschitzLayer`; without it, an entry of a
    gradient is taken to sum as many terms as the largest input or output has entries. `output_terms` is that of
    `LipschitzLayer` too; without it, 1.
    """

    output_bound: Callable[[Norms], float]
    input_lipschitz: Callable[[Norms], Norms]
    parameter_bounds: Callable[[Norms, float], Norms]
    trained_lipschitz: Callable[[Norms], Norms]
    cotangent_bounds: Callable[[Norms, float], Norms] | None = None
    trained_output_bound: Callable[[Norms], float] | None = None
    refusal: ValueError | None = None
    gradient_terms: Callable[[tuple[tuple, ...], tuple], int] | None = None
    output_terms: Callable[[tuple[tuple, ...], tuple], int | None] | None = None


_ENTRIES: dict[type, Callable] = {}
_REPLACEMENTS: dict[str, str] = {
    **{
        kind: f"lipdp.layers.Spectral{kind}, followed by lipdp.layers.Bias and lipdp.layers.Abs"
        for kind in (
            *("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D"),
            *("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
        )
    },
    "StandardizedConv2D": "lipdp.layers.SpectralConv2D, followed by lipdp.layers.Bias and lipdp.layers.Abs",
    "Embedding": "lipdp.layers.BoundedEmbedding",
    "Weight": "lipdp.layers.Bias",
    "SeparableConv2D": "lipdp.layers.SpectralDepthwiseConv2D, then lipdp.layers.SpectralConv2D with kernel size 1",
    "Dense": "lipdp.layers.SpectralDense, followed by lipdp.layers.Bias and lipdp.layers.Abs",
    "BatchNormalization": "lipdp.layers.LayerCentering (batch statistics mix examples)",
    "LayerNormalization": "lipdp.layers.LayerCentering (division by a variance is not Lipschitz)",
    "GroupNormalization": "lipdp.layers.LayerCentering (division by a variance is not Lipschitz)",
    "RMSNormalization": "lipdp.layers.BoundedInput",
    "UnitNormalization": "lipdp.layers.BoundedInput",
    "Normalization": "keras.layers.Rescaling with public constants",
    "PReLU": "lipdp.layers.Abs",
    "Multiply": "lipdp.layers.Add (a product is not Lipschitz)",
    "Lambda": "a layer with bounds: subclass lipdp.layers.LipschitzLayer",
}


# Packages that are known by name, so that they need not be imported: entries and replacements by class name.
_FAMILIES: dict[str, tuple[dict, dict]] = {}


def register_family(package: str, entries: dict[str, Callable], replacements: dict[str, str]) -> None:
    """Registers entries for the classes of a package, by their names, and what to use in place of those without."""
    _FAMILIES[package] = (entries, replacements)


def register(
    layer_type: type,
    entry: Callable | None = None,
    *,
    output_bound: Callable | None = None,
    input_lipschitz: Callable | None = None,
    parameter_bounds: Callable | None = None,
) -> Any:
    """Declares the bounds of a layer type that cannot carry them itself.

    Args:
        layer_type: A `keras.layers.Layer` class. The exact type is matched: a subclass may compute
            something else, so it does not inherit the entry.
        entry: Function of one layer instance. It returns a float, the Lipschitz constant of a
            parameter-free layer that maps zero to zero, or a full `BoundRules`; it raises `ValueError` for
            a configuration without a bound. Without it and the next three, `register` is a decorator.
        output_bound: In place of `entry`, three functions whose first argument is the layer. This one: from
            the norm bounds of the inputs, a tuple, to that of the output.
        input_lipschitz: From the norm bounds of the inputs to a tuple of Lipschitz constants.
        parameter_bounds: From the norm bounds of the inputs and one of the cotangent to a tuple of gradient bounds,
            one per trainable variable. Default: no trainable variables.

    Raises:
        ValueError: only one of `output_bound` and `input_lipschitz` is given, or `entry` beside them.

    **Guarantee.** None of its own: what is declared is trusted, and a bound that is too small makes epsilon too
    small. Prove it, and let `check` search for a violation.

    Example:
        >>> import keras
        >>> from lipdp import bounds
        >>> class Half(keras.layers.Layer):
        ...     def call(self, inputs):
        ...         return 0.5 * inputs
        >>> bounds.register(Half, lambda layer: 0.5)
        >>> bounds.rules(Half()).output_bound((4.0,))
        2.0
        >>> class Scale(keras.layers.Layer):
        ...     def build(self, input_shape):
        ...         self.scale = self.add_weight(shape=(), constraint=keras.constraints.MaxNorm(1.0, axis=None))
        ...     def call(self, inputs):
        ...         return self.scale * inputs
        >>> bounds.register(
        ...     Scale,
        ...     output_bound=lambda layer, inputs: inputs[0],
        ...     input_lipschitz=lambda layer, inputs: (1.0,),
        ...     parameter_bounds=lambda layer, inputs, cotangent: (inputs[0] * cotangent,),
        ... )
        >>> bounds.rules(Scale()).parameter_bounds((2.0,), 3.0)
        (6.0,)
    """
    three = (output_bound, input_lipschitz)
    if entry is None and three == (None, None):
        return lambda function: register(layer_type, function) or function
    if (entry is not None and three != (None, None)) or (entry is None and None in three):
        raise ValueError(
            "`register` takes one function of the layer, or both `output_bound` and `input_lipschitz`. Received: "
            f"entry={entry!r}, output_bound={output_bound!r}, input_lipschitz={input_lipschitz!r}."
        )
    _ENTRIES[layer_type] = entry or _three(output_bound, input_lipschitz, parameter_bounds)
    return None


def _three(output_bound, input_lipschitz, parameter_bounds) -> Callable:
    def entry(layer):
        def parameters(bounds, cotangent):
            return () if parameter_bounds is None else parameter_bounds(layer, bounds, cotangent)

        def lipschitz(bounds):
            return input_lipschitz(layer, bounds)

        return BoundRules(lambda bounds: output_bound(layer, bounds), lipschitz, parameters, lipschitz)

    entry.__module__ = output_bound.__module__  # where it was declared
    return entry


def declared(model: keras.Model, loss: Any) -> tuple[str, ...]:
    """Returns the names of the classes of layers, and of the loss, whose bounds the user has declared."""
    kinds = {type(layer) for layer in _keras.walk(model)}
    own = {kind for kind in kinds if issubclass(kind, LipschitzLayer) and _root(kind) != "lipdp"}
    own |= {kind for kind in kinds if kind in _ENTRIES and _root(_ENTRIES[kind]) != "lipdp"}
    if _root(type(loss)) not in ("keras", "lipdp"):
        own.add(type(loss))
    return tuple(sorted(kind.__name__ for kind in own))


def _root(thing: Any) -> str:
    return str(getattr(thing, "__module__", None)).split(".")[0]


def rules(layer: keras.layers.Layer) -> BoundRules:
    """Returns the bounds of a layer or operation.

    Raises:
        ValueError: no bound is registered for it; the message names it and what to use instead.
    """
    return _signed(_rules(layer), layer)


def _signed(found: BoundRules, layer: Any) -> BoundRules:
    """Returns rules that refuse a bound below 0 or NaN: a sum would be too small by it, and the noise too."""
    where = f"for layer '{getattr(layer, 'name', layer)}' of type {type(layer).__name__}"

    def checked(name, function):
        def run(norms, *more):
            bounds = function(norms, *more)
            if name in _ONE_NUMBER:
                valid = _is_bound(bounds)
            else:
                valid = isinstance(bounds, (tuple, list)) and all(map(_is_bound, bounds))
                valid = valid and (name == "parameter_bounds" or len(bounds) == len(norms))
            if not valid:
                each = "each trainable variable" if name == "parameter_bounds" else "each input"
                form = "a number" if name in _ONE_NUMBER else f"a tuple of one number for {each}"
                raise ValueError(
                    f"A bound is a number that is at least 0, as the norm of a factor -0.9 is 0.9; `{name}` returns "
                    f"{form}. Received: {bounds!r} {where}. Declare the absolute value of a factor, or math.inf where "
                    "nothing is known."
                )
            return bounds

        return run

    given = {name: getattr(found, name) for name in (*_ONE_NUMBER, *_ONE_PER_TENSOR)}
    return replace(found, **{name: checked(name, function) for name, function in given.items() if function is not None})


_ONE_NUMBER = ("output_bound", "trained_output_bound")
_ONE_PER_TENSOR = ("input_lipschitz", "parameter_bounds", "trained_lipschitz", "cotangent_bounds")
_BOUNDS = (*_ONE_PER_TENSOR, *_ONE_NUMBER, "gradient_terms", "output_terms")


def _is_bound(value: Any) -> bool:
    try:
        return float(value) >= 0.0  # NaN is not
    except (TypeError, ValueError):
        return False


def _rules(layer: keras.layers.Layer) -> BoundRules:
    _refuse_replaced(layer)
    if isinstance(layer, LipschitzLayer):
        _refuse_inherited(layer)
        return BoundRules(
            layer.output_bound,
            layer.input_lipschitz,
            layer.parameter_bounds,
            layer.trained_lipschitz,
            layer.cotangent_bounds,
            gradient_terms=layer.gradient_terms,
            output_terms=layer.output_terms,
            trained_output_bound=getattr(layer, "trained_output_bound", None),
        )
    from lipdp.bounds.frozen import frozen

    kind = type(layer)
    entry = _ENTRIES.get(kind)
    for package, (entries, _) in _FAMILIES.items():
        if kind.__module__.startswith(package + "."):
            entry = entries.get(kind.__name__)
    try:
        if entry is None:
            raise ValueError(unknown(layer))
        return _as_rules(entry(layer), layer)
    except ValueError as refusal:
        # A frozen layer of a backbone needs no bound.
        backbone = frozen(layer, refusal)
        if backbone is None:
            raise
        return backbone


def _refuse_inherited(layer: LipschitzLayer) -> None:
    """Refuses a class of the user's that computes something else than a layer of lipdp, with the bounds of that one."""
    kinds = type(layer).__mro__
    kinds = kinds[: kinds.index(LipschitzLayer)]
    computing, *others = [kind for kind in kinds if "call" in vars(kind)] or [LipschitzLayer]
    made_of = next((kind for kind in others if _root(kind) == "lipdp"), None)
    if made_of is None or _root(computing) == "lipdp":
        return
    stated = {name for kind in kinds if issubclass(kind, computing) for name in vars(kind)}
    inherited = {name for kind in kinds if _root(kind) == "lipdp" for name in vars(kind)}
    missing = [name for name in _BOUNDS if name in ("input_lipschitz", *inherited) and name not in stated]
    if missing:
        raise ValueError(
            f"The bounds of {made_of.__name__} do not follow what a class that is made of it computes. Received: layer "
            f"'{layer.name}' of type {type(layer).__name__}, with a `call` of its own. Override "
            f"{', '.join(f'`{name}`' for name in missing)}, or put what it does into a lipdp.layers.LipschitzLayer "
            "that states its own."
        )


def _refuse_replaced(layer: keras.layers.Layer) -> None:
    """Refuses a layer that may compute something else than its class, whose bounds are known."""
    if _root(type(layer)) not in ("keras", "lipdp", *(package.split(".")[0] for package in _FAMILIES)):
        return  # a user's own, whose bounds count as declared
    if found := checks.replaced(layer):
        where = "an object" if found[0] in vars(layer) else "a class"
        raise ValueError(
            f"The bounds of layer '{layer.name}' are those of {type(layer).__name__}, and do not follow what was put "
            f"in the place of its methods. Received: {where} with a `{found[0]}` of its own. Write a subclass of "
            "lipdp.layers.LipschitzLayer that states its bounds."
        )


def lipschitz_by_construction(model: keras.Model) -> bool:
    """Whether a model has a layer of lipdp with a constant, or a trainable one whose bounds were registered."""
    return any(
        _is_lipschitz(layer) or is_registered(layer) and bool(layer.trainable_variables) for layer in _keras.walk(model)
    )


def _is_lipschitz(layer) -> bool:
    # These stand in front of ordinary networks as well.
    return isinstance(layer, LipschitzLayer) and not isinstance(layer, (Unbounded, ReleasedConstants))


def is_registered(layer: keras.layers.Layer) -> bool:
    """Whether bounds were registered for a layer of a user's: Keras' own have bounds where nothing trains them."""
    return _root(type(layer)) not in ("keras", "lipdp") and type(layer) in _ENTRIES


def _as_rules(entry, layer) -> BoundRules:
    if isinstance(entry, BoundRules):
        return entry
    try:
        constant = float(entry)
    except (TypeError, ValueError):
        raise ValueError(
            "The function given to lipdp.bounds.register returns a number or a BoundRules. Received: "
            f"{entry!r} for layer '{layer.name}' of type {type(layer).__name__}."
        ) from None
    return parameter_free(lambda bounds: (constant,) * len(bounds))


def parameter_free(
    lipschitz: Callable[[Norms], Norms], output_bound: Callable | None = None, terms: int | None = 1
) -> BoundRules:
    """Returns the bounds of a layer without parameters; by default it maps zero to zero and adds over its inputs.

    `terms` is what `LipschitzLayer.output_terms` returns.
    """

    def added(bounds):
        return sum(times(c, x) for c, x in zip(lipschitz(bounds), bounds, strict=True))

    own = (output_bound or added, lipschitz, lambda bounds, cotangent: (), lipschitz)
    return BoundRules(*own, output_terms=lambda inputs, output: terms)


def unknown(layer: keras.layers.Layer) -> str:
    """Returns the message that no bound is registered for a layer, and what to use in its place."""
    kind = type(layer).__name__
    is_layer = isinstance(layer, keras.layers.Layer)
    name = f"Layer '{layer.name}' of type {kind}" if is_layer else f"Operation '{kind}'"
    default = (
        "a layer of lipdp.layers, or declare a proven bound with lipdp.bounds.register"
        if is_layer
        else "the layer of lipdp.layers that does the same (raw operations carry no bound, nor does what lipdp.export "
        "returns)"
    )
    replacements = _REPLACEMENTS
    for package, (_, family) in _FAMILIES.items():
        if type(layer).__module__.startswith(package + "."):
            replacements = family
    return (
        f"{name} has no sensitivity bound, which certificates and training without clipping need. "
        f"Use instead: {replacements.get(kind, default)}."
    )
