"""One forward and one backward pass that leave the inputs of each layer and the cotangents of its output."""

import contextlib

import keras
from keras import ops, tree

from lipdp import _keras, backend, isolation
from lipdp.gradients.factors import Zero, merge
from lipdp.gradients.leaves import leaves
from lipdp.gradients.record import Record
from lipdp.gradients.rows import Rows
from lipdp.losses import penalties


class Tape:
    """What rules write to while the model runs."""

    def __init__(self, mark, rows: Rows):
        self._mark, self.rows = mark, rows
        self.uses, self.saved = [], []
        # True inside a layer that is recorded as a whole: what it is made of is not recorded again.
        self.closed = False

    def tap(self, outputs, saved, gradients):
        """Records one use of a layer's variables.

        Args:
            outputs: Tensor or nest of tensors; go on with what is returned in its place.
            saved: Nest of tensors that `gradients` needs later. It must not read variables or other tensors.
            gradients: Called as `gradients(rows, cotangents, *saved)` after the backward pass, with cotangents
                nested as `outputs`; returns pairs of a variable and a factor.

        Returns:
            `outputs`, marked for differentiation.
        """
        self.uses.append((tree.map_structure(lambda _: None, outputs), gradients, self.rows))
        self.saved.append(saved)
        marked = tree.map_structure(self._mark, outputs)
        for one, other in zip(tree.flatten(outputs), tree.flatten(marked), strict=True):
            if _keras.mask(one) is not None:  # some layers set it inside of `call`
                _keras.set_mask(other, _keras.mask(one))
        return marked


def capture(forward, x, y, weight, *, loss_values, copies: int = 1, shares=None, isolated: bool = True) -> Record:
    """Runs a model forward and backward once and keeps what per-example gradients are made of.

    Call it while the training step is traced, or eagerly. The layers' `call` is replaced for the time of the call,
    so one model must not be captured by two threads at once.

    Args:
        forward: `backend.Forward` of a model that `supported` accepts.
        x, y: Inputs and targets, `batch * copies` rows; `copies` consecutive rows belong to one example.
        weight: `(batch,)`, 1 for examples and 0 for padding. Multiplies the losses.
        loss_values: Function of `y` and the model's output that returns `(batch * copies,)` per-example losses.
        copies: Rows per example. The loss of an example is the mean over its rows.
        shares: `(batch * copies,)` or None: what each row counts in the loss of its example, in place of weights and
            mean; 0 for padding.
        isolated: Whether layers that are not known to keep rows apart run one row at a time.

    Returns:
        A `Record`.

    Raises:
        ValueError: a layer adds a loss of its own.

    **Guarantee.** The gradients of the record are those of `weight_i * mean(loss of the rows of i)`, or with shares
    those of the sum of `share * loss` over the rows of i: example i enters
    no other gradient, as layers that could mix examples run one row at a time (`isolation.isolated`). A weight of 0
    gives gradients of exactly zero as long as the loss of the padding is finite. Under a policy of `mixed_bfloat16` the
    passes run in bfloat16, and the gradients are those that float32 makes of what the passes leave: norms and sums are
    of these. Norms are computed in float32; where
    terms cancel a margin of twice the unit in the last place is added. Where the gradient of an example is not finite,
    neither is its norm, and `weighted_sum` leaves it out on request. Not covered: what was declared
    (`lipdp.row_wise`), and layers that mix with `isolated=False`.

    Example:
        >>> import keras
        >>> from keras import ops
        >>> from lipdp import backend, gradients
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> record = gradients.capture(
        ...     backend.Forward(model), ops.ones((2, 3)), None, ops.ones((2,)),
        ...     loss_values=lambda y, y_pred: y_pred[:, 0],
        ... )
        >>> [float(n[0]) for n in record.squared_norms()]
        [3.0, 1.0]
    """
    batch_rows = Rows(ops.shape(weight)[0], copies)
    recorded, uses = leaves(forward.model), []

    def run(mark):
        tape = Tape(mark, batch_rows)
        with _alone(forward.model, isolated), overridden(recorded, tape):
            y_pred, added, updated = forward(x)
        _check_rows(forward.model, y_pred, ops.shape(weight)[0], copies)
        penalties.refuse_additional(forward.model, added)
        values = _float32(loss_values(y, y_pred))
        _check_losses(values, ops.shape(weight)[0], copies)
        if shares is None:
            total = ops.sum(weight * ops.mean(ops.reshape(values, (-1, copies)), axis=1))
        else:
            total = ops.sum(shares * values)
        uses[:] = tape.uses
        return total, (tape.saved, values, y_pred, [_keras.mask(t) for t in tree.flatten(y_pred)], updated)

    cotangents, (saved, values, y_pred, masks, updated) = backend.cotangents(run)
    for tensor, mask in zip(tree.flatten(y_pred), masks, strict=True):
        if mask is not None:  # JAX hands back tensors without it, and metrics go by it
            _keras.set_mask(tensor, mask)
    # Norms and sums are taken of the same numbers, in float32 whatever the passes computed in.
    cotangents, saved = backend.made_once(tree.map_structure(_float32, (cotangents, saved)))
    cotangents = iter(cotangents)
    pieces = {}
    for (structure, gradients, rows), kept in zip(uses, saved, strict=True):
        g = tree.map_structure(lambda _: next(cotangents), structure)
        for variable, factor in gradients(rows, g, *kept):
            pieces.setdefault(id(variable), []).append(factor)
    factors = [
        merge(pieces[id(v)]) if id(v) in pieces else Zero(batch_rows, v.shape)
        for v in forward.model.trainable_variables
    ]
    return Record(factors, values, y_pred, updated)


