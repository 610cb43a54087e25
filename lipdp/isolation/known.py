"""Which operations are known to keep the rows of a batch apart; all others run one row at a time."""

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import layers as L
from keras import ops, tree

from lipdp import _keras
from lipdp.isolation.declared import declared, is_declared

# Where users put functions into layers of Keras.
FUNCTIONS = ("activation", "recurrent_activation")
# Methods that Keras wraps, once for each layer.
_WRAPPED = ("build", "quantize")
# Activations along the last axis, which is the batch where there is no other.
_ALONG_LAST = ("softmax", "log_softmax", "glu", "sparsemax")
# Operations that users take for activations.
_OPS = ("elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus", "tanh")
# Packages that are known by name, so that they need not be imported.
_FAMILIES: dict[str, tuple[frozenset, str]] = {}


def trust_family(package: str, names: Iterable[str], release: str = "") -> None:
    """Declares that some classes and functions of a package keep the rows apart.

    They do as long as the layers inside of them do, and the functions that they hold are activations of Keras.

    Args:
        package: Its name.
        names: Their names within the package, as "src.layers.Block", or the last part alone, "Block".
        release: How the versions of the package begin in which this is known.
    """
    _FAMILIES[package] = frozenset(names), release


def root(thing: Any) -> str:
    """Returns the name of the package that a class or function comes from."""
    return str(getattr(thing, "__module__", None)).split(".")[0]


def stock_activation(activation: Callable | None) -> bool:
    """Whether it is one of Keras' own, which work on one example; a function of the user's may mix them."""
    name = getattr(activation, "__name__", None)
    return activation is None or (name in vars(keras.activations) and keras.activations.get(name) is activation)


def foreign(model: keras.Model) -> list:
    """Returns the operations of a model that are not known to keep the rows of a batch apart, with their calls.

    Returns:
        Pairs of an operation and a list of its nodes in the graph. A layer that holds such a layer is one itself, and
        what is inside of it is not listed; so is a model with a `call` of its own.
    """
    found: dict[int, tuple] = {}

    def visit(model):
        graph = _keras.graph(model)
        if graph is None or not _follows_graph(model):
            found.setdefault(id(model), (model, []))
            return
        for node in _keras.nodes(graph):
            operation = node.operation
            if isinstance(operation, keras.Model):
                visit(operation)
                continue
            ranks = frozenset(len(use.inputs[0]) for use in _keras.uses(operation) if use.inputs)
            if not _keeps_apart(operation, node, ranks):
                found.setdefault(id(operation), (operation, []))[1].append(node)

    visit(model)
    return list(found.values())


def suspects(model: keras.Model) -> str:
    """Returns names and types of the layers that may mix rows, for messages; "" where there are none."""
    return ", ".join(f"'{operation.name}' ({type(operation).__name__})" for operation, _ in foreign(model))


def advice(operation: Any) -> str:
    """Returns what to do about images without channels and masks for all rows of a batch at once, and "" else."""
    if _LAYERS.get(type(operation)) is _attends_within:
        masks = [tuple(mask.shape) for mask in _keras.passed(operation, "attention_mask")]
        flat = next((shape[1:] for shape in masks if len(shape) == 2), None)
        if flat is None:
            return ""
        return (
            f"Layer '{operation.name}' ({type(operation).__name__}) takes a mask of two axes for one that all rows of "
            f"the batch share. Received: a mask with rows of shape {flat}. Give each row its own, (queries, keys): "
            "attention_mask=mask[:, None, :] hides keys."
        )
    shapes = [use.inputs[0] for use in _keras.uses(operation)] if _LAYERS.get(type(operation)) is _images else []
    found = next((shape[1:] for shape in shapes if len(shape) == 3), None)
    if found is None:
        return ""
    return (
        f"Layer '{operation.name}' ({type(operation).__name__}) takes images with channels; without, it takes a whole "
        f"batch for one image. Received: rows of shape {found}. Add an axis: keras.layers.Reshape({(*found, 1)}) in "
        f"front of it, or keras.Input({(*found, 1)})."
    )


