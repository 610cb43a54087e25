"""Inputs as a model takes them, and what `fit` refuses of them."""

from typing import Any

import keras
import numpy as np
from keras import ops, tree

from lipdp import _keras, sampling
from lipdp.sampling.columns import Column, first_row, sampled
from lipdp.training import compiling, model_checks

_WHOLE = 2**24  # float32 tells all integers below apart
# What Keras computes by TensorFlow, whatever its backend: not within a compiled step of another one.
_BY_TENSORFLOW = tuple(
    getattr(keras.layers, name)
    for name in ("StringLookup", "IntegerLookup", "Hashing", "HashedCrossing", "TextVectorization")
)


def as_rows(model: keras.Model, x: Any, y: Any) -> tuple[Any, Any]:
    """Returns data as `sampling.as_rows`, with inputs as the model nests them; dictionaries go by name, as in Keras."""
    struct, names, flat = _names(model)
    tensors, frame = tree.flatten(model.inputs), hasattr(x, "iloc")
    if texts := [tensor.name for tensor in tensors if tensor.dtype == "string"]:
        raise ValueError(
            f"A private model takes numbers. Received: a model with inputs of text, {', '.join(map(repr, texts))}. "
            "Call its StringLookup or TextVectorization layers, of a public vocabulary, on the data before `fit`, and "
            "let the model begin behind them."
        )
    looking_up = [one for one in _keras.walk(model) if isinstance(one, _BY_TENSORFLOW)]
    if looking_up and keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Layer '{looking_up[0].name}' ({type(looking_up[0]).__name__}) does not run within a step of "
            f"{keras.backend.backend()}: Keras computes it by TensorFlow. Received: a model with such a layer. Call it "
            "on the data before `fit`, and let the model begin behind it."
        )
    (output, *_), arrange = compiling.output_names(model), model_checks.example_labels(model)
    x, y = sampling.as_rows(x, y, rank_of_batch(model, x, y), arrange, names, output)
    if flat and isinstance(x, dict) and set(x) == set(names):
        x = tuple(x[name] for name in names) if len(names) > 1 else x[names[0]]
    if len(tree.flatten(x)) == len(tensors):
        x = tree.pack_sequence_as(x, [_of_rank(*pair) for pair in zip(tree.flatten(x), tensors, strict=True)])
    _check_shapes(names if isinstance(struct, dict) or isinstance(x, dict) else (), tensors, x, frame)
    _check_whole(tensors, x)
    _check_tokens(model, x)
    return x, y


def named(model: keras.Model, x: Any) -> Any:
    """Returns of a dictionary by the names of a model's inputs those alone, as Keras cannot read texts beside them."""
    if not isinstance(x, dict) or _keras.graph(model) is None:
        return x
    names = _names(model)[1]
    return {name: x[name] for name in names} if names and set(names) < set(x) else x


def build_within(model: keras.Model, x: Any) -> None:
    """Builds layers within others, such as an activation with weights, which Keras builds where they first compute.

    Args:
        model: a model that is built itself.
        x: rows as the model takes them; of one of them the shape is used.
    """
    if not all(layer.built for layer in _keras.walk(model)):
        model(tree.map_structure(lambda leaf: ops.zeros(leaf.shape, leaf.dtype), first_row(x)), training=False)


def rank_of_batch(model: keras.Model, x: Any, y: Any = None) -> int:
    """Returns the rank of the first array in a batch that data yield; an example of `tf.data` has one axis less.

    Args:
        model: A model whose inputs are known.
        x: Training data.
        y: The name of the labels among what x yields, which is no input; else anything.
    """
    tensors = tree.flatten(model.inputs)
    spec = getattr(x, "element_spec", None)
    columns = spec[0] if isinstance(spec, tuple) and spec else spec
    if isinstance(columns, dict) and isinstance(y, str):
        columns = {name: column for name, column in columns.items() if name != y}
    leaves, (struct, names, _) = tree.flatten(columns), _names(model)
    if not leaves or any(getattr(getattr(leaf, "shape", None), "rank", None) is None for leaf in leaves):
        return len(tensors[0].shape)
    inputs = leaves
    if isinstance(columns, dict) and names and set(names) <= set(columns):  # it may hold more
        inputs = tree.flatten([columns[name] for name in names])
        tensors = tree.flatten([struct[name] for name in names]) if isinstance(struct, dict) else tensors
    rows = any(_are_rows(tuple(leaf.shape), tensor) for leaf, tensor in zip(inputs, tensors, strict=False))
    return leaves[0].shape.rank + (0 if rows else 1)


