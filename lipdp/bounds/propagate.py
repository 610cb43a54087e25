"""Scalar bounds through a Keras graph: norms forward, cotangents backward."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import keras
from keras import tree

from lipdp import _keras, checks
from lipdp.bounds.registry import BoundRules, rules
from lipdp.layers.base import LipschitzLayer, entries, times
from lipdp.losses import penalties

# Float32 rounding of one layer, forward and backward, and of its projected kernel.
SLACK = 1e-5
_UNIT = 2.0**-24
# Roundings of the operations around a sum.
_AROUND = 8


@dataclass(frozen=True)
class LayerBounds:
    """One use of a layer: what may enter it, how far it stretches, and its parameters' gradients."""

    layer: keras.layers.Layer = field(repr=False)
    input_bound: float
    lipschitz: float
    cotangent_bound: float
    variables: tuple = field(repr=False, default=())
    gradient_bounds: tuple[float, ...] = ()
    # How many terms an entry of its output adds up, one after the other; None if not known.
    terms: int | None = 1

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def kind(self) -> str:
        return type(self.layer).__name__


@dataclass(frozen=True)
class Bounds:
    """Bounds of a whole model, for one example.

    Attributes:
        layers: One `LayerBounds` per use of a layer, in the order of the graph.
        output_bound: Largest norm of the output; infinite without `BoundedInput`.
        lipschitz: The cotangent bound times a Lipschitz constant of the model; `ClipGradient`, which acts on
            gradients only, does not lower it.
        slack: Factor for float32 rounding, already inside `gradient`.
    """

    layers: tuple[LayerBounds, ...]
    output_bound: float
    lipschitz: float
    slack: float

    def gradient(self, variable: keras.Variable) -> float:
        """Returns the largest gradient norm of a variable, summed over all uses of its layer."""
        bounds = [
            bound
            for layer in self.layers
            for owned, bound in zip(layer.variables, layer.gradient_bounds, strict=True)
            if owned is variable
        ]
        if not bounds:
            raise ValueError(
                f"Variable '{variable.path}' has no gradient bound. Pass a variable of a layer of this model."
            )
        return sum(bounds) * self.slack


def propagate(
    model: keras.Model, cotangent: float, *, trained: bool = False, input_bound: float = float("inf")
) -> Bounds:
    """Bounds every gradient of a Sequential or functional model, for any example and allowed weights.

    Args:
        model: A built `keras.Sequential` or functional `keras.Model` with one output; nested models and
            layers used several times are followed.
        cotangent: Largest norm of one example's loss gradient at the output (`loss.lipschitz`).
        trained: Use the spectral norms of the present weights instead of the constraint's. Such bounds
            serve certificates: they hold no gradients.
        input_bound: Largest norm of each input, where it is known; private data need `BoundedInput`.

    Returns:
        A `Bounds`.

    Raises:
        ValueError: a layer without bounds, or whose weights have other constraints than it gave them; a trainable
            layer without `BoundedInput` upstream; a gradient that has to pass a layer without a Lipschitz constant; a
            precision other than float32.

    **Guarantee.** If each layer's bounds hold, `gradient(v)` bounds the norm of one example's gradient of v.
    Forward: `output_bound`. Backward (chain rule): the cotangent of a tensor is at most the sum, over the layers that
    read it, of their Lipschitz constant times their own cotangent; a layer used several times adds the bounds of its
    uses (triangle inequality). Float32 rounding: a factor (1 + 1e-5)^2 per use of a layer, forward and backward, models
    that of products and short sums as independent errors (`norms.project` says what that leaves out). An entry of a
    parameter's gradient that sums n terms over the positions of an example is charged the worst order of summation:
    its error is at most ((1 + u)^n - 1) times the sum of absolute values, u = 2^-24, and what bounds the gradient by
    Cauchy-Schwarz bounds the sum of absolute values too. A gradient does not pass through its own layer, so that
    layer's factor pays for the first 327 terms, and exp((n + 8) u) for more. The same is charged, forward and backward,
    for an output whose entries sum n terms one after the other, as averages over all places of an image do. Not
    covered: losses that mix examples; the rounding that other examples of a batch add to the same sum.

    Example:
        >>> import keras
        >>> from lipdp import bounds, layers
        >>> model = keras.Sequential([keras.Input((4,)), layers.BoundedInput(norm=2.0),
        ...                           layers.SpectralDense(3)])
        >>> round(bounds.propagate(model, 0.5).gradient(model.weights[0]), 3)
        1.0
    """
    cotangent = checks.not_negative("cotangent", cotangent)
    graph = _Graph(model)
    inputs = len(graph.functional.inputs)
    output_bound, _ = graph.forward((float(input_bound),) * inputs, (False,) * inputs, trained)
    input_cotangents = graph.backward(cotangent, trained, clipped=False)
    if not trained:
        graph.backward(cotangent, trained, clipped=True)
    uses = tuple(graph.uses())
    return Bounds(uses, output_bound, sum(input_cotangents), (1.0 + SLACK) ** (2 * len(uses)))