def used(model: keras.Model, *others: Any) -> tuple[str, ...]:
    """Returns the names of all that a model, and objects or functions beside it, use and that was declared."""
    operations = _keras.walk(model, include_self=True)
    for layer in list(operations):
        graph = _keras.graph(layer) if isinstance(layer, keras.Model) else None
        operations += [node.operation for node in _keras.nodes(graph)] if graph is not None else []
    names = (*FUNCTIONS, "function", "mask")
    functions = [getattr(operation, name, None) for operation in operations for name in names]
    return declared([*map(type, operations), *functions, *others, *map(type, others)])


def _follows_graph(model) -> bool:
    """Whether a model computes what its graph says."""
    own = [name for name in ("__call__", "compute_mask") if _defined_by_user(model, name)]
    return not (_keras.has_own_call(model) or own or "call" in vars(model))


def _defined_by_user(operation, name: str) -> bool:
    source = next((c for c in type(operation).__mro__ if name in vars(c)), object)
    return source is not object and root(source) not in ("keras", "lipdp")


def _keeps_apart(operation, node=None, ranks=frozenset()) -> bool:
    """Whether row i of what an operation returns is known to depend on row i of its inputs only.

    `ranks` are those of its first input, in all of its calls. Inside of another layer they are rarely known: none.
    """
    if isinstance(operation, keras.Model):
        return not foreign(operation)
    kind, name = type(operation), _keras.operation_name(operation)
    if "call" in vars(operation):
        return False
    if name is not None:
        return node is not None and _operation(name, operation, node)
    if not isinstance(operation, keras.Layer):
        return is_declared(kind)  # an operation of the user's
    inner, less = _keras.walk(operation, deep=False), int(kind is L.TimeDistributed)
    within = frozenset(r - less for r in ranks if less or kind in (L.RandomColorJitter, L.Pipeline))
    if not all(_keeps_apart(layer, None, within) for layer in inner):
        return False
    if is_declared(kind):
        return True
    if root(kind) != "lipdp" and not _rule(operation, kind, ranks):
        return False
    return not _shadows(operation) and all(_is_harmless(part, inner) for part in _held(operation))


def _rule(layer, kind, ranks) -> bool:
    """Whether the type of a layer is known, and its configuration keeps rows apart."""
    if _of_family(kind):
        axes = [getattr(layer, name, 1) for name in ("axis", "feature_axis", "sequence_axis")]
        if kind.__name__ == "DeiTEncoder" and any(len(use.inputs) > 1 for use in _keras.uses(layer)):
            return False  # it takes the masks of block i from place i, where rows are
        above = [_LAYERS[c] for c in kind.__mro__ if c in _LAYERS]
        return _elsewhere(axes, ranks) and all(rule(layer, ranks) for rule in above)
    return kind in _LAYERS and _LAYERS[kind](layer, ranks) and all(_function(layer, name) for name in FUNCTIONS)


def _shadows(layer) -> bool:
    """Whether a method was replaced on the object alone."""
    names = set(vars(layer)) - set(_WRAPPED)
    return any(inspect.isroutine(getattr(type(layer), name, None)) for name in names)


def _held(layer) -> list:
    """Returns what a layer holds, out of lists and dictionaries, but for the functions that its rule looks at."""
    seen = (*_WRAPPED, *(() if _of_family(type(layer)) else (*FUNCTIONS, "function", "mask")))
    left, found = [value for name, value in vars(layer).items() if name not in seen], []
    while left:
        value = left.pop()
        if isinstance(value, (list, tuple, set, dict)):
            left.extend(value.values() if isinstance(value, dict) else value)
        else:
            found.append(value)
    return found


