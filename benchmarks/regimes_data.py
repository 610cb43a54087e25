"""The rows of `regimes.py`: made from a seed, or of public data."""

import ast
import collections
import functools
import importlib.util
import pathlib
import re
import zlib

import numpy as np

TESTED = 10000
# Mean and standard deviation of the columns of magic.gamma that its authors publish: mm, degrees, logarithms, shares.
MAGIC = (
    (53.2501, 42.3649),
    (22.1810, 18.3461),
    (2.8250, 0.4726),
    (0.3803, 0.1828),
    (0.2147, 0.1105),
    (-4.3317, 59.2062),
    (10.5455, 51.0001),
    (0.2497, 20.8274),
    (27.6457, 26.1036),
    (193.8180, 74.7318),
)
VOCABULARY = 2000


def categories(seed: int):
    """Ten numbers, and which of 300 equally rare values a category has; both tell the class."""
    rng = np.random.default_rng([1, seed])
    numbers, values = rng.normal(size=(20000 + TESTED, 10)), rng.integers(0, 300, 20000 + TESTED)
    logits = numbers @ (0.4 * rng.normal(size=10)) + 1.5 * rng.normal(size=300)[values]
    return np.hstack([numbers, np.eye(300)[values]]), _drawn(rng, logits)


def scales(seed: int):
    """Forty columns of scales from 0.02 to 2, each as informative as the others."""
    rng = np.random.default_rng([2, seed])
    x = rng.normal(size=(10000 + TESTED, 40))
    y = _drawn(rng, x @ (0.5 * rng.normal(size=40)))
    return x * 2.0 * 10.0 ** rng.permutation(np.linspace(-2.0, 0.0, 40)), y


def imbalance(seed: int):
    """Two normal classes in 20 dimensions, their means 2.5 apart; 2 % of the rows are of the second."""
    rng = np.random.default_rng([3, seed])
    y = rng.random(40000 + TESTED) < 0.02
    direction = rng.normal(size=20)
    return rng.normal(size=(len(y), 20)) + 2.5 * y[:, None] * direction / np.linalg.norm(direction), y


def _drawn(rng, logits):
    return rng.random(len(logits)) < 1.0 / (1.0 + np.exp(-logits))


@functools.lru_cache(maxsize=1)
def magic():
    """The table in its units, over 100: the largest columns are of order one."""
    from lipdp.data import load

    found = load("adbench/magic.gamma")
    means, deviations = np.array(MAGIC).T
    # The file has one class behind the other.
    order = np.random.default_rng(0).permutation(len(found.x_train))
    x = (found.x_train[order] * deviations + means) / 100.0
    return cut(x, found.y_train[order], len(x) // 5)


@functools.lru_cache(maxsize=1)
def fashion():
    """The first 20,000 training images, averaged to 14 x 14, less 0.3; the whole test set."""
    from lipdp.data import load

    data = load("fashion_mnist")
    x = np.concatenate([data.x_train[:20000], data.x_test]).reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196)
    return cut(x - 0.3, np.concatenate([data.y_train[:20000], data.y_test]), len(data.x_test))


@functools.lru_cache(maxsize=1)
def documentation():
    """Which words are in a paragraph, and whose it is: the words that numpy's docstrings use most, by frequency."""
    own = {"numpy", "scipy", "sklearn", "scikit", "learn"}
    counts, public = collections.Counter(), set(paragraphs("numpy"))
    for text in public:
        counts.update(set(text.split()) - own)
    # Ties by the alphabet: sets of words have no order of their own.
    known = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    place = {word: column for column, word in enumerate(known)}
    texts = {text: 1 for text in paragraphs("sklearn")} | {text: 0 for text in paragraphs("scipy")}
    # By checksum, so that neighbors in a file are apart.
    texts = dict(sorted(texts.items(), key=lambda item: (zlib.crc32(item[0].encode()), item[0])))
    x = np.zeros((len(texts), VOCABULARY), "float32")
    for row, text in zip(x, texts, strict=True):
        row[[place[word] for word in set(text.split()) if word in place]] = 1.0
    return cut(x, np.array(list(texts.values())), len(x) // 4)


@functools.lru_cache(maxsize=1)
def word_weights():
    """Of words, from public frequencies alone: rarer ones count more, the commonest one 1."""
    counts, public = collections.Counter(), set(paragraphs("numpy"))
    for text in public:
        counts.update(set(text.split()))
    frequencies = np.sort(np.array(list(counts.values())))[::-1][:VOCABULARY]
    return ((frequencies[0] / frequencies) ** 0.25).astype("float32")


@functools.lru_cache(maxsize=4)
def paragraphs(package: str) -> tuple[str, ...]:
    """The words of the paragraphs of an installed package's docstrings; tests apart, and short ones."""
    root, found = pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0]), []
    for path in sorted(root.rglob("*.py")):
        if "tests" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    words = re.findall(r"[a-z]{2,}", part.lower())
                    if len(words) >= 8:
                        found.append(" ".join(words))
    return tuple(found)


def cut(x, y, tested: int) -> tuple:
    """Training rows and the last ones, which score them."""
    x, y = x.astype("float32"), y.astype("int32")
    return x[:-tested], y[:-tested], x[-tested:], y[-tested:]
