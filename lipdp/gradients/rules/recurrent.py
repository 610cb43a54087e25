"""SimpleRNN, LSTM and GRU, without unrolling: the input is projected first, for all times at once.

A step computes `z_t = x_t W + b + h_{t-1} U`, so the cotangent of the projected input at time t is that of `z_t`,
and one marked tensor outside of the loop gives the cotangents of all times. The gradient of W is then that of a dense
layer on `x_t`, the gradient of U that of one on `h_{t-1}`.
"""

import keras
from keras import ops

from lipdp import _keras
from lipdp.gradients.factors import Blocks, MatrixLayout, Outer, Whole
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import plain


class _Gates:
    """The matrices of a cell, one block of `units` columns per gate, with their dropout masks."""

    def __init__(self, layer, sequences, state, training):
        cell = layer.cell
        self.units, self.bias = cell.units, cell.bias
        self.kernel, self.recurrent = cell.kernel, cell.recurrent_kernel
        self.count = self.kernel.shape[-1] // self.units
        self.input_masks = self._masks(cell.get_dropout_mask(sequences[:, 0, :]), cell.dropout, training)
        self.state_masks = self._masks(cell.get_recurrent_dropout_mask(state), cell.recurrent_dropout, training)
        cell.reset_dropout_mask()
        cell.reset_recurrent_dropout_mask()

    @staticmethod
    def _masks(masks, rate, training):
        if not training or not rate or masks is None:
            return None
        return list(masks) if isinstance(masks, (list, tuple)) else [masks]

    def columns(self, matrix, k: int):
        return matrix[..., k * self.units : (k + 1) * self.units]

    def project(self, values, masks, matrix):
        """Returns `values @ matrix`, with a mask for all gates, or one for each."""
        matrix = ops.convert_to_tensor(matrix)
        if masks is None:
            return ops.matmul(values, matrix)
        if len(masks) == 1:
            return ops.matmul(values * _timeless(masks[0], values), matrix)
        parts = [
            ops.matmul(values * _timeless(mask, values), self.columns(matrix, k))
            for k, mask in enumerate(masks[: self.count])
        ]
        return ops.concatenate(parts, axis=-1)

    def factor(self, rows, values, masks, g, variable):
        """Returns the factor of `variable` in `project(values, masks, variable)`."""
        g = rows.positions(g)
        if masks is None or len(masks) == 1:
            values = values if masks is None else values * _timeless(masks[0], values)
            return Outer(rows.positions(values), g, MatrixLayout(variable.shape))
        layout = MatrixLayout((variable.shape[0], self.units))
        parts = [
            Outer(rows.positions(values * _timeless(mask, values)), self.columns(g, k), layout)
            for k, mask in enumerate(masks[: self.count])
        ]
        return Blocks(parts, [self.units] * self.count)


def _timeless(mask, values):
    """The masks of dropout hold for all times."""
    return mask if len(mask.shape) == len(values.shape) else mask[:, None]


def _run(layer, step, projected, states, mask):
    """Keras' loop, keeping the state of each time; returns outputs, states before each time, last states."""
    last, outputs, states_after = _keras.recurrent_loop(
        step,
        projected,
        list(states),
        go_backwards=layer.go_backwards,
        mask=mask,
        unroll=layer.unroll,
        input_length=projected.shape[1],
        return_all_outputs=True,
    )
    # A masked time repeats the output of the last one that was not: zeros where there is none, but the state is the
    # initial one.
    start = states[0][:, None]
    before = ops.concatenate([start, outputs[:, :-1]], axis=1)
    if mask is not None:
        mask = ops.cast(ops.flip(mask, axis=1) if layer.go_backwards else mask, "int32")
        started = ops.cumsum(mask, axis=1) - mask > 0
        before = ops.where(started[..., None], before, start)
        if layer.zero_output_for_mask:
            outputs = ops.where(ops.cast(mask, "bool")[..., None], outputs, 0.0)
    result = outputs if layer.return_sequences else (outputs[:, -1] if layer.zero_output_for_mask else last)
    return (result, *states_after) if layer.return_state else result, before


def _prepare(layer, sequences, initial_state, mask, training):
    if initial_state is None:
        initial_state = layer.get_initial_state(batch_size=ops.shape(sequences)[0])
    if not keras.tree.is_nested(initial_state):
        initial_state = [initial_state]
    mask = keras.tree.flatten(mask)[0] if mask is not None else None
    return _Gates(layer, sequences, initial_state[0], training), list(initial_state), mask


def _applies(layer) -> bool:
    return not layer.stateful and plain(layer.cell)


def _cell(layer):
    return (layer.cell,)


@rule(keras.layers.SimpleRNN, applies=_applies, owns=_cell)
def simple_rnn(layer, call, tape, sequences, initial_state=None, mask=None, training=False):
    gates, states, mask = _prepare(layer, sequences, initial_state, mask, training)
    return _linear_recurrence(layer, tape, sequences, gates, states, mask, _simple_step)


def _simple_step(cell, z, states):
    h = z if cell.activation is None else cell.activation(z)
    return h, [h]


@rule(keras.layers.LSTM, applies=_applies, owns=_cell)
def lstm(layer, call, tape, sequences, initial_state=None, mask=None, training=False):
    gates, states, mask = _prepare(layer, sequences, initial_state, mask, training)
    return _linear_recurrence(layer, tape, sequences, gates, states, mask, _lstm_step)


