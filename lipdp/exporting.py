"""Trained networks without lipdp: plain Keras models of stock layers."""

import inspect
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, backend
from lipdp.bounds.propagate import functional
from lipdp.layers import LipschitzLayer, StandardizedConv2D, Weight
from lipdp.privacy import provenance

# Largest difference between the outputs of a model and of its export, relative to outputs above 1.
TOLERANCE = 1e-6


def export(model: keras.Model) -> keras.Model:
    """Returns a plain Keras model of stock layers with the same outputs, which loads without lipdp.

    Each layer of lipdp says how it is written in stock layers: `LipschitzLayer.stock_layer` and `export_call`.

    Args:
        model: A built Sequential or functional model of lipdp layers, stock Keras layers and models of these.

    Returns:
        A functional `keras.Model`, not compiled. It holds the current weights and nothing else: no optimizer
        state, no noise key, no ledger, no constraints. Save it with `model.save("plain.keras")` or
        `model.export(...)`; keep `privacy.to_dict()` beside it. Keras' random images (`RandomFlip`, ...) are told to
        change nothing: Keras' own `export` of a model leaves them on.

    Raises:
        ValueError: a layer is neither lipdp's nor Keras' own, or cannot be written in stock layers.
        RuntimeError: the outputs differ; please report it.

    Example:
        >>> import lipdp
        >>> from lipdp import layers
        >>> model = lipdp.DP_Sequential([layers.BoundedInput((4,)), layers.SpectralDense(3), layers.Abs()])
        >>> plain = lipdp.export(model)
        >>> type(plain).__module__.split(".")[0], plain.count_params()
        ('keras', 12)

    **Guarantee.** Both models are run on random examples before the export is returned: their outputs differ by at
    most 1e-6 (relative to outputs above 1). Certificates are about the exported function as well. Not covered: further
    training, which has neither noise nor bounds.
    """
    exported = _Exporter().model(model)
    _compare(model, exported)
    # A private model that is made of the export again starts with what its weights have cost.
    provenance.attribute(exported, provenance.ledgers_of(model))
    return exported


class GraphCopy:
    """One pass over a graph that makes another one; a layer used several times stays one layer."""

    def __init__(self):
        self._copies = {}

    def model(self, model: keras.Model) -> keras.Model:
        """Returns the copy of a Sequential or functional model."""
        graph = functional(model)
        for node in _keras.nodes(graph):
            _reserve(node.operation.name)
        inputs = [keras.Input(batch_shape=t.shape, dtype=t.dtype, name=t.name) for t in graph.inputs]
        tensors = {id(old): new for old, new in zip(graph.inputs, inputs, strict=True)}
        for node in _keras.nodes(graph):
            args, kwargs = tree.map_structure(
                lambda value: tensors[id(value)] if isinstance(value, keras.KerasTensor) else value,
                (node.arguments.args, node.arguments.kwargs),
            )
            outputs = tree.flatten(self._call(node.operation, args, kwargs))
            tensors.update({id(old): new for old, new in zip(node.output_tensors, outputs, strict=True)})
        outputs = [tensors[id(t)] for t in graph.outputs]
        # The same nesting of lists and dictionaries as in the original.
        nested = map(tree.pack_sequence_as, _keras.structures(graph), (inputs, outputs))
        return keras.Model(*nested, name=model.name)

    def _call(self, operation, args, kwargs):
        copy, weights = self.copied(operation)
        outputs = self.outputs(operation, copy, args, kwargs)
        if weights:
            copy.set_weights(weights)
        return outputs

    def copied(self, operation: keras.Operation) -> tuple[keras.Operation, list]:
        """Returns `copy` of an operation, the same one each time."""
        if id(operation) not in self._copies:
            self._copies[id(operation)] = self.copy(operation)
        return self._copies[id(operation)]

    def copy(self, operation: keras.Operation) -> tuple[keras.Operation, list]:
        """Returns what stands in for a layer, model or operation, and the weights to give to it once it is built."""
        raise NotImplementedError

    def outputs(self, operation: keras.Operation, copy: keras.Operation, args: tuple, kwargs: dict) -> Any:
        """Calls a copy as the operation was called."""
        return copy(*args, **kwargs)


