"""When each layer and operation of Keras keeps the rows of a batch apart: by its type, its axes, its inputs' ranks."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers as L
from keras import tree

from lipdp import _keras
from lipdp.isolation.declared import is_declared


def _always(layer, ranks) -> bool:
    return True


def elsewhere(axes: Any, ranks: frozenset) -> bool:
    """No axis is that of the batch; where ranks are not known, none that counts from the end but the last one."""
    known = [isinstance(axis, int) and (axis > 0 or axis == -1 or bool(ranks)) for axis in axes]
    return all(known) and all(axis % rank for axis in axes for rank in ranks)


def _along_others(layer, ranks) -> bool:
    """No axis that is worked along is that of the batch, and no mask has its batch at the place of another axis."""
    if any(len(shape) < len(use.inputs[0]) for use in _keras.uses(layer) for shape in use.inputs):
        return False
    return elsewhere(layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis], ranks)


def _several_axes(layer, ranks) -> bool:
    # Inside of layers of Keras there are two at least.
    return all(rank > 1 for rank in ranks)


def _ranks_of(layer, name: str) -> set[int]:
    """Returns the ranks of all tensors and arrays that a layer is called with for an argument."""
    return {np.ndim(leaf) for given in _keras.passed(layer, name) for leaf in tree.flatten(given) if leaf is not None}


def _alike(layer, ranks) -> bool:
    """All inputs of all calls have equally many axes: where Keras would add some hangs on the first call alone."""
    given = set() if type(layer) in _CELLS else _ranks_of(layer, "inputs")
    return len(given | {len(shape) for use in _keras.uses(layer) for shape in use.inputs}) < 2


def _taken_for_bias(shapes: list) -> bool:
    """Whether Keras may add one number of each row as it adds a bias, to channels, where these are as many as rows.

    On TensorFlow it looks for a second term with one axis above one, and at its size: rows would see each other.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    for k, shape in enumerate(shapes):
        others = [other for j, other in enumerate(shapes) if j != k and len(other) > 1]
        if k and len(shape) > 1 and set(shape[1:]) <= {1, None}:
            if any({other[1], other[-1]} != {1} for other in others):
                return True
    return False


def _sums(layer, ranks) -> bool:
    given = [[np.shape(leaf) for leaf in tree.flatten(nest)] for nest in _keras.passed(layer, "inputs")]
    shapes = [list(use.inputs) for use in _keras.uses(layer)]
    return _alike(layer, ranks) and not any(map(_taken_for_bias, given + shapes))


def _sequences(layer, ranks) -> bool:
    """Inputs have equally many axes, and positions beside the batch, which would be attended along otherwise."""
    ranks, masks = _ranks_of(layer, "inputs"), _ranks_of(layer, "mask")
    plain = not masks and not _keras.is_masked(layer)
    return len(ranks) == 1 and min(ranks) > 2 and (plain or (ranks == {3} and masks <= {2}))


def _recurrent(layer, ranks) -> bool:
    """States have the axes of one time, and masks those of batch and times."""
    inner = getattr(layer, "forward_layer", layer)
    if inner.stateful or not all(rank == 3 or isinstance(inner, _CONVOLUTIONAL) for rank in ranks):
        return False
    states = {rank + 1 for rank in _ranks_of(layer, "initial_state")}
    return _ranks_of(layer, "mask") <= {2} and (not states or len(ranks | states) == 1)


def moments(layer: Any, ranks: frozenset) -> bool:
    """What rows are normalized by has no axis of rows, and no more axes than they have."""
    held = [tuple(value.shape) for name in ("mean", "variance") if (value := getattr(layer, name, None)) is not None]
    return all(len(shape) < rank or (len(shape) == rank and shape[0] == 1) for shape in held for rank in ranks or {2})


def _dropping(layer, ranks) -> bool:
    """What is dropped is drawn for the axes that a row has."""
    shape = getattr(layer, "noise_shape", None)
    return shape is None or all(rank == len(shape) for rank in ranks)


