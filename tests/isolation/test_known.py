"""Which operations of a graph are known to keep rows apart, and which are not."""

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import _keras, isolation
from lipdp.isolation import known, rules

# Of rows of shape (4, 6).
MOVING = {
    "new axes": lambda x: ops.expand_dims(ops.expand_dims(x, -1), (1, -2)),
    "axes of one": lambda x: ops.squeeze(x[:, :1, None], (1, -2)),
    "stacked": lambda x: ops.stack([x, 2.0 * x], axis=1) - ops.expand_dims(ops.stack([x, x], axis=-1)[..., 0], 1),
    "transposed": lambda x: ops.transpose(x, (0, 2, 1)),
    "swapped": lambda x: ops.swapaxes(x, -1, 1),
    "moved": lambda x: ops.moveaxis(x[..., None], (1, 2), (3, 1)),
    "repeated": lambda x: ops.repeat(ops.repeat(x, 2, axis=1), 3, axis=-1),
    "tiled": lambda x: ops.concatenate([ops.tile(x, (2, 1)), ops.tile(x, (1, 2, 1))], axis=1),
    "padded": lambda x: ops.pad(x, ((0, 0), (1, 0), (0, 2)), mode="reflect"),
    "rolled": lambda x: ops.roll(x, 2, axis=1),
    "split": lambda x: ops.multiply(*ops.split(x, 2, axis=-1)),
    "gathered": lambda x: ops.take_along_axis(x, ops.cast(x > 0, "int32"), axis=2),
    "norms": lambda x: ops.normalize(x, axis=-1),
    "products": lambda x: ops.matmul(ops.tril(x), ops.transpose(x, (0, 2, 1))),
    "sums of products": lambda x: (
        ops.einsum("bij,bkj->bik", x, ops.triu(x)) @ ops.einsum("bij,bj->bi", x, x[:, 0])[:, :, None]
    ),
    "patches": lambda x: ops.image.extract_patches(x[..., None], 2),
    "resized": lambda x: ops.image.resize(x[:, :, :, None], (2, 3)),
    "classes": lambda x: ops.one_hot(ops.cast(x > 0, "int32"), 2, axis=1),
    "parts": lambda x: x[..., 1:3] * x[..., None, 1, 2:3],
    "activations": lambda x: ops.leaky_relu(x) + ops.log_sigmoid(x) * ops.hard_silu(x) / ops.rsqrt(1.0 + x * x),
}


def sequence(*make, shape=(6,), **kwargs):
    return lambda: keras.Sequential([keras.Input(shape, **kwargs), *(one() for one in make)])


def graph(function, shape=(6,), **kwargs):
    def make():
        inputs = keras.Input(**kwargs) if "batch_shape" in kwargs else keras.Input(shape, **kwargs)
        return keras.Model(inputs, function(inputs))

    return make


