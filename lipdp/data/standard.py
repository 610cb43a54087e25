"""The standard data sets: digits from scikit-learn, three image sets from a folder or through Keras."""

import dataclasses

import numpy as np

from lipdp.data import files, sources
from lipdp.data.dataset import Dataset


def digits() -> Dataset:
    """Returns scikit-learn's 8 x 8 handwritten digits, 1437 to train on and 360 to test; needs no network.

    The split is the same for everyone: a permutation from a public seed.
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    # Sixteen gray levels are a property of the format.
    x = (source.images[..., None] / 16.0).astype("float32")
    y = source.target.astype("int32")
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[:360], order[360:]
    return Dataset(x[train], y[train], x[test], y[test], tuple(range(10)), "digits", handwritten=True)


def mnist() -> Dataset:
    """Returns MNIST, 60000 + 10000 images of 28 x 28 x 1; see `_image_set` for where it comes from."""
    return dataclasses.replace(_image_set("mnist"), handwritten=True)


def fashion_mnist() -> Dataset:
    """Returns Fashion-MNIST, 60000 + 10000 images of 28 x 28 x 1; see `_image_set`."""
    return _image_set("fashion_mnist")


def cifar10() -> Dataset:
    """Returns CIFAR-10, 50000 + 10000 images of 32 x 32 x 3; see `_image_set`."""
    return _image_set("cifar10")


LOADERS = {"digits": digits, "mnist": mnist, "fashion_mnist": fashion_mnist, "cifar10": cifar10}


def _image_set(name: str) -> Dataset:
    """Reads `<name>.npz` from the folder in LIPDP_DATA if that is set, else downloads it through Keras."""
    advice = "there (x_train, y_train, x_test, y_test), or unset the variable to download through Keras"
    path = sources.local(f"{name}.npz", advice)
    if path is not None:
        return files.read_npz(path, name)
    import keras

    with sources.download(name):
        (x, y), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    return files.from_arrays({"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}, name, name)