def disproportionate(model: keras.Model, cotangent: float, share: float) -> keras.Variable | None:
    """Returns a variable whose bound does not shrink to `share` with the cotangent of the loss; None where all do.

    A layer that clips what passes it lets so much through for a small cotangent as for a large one.
    """
    whole, part = propagate(model, cotangent), propagate(model, cotangent * share)
    for variable in model.trainable_variables:
        if part.gradient(variable) > whole.gradient(variable) * share * (1.0 + 1e-9):
            return variable
    return None


class _Graph:
    """One functional graph; a nested model is a node that holds a graph of its own."""

    def __init__(self, model):
        self.functional = functional(model)
        if len(self.functional.outputs) != 1:
            raise ValueError(
                f"Bounds are defined for models with one output. Received: model '{model.name}' with "
                f"{len(self.functional.outputs)} outputs."
            )
        self.nodes = [_Node(node) for node in _keras.nodes(self.functional)]

    def forward(self, input_bounds: tuple[float, ...], trains: tuple[bool, ...], trained: bool) -> tuple[float, bool]:
        """Returns norm of the output, and whether anything upstream of it trains, given both for the inputs."""
        known = {
            id(t): (bound, trains)
            for t, bound, trains in zip(self.functional.inputs, input_bounds, trains, strict=True)
        }
        stretching = {}  # by tensor without a bound: the layer behind which there is none any more
        for node in self.nodes:
            norms, upstream = zip(*(known[t] for t in node.inputs), strict=True)
            node.stretched_by = next((stretching[t] for t in node.inputs if t in stretching), None)
            known[node.output] = node.forward(norms, upstream, trained)
            if known[node.output][0] == float("inf"):
                bounded = max(norms) < float("inf")
                stretching[node.output] = node.operation if bounded else node.stretched_by
        return known[id(self.functional.outputs[0])]

    def backward(self, cotangent: float, trained: bool, clipped: bool) -> tuple[float, ...]:
        cotangents = {id(self.functional.outputs[0]): cotangent}
        for node in reversed(self.nodes):
            # A node off the path to the output has no cotangent.
            received = node.backward(cotangents.get(node.output, 0.0), trained, clipped)
            for tensor, value in zip(node.inputs, received, strict=True):
                cotangents[tensor] = cotangents.get(tensor, 0.0) + value
        return tuple(cotangents.get(id(t), 0.0) for t in self.functional.inputs)

    def uses(self):
        for node in self.nodes:
            yield from node.inner.uses() if node.inner else (node.use,)


