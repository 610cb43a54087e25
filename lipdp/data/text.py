"""Texts as sequences of word numbers: IMDb through Keras, and a small synthetic set."""

import hashlib
import pathlib

import numpy as np

from lipdp import checks
from lipdp.data import sources
from lipdp.data.dataset import Dataset

# Of the file that Keras distributes. It holds Python objects, so no other file is opened.
_IMDB_SHA256 = "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"
_PADDING, _START, _UNKNOWN, _FIRST_WORD = 0, 1, 2, 3


def imdb(num_words: int = 10000, length: int = 80) -> Dataset:
    """Returns the IMDb reviews, 25000 + 25000, good or bad.

    Read from `imdb.npz` in the folder named by LIPDP_DATA, as Keras distributes it, or downloaded through Keras.
    The words are numbered by how often they occur in the training reviews, which is part of the file.

    Args:
        num_words: Numbers from 0 to `num_words - 1` are used; rarer words become 2. At least 4.
        length: Each review is cut to its last `length` words, or padded with 0 in front. At least 1.

    Returns:
        A `Dataset`; `x_train` is int32 `(25000, length)`.

    Raises:
        ValueError: an argument out of range, or another file than that of Keras.
        FileNotFoundError: LIPDP_DATA names a folder without the file.
        ConnectionError: the download failed.
    """
    checks.integer("num_words", num_words, minimum=_FIRST_WORD + 1)
    checks.integer("length", length, minimum=1)
    advice = "that Keras distributes there, or unset the variable to download it through Keras"
    path = sources.local("imdb.npz", advice)
    (x, y), (x_test, y_test) = _download() if path is None else _read(path)
    x, x_test = (_sequences(texts, num_words, length) for texts in (x, x_test))
    return Dataset(x, y.astype("int32"), x_test, y_test.astype("int32"), (0, 1), "imdb")


def synthetic_text(examples: int = 1000, num_words: int = 50, length: int = 20, seed: int = 0) -> Dataset:
    """Returns synthetic texts of two kinds: some words are more frequent in one kind.

    Args:
        examples: Number of training texts; a quarter as many to test on.
        num_words: Numbers from 0 to `num_words - 1` are used, as in `imdb`. At least 10.
        length: Longest text. Shorter ones are padded with 0 in front.
        seed: Non-negative int.

    Returns:
        A `Dataset`; `x_train` is int32 `(examples, length)`.

    Example:
        >>> data = synthetic_text(8, length=5)
        >>> data.x_train.shape, data.x_test.shape, data.classes
        ((8, 5), (2, 5), (0, 1))
    """
    checks.integer("examples", examples, minimum=4)
    checks.integer("num_words", num_words, minimum=10)
    checks.integer("length", length, minimum=1)
    rng = np.random.default_rng(seed)
    total = examples + examples // 4
    words = np.arange(_FIRST_WORD, num_words)
    frequency = 1.0 / (1.0 + np.arange(len(words)))
    # A third of the words says something about the kind.
    lean = np.where(rng.random(len(words)) < 1 / 3, rng.choice([0.2, 5.0], len(words)), 1.0)
    y = rng.integers(0, 2, total)
    texts = []
    for kind in y:
        weights = frequency * lean ** (1 if kind else -1)
        size = rng.integers(max(1, length // 2), length + 1)
        texts.append([_START, *rng.choice(words, size - 1, p=weights / weights.sum())])
    x, y = _padded(texts, length), y.astype("int32")
    return Dataset(x[:examples], y[:examples], x[examples:], y[examples:], (0, 1), "synthetic_text")


def _read(path: pathlib.Path):
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != _IMDB_SHA256:
        raise ValueError(
            f"{path} is not the file that Keras distributes. Received: SHA-256 {digest}. Opening it would run "
            "Python objects, so no other file is read. Download it through Keras."
        )
    with np.load(path, allow_pickle=True) as content:
        return tuple(
            ([_words(text) for text in content[f"x_{part}"]], content[f"y_{part}"]) for part in ("train", "test")
        )


def _words(text) -> list[int]:
    return [_START, *(word + _FIRST_WORD for word in text)]


def _download():
    import keras

    with sources.download("imdb"):
        return keras.datasets.imdb.load_data(start_char=_START, oov_char=_UNKNOWN, index_from=_FIRST_WORD)


def _sequences(texts, num_words: int, length: int) -> np.ndarray:
    return _padded([[w if w < num_words else _UNKNOWN for w in text[-length:]] for text in texts], length)


def _padded(texts, length: int) -> np.ndarray:
    x = np.full((len(texts), length), _PADDING, "int32")
    for row, text in zip(x, texts, strict=True):
        row[length - len(text) :] = text
    return x
