"""Texts: IMDb from the folder and through Keras, and the set made by a seed."""

import hashlib

import numpy as np
import pytest

from lipdp import data
from lipdp.data import text

pytestmark = pytest.mark.backend_free

TEXTS = [[1, 2, 3, 4, 5], [10000], [], [7, 8]]


def _file(folder):
    texts = np.empty(4, object)
    texts[:] = TEXTS
    labels = np.array([0, 1, 1, 0])
    np.savez(folder / "imdb.npz", x_train=texts, y_train=labels, x_test=texts[::-1], y_test=labels[::-1])
    return hashlib.sha256((folder / "imdb.npz").read_bytes()).hexdigest()


def test_imdb_from_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    monkeypatch.setattr(text, "_IMDB_SHA256", _file(tmp_path))
    found = data.imdb(num_words=100, length=4)
    assert found.x_train.tolist() == [[5, 6, 7, 8], [0, 0, 1, 2], [0, 0, 0, 1], [0, 1, 10, 11]]
    assert found.y_train.tolist() == [0, 1, 1, 0] and found.x_test.tolist() == found.x_train[::-1].tolist()
    assert found.x_train.dtype == np.int32 and found.num_classes == 2 and found.name == "imdb"


def test_only_the_file_of_keras_is_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no imdb.npz"):
        data.imdb()
    _file(tmp_path)
    with pytest.raises(ValueError, match="not the file that Keras distributes"):
        data.imdb()


def test_imdb_through_keras(monkeypatch):
    import keras

    def load(start_char, oov_char, index_from):
        assert (start_char, oov_char, index_from) == (1, 2, 3)
        texts = [[1, *(w + 3 for w in t)] for t in TEXTS]
        return (texts, np.array([0, 1, 1, 0])), (texts[:2], np.array([1, 0]))

    monkeypatch.delenv("LIPDP_DATA", raising=False)
    monkeypatch.setattr(keras.datasets.imdb, "load_data", load)
    found = data.imdb(num_words=100, length=4)
    assert found.x_train.tolist() == [[5, 6, 7, 8], [0, 0, 1, 2], [0, 0, 0, 1], [0, 1, 10, 11]]
    assert found.y_test.tolist() == [1, 0]

    def fail(**arguments):
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.datasets.imdb, "load_data", fail)
    with pytest.raises(ConnectionError, match="imdb could not be downloaded.*LIPDP_DATA"):
        data.imdb()


def test_synthetic_texts_repeat_and_can_be_told_apart():
    first, second, other = (data.synthetic_text(400, seed=s) for s in (0, 0, 1))
    assert np.array_equal(first.x_train, second.x_train) and not np.array_equal(first.x_train, other.x_train)
    assert first.x_train.min() == 0 and first.x_train.max() < 50 and first.x_test.shape == (100, 20)
    counts = [np.stack([np.bincount(t, minlength=50) for t in x]) for x in (first.x_train, first.x_test)]
    signs = np.where(first.y_train == 1, 1.0, -1.0)
    direction = np.linalg.lstsq(counts[0] + 0.0, signs, rcond=None)[0]
    assert ((counts[1] @ direction > 0) == (first.y_test == 1)).mean() > 0.85


@pytest.mark.parametrize("arguments", [{"num_words": 3}, {"length": 0}, {"num_words": 2.5}])
def test_wrong_sizes_are_refused(arguments):
    with pytest.raises(ValueError, match="must be an? .*integer"):
        data.imdb(**arguments)
    with pytest.raises(ValueError, match="must be an? .*integer"):
        data.synthetic_text(**arguments)