def _is_harmless(part, inner) -> bool:
    """Whether what a layer holds is no code, or known code: it may be called on the rows of a batch."""
    if isinstance(part, keras.Layer):
        return any(part is layer for layer in inner)
    if isinstance(part, keras.Operation):
        return False
    if type(part) is keras.quantizers.AbsMaxQuantizer:
        return part.axis is None  # the layer says along which axes, and gives each row a scale of its own
    return not callable(part) or isinstance(part, _OF_WEIGHTS) or _entrywise(part)


def _function(layer, attribute: str) -> bool:
    """Whether a function that a layer of Keras calls keeps rows apart."""
    function = getattr(layer, attribute, None)
    if is_declared(function) or _entrywise(function):
        return True
    if isinstance(function, L.Softmax) and _keras.is_masked(layer):
        return False  # it reads the mask off its input
    several = 1 not in [len(u.outputs[0]) for u in _keras.uses(layer)]
    return several and (_keeps_apart(function) if isinstance(function, keras.Operation) else stock_activation(function))


def _entrywise(function) -> bool:
    """Whether a function is known to work on each entry alone."""
    name = getattr(function, "__name__", None)
    if name in _ALONG_LAST:
        return False
    return stock_activation(function) or _of_family(function) or name in _OPS and getattr(ops, name) is function


def _of_family(thing) -> bool:
    """Whether a class or function is a listed one of a family: the very one of its module, whatever it is called."""
    module, name = str(getattr(thing, "__module__", None)), getattr(thing, "__name__", None)
    if name is None or getattr(sys.modules.get(module), name, None) is not thing:
        return False
    for package, (names, release) in _FAMILIES.items():
        if module.startswith(package + ".") and {name, f"{module}.{name}"[len(package) + 1 :]} & names:
            return str(getattr(sys.modules.get(package), "__version__", "")).startswith(release)
    return False


def _always(layer, ranks) -> bool:
    return True


def _elsewhere(axes, ranks) -> bool:
    """No axis is that of the batch; where ranks are not known, none that counts from the end but the last one."""
    known = [isinstance(axis, int) and (axis > 0 or axis == -1 or bool(ranks)) for axis in axes]
    return all(known) and all(axis % rank for axis in axes for rank in ranks)


def _along_others(layer, ranks) -> bool:
    """No axis that is worked along is that of the batch, and no mask has its batch at the place of another axis."""
    if any(len(shape) < len(use.inputs[0]) for use in _keras.uses(layer) for shape in use.inputs):
        return False
    return _elsewhere(layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis], ranks)


def _several_axes(layer, ranks) -> bool:
    # Inside of layers of Keras there are two at least.
    return all(rank > 1 for rank in ranks)


def _sequences(layer, ranks) -> bool:
    """Inputs have equally many axes, and positions beside the batch, which would be attended along otherwise."""
    ranks = {len(shape) for use in _keras.uses(layer) for shape in use.inputs}
    return len(ranks) == 1 and min(ranks) > 2 and (ranks == {3} or not _keras.is_masked(layer))


def _along_positions(layer, ranks) -> bool:
    """A mask has no axis but batch and positions."""
    return all(len(mask.shape) == 2 for mask in _keras.passed(layer, "mask"))


def _each_time(layer, ranks) -> bool:
    """No layer inside takes the mask of one time, which is a vector, for one of another axis."""
    inner = _keras.walk(layer.layer, include_self=True)
    return not (_keras.is_masked(layer) or _keras.passed(layer, "mask")) or not any(
        isinstance(one, (L.Softmax, L.Attention, L.MultiHeadAttention, L.GroupQueryAttention)) for one in inner
    )


def _images(layer, ranks) -> bool:
    """With three axes the whole batch is one image."""
    return bool(ranks) and all(rank > 3 for rank in ranks)


def _scalar(layer, ranks) -> bool:
    return all(np.ndim(value) == 0 for value in (layer.scale, layer.offset)) or (
        all(np.ndim(value) <= 1 for value in (layer.scale, layer.offset)) and _several_axes(layer, ranks)
    )


