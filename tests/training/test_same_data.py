"""What callbacks may not do to the training data while `fit` runs: rows are known by their place."""

import keras
import numpy as np
import pytest

import lipdp

ROWS = 64


def data():
    rng = np.random.default_rng(0)
    return rng.random((ROWS, 8)).astype("float32"), (np.arange(ROWS) % 2).astype("int32")


def fit(x, y, callback, strategy="dpsgd", **kwargs):
    model = lipdp.DP_Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    try:
        model.fit(
            *(x, y), batch_size=16, epochs=3, epsilon=8.0, delta=1e-3, strategy=strategy, verbose=0,
            callbacks=[callback], **kwargs,
        )  # fmt: skip
    finally:
        model.made = model.run.ledger.updates
    return model


class Shuffles(keras.callbacks.Callback):
    """Brings the rows of arrays into another order, all of them alike, in one hook of the second epoch."""

    def __init__(self, hook, *arrays):
        super().__init__()
        self.epoch, self.arrays = 0, arrays
        setattr(self, hook, lambda index, logs=None: self.act(hook, index))

    def act(self, hook, index):
        self.epoch = index if "epoch" in hook else self.epoch + (index == 0)
        order = np.random.default_rng(1).permutation(ROWS)
        for array in self.arrays if self.epoch == 1 else ():
            array[:] = array[order]


@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin", "on_train_batch_begin"])
def test_rows_in_another_order_end_it(hook):
    x, y = data()
    with pytest.raises(ValueError, match="arrays that a callback has changed in place. Leave the order"):
        fit(x, y, Shuffles(hook, x, y))


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("dpsgd", {"person_ids": np.arange(ROWS) // 2}),
        pytest.param("dpsgd", {"sample_weight": np.linspace(0.0, 2.0, ROWS)}, marks=pytest.mark.slow),
        pytest.param("dpis", {}, marks=pytest.mark.slow),
        pytest.param("dpsgd", {"sampling": "shuffle"}, marks=pytest.mark.slow),
    ],
)
def test_so_they_do_where_places_count(strategy, given):
    x, y = data()
    with pytest.raises(ValueError, match="whose a row is, and what was seen of it, goes by its place"):
        fit(x, y, Shuffles("on_epoch_begin", x, y), strategy, **given)


def test_other_labels_end_it():
    x, y = data()
    with pytest.raises(ValueError, match="changed in place"):
        fit(x, y, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: y.__setitem__(slice(None), 1 - y)))


def test_a_callback_that_leaves_them_alone_may_read_them():
    x, y = data()
    assert fit(x, y, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: x.sum())).made == 12


def test_the_way_out_is_another_fit():
    x, y = data()
    model = fit(x, y, keras.callbacks.Callback())
    x[:] = x[::-1]
    model.fit(x, y, batch_size=16, epsilon=9.0, delta=1e-3, strategy="dpsgd", verbose=0)
    assert model.run.ledger.updates == 16
