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
            elif not _keeps_apart(operation, node):
                found.setdefault(id(operation), (operation, []))[1].append(node)

    visit(model)
    return list(found.values())


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


def _keeps_apart(operation, node=None) -> bool:
    """Whether row i of what an operation returns is known to depend on row i of its inputs only."""
    if isinstance(operation, keras.Model):
        return not foreign(operation)
    kind = type(operation)
    name = _keras.operation_name(operation)
    if "call" in vars(operation):
        return False
    if name is not None:
        return node is not None and _operation(name, operation, node)
    if is_declared(kind):
        return all(map(_keeps_apart, _keras.walk(operation, deep=False)))
    if root(kind) == "lipdp":
        return True
    if _of_family(kind):
        held = [value for name, value in vars(operation).items() if inspect.isroutine(value) and name not in _WRAPPED]
        return all(map(_entrywise, held)) and all(map(_keeps_apart, _keras.walk(operation, deep=False)))
    rule = _LAYERS.get(kind)
    if rule is None or not rule(operation) or not all(_function(operation, name) for name in FUNCTIONS):
        return False
    return kind in _OF_KERAS_ONLY or all(map(_keeps_apart, _keras.walk(operation, deep=False)))


def _function(layer, attribute: str) -> bool:
    """Whether a function that a layer of Keras calls keeps rows apart."""
    function = getattr(layer, attribute, None)
    if isinstance(function, keras.Operation):
        return _keeps_apart(function)
    if is_declared(function) or _entrywise(function):
        return True
    return stock_activation(function) and 1 not in [len(u.outputs[0]) for u in _keras.uses(layer)]


def _entrywise(function) -> bool:
    """Whether a function is known to work on each entry alone."""
    name = getattr(function, "__name__", None)
    if name in _ALONG_LAST:
        return False
    return stock_activation(function) or _of_family(function) or name in _OPS and getattr(ops, name) is function


def _of_family(thing) -> bool:
    module, name = str(getattr(thing, "__module__", None)), getattr(thing, "__name__", None)
    for package, (names, release) in _FAMILIES.items():
        if module.startswith(package + ".") and {name, f"{module}.{name}"[len(package) + 1 :]} & names:
            return str(getattr(sys.modules.get(package), "__version__", "")).startswith(release)
    return False


def _always(layer) -> bool:
    return True