def _along_positions(layer, ranks) -> bool:
    """A mask has no axis but batch and positions."""
    return all(len(mask.shape) == 2 for mask in _keras.passed(layer, "mask"))


def _each_time(layer, ranks) -> bool:
    """No layer inside takes the mask of one time, which is a vector, for one of another axis."""
    inner = _keras.walk(layer.layer, include_self=True)
    return not (_keras.is_masked(layer) or _keras.passed(layer, "mask")) or not any(
        isinstance(one, (L.Softmax, L.Attention, L.MultiHeadAttention, L.GroupQueryAttention)) for one in inner
    )


def images(layer: Any, ranks: frozenset) -> bool:
    """With three axes the whole batch is one image."""
    return bool(ranks) and all(rank > 3 for rank in ranks)


def scalar(layer: Any, ranks: frozenset) -> bool:
    return all(np.ndim(value) == 0 for value in (layer.scale, layer.offset)) or (
        all(np.ndim(value) <= 1 for value in (layer.scale, layer.offset)) and _several_axes(layer, ranks)
    )


def attends_within(layer: Any, ranks: frozenset) -> bool:
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
    return min(inputs) >= 3 and all(rank > 2 * positions for rank in masks) and elsewhere(axes, ranks)


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


_CELLS = (L.LSTMCell, L.GRUCell, L.SimpleRNNCell, L.StackedRNNCells, _keras.ConvLSTMCell)
_CONVOLUTIONAL = (L.ConvLSTM1D, L.ConvLSTM2D, L.ConvLSTM3D)
# Numbers that layers are given, each of which is one for all entries.
_NUMBERS = ("alpha", "epsilon", "mask_value", "max_value", "negative_slope", "rate", "stddev", "threshold")

LAYERS: dict[type, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(
        (
            *(L.InputLayer, L.Identity, L.Flatten, L.Reshape, L.Permute, L.RepeatVector, L.Activation),
            *(L.Dense, L.Embedding, L.ReversibleEmbedding),
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
            *(L.SpatialDropout1D, L.SpatialDropout2D, L.SpatialDropout3D, L.GaussianDropout, L.GaussianNoise),
            L.Dot,
        ),
        _always,
    ),
    **dict.fromkeys((L.Dropout, L.AlphaDropout), _dropping),
    **dict.fromkeys((L.Subtract, L.Multiply, L.Maximum, L.Minimum, *_CELLS), _alike),
    **dict.fromkeys((L.Add, L.Average), _sums),
    L.Normalization: moments,
    # Random changes of images take one draw for each row or one for all.
    **dict.fromkeys(
        (
            *(L.Resizing, L.CenterCrop),
            *(L.RandomFlip, L.RandomTranslation, L.RandomRotation, L.RandomZoom, L.RandomShear, L.RandomCrop),
            *(L.RandomBrightness, L.RandomContrast, L.RandomHue, L.RandomSaturation, L.RandomGrayscale),
            *(L.RandomColorJitter, L.RandomColorDegeneration, L.RandomInvert, L.RandomPosterization),
            *(L.RandomSharpness, L.RandomGaussianBlur, L.RandomErasing, L.RandomPerspective, L.RandomElasticTransform),
            L.Solarization,
        ),
        images,
    ),
    L.Pipeline: lambda layer, ranks: {LAYERS.get(type(one)) for one in layer.layers} <= {images, scalar},
    **dict.fromkeys((L.Attention, L.AdditiveAttention), _sequences),
    L.GlobalAveragePooling1D: _along_positions,
    L.TimeDistributed: _each_time,
    **dict.fromkeys((L.RNN, L.LSTM, L.GRU, L.SimpleRNN, *_CONVOLUTIONAL, L.Bidirectional), _recurrent),
    **dict.fromkeys(
        (L.LayerNormalization, L.GroupNormalization, L.RMSNormalization, L.UnitNormalization), _along_others
    ),
    **dict.fromkeys((L.Softmax, L.Concatenate), _along_others),
    **dict.fromkeys((L.MultiHeadAttention, L.GroupQueryAttention), attends_within),
    L.BatchNormalization: lambda layer, ranks: not layer.trainable,
    L.EinsumDense: _product,
    L.Lambda: _lambda,
    L.Masking: _several_axes,
    L.Rescaling: scalar,
}
_ENTRYWISE = {
    *("Absolute", "Abs", "Add", "Subtract", "Multiply", "Divide", "TrueDivide", "DivideNoNan", "Negative", "Power"),
    *("Square", "Sqrt", "Exp", "Log", "Log1p", "Expm1", "Sin", "Cos", "Tanh", "Sign", "Reciprocal", "Clip", "Maximum"),
    *("Minimum", "Where", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd"),
    *("LogicalNot", "LogicalOr", "Cast", "StopGradient", "Relu", "Relu6", "Sigmoid", "Silu", "Gelu", "Elu", "Softplus"),
    *("LeakyRelu", "Selu", "Celu", "LogSigmoid", "HardSigmoid", "HardSilu", "HardTanh", "Softsign", "Rsqrt", "Erf"),
    *("Floor", "Ceil", "Round", "Cosh", "Sinh", "Tan", "Arctan", "Isnan", "Isfinite", "ZerosLike", "OnesLike"),
}
_ALONG_AXES = {
    *("Sum", "Mean", "Max", "Min", "Amax", "Amin", "Prod", "Std", "Var", "All", "Any", "Argmax", "Argmin", "Norm"),
    *("Cumsum", "Cumprod", "Flip", "Sort", "Softmax", "LogSoftmax", "Logsumexp", "Concatenate", "Normalize", "Glu"),
    *("Squeeze", "Split", "Repeat", "Roll"),
}


def _beside(axes: Any, rank: int) -> bool:
    """Whether axes are given, and none of them is the first of `rank`."""
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return all(isinstance(axis, int) and axis % rank for axis in axes)


def _expands(operation, rank) -> bool:
    axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]
    return _beside(axes, rank + len(axes))


