"""Trained networks without lipdp: plain Keras models of stock layers."""

import math
from collections.abc import Callable

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend
from lipdp.bounds.propagate import functional
from lipdp.layers import (
    Bias,
    BoundedEmbedding,
    ClipGradient,
    GroupSort,
    Householder,
    L2NormPooling2D,
    LipschitzLayer,
    OrthogonalPatchConv2D,
    ScaledAveragePooling2D,
    SpectralConv1D,
    SpectralConv1DTranspose,
    SpectralConv2D,
    SpectralConv2DTranspose,
    SpectralConv3D,
    SpectralConv3DTranspose,
    SpectralDense,
    SpectralDepthwiseConv1D,
    SpectralDepthwiseConv2D,
    TokenMixing,
)
from lipdp.layers.base import entries, positions
from lipdp.layers.pooling import _smooth_norm
from lipdp.layers.resampling import space_to_depth

# Largest difference between the outputs of a model and of its export, relative to outputs above 1.
TOLERANCE = 1e-6


def export(model: keras.Model) -> keras.Model:
    """Returns a plain Keras model of stock layers with the same outputs, which loads without lipdp.

    Args:
        model: A built Sequential or functional model of lipdp layers, stock Keras layers and models of these.

    Returns:
        A functional `keras.Model`, not compiled. It holds the weights of the moment and nothing else: no
        optimizer state, no noise key, no ledger, no constraints. Save it with `model.save("plain.keras")` or
        `model.export(...)`; keep `privacy.to_dict()` beside it.

    Raises:
        ValueError: a layer is of a type that is neither lipdp's nor Keras' own, or has no stock counterpart.
        RuntimeError: the outputs differ; please report it.

    Guarantee:
        Both models are run on random examples before the export is returned: their outputs differ by at most
        1e-6 (relative to outputs above 1). Certificates are about the exported function as well. Not covered:
        training on, which has neither noise nor bounds.

    Example:
        >>> import lipdp
        >>> from lipdp import layers
        >>> model = lipdp.DP_Sequential([layers.BoundedInput((4,)), layers.SpectralDense(3), layers.Abs()])
        >>> plain = lipdp.export(model)
        >>> type(plain).__module__.split(".")[0], plain.count_params()
        ('keras', 12)
    """
    exported = _Exporter().model(model)
    _compare(model, exported)
    return exported


def _dense(layer):
    kernel = layer.kernel.numpy()
    return keras.layers.Dense(kernel.shape[-1], use_bias=False, name=layer.name), [kernel]


def _convolution(layer, *filters, **options):
    kind = getattr(keras.layers, type(layer).__name__.removeprefix("Spectral"))
    stock = kind(
        *filters,
        layer.kernel_size,
        layer.strides,
        layer.padding,
        dilation_rate=layer.dilation_rate,
        use_bias=False,
        data_format="channels_last",
        name=layer.name,
        **options,
    )
    return stock, layer.kernel.numpy() * np.float32(1.0 / math.sqrt(layer.multiplicity))


def _conv(layer):
    stock, kernel = _convolution(layer, layer.filters, groups=layer.groups)
    if _widened(layer):
        kernel = np.concatenate([kernel, np.zeros_like(kernel)], axis=-2)
    return stock, [kernel]


def _depthwise(layer):
    stock, kernel = _convolution(layer, depth_multiplier=layer.depth_multiplier)
    return stock, [kernel.reshape(*layer.kernel_size, layer.groups, layer.depth_multiplier)]


def _transposed(layer):
    stock, kernel = _convolution(layer, layer.filters)
    return stock, [kernel]


def _embedding(layer):
    return keras.layers.Embedding(layer.input_dim, layer.output_dim, name=layer.name), [layer.embeddings.numpy()]


def _identity(layer):
    return keras.layers.Identity(name=layer.name), []