def _attends_within(layer, ranks) -> bool:
    with _keras.not_importing_tensorflow():
        axes = layer.get_config().get("attention_axes")
    axes = [] if axes is None else axes if isinstance(axes, (list, tuple)) else [axes]
    if not ranks:
        # What was not given is filled in when the layer is built, with nothing where there are no positions.
        return (bool(axes) or isinstance(layer, L.GroupQueryAttention)) and all(axis > 0 for axis in axes)
    inputs = [len(tensor.shape) for name in ("query", "value", "key") for tensor in _keras.passed(layer, name)]
    if not inputs:
        return False
    positions = max(len(axes) or max(inputs) - 2, 1)
    padding = [mask for name in ("query_mask", "value_mask", "key_mask") for mask in _keras.passed(layer, name)]
    if positions > 1 and (padding or _keras.is_masked(layer)):
        return False  # Keras takes their second axis for all positions
    # A mask with fewer axes is one for all rows, whose first axis would be that of the batch.
    masks = [len(mask.shape) for mask in _keras.passed(layer, "attention_mask")]
    return min(inputs) >= 3 and all(rank > 2 * positions for rank in masks) and _elsewhere(axes, ranks)


def _product(layer, ranks) -> bool:
    """The letter of the batch comes first, before and after, and the kernel has none of its name."""
    operands, _, result = layer.equation.replace(" ", "").partition("->")
    inputs, _, kernel = operands.partition(",")
    if "..." in layer.equation:
        # The dots stand for one axis at least.
        several = all(len(inputs) - 3 < rank for rank in ranks or {2})
        return inputs.startswith("...") and result.startswith("...") and several
    return bool(result) and inputs[0] == result[0] and inputs[0] not in kernel + inputs[1:]


def _lambda(layer, ranks) -> bool:
    return is_declared(layer.function) and (not callable(layer.mask) or is_declared(layer.mask))


_LAYERS: dict[type, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(
        (
            *(L.InputLayer, L.Identity, L.Flatten, L.Reshape, L.Permute, L.RepeatVector, L.Activation),
            *(L.Dense, L.Embedding, L.ReversibleEmbedding, L.Normalization),
            *(L.Conv1D, L.Conv2D, L.Conv3D, L.Conv1DTranspose, L.Conv2DTranspose, L.Conv3DTranspose),
            *(L.DepthwiseConv1D, L.DepthwiseConv2D, L.SeparableConv1D, L.SeparableConv2D),
            *(L.MaxPooling1D, L.MaxPooling2D, L.MaxPooling3D),
            *(L.AveragePooling1D, L.AveragePooling2D, L.AveragePooling3D),
            *(L.GlobalMaxPooling1D, L.GlobalMaxPooling2D, L.GlobalMaxPooling3D),
            *(L.GlobalAveragePooling2D, L.GlobalAveragePooling3D),
            *(L.ZeroPadding1D, L.ZeroPadding2D, L.ZeroPadding3D, L.Cropping1D, L.Cropping2D, L.Cropping3D),
            *(L.UpSampling1D, L.UpSampling2D, L.UpSampling3D),
            *(L.ReLU, L.LeakyReLU, L.ELU, L.PReLU, _keras.LayerScale),
            # Masks of their own making depend on the place of a row, not on what is in the others.
            *(L.Dropout, L.SpatialDropout1D, L.SpatialDropout2D, L.SpatialDropout3D),
            *(L.AlphaDropout, L.GaussianDropout, L.GaussianNoise),
            *(L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum, L.Dot),
            L.Bidirectional,
            *(L.LSTMCell, L.GRUCell, L.SimpleRNNCell, L.StackedRNNCells, _keras.ConvLSTMCell),
        ),
        _always,
    ),
    # Random changes of images take one draw for each row or one for all.
    **dict.fromkeys(
        (
            *(L.Resizing, L.CenterCrop),
            *(L.RandomFlip, L.RandomTranslation, L.RandomRotation, L.RandomZoom, L.RandomShear, L.RandomCrop),
            *(L.RandomBrightness, L.RandomContrast, L.RandomHue, L.RandomSaturation, L.RandomGrayscale),
            *(L.RandomColorJitter, L.RandomColorDegeneration, L.RandomInvert, L.RandomPosterization),
            *(L.RandomSharpness, L.RandomGaussianBlur, L.RandomErasing, L.RandomPerspective, L.RandomElasticTransform),
        ),
        _images,
    ),
    L.Pipeline: lambda layer, ranks: {_LAYERS.get(type(one)) for one in layer.layers} <= {_images, _scalar},
    **dict.fromkeys((L.Attention, L.AdditiveAttention), _sequences),
    L.GlobalAveragePooling1D: _along_positions,
    L.TimeDistributed: _each_time,
    **dict.fromkeys(
        (L.RNN, L.LSTM, L.GRU, L.SimpleRNN, L.ConvLSTM1D, L.ConvLSTM2D, L.ConvLSTM3D),
        lambda layer, ranks: not layer.stateful,
    ),
    **dict.fromkeys(
        (L.LayerNormalization, L.GroupNormalization, L.RMSNormalization, L.UnitNormalization), _along_others
    ),
    **dict.fromkeys((L.Softmax, L.Concatenate), _along_others),
    **dict.fromkeys((L.MultiHeadAttention, L.GroupQueryAttention), _attends_within),
    L.BatchNormalization: lambda layer, ranks: not layer.trainable,
    L.EinsumDense: _product,
    L.Lambda: _lambda,
    L.Masking: _several_axes,
    L.Rescaling: _scalar,
}
# What works on weights, and sees no row.
_OF_WEIGHTS = (keras.Initializer, keras.Regularizer, keras.constraints.Constraint)