def _transposes(operation, rank) -> bool:
    return isinstance(operation.axes, (list, tuple)) and operation.axes[0] % rank == 0


def _tiles(operation, rank) -> bool:
    """Numbers for fewer axes are for the last ones, and numbers for more make new ones in front."""
    repeats = operation.repeats
    several = isinstance(repeats, (list, tuple)) and len(repeats) <= rank
    return several and (len(repeats) < rank or (isinstance(repeats[0], int) and repeats[0] == 1))


def _pads(operation, rank) -> bool:
    # One pair is for all axes.
    return len(operation.pad_width) == rank > 1 and tuple(operation.pad_width[0]) == (0, 0)


# Operations that move axes, by what they hold and the rank of their inputs.
_MOVING: dict[str, Callable[[Any, int], bool]] = {
    "ExpandDims": _expands,
    "Stack": lambda operation, rank: _beside(operation.axis, rank + 1),
    "OneHot": lambda operation, rank: _beside(operation.axis, rank + 1),
    "Transpose": _transposes,
    "Swapaxes": lambda operation, rank: _beside([operation.axis1, operation.axis2], rank),
    "Moveaxis": lambda operation, rank: _beside([*operation.source, *operation.destination], rank),
    "Tile": _tiles,
    "Pad": _pads,
    "TakeAlongAxis": lambda operation, rank: _beside(operation.axis, rank),
    **dict.fromkeys(("Tril", "Triu"), lambda operation, rank: rank > 2),
    # With one axis less the whole batch is one image.
    "Resize": lambda operation, rank: rank == 4,
    "ExtractPatches": lambda operation, rank: rank == len(operation.size) + 2,
}


def _contracted(operation, rank, leaves) -> bool:
    """A product of matrices, one of each row, or of rows and a constant matrix."""
    if len(leaves) != 2 or not isinstance(leaves[0], keras.KerasTensor):
        return False
    # One axis is summed over, and with one beside it rows are multiplied with each other.
    return rank > 2 if isinstance(leaves[1], keras.KerasTensor) else rank > 1 and np.ndim(leaves[1]) == 2


