"""Validation data of any size on several devices."""

import keras
import numpy as np
import pytest

from lipdp import backend
from lipdp.training import shares

X, Y = np.arange(60.0).reshape(30, 2), np.arange(30)

pytestmark = pytest.mark.backend_free


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__(workers=2)
        self.arrays, self.ends = arrays, 0

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return tuple(leaf[12 * number : 12 * number + 12] for leaf in self.arrays)

    def on_epoch_end(self):
        self.ends += 1


@pytest.fixture
def eight(monkeypatch):
    monkeypatch.setattr(backend, "row_shards", lambda: (8, tuple(range(8))))


@pytest.mark.parametrize("weights", [(), (np.linspace(0.5, 1.0, 30).astype("float32"),)])
def test_batches_of_a_data_set_are_filled_up(eight, weights):
    """`fit` ended after the first epoch, which had been charged."""
    given = Batches(X, Y, *weights)
    made = shares.shared_out(given, 8)
    batches = [made[i] for i in range(made.num_batches)]
    assert [len(batch[1]) for batch in batches] == [16, 16, 8] and made.workers == 2
    rows = {int(n): (tuple(v), w) for batch in batches for v, n, w in zip(*batch, strict=True) if w}
    assert rows == {i: (tuple(X[i]), weights[0][i] if weights else 1.0) for i in range(30)}
    made.on_epoch_end()
    assert given.ends == 1 and shares.shared_out(given, 1) is given


def test_batches_among_processes_are_those_of_keras(eight, monkeypatch):
    monkeypatch.setattr(backend, "processes", lambda: (0, 2))
    given = Batches(X, Y)
    assert shares.shared_out(given, 8) is given


class Dataset:
    def __init__(self, sizes, endless=False):
        self.sizes, self.endless = sizes, endless

    def cardinality(self):
        return -1 if self.endless else len(self.sizes)

    def take(self, count):
        return Dataset(self.sizes[:count])

    def as_numpy_iterator(self):
        return ((X[:size], Y[:size]) for size in self.sizes)


def test_a_dataset_that_devices_cannot_share_is_refused(eight):
    with pytest.raises(ValueError, match="8 of them, and a batch of 6 rows.*drop_remainder=True"):
        shares.shared_out(Dataset([8, 16, 6]), 8)
    endless, even = Dataset([6], endless=True), Dataset([8, 16])
    for given, options in ((Dataset([8, 6]), {"validation_steps": 1}), (endless, {}), (even, {})):
        assert shares.shared_out(given, 8, **options) is given
    assert isinstance(shares.shared_out(Dataset([6]), 1), Dataset)