_ENTRYWISE = {
    *("Absolute", "Abs", "Add", "Subtract", "Multiply", "Divide", "TrueDivide", "DivideNoNan", "Negative", "Power"),
    *("Square", "Sqrt", "Exp", "Log", "Log1p", "Expm1", "Sin", "Cos", "Tanh", "Sign", "Reciprocal", "Clip", "Maximum"),
    *("Minimum", "Where", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd"),
    *("LogicalNot", "LogicalOr", "Cast", "StopGradient", "Relu", "Relu6", "Sigmoid", "Silu", "Gelu", "Elu", "Softplus"),
}
_ALONG_AXES = {
    *("Sum", "Mean", "Max", "Min", "Prod", "Std", "Var", "All", "Any", "Argmax", "Argmin"),
    *("Cumsum", "Cumprod", "Flip", "Sort", "Softmax", "LogSoftmax", "Logsumexp", "Concatenate"),
}


def _operation(name: str, operation, node) -> bool:
    """Whether one of Keras' operations on tensors keeps rows apart in one call."""
    leaves = tree.flatten((node.arguments.args, node.arguments.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)]
    rank, *others = {len(t.shape) for t in tensors} or {0}
    if others or rank == 0:
        return False
    if name in _ENTRYWISE:
        shapes = [np.shape(leaf) for leaf in leaves if not isinstance(leaf, (keras.KerasTensor, slice, str))]
        kept = all(len(shape) < rank or (len(shape) == rank and shape[0] == 1) for shape in shapes)
        return kept and len(node.output_tensors[0].shape) == rank
    if name in _ALONG_AXES:
        axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]
        return all(isinstance(axis, int) and axis % rank for axis in axes)
    if name == "GetItem":
        key = leaves[1:] if len(leaves) > 1 else [None]
        return isinstance(key[0], slice) and key[0] == slice(None)
    if name == "Reshape" and len(tensors) == 1:
        before, after = tensors[0].shape[1:], node.output_tensors[0].shape[1:]
        return None not in (*before, *after) and math.prod(before) == math.prod(after) > 0
    return False
