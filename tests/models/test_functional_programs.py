"""Random layers of a user's own: taken apart, their rows have the clipped gradients that they have one by one."""

import random

import keras
import numpy as np
import pytest
from keras import layers as L
from keras import ops

import lipdp
from lipdp import isolation
from tests.helpers.clipping import assert_same_gradients

PLACES, WIDTH = 5, 4
# The weights that a step has of its own.
WEIGHTS = {
    "dense": [(WIDTH, WIDTH), (WIDTH,)],
    "product": [(WIDTH, WIDTH)],
    "scale": [(WIDTH,)],
    "places": [(PLACES, WIDTH)],
    "places of one row": [(1, PLACES, WIDTH)],
    "heads": [(WIDTH, 2, 2)],
    "gate": [(WIDTH, WIDTH), ()],
    "token": [(1, 1, WIDTH)],
    "table": [(3, WIDTH)],
    "first places": [(PLACES + 2, WIDTH)],
    "some places of one row": [(1, 2 * PLACES, WIDTH)],
    "halves": [(2 * WIDTH, 1)],
    "picked": [(3, WIDTH)],
    "axes in between": [(PLACES + 1, WIDTH)],
}
# The layers that a step holds.
INSIDE = {
    "layer": lambda draw: L.Dense(WIDTH, activation=draw.choice([None, "relu"])),
    "attention": lambda draw: L.MultiHeadAttention(2, 2),
    "embedding": lambda draw: L.Embedding(PLACES, WIDTH),
    "norm": lambda draw: L.LayerNormalization(),
    "program": lambda draw: Program(draw, inside=False),
}
OTHERS = ("tanh", "softmax over places", "flat", "attention by hand", "constant")


class Program(L.Layer):
    """A sequence of drawn steps on sequences of vectors."""

    def __init__(self, draw, inside=True):
        super().__init__()
        kinds = [*WEIGHTS, *OTHERS, *(kind for kind in INSIDE if inside or kind != "program")]
        self.kinds = [draw.choice(kinds) for _ in range(draw.randint(2, 5))]
        for i, kind in enumerate(self.kinds):
            if kind in INSIDE:
                setattr(self, f"layer_{i}", INSIDE[kind](draw))

    def build(self, input_shape):
        initializer = keras.initializers.RandomNormal(0.0, 0.5)
        for i, kind in enumerate(self.kinds):
            for j, shape in enumerate(WEIGHTS.get(kind, [])):
                name = f"weight_{i}_{j}"
                setattr(self, name, self.add_weight(shape=shape, initializer=initializer, name=name))

    def call(self, x):
        for i, kind in enumerate(self.kinds):
            held = [getattr(self, f"weight_{i}_{j}") for j in range(len(WEIGHTS.get(kind, [])))]
            x = self.step(kind, x, held, getattr(self, f"layer_{i}", None))
        return x

    def step(self, kind, x, held, layer):
        rows = ops.shape(x)[0]
        if kind == "dense":
            return ops.matmul(x, held[0]) + held[1]
        if kind == "product":
            return x @ held[0]
        if kind == "scale":
            return x * held[0]
        if kind == "places":
            return x + ops.expand_dims(held[0], 0)
        if kind == "places of one row":
            return held[0] + x
        if kind == "heads":
            return ops.reshape(ops.einsum("bnd,dhk->bnhk", x, held[0]), (rows, PLACES, WIDTH))
        if kind == "gate":
            return ops.sigmoid(ops.matmul(x, held[0])) * x * held[1]
        if kind == "token":
            return ops.concatenate([ops.broadcast_to(held[0], (rows, 1, WIDTH)), x], axis=1)[:, :PLACES]
        if kind == "table":
            return x + ops.take(held[0], ops.cast(x[..., 0] > 0, "int32"), axis=0)
        if kind == "first places":
            return x + held[0][:PLACES]
        if kind == "some places of one row":
            return x * held[0][:, 1::2] + held[0][0, -PLACES:]
        if kind == "halves":
            return x * ops.matmul(x, held[0][:WIDTH]) + ops.matmul(x, held[0][WIDTH:])
        if kind == "picked":
            return ops.relu(x * held[0][0] + held[0][-1]) * held[0][1][None, None]
        if kind == "axes in between":
            return x + held[0][:, None, :][1:, 0]
        if kind == "attention":
            return x + layer(x, x, attention_mask=(np.arange(PLACES)[:, None] >= np.arange(PLACES))[None])
        if kind == "embedding":
            return x + layer(ops.arange(PLACES))
        if kind == "softmax over places":
            return ops.transpose(ops.softmax(ops.transpose(x, (0, 2, 1))), (0, 2, 1))
        if kind == "flat":
            return ops.reshape(ops.reshape(x, (rows, -1)), (-1, PLACES, WIDTH))
        if kind == "attention by hand":
            return ops.matmul(ops.softmax(ops.matmul(x, ops.swapaxes(x, 1, 2))), x)
        if kind == "constant":
            return x + np.linspace(0.5, 1.0, WIDTH).astype("float32")
        return ops.tanh(x) if layer is None else x + layer(x)


# JAX compiles the first one for long.
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.backend_free),
        1,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 16)),
    ],
)
def test_rows_have_the_gradients_that_they_have_one_by_one(seed):
    keras.utils.set_random_seed(seed)
    network = [keras.Input((PLACES, WIDTH)), Program(random.Random(seed)), L.Flatten(), L.Dense(2)]
    model = keras.Sequential(network)
    copy = lipdp.to_functional(model, verbose=False)
    assert not isolation.foreign(copy), model.layers[0].kinds
    x = np.random.default_rng(0).normal(size=(6, PLACES, WIDTH)).astype("float32")
    assert_same_gradients(model, copy, x, rtol=1e-3, atol=2e-6)
