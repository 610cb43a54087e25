"""A frozen network in front of the one that trains: its outputs are computed once, see `lipdp.features`."""

import argparse
import dataclasses
import hashlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from lipdp import data
from lipdp.cli import quiet
from lipdp.privacy import files

_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A frozen network, what it is called, and the SHA-256 of its file, or of the weights of a preset."""

    name: str
    digest: str
    network: Any

    def features(self, x: np.ndarray, at_once: int = _AT_ONCE, verbose: int = 0) -> np.ndarray:
        """Returns a row of features for each row: those of images and sequences are averaged over their places.

        Args:
            x: Rows.
            at_once: Rows in a batch, of which the last is filled up: their number where they are few and not private.
            verbose: As in `lipdp.features`.
        """
        import lipdp

        inputs = [tuple(tensor.shape[1:]) for tensor in self.network.inputs]
        if len(inputs) != 1 or len(inputs[0]) != x.ndim - 1 or not all(map(_fits, inputs[0], x.shape[1:])):
            raise ValueError(
                f"The backbone takes other rows. Received: data of shape {x.shape[1:]}, inputs of shape "
                f"{', '.join(map(str, inputs))} of {self.name}. Save a network that begins with what is missing, such "
                "as keras.layers.Resizing, and takes one input."
            )
        found = lipdp.features(self.network, x, batch_size=max(1, min(at_once, _AT_ONCE)), verbose=verbose)
        return found if found.ndim == 2 else found.reshape(len(found), -1, found.shape[-1]).mean(axis=1)

    def rows(self, x: np.ndarray, at_once: int = _AT_ONCE, verbose: int = 0) -> np.ndarray:
        """Returns the features as a head takes them: each row less its own mean, over its own deviation."""
        found = self.features(x, at_once, verbose)
        found = found - found.mean(axis=1, keepdims=True)
        return found / (found.std(axis=1, keepdims=True) + np.float32(1e-6))

    def apply(self, dataset: data.Dataset, verbose: int = 0) -> data.Dataset:
        """Returns a data set of `rows` in place of what it holds, and says what epsilon then hangs on."""
        test = None if dataset.x_test is None else self.rows(dataset.x_test, verbose=verbose)
        train = self.rows(dataset.x_train, verbose=verbose)
        found = dataclasses.replace(dataset, x_train=train, x_test=test, handwritten=False)
        sys.stderr.write(
            f"lipdp train: note: the head trains on features of {self.name} (SHA-256 {self.digest}), which must come "
            "from PUBLIC data: epsilon covers the head alone. lipdp predict needs that network too.\n"
        )
        return found


def adapted(options: argparse.Namespace, recipe: Any) -> Any:
    """Returns a recipe with what follows from the rows that it gets: those of `Backbone.rows`, and of persons."""
    found: dict[str, Any] = {}
    if options.backbone is not None and getattr(recipe, "standardized", False):
        found["standardized"] = False  # they are already, and without that layer the head has a Lipschitz constant
    if hasattr(recipe, "moments_noise"):  # k rows of a person move a moment k times as far
        found["moments_noise"] = recipe.moments_noise * options.examples_per_person
    return dataclasses.replace(recipe, **found)


def load(name: str) -> Backbone:
    """Returns the backbone in a `.keras` file, or a preset of keras_hub by its name or folder.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is no network of Keras; the preset, keras_hub or the network is not there.
    """
    path = pathlib.Path(name)
    if path.suffix == ".keras":
        if not path.is_file():
            raise FileNotFoundError(f"There is no such backbone. Received: {name!r}. Pass a .keras file.")
        quiet.load_keras()
        import keras

        try:
            network = keras.saving.load_model(path, compile=False)
        except Exception as error:  # Keras, zipfile, json and h5py each have their own
            raise ValueError(f"{name} is not a network that Keras can read: {first_line(error)}.") from error
        network.trainable = False
        return Backbone(name, files.digest(path), network)
    network, _ = preset(name)
    return Backbone(name, digest(network), network)


def preset(name: str) -> tuple[Any, Any]:
    """Returns the frozen network of a preset of keras_hub, by its name or folder, and keras_hub.

    Raises:
        ValueError: the preset, keras_hub or the network is not there.
    """
    quiet.load_keras()
    try:
        with quiet.stderr():
            import keras_hub
    except ImportError as error:
        raise ValueError(
            f"A preset needs keras_hub. Received: --backbone {name}; {error}. Install keras-hub, or pass a .keras file."
        ) from error
    try:
        network = keras_hub.models.Backbone.from_preset(name)
    except Exception as error:  # of the network, of kagglehub, of files
        raise ValueError(
            f"The preset cannot be loaded: {first_line(error)}. Received: --backbone {name}. Presets by name are "
            "downloaded, which needs a network; pass the folder of a preset, or a .keras file."
        ) from error
    network.trainable = False
    return network, keras_hub


def digest(network: Any) -> str:
    """Returns the SHA-256 of the weights of a network."""
    weights = hashlib.sha256()
    for weight in network.weights:
        weights.update(np.ascontiguousarray(weight.numpy() if hasattr(weight, "numpy") else weight).tobytes())
    return weights.hexdigest()


def of_run(
    options: argparse.Namespace, recorded: dict | None, read: Callable[[str], Backbone] = load
) -> Backbone | None:
    """Returns the backbone that a run was trained behind, from where the options say or the run found it.

    Args:
        options: of the command.
        recorded: settings of the run, if they are known.
        read: returns the backbone of a name.

    Raises:
        ValueError, FileNotFoundError: it is another one, or is not there.
    """
    wanted = (recorded or {}).get("backbone")
    if wanted is None:
        if options.backbone is not None:
            raise ValueError(f"The model has no backbone. Received: --backbone {options.backbone}. Leave it out.")
        return None
    needed = f"The model was trained on features of {wanted['name']}, SHA-256 {wanted['sha256']}"
    try:
        found = read(options.backbone or wanted["name"])
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{needed}. {error} Pass where it is now as --backbone.") from error
    if found.digest != wanted["sha256"]:
        raise ValueError(f"{needed}. Received: {found.name}, SHA-256 {found.digest}. Pass that one as --backbone.")
    return found


def _fits(wanted: int | None, size: int) -> bool:
    return wanted is None or wanted == size


def first_line(error: Exception) -> str:
    """Returns the first sentence of an error."""
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
