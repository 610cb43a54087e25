"""Bounds of Keras' own parameter-free layers (proofs: the unfold argument, or one line each)."""

import math
import numbers
import reprlib
from collections.abc import Callable

import keras
import numpy as np
from keras import layers

from lipdp import _keras
from lipdp.bounds.registry import parameter_free, register
from lipdp.bounds.rounding import MOVING
from lipdp.norms import conv_multiplicity

# sup |f'| of each activation; the second number is a bound on |f(0)|, per entry.
_ACTIVATIONS = {
    **dict.fromkeys(("linear", "relu", "relu6", "tanh", "elu", "softsign", "hard_tanh"), (1.0, 0.0)),
    "sigmoid": (0.25, 0.5),
    "hard_sigmoid": (1.0 / 6.0, 0.5),
    "softplus": (1.0, math.log(2.0)),
    "gelu": (1.129, 0.0),
    "silu": (1.1, 0.0),
}
# Between which numbers values lie behind activations and layers, by their names in small letters.
_RANGES = {
    **dict.fromkeys(("sigmoid", "hard_sigmoid"), (0.0, 1.0)),
    **dict.fromkeys(("tanh", "hard_tanh", "softsign"), (-1.0, 1.0)),
    **dict.fromkeys(("softplus", "relu", "abs", "absolute"), (0.0, math.inf)),
    "relu6": (0.0, 6.0),
}


def _one(layer) -> float:
    return 1.0


for _type in (
    *(layers.InputLayer, layers.Identity, layers.Flatten, layers.Reshape, layers.Permute),
    *(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D),
    *(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D),
    *(layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D),
    *(_keras.Absolute, _keras.Negative),
):
    register(_type, _one)


def _max_pooling(layer) -> float:
    """A maximum is 1-Lipschitz on its window; an entry stands in at most M windows."""
    return math.sqrt(conv_multiplicity(layer.pool_size, layer.strides, (1,) * len(layer.pool_size)))


def _average_pooling(layer):
    """As the maximum, with the window mapped to `<w, 1> / n`, of norm 1 / sqrt(n)."""
    if layer.padding != "valid":
        raise ValueError(
            f"Layer '{layer.name}' averages windows cut at the border over fewer entries, which has no tight "
            f"bound. Received: padding={layer.padding!r}. Use padding='valid'."
        )
    places = math.prod(layer.pool_size)
    constant = _max_pooling(layer) / math.sqrt(places)
    return parameter_free(lambda bounds: (constant,), terms=places)


def _max_pooling_of_volumes(layer) -> float:
    """As `_max_pooling`, and on TensorFlow for a gradient that goes to every entry that is as large as the largest.

    Then the gradient of entry i is the sum of those of at most M windows, each of which reaches at most P = prod
    pool_size entries: its squared norm is at most M P times theirs (Cauchy and Schwarz).
    """
    ties = math.prod(layer.pool_size) if keras.backend.backend() == "tensorflow" else 1
    return _max_pooling(layer) * math.sqrt(ties)


register(layers.MaxPooling1D, _max_pooling)
register(layers.MaxPooling2D, _max_pooling)
register(layers.MaxPooling3D, _max_pooling_of_volumes)
for _type in (layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D):
    register(_type, _average_pooling)


def _global_average(layer):
    """`sum_p x_p / P` per channel: norm 1 / sqrt(P); 1 where P is unknown.

    How the sum is made is up to the backend: TensorFlow adds up the places of three channels one after the other.
    """
    last = getattr(layer, "data_format", "channels_last") == "channels_last"
    sizes = [shape[1:-1] if last else shape[2:] for shape in _keras.input_shapes(layer)]
    if not sizes or any(None in size for size in sizes):
        return parameter_free(lambda bounds: (1.0,), terms=None)
    places = [math.prod(size) for size in sizes]
    return parameter_free(lambda bounds: (1.0 / math.sqrt(min(places)),), terms=max(places))


for _type in (layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D):
    register(_type, _global_average)