# Layers with one stock counterpart, which gets these weights.
STOCK: dict[type, Callable] = {
    SpectralDense: _dense,
    TokenMixing: _dense,
    OrthogonalPatchConv2D: _dense,
    **dict.fromkeys((SpectralConv1D, SpectralConv2D, SpectralConv3D), _conv),
    **dict.fromkeys((SpectralDepthwiseConv1D, SpectralDepthwiseConv2D), _depthwise),
    **dict.fromkeys((SpectralConv1DTranspose, SpectralConv2DTranspose, SpectralConv3DTranspose), _transposed),
    BoundedEmbedding: _embedding,
    ClipGradient: _identity,  # what it does on the way back belongs to training
}


def _widened(layer) -> bool:
    # Stock layers need the second channel too that `SpectralConv.call` gives to oneDNN.
    return layer.groups * layer.kernel.shape[-2] == 1 and layer._uneven()


def _around_conv(layer, inputs, stock):
    return stock(ops.pad(inputs, [(0, 0)] * (layer.rank + 1) + [(0, 1)]) if _widened(layer) else inputs)


def _around_patches(layer, inputs, stock):
    return stock(space_to_depth(inputs, layer.patch_size))


def _around_mixing(layer, inputs, stock):
    return ops.transpose(stock(ops.transpose(inputs, (0, 2, 1))), (0, 2, 1))


def _around_embedding(layer, inputs, stock):
    tokens = ops.clip(ops.cast(inputs, "int32"), 0, layer.input_dim - 1)
    return stock(tokens) * (1.0 / math.sqrt(max(1, entries(inputs.shape, layer))))


def _bias(layer, inputs, stock):
    shift = layer.bias.numpy() * np.float32(1.0 / math.sqrt(positions(inputs.shape, layer)))
    return keras.layers.Rescaling(1.0, offset=shift.tolist())(inputs)


def _group_sort(layer, inputs, stock):
    index = np.arange(inputs.shape[-1])
    neighbours = ops.take(inputs, index ^ 1, axis=-1)
    return ops.where(index % 2 == 0, ops.minimum(inputs, neighbours), ops.maximum(inputs, neighbours))


def _householder(layer, inputs, stock):
    angles = layer.angles.numpy()
    first, second = ops.split(inputs, 2, axis=-1)
    cosine, sine = np.cos(angles), np.sin(angles)
    kept = first * np.sin(0.5 * angles) > second * np.cos(0.5 * angles)
    mirrored = first * cosine + second * sine, first * sine - second * cosine
    return ops.concatenate([ops.where(kept, first, mirrored[0]), ops.where(kept, second, mirrored[1])], axis=-1)


def _l2_norm_pooling(layer, inputs, stock):
    mean = keras.layers.AveragePooling2D(layer.pool_size, layer.strides, data_format="channels_last")(
        ops.square(inputs)
    )
    return _smooth_norm(mean * math.prod(layer.pool_size))


def _scaled_average_pooling(layer, inputs, stock):
    mean = keras.layers.AveragePooling2D(layer.pool_size, data_format="channels_last")(inputs)
    return mean * math.sqrt(math.prod(layer.pool_size))


# Layers made of several operations, some of them around their stock counterpart: functions of layer, inputs and the
# counterpart (None where there is none). All others are written in `keras.ops` and export as these operations.
WRITTEN: dict[type, Callable] = {
    **dict.fromkeys((SpectralConv1D, SpectralConv2D, SpectralConv3D), _around_conv),
    OrthogonalPatchConv2D: _around_patches,
    TokenMixing: _around_mixing,
    BoundedEmbedding: _around_embedding,
    Bias: _bias,
    GroupSort: _group_sort,  # a custom gradient has no symbolic call
    Householder: _householder,
    L2NormPooling2D: _l2_norm_pooling,  # pooling operations do not survive a file on JAX, pooling layers do
    ScaledAveragePooling2D: _scaled_average_pooling,
}