def repeated(array: Any, tensor: Any) -> Any:
    """Returns a constant once for each row of a tensor, `(batch, *shape)`, by Keras' operations alone."""
    array = np.asarray(array)[None]
    none = ops.sum(ops.zeros_like(tensor, dtype=str(array.dtype)), axis=tuple(range(1, len(tensor.shape))))
    return ops.add(ops.reshape(none, (-1, *[1] * (array.ndim - 1))), array)


class _Exporter(GraphCopy):
    def outputs(self, operation, copy, args, kwargs):
        if isinstance(operation, Weight):
            return repeated(ops.convert_to_numpy(operation.weight), args[0])
        if isinstance(operation, LipschitzLayer):
            return operation.export_call(copy, *args, **kwargs)
        if _changes_images(copy):
            kwargs = {**kwargs, "training": False}  # Keras has noted the default, True, as part of the call
        return super().outputs(operation, copy, args, kwargs)

    def copy(self, operation):
        if isinstance(operation, Weight):
            return operation, []
        if isinstance(operation, (LipschitzLayer, StandardizedConv2D)):
            return operation.stock_layer()
        if isinstance(operation, keras.Model):
            return self.model(operation), []
        if type(operation).__module__.startswith("lipdp."):
            raise ValueError(
                f"Layer '{operation.name}' of type {type(operation).__name__} is lipdp's own and cannot be written in "
                "stock layers, as in diffusion models. Save the model itself: its file loads where lipdp is installed."
            )
        if not type(operation).__module__.startswith("keras."):
            raise ValueError(
                f"Layer '{operation.name}' of type {type(operation).__name__} is neither lipdp's nor one of Keras' "
                "own, so its export could not be loaded elsewhere. Replace it, or export the model in front of it. For "
                "readers who have the class: keras.Model(model.inputs, model.outputs).save(path)."
            )
        copy = type(operation).from_config(_free(operation.get_config()))
        return copy, operation.get_weights() if isinstance(operation, keras.Layer) else []


def _changes_images(operation: keras.Operation) -> bool:
    """Whether a layer changes images at random unless it is told not to, as in a SavedModel."""
    training = inspect.signature(operation.call).parameters.get("training")
    return training is not None and training.default is True


def _free(config: Any) -> Any:
    """Returns a config without constraints, those of layers inside included: they may be lipdp's own."""
    if isinstance(config, dict):
        return {name: None if name.endswith("constraint") else _free(value) for name, value in config.items()}
    return [_free(value) for value in config] if isinstance(config, list) else config


def _reserve(name: str) -> None:
    """Keeps Keras from giving a name of the model to an operation: in a file, names come from another process."""
    prefix, _, count = name.rpartition("_")
    if not (prefix and count.isdigit()):
        prefix, count = name, "0"
    # Keras numbers its names one by one; the limit is for numbers that a user wrote.
    while keras.backend.get_uid(prefix) <= int(count) < 10_000:
        pass


def _compare(model, exported) -> None:
    rng = np.random.default_rng(0)
    examples = [
        rng.standard_normal([3, *(size or 4 for size in t.shape[1:])]).astype("float32")
        if "float" in t.dtype
        else rng.integers(2, size=[3, *(size or 4 for size in t.shape[1:])]).astype(t.dtype)
        for t in tree.flatten(model.inputs)
    ]
    examples = tree.pack_sequence_as(_keras.structures(functional(model))[0], examples)
    with backend.full_precision():
        before, after = (
            [ops.convert_to_numpy(y) for y in tree.flatten(m(examples, training=False))] for m in (model, exported)
        )
    for a, b in zip(before, after, strict=True):
        difference = float(np.max(np.abs(a - b), initial=0.0))
        if not difference <= TOLERANCE * max(1.0, float(np.max(np.abs(a), initial=0.0))):
            raise RuntimeError(
                f"The export of model '{model.name}' computes different outputs: they differ by {difference:.3g}. "
                "Nothing was exported; please report this model."
            )