class _Node:
    """One use of a layer."""

    def __init__(self, node):
        self.operation, self.stretched_by = node.operation, None
        self._present: tuple[float, ...] | None = None
        self.inputs = [id(t) for t in node.input_tensors]
        if len(node.output_tensors) != 1:
            raise ValueError(
                f"Layer '{self.operation.name}' has {len(node.output_tensors)} outputs; bounds are defined for one."
            )
        self.output = id(node.output_tensors[0])
        self.shapes = tuple(tuple(t.shape) for t in node.input_tensors), tuple(node.output_tensors[0].shape)
        self.inner = _Graph(self.operation) if isinstance(self.operation, keras.Model) else None
        if self.inner:
            _refuse_named_inputs(node, self.inner.functional)
            refuse_rounded(self.inner.functional, [t.dtype for t in node.input_tensors])
        self.rules: BoundRules | None = None if self.inner else rules(self.operation)
        self.terms = self._output_terms()
        _refuse_call(node)
        policy = getattr(self.operation, "dtype_policy", None)
        if policy is not None and policy.compute_dtype != "float32":
            raise ValueError(
                f"Layer '{self.operation.name}' computes in {policy.compute_dtype}, where rounding breaks "
                "the norm bounds. Use float32: keras.config.set_dtype_policy('float32')."
            )

    def forward(self, input_bounds, trains, trained):
        self.input_bounds = input_bounds
        if self.inner:
            return self.inner.forward(input_bounds, trains, trained)
        if self.rules.refusal and any(trains) and not trained:
            raise self.rules.refusal
        if isinstance(self.operation, LipschitzLayer) and not trained:
            self.operation.refuse_other_constraints()
        here = bool(getattr(self.operation, "trainable_variables", ()))
        growth = 1.0 if trained else _excess(self.terms or 1)
        return times(growth, self._norm(input_bounds, trained)), here or any(trains)

    def _norm(self, input_bounds, trained):
        bound = self.rules.output_bound(input_bounds)
        if not trained or max(input_bounds) == float("inf"):
            return bound
        if self.rules.trained_output_bound:
            # Weights that were set by hand may be longer than the constraint allows.
            return self.rules.trained_output_bound(input_bounds)
        present = self._present_lipschitz()
        if bound == float("inf"):
            # A layer without projection: only its present norm is known.
            return sum(map(times, present, input_bounds))
        allowed = self.rules.input_lipschitz(input_bounds)
        longer = zip(present, allowed, input_bounds, strict=True)
        return bound + sum(times(now - most, norm) for now, most, norm in longer if now > most)

    def _present_lipschitz(self) -> tuple[float, ...]:
        """Returns the constants of the present weights, whose norms are computed once."""
        if self._present is None:
            self._present = self.rules.trained_lipschitz(self.input_bounds)
        return self._present

    def backward(self, cotangent, trained, clipped):
        if self.inner:
            return self.inner.backward(cotangent, trained, clipped)
        lipschitz = self._present_lipschitz() if trained else self.rules.input_lipschitz(self.input_bounds)
        growth = 1.0 if trained else _excess(self.terms or 1)
        lipschitz = tuple(times(growth, constant) for constant in lipschitz)
        variables, gradients = self._parameters(cotangent) if clipped else ((), ())
        norms = {"input_bound": max(self.input_bounds), "lipschitz": max(lipschitz), "cotangent_bound": cotangent}
        own = {"variables": variables, "gradient_bounds": gradients, "terms": self.terms}
        self.use = LayerBounds(self.operation, **norms, **own)
        if clipped and self.rules.cotangent_bounds:
            return tuple(times(growth, c) for c in self.rules.cotangent_bounds(self.input_bounds, cotangent))
        return tuple(times(constant, cotangent) for constant in lipschitz)

    def _parameters(self, cotangent):
        layer = self.operation
        variables = tuple(getattr(layer, "trainable_variables", ()))
        if not variables:
            return (), ()
        if not cotangent < float("inf"):
            raise ValueError(
                f"The gradient of layer '{layer.name}' passes a layer without a Lipschitz constant, such as "
                "BoundedInput(mode='normalize'), a layer with projected=False, a keras.layers.Dense or a frozen layer "
                "without bounds. Keep such layers before the first trainable one, or among the first."
            )
        gradients = self.rules.parameter_bounds(self.input_bounds, cotangent)
        if not all(g < float("inf") for g in gradients):
            raise ValueError(f"Layer '{layer.name}' trains on inputs of unbounded norm. {self._way_out()}")
        if len(gradients) != len(variables):
            raise ValueError(
                f"Layer '{layer.name}' bounds {len(gradients)} gradients but has {len(variables)} trainable variables."
            )
        rounding = self._rounding()
        return variables, tuple(float(g) * rounding for g in gradients)

    def _way_out(self) -> str:
        if self.stretched_by is None:
            return "Put lipdp.layers.BoundedInput before the first trainable layer."
        name = f"'{self.stretched_by.name}' ({type(self.stretched_by).__name__})"
        own = type(self.stretched_by).__module__.startswith("lipdp.")
        other = "" if own else ", or use a layer of lipdp.layers, such as SpectralDense, in its place"
        return (
            f"Layer {name} in front of it may stretch them without limit. Put lipdp.layers.BoundedInput between the "
            f"two{other}."
        )

    def _rounding(self):
        """What sums over many positions may add to a gradient, beyond the slack of its own layer."""
        inputs, output = self.shapes
        if self.rules.gradient_terms is not None:
            terms = self.rules.gradient_terms(inputs, output)
        else:
            terms = max(entries(shape, self.operation) for shape in (*inputs, output))
        return _excess(terms)

    def _output_terms(self) -> int | None:
        """How many terms an entry of the output adds up; None where that is not known."""
        rules = self.rules
        return 1 if rules is None or rules.output_terms is None else rules.output_terms(*self.shapes)