class _Exporter:
    """One pass over a graph; a layer used several times stays one layer."""

    def __init__(self):
        self._copies = {}

    def model(self, model) -> keras.Model:
        graph = functional(model)
        inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype, name=t.name) for t in graph.inputs]
        tensors = {id(old): new for old, new in zip(graph.inputs, inputs, strict=True)}
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in graph._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                args, kwargs = tree.map_structure(
                    lambda value: tensors[id(value)] if isinstance(value, keras.KerasTensor) else value,
                    (node.arguments.args, node.arguments.kwargs),
                )
                outputs = tree.flatten(self._call(node.operation, args, kwargs))
                tensors.update({id(old): new for old, new in zip(node.output_tensors, outputs, strict=True)})
        outputs = [tensors[id(t)] for t in graph.outputs]
        # The same nesting of lists and dictionaries as in the original.
        inputs = tree.pack_sequence_as(graph._inputs_struct, inputs)
        return keras.Model(inputs, tree.pack_sequence_as(graph._outputs_struct, outputs), name=model.name)

    def _call(self, operation, args, kwargs):
        kind = type(operation)
        if kind in WRITTEN:
            stock = (lambda inputs: self._stock(operation, inputs)) if kind in STOCK else None
            return WRITTEN[kind](operation, args[0], stock)
        if kind in STOCK or not isinstance(operation, LipschitzLayer):
            return self._stock(operation, *args, **kwargs)
        if operation.weights:
            supported = ", ".join(sorted(t.__name__ for t in {*STOCK, *WRITTEN}))
            raise ValueError(
                f"Layer '{operation.name}' of type {kind.__name__} has weights and no stock counterpart. "
                f"Supported: {supported}, and layers without weights."
            )
        try:
            return operation.call(*args, **kwargs)
        except Exception as error:
            raise ValueError(
                f"Layer '{operation.name}' of type {kind.__name__} cannot be written in stock operations: its `call` "
                f"must consist of `keras.ops` on tensors (no `custom_gradient`). Received: {error}"
            ) from error

    def _stock(self, operation, *args, **kwargs):
        if id(operation) not in self._copies:
            self._copies[id(operation)] = self._copy(operation)
        copy, weights = self._copies[id(operation)]
        outputs = copy(*args, **kwargs)
        if weights is not None:
            copy.set_weights(weights)
        return outputs

    def _copy(self, operation):
        """A stock layer or operation, and the weights it is given once it is built."""
        if isinstance(operation, keras.Model):
            return self.model(operation), None
        if type(operation) in STOCK:
            return STOCK[type(operation)](operation)
        if not type(operation).__module__.startswith("keras."):
            raise ValueError(
                f"Layer '{operation.name}' of type {type(operation).__name__} is neither lipdp's nor one of Keras' "
                "own, so its export could not be loaded elsewhere. Replace it, or export the model in front of it."
            )
        copy = type(operation).from_config(operation.get_config())
        return copy, operation.get_weights() if isinstance(operation, keras.Layer) else None


def _compare(model, exported) -> None:
    rng = np.random.default_rng(0)
    examples = [
        rng.standard_normal([3, *(size or 4 for size in t.shape[1:])]).astype("float32")
        if "float" in t.dtype
        else np.zeros([3, *(size or 4 for size in t.shape[1:])], t.dtype)
        for t in tree.flatten(model.inputs)
    ]
    examples = tree.pack_sequence_as(functional(model)._inputs_struct, examples)
    with backend.full_precision():
        before, after = (
            [ops.convert_to_numpy(y) for y in tree.flatten(m(examples, training=False))] for m in (model, exported)
        )
    for a, b in zip(before, after, strict=True):
        difference = float(np.max(np.abs(a - b), initial=0.0))
        if not difference <= TOLERANCE * max(1.0, float(np.max(np.abs(a), initial=0.0))):
            raise RuntimeError(
                f"The export of model '{model.name}' computes something else: outputs differ by {difference:.3g}. "
                "Nothing was exported; please report this model."
            )