def _spelled(operation, rank, leaves) -> bool:
    """The first letter of each tensor with rows is that of the output, and no other's."""
    operands, _, output = operation.subscripts.replace(" ", "").partition("->")
    terms = operands.split(",")
    if not output or "." in operation.subscripts or len(terms) != len(leaves):
        return False
    rows = [isinstance(leaf, keras.KerasTensor) for leaf in leaves]
    others = [term[1:] if row else term for term, row in zip(terms, rows, strict=True)] + [output[1:]]
    firsts = {term[:1] for term, row in zip(terms, rows, strict=True) if row}
    return firsts == {output[0]} and not any(output[0] in letters for letters in others)


# Those that may have a constant beside rows, by what they are called on as well.
_PRODUCTS: dict[str, Callable[[Any, int, list], bool]] = {"Matmul": _contracted, "Einsum": _spelled}


def numbers_are_numbers(layer: Any) -> bool:
    """Whether no array or list is in the place of a number, which would give rows more axes."""
    given = [getattr(layer, name, None) for name in _NUMBERS]
    return not any(np.ndim(value) for value in given if not isinstance(value, keras.Variable))


def is_array(value: Any) -> bool:
    """Whether it is a tensor or an array with axes, but no variable of a layer."""
    # TensorFlow takes its time to tell other things from tensors.
    if not hasattr(value, "shape") or isinstance(value, keras.Variable):
        return False
    return (isinstance(value, np.ndarray) or keras.ops.is_tensor(value)) and len(value.shape) > 0


def operation_keeps_apart(name: str, operation: Any, node: Any) -> bool:
    """Whether one of Keras' operations on tensors keeps rows apart in one call."""
    given = [*node.arguments.args, *node.arguments.kwargs.values()]
    leaves = tree.flatten(given)
    tensors = [leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)]
    rank, *others = {len(t.shape) for t in tensors} or {0}
    if name == "Einsum":
        others = []  # its letters tell which axes belong together
    if others or rank == 0 or any(t.shape[:1] != tensors[0].shape[:1] for t in (*tensors, *node.output_tensors)):
        return False  # all have rows, and as many
    held = [value for key, value in vars(operation).items() if not key.startswith("_")]
    if name in _ENTRYWISE:
        # A list counts as the array that it becomes.
        arrays = [value for value in (*given, *held) if is_array(value) or isinstance(value, (list, tuple))]
        if any(isinstance(leaf, keras.KerasTensor) for leaf in tree.flatten(arrays)):
            return False
        if name == "Add" and _taken_for_bias([np.shape(value) for value in given]):
            return False
        shapes = [np.shape(value) for value in arrays]
        kept = all(len(shape) < rank or (len(shape) == rank and shape[0] == 1) for shape in shapes)
        return kept and len(node.output_tensors[0].shape) == rank
    if any(map(is_array, tree.flatten(held))):
        return False
    if name in _PRODUCTS:
        return _PRODUCTS[name](operation, rank, leaves)
    # A constant beside rows would have one of its own at each place in the batch.
    if any(map(is_array, leaves)):
        return False
    if name in _MOVING:
        plain = all(leaf is None or isinstance(leaf, (keras.KerasTensor, int, float, str)) for leaf in leaves)
        return plain and _MOVING[name](operation, rank)
    if name in _ALONG_AXES:
        return _beside(operation.axis, rank)
    if name == "GetItem":
        key = leaves[1:] if len(leaves) > 1 else [None]
        if key[0] is Ellipsis:  # it stands for the first axis where there are fewer others
            return sum(part is not None for part in key[1:]) < rank
        return isinstance(key[0], slice) and key[0] == slice(None)
    if name == "Reshape" and len(tensors) == 1:
        before, after = tensors[0].shape[1:], node.output_tensors[0].shape[1:]
        return None not in (*before, *after) and math.prod(before) == math.prod(after) > 0
    return False