def _excess(terms: int) -> float:
    """Returns by how much a sum of so many terms may be off beyond the slack of its layer, as a factor."""
    return max(1.0, math.exp((terms + _AROUND) * _UNIT) / (1.0 + SLACK) ** 2)


def _refuse_call(node) -> None:
    """A layer's bounds are about its input tensors alone: masks and constants change what it computes."""
    arguments, layer = node.arguments, node.operation
    others = [v for v in tree.flatten(arguments.args) if not isinstance(v, (keras.KerasTensor, type(None)))]
    if isinstance(layer, keras.Layer) and type(layer).__module__.partition(".")[0] in ("keras", "lipdp"):
        # Theirs take one input, or a list of them: what comes second is a mask or a state.
        others += [v for v in arguments.args[1:] if isinstance(v, keras.KerasTensor)]
    others += [v for v in tree.flatten(arguments.kwargs) if not isinstance(v, (bool, type(None)))]
    if others:
        raise ValueError(
            f"Layer '{layer.name}' is called on constants or with a mask, which no bound covers. Received, besides its "
            f"input tensors: {', '.join(type(v).__name__ for v in others)}."
        )
    if getattr(layer, "activity_regularizer", None) is not None:
        raise ValueError(
            f"Layer '{layer.name}' adds a regularizer of its outputs to the loss, whose gradient has no bound. Remove "
            "it from the layer's configuration."
        )
    for variable in getattr(layer, "variables", ()):
        penalties.check(variable)


def _refuse_named_inputs(node, graph) -> None:
    """Named inputs are matched in another order than the one in which the graph lists them."""
    inputs = node.arguments.args[0] if node.arguments.args else None
    if len(graph.inputs) > 1 and not (
        isinstance(inputs, (list, tuple)) and isinstance(_keras.structures(graph)[0], (list, tuple))
    ):
        raise ValueError(
            f"Model '{node.operation.name}' has several inputs; inside another model it is read as a list. Received: "
            f"{type(inputs).__name__}. Build it and call it with a list of tensors."
        )


def refuse_rounded(graph: keras.Model, given: Sequence[str] = ()) -> None:
    """Refuses inputs that Keras rounds, or cuts to whole numbers, before the first layer: no bound covers the jump.

    Args:
        graph: A functional model.
        given: Types of what it is called on; inputs of the same type are not rounded.
    """
    for i, tensor in enumerate(graph.inputs):
        if tensor.dtype not in ("float32", "float64", *given[i : i + 1]):
            raise ValueError(
                f"Numbers are rounded on their way into model '{graph.name}', which no bound covers. Received: an "
                f"input of dtype {tensor.dtype}. Build the model with keras.Input in float32 of the same layers, which "
                "bring weights and ledger along: if it is Sequential, keras.Sequential([keras.Input(shape), "
                "*model.layers])."
            )


def functional(model: keras.Model) -> keras.Model:
    """Returns the functional graph behind a Sequential or functional model."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Bounds, certificates and exports need a Keras model. Received: {type(model).__name__}. Pass one, "
            "or read a file with keras.saving.load_model first."
        )
    if _keras.has_own_call(model):
        raise ValueError(
            f"Model '{model.name}' has a `call` of its own, which its graph does not show. Received: "
            f"{type(model).__name__}. Use a Sequential or functional model, or a lipdp.layers.LipschitzLayer."
        )
    graph = _keras.graph(model)
    if graph is None:
        unbuilt = " that is not built: give its first layer an input shape"
        raise ValueError(
            f"Model '{model.name}' has no graph to read bounds from. Received: {type(model).__name__}"
            f"{unbuilt if isinstance(model, keras.Sequential) else ''}. Use a Sequential or functional model."
        )
    return graph