@register(layers.ReLU)
def _relu(layer) -> float:
    """Slopes 0, 1 and `negative_slope`; a threshold other than zero makes a jump."""
    slope = 0.0 if layer.negative_slope is None else float(layer.negative_slope)
    if layer.threshold:
        raise ValueError(
            f"Layer '{layer.name}' jumps at its threshold, so it is not Lipschitz. Received: "
            f"threshold={layer.threshold!r}. Use threshold=0."
        )
    return max(1.0, abs(slope))


@register(layers.LeakyReLU)
def _leaky_relu(layer) -> float:
    return max(1.0, abs(float(layer.negative_slope)))


@register(layers.ELU)
def _elu(layer) -> float:
    """The slope at 0- is alpha; ELU is convex where alpha <= 1 and jumps in slope above."""
    return max(1.0, abs(float(layer.alpha)))


def activation_constants(layer: keras.layers.Layer, activation: Callable | None) -> tuple[float, float]:
    """Returns sup |f'| and a bound on |f(0)| of an activation function."""
    name = getattr(activation, "__name__", repr(activation))
    if name not in _ACTIVATIONS or keras.activations.get(name) is not activation:
        raise ValueError(
            f"Layer '{layer.name}' applies activation {name!r}, which has no known Lipschitz constant. "
            f"Use one of {sorted(_ACTIVATIONS)}, or lipdp.layers.Abs."
        )
    return _ACTIVATIONS[name]


@register(layers.Activation)
def _activation(layer):
    slope, offset = activation_constants(layer, layer.activation)
    if not offset:
        return slope
    size = _entries(layer)
    return parameter_free(lambda bounds: (slope,), lambda bounds: slope * bounds[0] + offset * math.sqrt(size))


@register(layers.Rescaling)
def _rescaling(layer):
    """An affine map with public constants: one for all entries, or one for each entry of the last axis."""
    last = {(None, *shape[1:])[-1] for shape in _keras.input_shapes(layer)}
    constants = (layer.scale, layer.offset)
    if not all(isinstance(value, numbers.Real) or _numbers_for(value, last) for value in constants):
        raise ValueError(
            f"Layer '{layer.name}' has a bound for one constant, or one for each entry of the last axis. Received: "
            f"scale={reprlib.repr(layer.scale)}, offset={reprlib.repr(layer.offset)}."
        )
    scale, offset = (np.asarray(value, "float64") for value in constants)
    if not (np.isfinite(scale).all() and np.isfinite(offset).all()):
        raise ValueError(
            f"Layer '{layer.name}' needs finite constants. Received: scale={reprlib.repr(layer.scale)}, "
            f"offset={reprlib.repr(layer.offset)}."
        )
    largest = float(np.abs(scale).max())
    if not offset.any():
        return largest
    shift = math.sqrt(_entries(layer) * float(np.square(offset).mean()))
    return parameter_free(lambda bounds: (largest,), lambda bounds: largest * bounds[0] + shift)


def _numbers_for(values, sizes: set) -> bool:
    """Returns whether these are numbers, which nothing can train, one for each entry of axes that all have one size."""
    if not isinstance(values, (list, tuple, np.ndarray)) or sizes != {len(values)}:
        return False
    return all(isinstance(value, numbers.Real) for value in values)


def _dropout(layer) -> float:
    """Masks belong to positions in the batch: an added example moves the others under other masks.

    Where gradients are clipped no bound is needed, and the masks come from the secret of the run.
    """
    raise ValueError(
        f"Layer '{layer.name}' draws masks by position in the batch, so one more example changes the gradients of "
        f"others. Received: {type(layer).__name__}(rate={layer.rate!r}). Leave it out, as the noise "
        "regularizes, or train with a strategy that clips, such as strategy='dpsgd', whose masks are secret."
    )


for _type in (layers.Dropout, layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D):
    register(_type, _dropout)