def _check_rows(model, y_pred, examples, copies: int) -> None:
    """Refuses outputs of another number of rows, which losses and labels do not fit."""
    rows = examples * copies if isinstance(examples, int) else None
    for tensor in tree.flatten(y_pred):
        if rows is not None and len(tensor.shape) and tensor.shape[0] not in (None, rows):
            own = isolation.suspects(model)
            raise ValueError(
                "The output must have one row for each row of the batch: a layer joins or splits rows. Received: "
                f"{tensor.shape[0]} rows for {rows}, from model '{model.name}'{own and f', by {own}'}. Keep the "
                "first axis of inputs, as in concatenate(..., axis=-1)."
            )


def _check_losses(values, examples, copies: int) -> None:
    """Refuses losses that are not one number for each row, as one for all would be added to each."""
    rows = examples * copies if isinstance(examples, int) else None
    if len(values.shape) != 1 or (rows is not None and values.shape[0] not in (None, rows)):
        raise ValueError(
            f"The loss must return one number for each row of the batch. Received: shape {tuple(values.shape)} for "
            f"{'a batch of' if rows is None else rows} rows. Average over all axes but the first."
        )


def _float32(tensor):
    dtype = None if tensor is None else keras.backend.standardize_dtype(tensor.dtype)
    # float16 as well: squares of small entries would be zero there, and the sum not.
    if dtype is None or dtype == "float32" or not keras.backend.is_float_dtype(dtype):
        return tensor
    return ops.cast(tensor, "float32")


def _alone(model, isolated: bool):
    return isolation.isolated(model) if isolated else contextlib.nullcontext()


@contextlib.contextmanager
def overridden(recorded, tape):
    """Puts the rules in place of the layers' `call`."""
    before = {id(layer): vars(layer).get("call") for layer, _ in recorded}

    def override(layer, rule, call):
        def run(*args, **kwargs):
            if tape.closed:
                return call(*args, **kwargs)
            return rule(layer, call, tape, *args, **kwargs)

        return run

    try:
        for layer, rule in recorded:
            layer.__dict__["call"] = override(layer, rule, layer.call)
        yield
    finally:
        for layer, _ in recorded:
            layer.__dict__.pop("call", None)
            if before[id(layer)] is not None:
                layer.__dict__["call"] = before[id(layer)]