def _are_rows(shape, tensor) -> bool:
    """Returns whether an array of this shape holds several rows of an input, of which one of (N, 1) takes numbers."""
    return len(shape) == len(tensor.shape) or (len(shape) == 1 and tuple(tensor.shape[1:]) == (1,) and shape != (1,))


def _names(model) -> tuple[Any, tuple[str, ...], bool]:
    """Returns the nest of a model's inputs, their names where data may go by them, and whether it is flat."""
    struct, _ = _keras.structures(_keras.graph(model))
    tensors = tree.flatten(model.inputs)
    flat = isinstance(struct, keras.KerasTensor) or (isinstance(struct, list | tuple) and len(struct) == len(tensors))
    return struct, tuple(struct) if isinstance(struct, dict) else tuple(t.name for t in tensors) if flat else (), flat


def _of_rank(leaf, tensor):
    """Returns a column as the (N, 1) that an input takes, as Keras does."""
    if len(leaf.shape) != 1 or tuple(tensor.shape[1:]) != (1,):
        return leaf
    return leaf.with_axis() if isinstance(leaf, Column) else leaf[:, None]


def _check_whole(tensors, x):
    """Refuses integers that are not told apart any more: inputs are float32 until they are in the step."""
    for tensor, leaf in zip(tensors, tree.flatten(x), strict=True):
        rows = sampled(leaf)
        if "int" in tensor.dtype and rows.size and (largest := max(float(rows.max()), -float(rows.min()))) >= _WHOLE:
            raise ValueError(
                f"Input '{tensor.name}' takes integers, which must be below {_WHOLE}: larger ones have no float32 of "
                f"their own. Received: {largest:.0f}. Number them from 0, by a public list of them, or pass what "
                "IntegerLookup or Hashing makes of them."
            )


def _check_shapes(names, tensors, x, frame):
    expected = [tuple(t.shape) for t in tensors]
    received = [leaf.shape for leaf in tree.flatten(x)]
    fits = len(expected) == len(received) and all(
        len(e) == len(r) and all(a is None or a == b for a, b in zip(e[1:], r[1:], strict=True))
        for e, r in zip(expected, received, strict=False)
    )
    if not fits:
        named = f", under the keys {', '.join(map(repr, sorted(names)))}" if names else ""
        given = f", under the keys {', '.join(map(repr, sorted(x)))}" if isinstance(x, dict) else ""
        hint = "; column[:, None] has shape (N, 1)" if any(len(shape) == 1 for shape in received) else ""
        if [len(shape) - 1 for shape in received] == [len(shape) for shape in expected]:
            hint = ": single rows, not batches of them"
        # Gray images, as files have them.
        if len(expected) == len(received) == 1 and len(expected[0]) > 2 and (*received[0][1:], 1) == expected[0][1:]:
            hint = ": x[..., None] has an axis of channels"
        if len(expected) == len(received) == 1 and len(expected[0]) == len(received[0]) > 3:
            if (*received[0][2:], received[0][1]) == expected[0][1:]:
                hint = ": numpy.moveaxis(x, 1, -1) has the channels last"
        if frame and len(expected) > 1:
            hint = ": dict(frame) of a DataFrame has one for each column"
        if len(expected) == 1 and isinstance(x, dict) and expected[0][1:] == (len(x),):
            hint = ": numpy.stack([x[name] for name in names], axis=1) makes one of columns"
        raise ValueError(
            f"The data do not fit the model's inputs. Expected shapes: {expected}{named}. Received: {received}{given}. "
            f"Pass one array per input, of these shapes behind the axis of examples{hint}."
        )


def _check_tokens(model, x):
    """Refuses tokens that an embedding behind an input does not have: TensorFlow stops within an epoch, JAX goes on.

    Of a source its sample is looked at.
    """
    leaves = {id(tensor): leaf for tensor, leaf in zip(tree.flatten(model.inputs), tree.flatten(x), strict=True)}
    for node in _keras.nodes(_keras.graph(model)):
        layer, leaf = node.operation, leaves.get(id(node.input_tensors[0]))
        if leaf is None or not isinstance(layer, keras.layers.Embedding):
            continue
        rows = sampled(leaf)
        axes = tuple(range(1, rows.ndim))
        # Fractions are cut off.
        bad = np.flatnonzero((rows.min(axes, initial=0) <= -1) | (rows.max(axes, initial=0) >= layer.input_dim))
        if len(bad):
            raise ValueError(
                f"Tokens must be integers from 0 to {layer.input_dim - 1}, the input_dim of layer '{layer.name}' less "
                f"one. Received: {rows.min():g} to {rows.max():g}; the first row with another is {bad[0]}. Enlarge "
                "input_dim, or give unknown words a token of their own."
            )