def _along_others(layer) -> bool:
    """No axis that is worked along is that of the batch."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    # A layer inside another one has no calls of its own; its inputs have two axes at least.
    ranks = {len(use.inputs[0]) for use in _keras.uses(layer)} or {max(2, 1 + max(axes))}
    return all(isinstance(axis, int) and axis % rank for axis in axes for rank in ranks)


def _several_axes(layer) -> bool:
    return all(len(use.inputs[0]) > 1 for use in _keras.uses(layer))


def _scalar(layer) -> bool:
    return all(np.ndim(value) == 0 for value in (layer.scale, layer.offset)) or (
        all(np.ndim(value) <= 1 for value in (layer.scale, layer.offset)) and _several_axes(layer)
    )


def _attends_within(layer) -> bool:
    axes = layer.get_config().get("attention_axes")
    axes = [] if axes is None else axes if isinstance(axes, (list, tuple)) else [axes]
    ranks = {len(shape) for use in _keras.uses(layer) for shape in use.inputs[:2]}
    return all(rank >= 3 and all(axis % rank for axis in axes) for rank in ranks) and 0 not in axes


def _product(layer) -> bool:
    """The letter of the batch comes first, before and after, and the kernel has none of its name."""
    operands, _, result = layer.equation.replace(" ", "").partition("->")
    inputs, _, kernel = operands.partition(",")
    if "..." in layer.equation:
        return inputs.startswith("...") and result.startswith("...")
    return bool(result) and inputs[0] == result[0] and inputs[0] not in kernel + inputs[1:]


def _lambda(layer) -> bool:
    return is_declared(layer.function) and (not callable(layer.mask) or is_declared(layer.mask))


_LAYERS: dict[type, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            *(L.InputLayer, L.Identity, L.Flatten, L.Reshape, L.Permute, L.RepeatVector, L.Activation),
            *(L.Dense, L.Embedding, L.ReversibleEmbedding, L.Normalization, L.Resizing, L.CenterCrop),
            *(L.Conv1D, L.Conv2D, L.Conv3D, L.Conv1DTranspose, L.Conv2DTranspose, L.Conv3DTranspose),
            *(L.DepthwiseConv1D, L.DepthwiseConv2D, L.SeparableConv1D, L.SeparableConv2D),
            *(L.MaxPooling1D, L.MaxPooling2D, L.MaxPooling3D),
            *(L.AveragePooling1D, L.AveragePooling2D, L.AveragePooling3D),
            *(L.GlobalMaxPooling1D, L.GlobalMaxPooling2D, L.GlobalMaxPooling3D),
            *(L.GlobalAveragePooling1D, L.GlobalAveragePooling2D, L.GlobalAveragePooling3D),
            *(L.ZeroPadding1D, L.ZeroPadding2D, L.ZeroPadding3D, L.Cropping1D, L.Cropping2D, L.Cropping3D),
            *(L.UpSampling1D, L.UpSampling2D, L.UpSampling3D),
            *(L.ReLU, L.LeakyReLU, L.ELU, L.PReLU, _keras.LayerScale),
            # Masks of their own making depend on the place of a row, not on what is in the others.
            *(L.Dropout, L.SpatialDropout1D, L.SpatialDropout2D, L.SpatialDropout3D),
            *(L.AlphaDropout, L.GaussianDropout, L.GaussianNoise),
            # So do the random changes of images, one draw for each row or one for all.
            *(L.RandomFlip, L.RandomTranslation, L.RandomRotation, L.RandomZoom, L.RandomShear, L.RandomCrop),
            *(L.RandomBrightness, L.RandomContrast, L.RandomHue, L.RandomSaturation, L.RandomGrayscale),
            *(L.RandomColorJitter, L.RandomColorDegeneration, L.RandomInvert, L.RandomPosterization),
            *(L.RandomSharpness, L.RandomGaussianBlur, L.RandomErasing, L.RandomPerspective),
            L.RandomElasticTransform,
            *(L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum, L.Dot),
            *(L.Attention, L.AdditiveAttention, L.TimeDistributed, L.Bidirectional),
            *(L.LSTMCell, L.GRUCell, L.SimpleRNNCell, L.StackedRNNCells),
        ),
        _always,
    ),
    **dict.fromkeys(
        (L.RNN, L.LSTM, L.GRU, L.SimpleRNN, L.ConvLSTM1D, L.ConvLSTM2D, L.ConvLSTM3D),
        lambda layer: not layer.stateful,
    ),
    **dict.fromkeys(
        (L.LayerNormalization, L.GroupNormalization, L.RMSNormalization, L.UnitNormalization), _along_others
    ),
    **dict.fromkeys((L.Softmax, L.Concatenate), _along_others),
    **dict.fromkeys((L.MultiHeadAttention, L.GroupQueryAttention), _attends_within),
    L.BatchNormalization: lambda layer: not layer.trainable,
    L.EinsumDense: _product,
    L.Lambda: _lambda,
    L.Masking: _several_axes,
    L.Rescaling: _scalar,
}
# They make the layers inside of them themselves.
_OF_KERAS_ONLY = {
    *(L.MultiHeadAttention, L.GroupQueryAttention, L.Attention, L.AdditiveAttention),
    *(L.ConvLSTM1D, L.ConvLSTM2D, L.ConvLSTM3D),
}

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
    ranks = {len(t.shape) for t in tensors}
    if len(ranks) != 1 or ranks == {0}:
        return False
    (rank,) = ranks
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