def _upsampling(layer):
    """Nearest neighbors: each entry is repeated, and its gradient is the sum of those of the copies."""
    if getattr(layer, "interpolation", "nearest") != "nearest":
        raise ValueError(
            f"Layer '{layer.name}' has a bound for interpolation='nearest' only. "
            f"Received: interpolation={layer.interpolation!r}."
        )
    size = layer.size if isinstance(layer.size, (tuple, list)) else (layer.size,)
    copies = math.prod(size)
    return parameter_free(lambda bounds: (math.sqrt(copies),), terms=copies)


for _type in (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D):
    register(_type, _upsampling)


def _sum(layer):
    """Every entry of the output is a sum of one entry per input; broadcasting would repeat entries."""
    _same_shapes(layer)
    return 1.0


def _pythagoras(layer):
    """`||(x, y)||^2 = ||x||^2 + ||y||^2`; also covers entrywise maxima and minima."""
    if not isinstance(layer, layers.Concatenate):
        _same_shapes(layer)
    elif any(layer.axis % len(use.outputs[0]) == 0 for use in _keras.uses(layer)):
        raise ValueError(
            f"Layer '{layer.name}' joins the batch axis, which mixes examples. Received: axis={layer.axis}."
        )
    return parameter_free(lambda bounds: (1.0,) * len(bounds), lambda bounds: math.hypot(*bounds))


@register(layers.Average)
def _average(layer):
    _same_shapes(layer)
    return parameter_free(lambda bounds: (1.0 / len(bounds),) * len(bounds))


for _type in (layers.Add, layers.Subtract, _keras.Add, _keras.Subtract):
    register(_type, _sum)
for _type in (layers.Concatenate, layers.Maximum, layers.Minimum):
    register(_type, _pythagoras)


def _same_shapes(layer) -> None:
    for use in _keras.uses(layer):
        shapes = set(use.inputs)
        # A size that is not known may turn out to be one, which broadcasts.
        if len(shapes) > 1 or any(None in shape[1:] for shape in shapes):
            name = getattr(layer, "name", type(layer).__name__)
            raise ValueError(
                f"Layer '{name}' needs inputs of equal, known shapes: broadcasting has no bound here. "
                f"Received shapes: {sorted(map(str, shapes))}."
            )


def _entries(layer) -> int:
    shapes = [shape[1:] for shape in _keras.input_shapes(layer)]
    if not shapes or any(None in shape for shape in shapes):
        raise ValueError(f"Layer '{layer.name}' needs a full input shape to state its bound. Received: {shapes}.")
    return max(math.prod(shape) for shape in shapes)


def values_between(path: list) -> tuple[float, float, str]:
    """Returns between which numbers all values lie behind layers, each of which reads the one before alone.

    And the name of the activation, or of the layer, that they lie there for.

    Args:
        path: Layers, from the input to the output. What moves, scales or bends values entry by entry is looked through.
    """
    behind = []
    while len(path) > 1 and _entry_by_entry(path[-1]):
        behind.append(path[-1])
        path = path[:-1]
    name = getattr(getattr(path[-1], "activation", None), "__name__", type(path[-1]).__name__.lower())
    low, high = _RANGES.get("" if getattr(path[-1], "negative_slope", 0.0) else name, (-math.inf, math.inf))
    for layer in reversed(behind):
        if isinstance(layer, layers.Rescaling):
            scale, offset = (float(np.ravel(value)[0]) for value in (layer.scale, layer.offset))
            ends = [offset + (scale * end if scale else 0.0) for end in (low, high)]
            low, high = min(ends), max(ends)
        elif isinstance(layer, _keras.Negative):
            low, high = -high, -low
        elif isinstance(layer, (layers.LeakyReLU, layers.ELU, layers.ReLU)):  # these keep zero and the sign
            low, high = (0.0 if low >= 0.0 else -math.inf), (0.0 if high <= 0.0 else math.inf)
    return low, high, name


def _entry_by_entry(layer) -> bool:
    if isinstance(layer, layers.Rescaling):
        return all(np.size(value) == 1 for value in (layer.scale, layer.offset))
    bent = isinstance(layer, layers.ReLU) and bool(layer.negative_slope)
    return bent or isinstance(layer, (*MOVING, layers.LeakyReLU, layers.ELU, _keras.Negative))
