"""Layers without a rule: the vector-Jacobian product of the layer alone, vectorized over examples."""

import keras
from keras import ops, tree

from lipdp import _keras, backend
from lipdp.gradients.factors import Whole


def fallback(layer, call, tape, *args, **kwargs):
    """Records what goes in and out; the gradients are computed at full size, `(batch, *shape)`."""
    tape.closed = True
    try:
        outputs = call(*args, **kwargs)
    finally:
        tape.closed = False
    flat = tree.flatten((args, kwargs))
    rows_here = tree.flatten(outputs)[0].shape[0]
    varying = [ops.is_tensor(t) and len(t.shape) > 0 and (t.shape[0] is None or t.shape[0] == rows_here) for t in flat]
    constant = [None if v or not ops.is_tensor(t) else t for t, v in zip(flat, varying, strict=True)]
    static = [None if ops.is_tensor(t) else t for t in flat]
    variables = layer.trainable_variables
    floats = [_is_float(t) for t in tree.flatten(outputs)]

    def gradients(rows, g, inputs, constant, trainable, non_trainable):
        g = [t for t, keep in zip(tree.flatten(g), floats, strict=True) if keep]
        examples = [rows.examples(t) for t in inputs]
        cotangents = [rows.examples(t) for t in g]

        def product(values, *row):
            left, cotangent = iter(row[: len(examples)]), row[len(examples) :]
            values_of = zip(varying, constant, static, strict=True)
            inner = [next(left) if v else (c if c is not None else s) for v, c, s in values_of]
            inner_args, inner_kwargs = tree.pack_sequence_as((args, kwargs), inner)
            if _keras.takes(layer, "training"):
                inner_kwargs["training"] = True
            result, _ = layer.stateless_call(values, non_trainable, *inner_args, **inner_kwargs)
            result = [t for t, keep in zip(tree.flatten(result), floats, strict=True) if keep]
            return sum(ops.sum(r * c) for r, c in zip(result, cotangent, strict=True))

        # A layer made of layers may hold operations that TensorFlow cannot vectorize: it loops instead.
        vectorized = not _keras.walk(layer)
        whole = backend.local_gradients(product, trainable, (*examples, *cotangents), vectorized)
        return [(variable, Whole(t)) for variable, t in zip(variables, whole, strict=True)]

    saved = (
        [t for t, v in zip(flat, varying, strict=True) if v],
        constant,
        [ops.convert_to_tensor(v) for v in variables],
        [ops.convert_to_tensor(v) for v in layer.non_trainable_variables],
    )
    return tape.tap(outputs, saved, gradients)


def _is_float(tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