@lipdp.row_wise
class Holds(L.Layer):
    """Declared, but what is inside of it is not."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def call(self, inputs):
        return self.inside(inputs)


class Adds(L.Layer):
    def call(self, inputs):
        return inputs + ops.sum(inputs, axis=0, keepdims=True)

    def compute_output_shape(self, input_shape):
        return input_shape


class OwnCall(keras.Model):
    """A functional model whose call is another one."""

    def call(self, inputs, training=None):
        return super().call(inputs) + ops.sum(inputs)


def own_call():
    inputs = keras.Input((6,))
    return OwnCall(inputs, L.Dense(6)(inputs))


def replaced():
    """A call that is set on an object."""
    model = sequence(lambda: L.Dense(3))()
    model.layers[0].call = lambda x: ops.ones((ops.shape(x)[0], 3)) * ops.sum(x)
    return model


def replaced_in_declared():
    model = sequence(lambda: Holds(L.Dense(3)))()
    model.layers[0].call = lambda x: x * ops.sum(x)
    return model


def frozen():
    model = sequence(L.BatchNormalization)()
    model.layers[0].trainable = False
    return model


def total(x):
    return x + ops.sum(x)


class Total:
    def __call__(self, x, training=None):
        return total(x)


def changed(change, layer=None, shape=(4, 6)):
    """A model with a layer of Keras that something was done to."""

    def make():
        held = layer() if layer else L.MultiHeadAttention(2, 3)
        inputs = keras.Input(shape)
        model = keras.Model(inputs, held(inputs) if layer else held(inputs, inputs))
        change(held)
        return model

    return make


def masked(call, mask, shape=(6, 4)):
    """A model whose second input is a mask."""

    def make():
        x, m = keras.Input(shape), keras.Input(mask)
        return keras.Model([x, m], call(x, m))

    return make


def set_to(name, value, inner=None):
    return lambda layer: setattr(getattr(layer, inner) if inner else layer, name, value)


def twice(make, first, then, shape=(4,)):
    """A model with a layer that is called on inputs of other ranks, of which Keras looks at the first ones."""

    def called():
        x, layer = keras.Input(shape), make()
        return keras.Model(x, [layer(first(x)), layer(then(x))])

    return called


def row(x):
    return L.Reshape((1, 4))(x)


class Policy(keras.DTypePolicy):
    """Mixes rows before a layer is called."""

    def __init__(self):
        super().__init__("float32")

    def convert_input(self, x, autocast, dtype):
        return total(x)


def with_policy():
    model = sequence(lambda: L.Dense(3))()
    model.dtype_policy = Policy()
    return model


class Summing(L.EinsumDense):
    def call(self, inputs, training=None):
        return total(super().call(inputs))


MIXING = {
    "batch normalization": sequence(L.BatchNormalization),
    "stateful": graph(L.LSTM(3, stateful=True), batch_shape=(4, 5, 3)),
    "softmax of vectors": sequence(lambda: L.Dense(1), lambda: L.Reshape(()), lambda: L.Activation("softmax")),
    "attention along the batch": graph(lambda x: L.MultiHeadAttention(2, 3, attention_axes=(0,))(x, x), (4, 6)),
    "attention without positions": graph(lambda x: L.MultiHeadAttention(2, 3)(x, x)),
    "product along the batch": graph(lambda x: L.EinsumDense("ab,ac->bc", (3,))(x), batch_shape=(6, 6)),
    "normalization along the batch": sequence(lambda: L.UnitNormalization(axis=0)),
    "Softmax along the batch": sequence(lambda: L.Softmax(axis=0)),
    "concatenation along the batch": graph(lambda x: L.Concatenate(axis=0)([x, x])),
    "masking of vectors": graph(lambda x: L.Masking()(x), ()),
    "rescaling of each row": sequence(lambda: L.Rescaling(np.ones((5, 6)))),
    "rescaling of vectors": graph(lambda x: L.Rescaling(np.ones(6))(x), ()),
    "Lambda": sequence(lambda: L.Lambda(total)),
    "own function": sequence(lambda: L.Dense(3, activation=total)),
    "own activation": sequence(lambda: L.Activation(total)),
    "own layer": sequence(Adds),
    "in a layer of Keras": sequence(lambda: L.TimeDistributed(Adds()), shape=(4, 6)),
    "own call of a declared layer": replaced_in_declared,
    "in a declared layer": sequence(lambda: Holds(Adds())),
    "own call of a model": own_call,
    "call on an object": replaced,
    "sum": graph(lambda x: ops.sum(x, axis=0, keepdims=True)),
    "sum of all": graph(lambda x: x + ops.sum(x)),
    "argmax": graph(lambda x: ops.argmax(x, axis=0)),
    "rows in another order": graph(lambda x: x[::-1, :]),
    "flip": graph(lambda x: ops.flip(x, axis=0)),
    "roll": graph(lambda x: ops.roll(x, 1)),
    "sort": graph(lambda x: ops.sort(x, axis=-2)),
    "cumulated sum": graph(lambda x: ops.cumsum(x)),
    "products of pairs": graph(lambda x: ops.expand_dims(x, 1) * x),
    "numbers beside a constant": graph(lambda x: ops.squeeze(L.Dense(1)(x), -1) + ops.ones((5,))),
    **{
        name: graph(function, (4, 6))
        for name, function in {
            "rows along a new axis": lambda x: ops.expand_dims(x, 0),
            "rows along two new axes": lambda x: ops.expand_dims(x, (2, -5)),
            "all axes of one": lambda x: ops.squeeze(L.Dense(1)(x)),
            "stacked along the batch": lambda x: ops.stack([x, x]),
            "stacked along the batch from the end": lambda x: ops.stack([x, x], axis=-4),
            "stacked with a constant": lambda x: ops.stack([x, np.ones((5, 4, 6), "float32")], axis=1),
            "rows moved": lambda x: ops.transpose(x, (1, 0, 2)),
            "rows moved from the end": lambda x: ops.transpose(x, (-1, 1, 0)),
            "rows swapped": lambda x: ops.swapaxes(x, 1, -3),
            "rows moved behind": lambda x: ops.moveaxis(x, 0, 1),
            "an axis moved in front of rows": lambda x: ops.moveaxis(x, 2, 0),
            "repeated rows": lambda x: ops.repeat(x, 2, axis=0),
            "repeated entries": lambda x: ops.repeat(x, 2),
            "tiled rows": lambda x: ops.tile(x, (2, 1, 1)),
            "tiled along a new axis": lambda x: ops.tile(x, (1, 1, 1, 1)),
            "padded rows": lambda x: ops.pad(x, ((1, 0), (0, 0), (0, 0)), mode="reflect"),
            "padded everywhere": lambda x: ops.pad(x, 1, mode="symmetric"),
            "rolled rows": lambda x: ops.roll(x, 1, axis=-3),
            "split rows": lambda x: ops.split(x, [2], axis=0)[0],
            "gathered rows": lambda x: ops.take_along_axis(x, ops.cast(x, "int32"), axis=0),
            "norm of all": lambda x: x / ops.norm(x),
            "normalized over rows": lambda x: ops.normalize(x, axis=0),
            "letters of two batches": lambda x: ops.einsum("bij,cij->bc", x, x),
            "a batch that is summed": lambda x: ops.einsum("bij,bij->ij", x, x),
            "a batch that moves": lambda x: ops.einsum("bij->ijb", x),
            "a batch under dots": lambda x: ops.einsum("...ij,...ij->...", x, x),
            "a batch without a result": lambda x: ops.einsum("bij,bij", x, x),
            "a batch and a constant": lambda x: ops.einsum("bij,bjk->bik", x, np.ones((1, 6, 2), "float32")),
            "patches of a batch": lambda x: ops.image.extract_patches(x, 2),
            "a batch resized": lambda x: ops.image.resize(x, (2, 2)),
            "as many entries as axes": lambda x: x[..., 1, 2, 3],
        }.items()
    },
    "a triangle of rows": graph(ops.tril),
    "as many stacked as rows": graph(lambda x: ops.stack([x, x]), batch_shape=(2, 4, 6)),
    "as many new rows as rows": graph(lambda x: ops.expand_dims(x, -4), batch_shape=(1, 4, 6)),
    "products of rows": graph(lambda x: ops.matmul(x, ops.transpose(x)), batch_shape=(6, 6)),
    "softmax of a triangle": graph(lambda x: ops.stack([ops.squeeze(L.Dense(1)(x), -1)], 0)),
    "own layer in a nested model": graph(lambda x: keras.Sequential([keras.Input((6,)), Adds()])(x)),
    "row by number": graph(lambda x: x[2]),
    "reshaped": graph(lambda x: ops.reshape(x, (-1, 3))),
    "transposed": graph(lambda x: ops.transpose(x)),
    "transposed with the batch": graph(lambda x: ops.transpose(x, (2, 1, 0)), (4, 6)),
    "batch counted from the end": graph(lambda x: ops.transpose(x, (1, -2)), batch_shape=(6, 6)),
    "swapped with the batch": graph(lambda x: ops.swapaxes(x, -2, 1), batch_shape=(6, 6)),
    "an axis before the batch": graph(lambda x: ops.expand_dims(x, -3)),
    "stacked before the batch": graph(lambda x: ops.stack([x, x], axis=-3)),
    "stacked with a constant": graph(lambda x: ops.stack([x, np.ones((4, 6), "float32")], axis=1), batch_shape=(4, 6)),
    "squeezed": graph(lambda x: ops.squeeze(x), batch_shape=(1, 6)),
    "squeezed batch": graph(lambda x: ops.squeeze(x, -2), batch_shape=(1, 6)),
    "split batch": graph(lambda x: ops.split(x, 2, axis=-2)[0], batch_shape=(4, 6)),
    "concatenated with a constant": graph(
        lambda x: ops.concatenate([x, np.ones((4, 6), "float32")], axis=1), batch_shape=(4, 6)
    ),
    "product of vectors by matrices": graph(lambda x: ops.matmul(x, ops.transpose(x)), batch_shape=(6, 6)),
    "product of rows by rows": graph(lambda x: ops.matmul(x, x), batch_shape=(6, 6)),
    "row behind three dots": graph(lambda x: x[..., 2, :], batch_shape=(6, 6)),
    "inverse of all": graph(lambda x: ops.linalg.inv(x), batch_shape=(6, 6)),
    "sum over vectors": graph(lambda x: ops.matmul(x, np.ones((6, 6), "float32")), (), batch_shape=(6,)),
    "product behind a constant": graph(lambda x: ops.matmul(np.ones((6, 6), "float32"), x), batch_shape=(6, 6)),
    "product with one of each row": graph(lambda x: ops.matmul(x, np.ones((5, 6, 2), "float32")), (4, 6)),
    "product spelled": graph(lambda x: ops.einsum("bi,ci->bc", x, x)),
    "batch spelled twice": graph(lambda x: ops.einsum("bb,bi->bi", x, x), batch_shape=(6, 6)),
    "sum spelled": graph(lambda x: ops.einsum("bi,bj->ij", x, x), batch_shape=(6, 6)),
    "batch elsewhere": graph(lambda x: ops.einsum("ib,bj->bj", x, x), batch_shape=(6, 6)),
    "batch of a constant": graph(lambda x: ops.einsum("bi,bi->bi", x, np.ones((6, 6), "float32")), batch_shape=(6, 6)),
    "spelled with dots": graph(lambda x: ops.einsum("...i,ij->...j", x, np.ones((6, 2), "float32")), batch_shape=(6,)),
    "no output spelled": graph(lambda x: ops.einsum("ba,bc", x, x)),
    "product of all": graph(lambda x: ops.matmul(ops.transpose(x), x)),
    "activation of a part": changed(set_to("activation", total, "_output_dense")),
    "type of a part": changed(set_to("__class__", Summing, "_output_dense")),
    "method of an object": changed(set_to("_compute_attention", total)),
    "object in the place of a part": changed(set_to("_softmax", Total())),
    "layer that nothing tracks": changed(lambda layer: vars(layer).update(_softmax=Adds())),
    "mask of an object": changed(set_to("compute_mask", total), lambda: L.Dense(3)),
    "functions in a list": changed(set_to("parts", [{"first": Total()}]), lambda: L.Dense(3)),
    "method of a cell": changed(lambda layer: setattr(layer.cell, "call", total), lambda: L.LSTM(3)),
    "softmax of vectors in a layer": graph(lambda x: L.Activation(L.Activation("softmax"))(x), ()),
    "axis of a layer inside": graph(lambda x: L.TimeDistributed(L.Softmax(axis=-3))(x), (2, 3, 4)),
    "axis of a layer as activation": graph(lambda x: L.Activation(L.Softmax(axis=-3))(x), (3, 4)),
    "attention on vectors": graph(lambda x: L.Attention()([x, x])),
    "values without positions": graph(lambda x: L.Attention()([x, L.Flatten()(x)]), (4, 4)),
    "product of vectors": graph(lambda x: L.EinsumDense("...a,ab->...b", 3)(x), batch_shape=(6,)),
    "pipeline of images without channels": graph(lambda x: L.Pipeline([L.RandomFlip("vertical")])(x), (4, 6)),
    "pipeline with own layer": graph(lambda x: L.Pipeline([L.RandomFlip(), Adds()])(x), (4, 4, 1)),
    "pipeline of other axes": graph(lambda x: L.Pipeline([L.Reshape((4, 4)), L.RandomFlip()])(x), (4, 4, 1)),
    "image without channels": graph(lambda x: L.RandomFlip("vertical")(x), (4, 6)),
    "images in time without channels": graph(lambda x: L.TimeDistributed(L.Resizing(4, 3))(x), (2, 4, 6)),
    "mask of one sequence": masked(lambda x, m: L.MultiHeadAttention(2, 3)(x, x, attention_mask=m), (6,)),
    "mask of one grouped sequence": masked(lambda x, m: L.GroupQueryAttention(4, 2, 1)(x, x, attention_mask=m), (6,)),
    "mask without an axis": masked(
        lambda x, m: L.MultiHeadAttention(2, 3, attention_axes=(1, 2))(x, x, attention_mask=m), (6, 6), (2, 3, 4)
    ),
    "mask of a softmax": masked(lambda x, m: L.Softmax()(x, m), (4,)),
    "padding of two axes of positions": masked(
        lambda x, m: L.MultiHeadAttention(2, 3)(x, x, query_mask=m, value_mask=m), (2,), (2, 3, 4)
    ),
    "mask on two axes of positions": graph(
        lambda x: L.MultiHeadAttention(2, 3)(L.Masking()(x), L.Masking()(x)), (3, 3, 4)
    ),
    "mask of a softmax on its input": graph(lambda x: L.Softmax()(L.Masking()(x)), (4, 6)),
    "mask of a softmax at each time": graph(lambda x: L.TimeDistributed(L.Softmax())(L.Masking()(x)), (3, 4, 4)),
    "mask of a softmax as activation": graph(lambda x: L.Activation(L.Softmax())(L.Masking()(x)), (4, 6)),
    "mask of attention on images": graph(lambda x: L.Attention()([L.Masking()(x)] * 2), (3, 3, 4)),
    "values with fewer axes": masked(lambda x, m: L.Attention()([x, m]), (3, 4), (3, 3, 4)),
    "mask of three axes": masked(lambda x, m: L.GlobalAveragePooling1D()(x, mask=m), (6, 1)),
    **{
        f"{kind.__name__} of other ranks": twice(kind, lambda x: [x, x], lambda x: [x, row(x)])
        for kind in (L.Add, L.Multiply, L.Average, L.Maximum)
    },
    "a sum with an array": graph(lambda x: L.Add()([x, np.ones((1, 1, 6), "float32")])),
    "cells with more axes": graph(lambda x: L.SimpleRNNCell(4)(x, [L.Dense(4)(L.Flatten()(x))])[0], (1, 4)),
    "moments of other ranks": twice(lambda: L.Normalization(mean=0.0, variance=1.0), row, lambda x: x),
    "mask of values with three axes": masked(
        lambda x, m: L.Attention()([x, x], mask=[None, m], use_causal_mask=True), (3, 1), (3, 4)
    ),
    "mask of queries with three axes": masked(
        lambda x, m: L.AdditiveAttention()([x, x], mask=[m, None]), (3, 1), (3, 4)
    ),
    "states with three axes": masked(lambda x, m: L.SimpleRNN(4, unroll=True)(x, initial_state=[m]), (1, 4), (3, 4)),
    "states of both directions": masked(
        lambda x, m: L.Bidirectional(L.SimpleRNN(4, unroll=True))(x, initial_state=[m, m]), (1, 4), (3, 4)
    ),
    "mask of times with three axes": masked(lambda x, m: L.LSTM(4)(x, mask=m), (3, 1), (3, 4)),
    "a cell on images": graph(lambda x: L.RNN(L.SimpleRNNCell(4))(x), (3, 1, 4)),
    "dropped by more axes": sequence(lambda: L.Dropout(0.5, noise_shape=(1, 1, 6))),
    "slope by an array": sequence(lambda: L.LeakyReLU(np.ones((1, 1, 1)))),
    "slope by a list": sequence(lambda: L.ELU([[[1.0]]])),
    "an array in a layer": changed(set_to("parts", [np.ones((1, 1, 1))]), lambda: L.Dense(3)),
    "an array in an operation": graph(lambda x: ops.clip(x, np.full((1, 1, 1), -1.0), 1.0)),
    "a list in an operation": graph(lambda x: ops.clip(x, [[[-1.0]]], 1.0)),
    "a policy of one's own": sequence(lambda: L.Dense(3, dtype=Policy())),
    "rows of a constant": graph(lambda x: x * np.ones((4, 6), "float32"), batch_shape=(4, 6)),
}
APART = {
    "norms of rows": graph(lambda x: ops.norm(x, axis=-1)),  # which Keras does not compute on JAX
    "frozen batch normalization": frozen,
    "recurrent": graph(L.LSTM(3), batch_shape=(4, 5, 3)),
    "softmax": sequence(lambda: L.Dense(4, activation="softmax")),
    "attention": graph(lambda x: L.MultiHeadAttention(2, 3)(x, x), (4, 6)),
    "attention along an axis": graph(lambda x: L.MultiHeadAttention(2, 3, attention_axes=(1,))(x, x), (4, 6)),
    "mask of each sequence": masked(lambda x, m: L.MultiHeadAttention(2, 3)(x, x, attention_mask=m), (6, 6)),
    "mask of each head": masked(lambda x, m: L.GroupQueryAttention(4, 2, 1)(x, x, attention_mask=m), (1, 6, 6)),
    "keys and a mask": masked(lambda x, m: L.MultiHeadAttention(2, 3)(x, x, x, attention_mask=m), (6, 6)),
    "padding": masked(lambda x, m: L.MultiHeadAttention(2, 3)(x, x, query_mask=m, value_mask=m), (6,)),
    "padding of keys": masked(lambda x, m: L.GroupQueryAttention(4, 2, 1)(x, x, x, key_mask=m), (6,)),
    "keys on images": graph(lambda x: L.MultiHeadAttention(2, 3)(x, x, x), (3, 3, 4)),
    "masked means": masked(lambda x, m: L.GlobalAveragePooling1D()(x, mask=m), (6,)),
    "masked sequences": graph(
        lambda x: L.MultiHeadAttention(2, 3)(L.Masking()(x), L.TimeDistributed(L.Dense(4))(L.Masking()(x))), (6, 4)
    ),
    "attention on images": graph(lambda x: L.Attention()([x, x]), (3, 3, 4)),
    "mask of each softmax": masked(lambda x, m: L.Softmax()(x, m), (6, 4)),
    "product": graph(lambda x: L.EinsumDense("abc,cd->abd", (4, 3))(x), (4, 6)),
    "normalization": sequence(lambda: L.UnitNormalization(axis=-1), L.LayerNormalization),
    "masking": sequence(L.Masking, shape=(4, 6)),
    "rescaling": sequence(lambda: L.Rescaling(np.ones(6)), lambda: L.Rescaling(0.5)),
    "axes of layers inside": graph(lambda x: L.TimeDistributed(L.Softmax(axis=-2))(x), (2, 3, 4)),
    "last axis of a layer inside": graph(lambda x: L.Activation(L.Softmax(axis=-1))(x)),
    "attention on sequences": graph(lambda x: L.Attention()([x, x]), (4, 6)),
    "pipeline": graph(lambda x: L.Pipeline([L.RandomFlip(), L.Rescaling(2.0), L.RandomZoom(0.1)])(x), (4, 4, 1)),
    "images": graph(lambda x: L.TimeDistributed(L.Resizing(3, 3))(L.RandomFlip()(x)[:, None]), (4, 4, 1)),
    "convolutions in time": graph(lambda x: L.ConvLSTM1D(2, 3)(x), (2, 5, 3)),
    "declared": sequence(lambda: Holds(L.Dense(3))),
    "lipdp": sequence(lambda: lipdp.layers.SpectralDense(3), lipdp.layers.Abs),
    "merged": graph(lambda x: L.Multiply()([x, L.Add()([x, x])])),
    "learned slopes": sequence(L.PReLU),
    "states": masked(lambda x, m: L.SimpleRNN(4)(x, initial_state=[m]), (4,), (3, 4)),
    "mask of each time": masked(lambda x, m: L.LSTM(4)(x, mask=m), (3,), (3, 4)),
    "mask of values": masked(lambda x, m: L.Attention()([x, x], mask=[None, m]), (3,), (3, 4)),
    "moments": sequence(lambda: L.Normalization(mean=0.0, variance=1.0)),
    "drawn for each row": sequence(lambda: L.Dropout(0.5, noise_shape=(None, 1))),
    "both directions": graph(lambda x: L.Bidirectional(L.LSTM(3))(x), (3, 4)),
    "operations": graph(lambda x: ops.sum(ops.exp(x[:, 1:3]) * 2.0 - ops.reshape(x[:, :2], (-1, 2)), axis=-1)),
    "moved within rows": graph(
        lambda x: ops.swapaxes(ops.transpose(ops.stack([ops.expand_dims(x, -1)[:, :, 0], x], -1), (0, 2, 1)), 1, -1)
    ),
    "parts of rows": graph(lambda x: ops.squeeze(ops.split(ops.expand_dims(x, 1), 2, axis=-1)[1], 1)),
    "products in rows": graph(
        lambda x: ops.matmul(ops.matmul(x, ops.transpose(x, (0, 2, 1))), x) @ np.ones((6, 3), "float32"), (4, 6)
    ),
    "products of rows spelled": graph(
        lambda x: ops.einsum("bij,bkj,kl->bil", x, x, np.ones((4, 2), "float32")), (4, 6)
    ),
    "of the shape alone": graph(lambda x: ops.zeros_like(x) + ops.ones_like(x, dtype="float32")),
}


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING)
def test_what_may_mix_rows_is_not_trusted(name):
    model = MIXING[name]()
    found = [operation for operation, _ in known.foreign(model)]
    # A model that cannot be looked into is foreign as a whole.
    assert found and (model in found) == (name == "own call of a model")


@pytest.mark.backend_free
def test_policies_that_convert_whole_batches_are_refused():
    assert known.foreign(with_policy())
    for make in (with_policy, sequence(lambda: L.Dense(3, dtype=Policy()))):
        with pytest.raises(ValueError, match="dtype policy of its own"), isolation.isolated(make()):
            pass


def test_a_merge_that_keras_would_broadcast_over_rows_has_no_bound():
    inputs, product = keras.Input((4,)), L.Multiply()
    product([inputs, inputs])
    means = L.GlobalAveragePooling1D()(product([inputs, row(inputs)]))
    stack = lipdp.layers.SpectralDense(3)(lipdp.layers.BoundedInput(norm=1.0)(means))
    model = lipdp.DP_Model(inputs, stack)
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="depends on the other examples|equal, known shapes"):
        model.fit(np.ones((8, 4)), np.arange(8) % 3, batch_size=4, noise_multiplier=1.0, verbose=0)


@pytest.mark.backend_free
def test_images_without_channels_are_refused_with_the_way_out():
    plain = sequence(lambda: L.RandomFlip("vertical"), L.Flatten, lambda: L.Dense(2), shape=(4, 6))()
    model = lipdp.DP_Model.from_keras(plain)
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match=r"Reshape\(\(4, 6, 1\)\)"):
        model.fit(np.zeros((20, 4, 6)), np.arange(20) % 2, batch_size=5, noise_multiplier=1.0, strategy="dpsgd")


@pytest.mark.slow
@pytest.mark.backend_free
def test_masks_of_two_axes_are_refused_with_the_way_out():
    x, m = keras.Input((6, 4)), keras.Input((6,), dtype="bool")
    h = L.MultiHeadAttention(2, 3)(x, x, attention_mask=m)
    model = lipdp.DP_Model.from_keras(keras.Model([x, m], L.Dense(2)(L.GlobalMaxPooling1D()(h))))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = (np.zeros((20, 6, 4)), np.ones((20, 6), bool)), np.arange(20) % 2
    with pytest.raises(ValueError, match=r"attention_mask=mask\[:, None, :\]"):
        model.fit(*data, batch_size=5, noise_multiplier=1.0, strategy="dpsgd")
    h = L.MultiHeadAttention(2, 3)(x, x, attention_mask=m[:, None, :])
    model = lipdp.DP_Model.from_keras(keras.Model([x, m], L.Dense(2)(L.GlobalMaxPooling1D()(h))))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*data, batch_size=5, noise_multiplier=1.0, strategy="dpsgd", verbose=0)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", APART)
def test_what_keeps_rows_apart_runs_as_it_is(name):
    assert not known.foreign(APART[name]())


@pytest.mark.parametrize("name", MOVING)
def test_operations_that_move_axes_give_a_row_what_it_has_alone(name):
    model = graph(MOVING[name], (4, 6))()
    assert not known.foreign(model)
    x = np.random.default_rng(0).normal(size=(4, 4, 6)).astype("float32")  # as many rows as positions
    alone = np.concatenate([ops.convert_to_numpy(model(row[None])) for row in x])
    np.testing.assert_allclose(ops.convert_to_numpy(model(x)), alone, atol=1e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized_layers_give_each_row_a_scale_of_its_own(mode):
    model = keras.Sequential([keras.Input((3, 8)), L.Dense(4), L.EinsumDense("abc,cd->abd", (None, 2))])
    for layer in model.layers:
        layer.quantize(mode)
    assert not known.foreign(model)
    x = np.random.default_rng(0).normal(size=(3, 3, 8)).astype("float32")
    first = ops.convert_to_numpy(model(x))
    x[2] *= 1e4
    np.testing.assert_array_equal(ops.convert_to_numpy(model(x))[:2], first[:2])
    for axis, apart in ((-1, True), ((1, 2), True), (0, False), ((0, 2), False), (-2, False)):
        if mode == "int8":
            model.layers[0].inputs_quantizer = keras.quantizers.AbsMaxQuantizer(axis=axis)
            assert bool(known.foreign(model)) is not apart


class Own(keras.Operation):
    """An operation that is no layer."""

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class Doubles(Own):
    def call(self, inputs):
        return 2.0 * inputs


@lipdp.row_wise
class Triples(Own):
    def call(self, inputs):
        return 3.0 * inputs


class Centers(Own):
    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=0, keepdims=True)


def test_operations_of_the_users_own_run_one_row_at_a_time():
    found = [type(one) for one, _ in known.foreign(graph(lambda x: Triples()(Doubles()(x)))())]
    assert found == [Doubles]
    x, y = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for kind in (Doubles, Centers):
        model = lipdp.DP_Model.from_keras(graph(lambda x, kind=kind: L.Dense(2)(kind()(x)))())
        model.compile("sgd", loss)
        if kind is Doubles:
            model.fit(x, y, batch_size=10, epsilon=4.0, delta=1e-3, verbose=0)
            continue
        with pytest.raises(ValueError, match="depends on the other examples of the batch"):
            model.fit(x, y, batch_size=10, epsilon=4.0, delta=1e-3, verbose=0)


def test_values_that_are_no_arrays_are_known_without_asking_the_backend(monkeypatch):
    """TensorFlow's answer takes long, and a large network holds thousands of them in each of many looks at it."""
    variable = keras.Variable(np.zeros(3))
    monkeypatch.setattr(keras.ops, "is_tensor", lambda value: pytest.fail(f"asked of {value!r}"))
    assert not any(map(rules.is_array, (True, 2, 0.5, "text", None, variable)))
    assert rules.is_array(np.zeros(3))


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["Tanh", "Functional", "Sequential"])
def test_operations_and_models_whose_class_was_changed_see_one_row_at_a_time(name, monkeypatch):
    inputs = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4)])
    model = keras.Model(inputs, L.Dense(2)(ops.tanh(inner(inputs))))
    operations = [node.operation for node in _keras.nodes(_keras.graph(model))]
    kind = next(type(one) for one in (model, *operations) if type(one).__name__ == name)
    assert not isolation.foreign(model)
    ordinary = kind.call
    monkeypatch.setattr(kind, "call", lambda self, *args, **options: ops.flip(ordinary(self, *args, **options), 0))
    assert [type(operation) for operation, _ in isolation.foreign(model)] == [kind]
    monkeypatch.undo()
    assert not isolation.foreign(model)


@pytest.mark.backend_free
def test_what_is_put_around_all_layers_is_refused(monkeypatch):
    """It sees whole batches, and in the trial of a model nothing of it need show."""
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    ordinary = keras.Layer.__call__

    def changed(self, *args, **options):
        outputs = ordinary(self, *args, **options)
        return ops.flip(outputs, 0) if (outputs.shape[0] or 0) > 11 else outputs

    with monkeypatch.context() as patch:
        patch.setattr(keras.Layer, "__call__", changed)
        with pytest.raises(ValueError, match="leave that of Keras' classes as it was"), isolation.isolated(model):
            model(np.ones((20, 4)))
    with isolation.isolated(model):
        model(np.ones((20, 4)))