def _lstm_step(cell, z, states):
    i, f, c, o = ops.split(z, 4, axis=-1)
    carry = cell.recurrent_activation(f) * states[1] + cell.recurrent_activation(i) * cell.activation(c)
    h = cell.recurrent_activation(o) * cell.activation(carry)
    return h, [h, carry]


def _linear_recurrence(layer, tape, sequences, gates, states, mask, step):
    """A cell whose gates are all `x W + h U + b`."""
    projected = gates.project(sequences, gates.input_masks, gates.kernel)
    if gates.bias is not None:
        projected = projected + gates.bias
    before = []

    def gradients(rows, g, inputs, h, input_masks, state_masks):
        yield gates.kernel, gates.factor(rows, inputs, input_masks, g, gates.kernel)
        # The states lie in the order of the loop.
        in_order = ops.flip(g, axis=1) if layer.go_backwards else g
        yield gates.recurrent, gates.factor(rows, h, state_masks, in_order, gates.recurrent)
        if gates.bias is not None:
            yield gates.bias, Whole(rows.summed(g, gates.bias.shape))

    projected = tape.tap(projected, before, gradients)

    def advance(z, states):
        z = z + gates.project(states[0], gates.state_masks, gates.recurrent)
        return step(layer.cell, z, states)

    result, h = _run(layer, advance, projected, states, mask)
    before.extend((sequences, h, gates.input_masks, gates.state_masks))
    return result


@rule(keras.layers.GRU, applies=_applies, owns=_cell)
def gru(layer, call, tape, sequences, initial_state=None, mask=None, training=False):
    gates, states, mask = _prepare(layer, sequences, initial_state, mask, training)
    cell, units, bias = layer.cell, gates.units, gates.bias
    separate = bias is not None and cell.reset_after
    projected = gates.project(sequences, gates.input_masks, gates.kernel)
    if bias is not None:
        projected = projected + (ops.convert_to_tensor(bias)[0] if separate else bias)
    # Read here: `gradients` runs after the model, where variables must not be read.
    recurrent = ops.convert_to_tensor(gates.recurrent)
    recurrent_bias = ops.convert_to_tensor(bias)[1] if separate else None

    def inner(h, masks, recurrent, recurrent_bias):
        """What the state adds to the update, reset and candidate gates; the last one only where it is linear."""
        matrix = recurrent if cell.reset_after else recurrent[:, : 2 * units]
        short = masks if masks is None or len(masks) == 1 or cell.reset_after else masks[:2]
        if short is not None and len(short) == 2:
            parts = [ops.matmul(h * _timeless(m, h), gates.columns(matrix, k)) for k, m in enumerate(short)]
            z = ops.concatenate(parts, axis=-1)
        else:
            z = gates.project(h, short, matrix)
        return z if recurrent_bias is None else z + recurrent_bias

    def reset_of(projected, state):
        return cell.recurrent_activation(gates.columns(projected, 1) + gates.columns(state, 1))

    def masked(h, masks):
        return h if masks is None else h * _timeless(masks[-1 if len(masks) == 1 else 2], h)

    def advance(x, states):
        h = states[0]
        state = inner(h, gates.state_masks, recurrent, recurrent_bias)
        update = cell.recurrent_activation(gates.columns(x, 0) + gates.columns(state, 0))
        reset = reset_of(x, state)
        if cell.reset_after:
            candidate = reset * gates.columns(state, 2)
        else:
            candidate = ops.matmul(masked(reset * h, gates.state_masks), gates.columns(recurrent, 2))
        h = update * h + (1 - update) * cell.activation(gates.columns(x, 2) + candidate)
        return h, [h]

    def gradients(rows, g, inputs, projected, h, input_masks, state_masks, recurrent, recurrent_bias):
        yield gates.kernel, gates.factor(rows, inputs, input_masks, g, gates.kernel)
        input_bias = None if bias is None else rows.summed(g, (3 * units,))
        if layer.go_backwards:  # the states lie in the order of the loop
            g, projected = ops.flip(g, axis=1), ops.flip(projected, axis=1)
        reset = reset_of(projected, inner(h, state_masks, recurrent, recurrent_bias))
        if cell.reset_after:
            g = ops.concatenate([g[..., : 2 * units], reset * gates.columns(g, 2)], axis=-1)
            yield gates.recurrent, gates.factor(rows, h, state_masks, g, gates.recurrent)
        else:
            layout = MatrixLayout((units, units))
            values = [masked_for(h, state_masks, 0), masked_for(h, state_masks, 1), masked(reset * h, state_masks)]
            parts = [
                Outer(rows.positions(v), rows.positions(gates.columns(g, k)), layout) for k, v in enumerate(values)
            ]
            yield gates.recurrent, Blocks(parts, [units] * 3)
        if bias is not None:
            second = [rows.summed(g, (3 * units,))] if separate else []
            yield bias, Whole(ops.stack([input_bias, *second], axis=1) if separate else input_bias)

    def masked_for(h, masks, k):
        return h if masks is None else h * _timeless(masks[0 if len(masks) == 1 else k], h)

    saved = []
    unmarked = projected
    projected = tape.tap(projected, saved, gradients)
    result, h = _run(layer, advance, projected, states, mask)
    saved.extend((sequences, unmarked, h, gates.input_masks, gates.state_masks, recurrent, recurrent_bias))
    return result
