"""Random graphs of Keras' operations: where they are taken to keep rows apart, they do, wherever a row stands."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import isolation

# As many rows as entries along any axis: Keras refuses less of what mixes them.
ROWS = SIZE = 3


class Drawn:
    """Draws one operation on a tensor of `ROWS` rows, with axes, orders and operands that may mix them."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def constant(self, *shape):
        return self.rng.normal(size=shape).astype("float32")

    def __call__(self, x):
        rank = len(x.shape)
        inner = (SIZE,) * (rank - 1)
        axis = int(self.rng.integers(-rank - 2, rank + 2))
        order = [int(a) - rank * int(self.rng.integers(2)) for a in self.rng.permutation(rank)]
        placed, shared = self.constant(ROWS, *inner), self.constant(1, *inner)
        matrix = self.constant(*(SIZE,) * int(self.rng.integers(1, 4)))
        other = self.pick(x, ops.transpose(x, order), matrix, placed)
        return self.pick(
            lambda: ops.transpose(x, order),
            lambda: ops.transpose(x),
            lambda: ops.swapaxes(x, axis, int(self.rng.integers(-rank, rank))),
            lambda: ops.expand_dims(x, axis),
            lambda: ops.squeeze(x, axis),
            lambda: ops.stack([x, self.pick(x, placed, shared)], axis=axis),
            lambda: ops.concatenate([x, self.pick(x, placed)], axis=axis),
            lambda: ops.split(x, self.pick(1, 2, 3, [1]), axis=axis)[0],
            lambda: ops.matmul(x, other),
            lambda: ops.matmul(other, x),
            lambda: self.spelled(x, rank),
            lambda: ops.sum(x, axis=axis, keepdims=bool(self.rng.integers(2))),
            lambda: self.pick(ops.flip, ops.sort, ops.cumsum, ops.softmax)(x, axis=axis),
            lambda: x * self.pick(placed, shared, matrix),
            lambda: ops.reshape(x, self.pick((-1, SIZE), (ROWS, -1), (-1,), (-1, *inner))),
            lambda: self.pick(ops.repeat, ops.roll)(x, 2, axis=self.pick(axis, None)),
            lambda: ops.tile(x, self.numbers(rank)),
            lambda: ops.pad(x, self.pick(1, [[0, 1]] * rank, [[0, 0], *[[1, 1]] * (rank - 1)])),
            lambda: ops.moveaxis(x, axis, int(self.rng.integers(-rank, rank))),
            lambda: ops.take_along_axis(x, ops.argsort(self.pick(x, ops.transpose(x, order)), axis=axis), axis=axis),
            lambda: self.pick(ops.tril, ops.triu)(x),
            lambda: self.pick(ops.norm, ops.normalize)(x, axis=axis),
            lambda: ops.one_hot(ops.cast(x > 0, "int32"), 2, axis=axis),
            lambda: x[..., self.pick(0, None, slice(1, None))],
            lambda: x[..., *[self.pick(0, slice(0, 2))] * int(self.rng.integers(1, 4))],
            lambda: x[self.pick(slice(None), slice(0, 2), 0, None, Ellipsis)],
            lambda: x[:, self.pick(slice(1, None), 0, None, Ellipsis)],
        )()

    def numbers(self, rank):
        return [int(n) for n in self.rng.integers(1, 3, int(self.rng.integers(1, rank + 2)))]

    def spelled(self, x, rank):
        terms = [
            "abcdefg"[:rank] if self.rng.integers(2) else "".join(self.rng.choice(list("abcd"), rank))
            for _ in range(self.rng.integers(1, 4))
        ]
        letters = sorted(set("".join(terms)))
        output = "".join(self.rng.permutation(letters)[: self.rng.integers(1, 4)])
        others = [self.pick(x, self.constant(*(self.pick(ROWS, SIZE) for _ in term))) for term in terms[1:]]
        return ops.einsum(f"{','.join(terms)}{self.pick(f'->{output}', '')}", x, *others)


def graph(seed):
    draw = Drawn(seed)
    batch, rank = draw.pick(None, ROWS), int(draw.rng.integers(1, 5))
    inputs = x = keras.Input(batch_shape=(batch, *(SIZE,) * (rank - 1)))
    for _ in range(draw.rng.integers(1, 4)):
        x = draw(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("part", [1, *(pytest.param(part, marks=pytest.mark.backend_free) for part in (0, 2))])
def test_rows_of_operations_that_are_known_stay_apart(part):
    trusted = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a softmax along an axis of size one
        for seed in range(600 * part, 600 * part + 600):
            try:
                model = graph(seed)
            except Exception:  # what Keras refuses is no graph
                continue
            if isolation.foreign(model):
                continue
            rng = np.random.default_rng(seed)
            x = rng.normal(size=(ROWS, *model.input_shape[1:])).astype("float32")
            other = x.copy()
            other[0] = 100.0 * rng.normal(size=x.shape[1:])
            order = rng.permutation(ROWS)
            try:
                first, second, third = (
                    ops.convert_to_numpy(model(ops.convert_to_tensor(v))) for v in (x, other, x[order])
                )
            except Exception:  # shapes that Keras does not know before
                continue
            trusted += 1
            steps = [type(operation).__name__ for operation in model.operations]
            assert first.shape[0] == ROWS, (seed, steps)
            np.testing.assert_allclose(second[1:], first[1:], rtol=1e-4, atol=1e-5, err_msg=f"{seed} {steps}")
            np.testing.assert_allclose(third, first[order], rtol=1e-4, atol=1e-5, err_msg=f"{seed} {steps}")
    assert trusted > 50
