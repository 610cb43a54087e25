"""Layers without a rule: the vector-Jacobian product of the layer alone, vectorized over examples."""

import keras
from keras import ops, tree

from lipdp import _keras, backend, isolation
from lipdp.gradients.factors import Whole


def fallback(layer, call, tape, *args, **kwargs):
    """Records what goes in and out; the gradients are computed at full size, `(batch, *shape)`."""
    # A layer that may not see two rows gets a gradient for each row, not for all rows of an example together.
    alone = isolation.is_alone(call)
    seeds = isolation.seeds_of(layer) if alone else []
    states = [ops.copy(s.state.value) for s in seeds]  # as they are before the call draws from them
    masks = _masks(args, kwargs)
    tape.closed = True
    try:
        outputs = call(*args, **kwargs)
    finally:
        tape.closed = False
    number = None if alone else tree.flatten(outputs)[0].shape[0] or -1
    arguments = _as_given(args, kwargs, number, masks, getattr(call, "places", None))
    variables = layer.trainable_variables
    floats = [_is_float(t) for t in tree.flatten(outputs)]

    places = [[v is s.state for v in layer.non_trainable_variables].index(True) for s in seeds]

    # What draws inside of a layer hears of the training from the layers around it, which are left by then.
    training = _keras.told_training() if seeds else True

    def called(values, other, args, kwargs):
        if not alone or layer.compute_dtype == "float32":
            return layer.stateless_call(values, other, *args, **kwargs)[0]
        # What was saved is float32: Keras casts inputs and weights in `__call__`, and `stateless_call` is `call` alone.
        held = zip([*variables, *layer.non_trainable_variables], [*values, *other], strict=True)
        with keras.StatelessScope(held):
            return layer(*args, **kwargs)

    def run(values, other, *args, **kwargs):
        if not seeds:
            return called(values, other, args, kwargs)
        return _keras.telling_training(lambda: called(values, other, args, kwargs), training)

    def gradients(rows, g, inputs, constants, trainable, non_trainable, states):
        g = [t for t, keep in zip(tree.flatten(g), floats, strict=True) if keep]
        split = (lambda t: ops.expand_dims(t, 1)) if alone else rows.examples
        examples = [split(t) for t in inputs]
        cotangents = [split(t) for t in g]
        # Each row draws again what it has drawn.
        drawn = [isolation.row_states(state, ops.shape(examples[0])[0]) for state in states]

        def product(values, *row):
            inner_args, inner_kwargs = arguments.packed(row[: len(examples)], constants)
            if _keras.takes(layer, "training") and not seeds:
                inner_kwargs["training"] = True
            other = list(non_trainable)
            for place, state in zip(places, row[len(examples) + len(cotangents) :], strict=True):
                other[place] = state
            with isolation.together(layer):
                result = run(values, other, *inner_args, **inner_kwargs)
            # Cotangents are in float32, whatever the layer computes in.
            kept = [t for t, keep in zip(tree.flatten(result), floats, strict=True) if keep]
            result = [ops.cast(t, c.dtype) for t, c in zip(kept, row[len(examples) :], strict=False)]
            return sum(ops.sum(r * c) for r, c in zip(result, row[len(examples) :], strict=False))

        # A layer made of layers may hold operations that TensorFlow cannot vectorize: it loops instead.
        vectorized = alone or not _keras.walk(layer)
        try:
            whole = backend.local_gradients(product, trainable, (*examples, *cotangents, *drawn), vectorized)
        except ValueError as error:
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) cannot be differentiated one row at a time. Received: "
                f"{error}. Leave that out, or use layers of Keras."
            ) from error
        if alone and rows.views != 1:
            whole = [ops.sum(rows.examples(t), axis=1) for t in whole]
        return [(variable, Whole(t)) for variable, t in zip(variables, whole, strict=True)]

    saved = (
        arguments.rows,
        arguments.constants,
        [ops.convert_to_tensor(v) for v in variables],
        [ops.convert_to_tensor(v) for v in layer.non_trainable_variables],
        states,
    )
    return tape.tap(outputs, saved, gradients)


def _masks(args, kwargs) -> list:
    return [_keras.mask(leaf) for leaf in tree.flatten((args, kwargs))]


def _as_given(args, kwargs, number, masks, places) -> isolation.Arguments:
    """Returns arguments with the masks that they had before the call: attention takes them off the tensors it gets."""
    flat, left = tree.flatten((args, kwargs)), _masks(args, kwargs)
    lost = [
        k for k, (before, after) in enumerate(zip(masks, left, strict=True)) if before is not None and after is None
    ]
    try:
        for k in lost:
            _keras.set_mask(flat[k], masks[k])
        return isolation.Arguments(args, kwargs, number=number, places=places)
    finally:
        for k in lost:
            _keras.set_mask(flat[k], None)


def _is_float(tensor) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype))
