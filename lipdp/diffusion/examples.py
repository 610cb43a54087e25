"""Clean examples and their labels, as users pass them and as a diffusion model takes them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lipdp.diffusion import pixels
from lipdp.diffusion.labels import class_ids
from lipdp.sampling import arrays, datasets
from lipdp.sampling.columns import by_name
from lipdp.sampling.pipelines import refuse_shuffled
from lipdp.sampling.schemes import get
from lipdp.sampling.source import is_source
from lipdp.training.session import expected_batch_size
from lipdp.training.shares import SourceBatches


class OfCleanExamples:
    """What a diffusion model does with clean examples beside training."""

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Returns the mean denoising loss of clean examples, under noise that is the same in each call.

        What it returns of private examples is not covered by epsilon.

        Args:
            x: Clean examples `(N, ...)`, as for `fit`.
            y: Class ids `(N,)` of a model with classes.
            *args, **kwargs: `batch_size`, `verbose`, ..., as in Keras. Noise goes by places in a batch.

        Raises:
            ValueError: examples or labels that do not fit, or a source that is no array.
        """
        if self._is_taken(x, y):
            return super().evaluate(x, y, *args, **kwargs)
        if (is_source(x) or hasattr(x, "__next__")) and not hasattr(x, "shape"):
            raise ValueError(
                f"`evaluate` takes arrays of clean examples, and of their class ids. Received: a {type(x).__name__}. "
                "Pass evaluate(images, labels), or validation_data=(images, labels) to fit."
            )
        x, nothing = self._data(x, y)
        state = self.noising.seeds.state
        # Neither secret nor of the run, which goes on where it was.
        before = state.numpy()
        self.noising.seeds.reseed(np.arange(8))
        try:
            return super().evaluate(x, nothing, *args, **kwargs)
        finally:
            state.assign(before)

    def _is_taken(self, x, y) -> bool:
        """Returns whether data are those that `_data` has returned, as in validation within `fit`."""
        if isinstance(x, SourceBatches):
            return True
        nothing = getattr(y, "shape", None) == (len(y) if hasattr(y, "__len__") else None, 1)
        return nothing and (self.num_classes is None or isinstance(x, tuple | list))

    def _data(self, x, y=None):
        """Returns what the model takes: `x` or `(x, labels)`, and targets that the loss ignores."""
        shape = self.network.inputs[0].shape[1:]
        x, y = taken(x, y, len(shape) + 1, self.num_classes is not None)
        x = x if is_source(x) else arrays.input_array(x)
        if hasattr(x, "shape") and not _fits(x.shape[1:], shape):
            raise ValueError(
                f"The images do not fit the network. Received: shape {tuple(x.shape[1:])}. Pass images of "
                f"{tuple(shape)}."
            )
        pixels.warn_of_range(x, shape)
        nothing = np.zeros((len(x), 1), "float32")
        if self.num_classes is None:
            if y is not None:
                raise ValueError("This model has no classes. Received: labels. Leave them out, or set `num_classes`.")
            return x, nothing
        return (x, class_ids(y, len(x), self.num_classes).astype("float32")), nothing

    def _validation(self, data):
        """Returns validation data as `_data` does; None where there are none."""
        if data is None:
            return None
        parts = tuple(data) if isinstance(data, (tuple, list)) else (data,)
        if len(parts) == 3 and parts[2] is None:
            parts = parts[:2]
        try:
            if len(parts) not in (1, 2):
                raise ValueError(
                    "It must be (images, labels), or (images,) without classes; the loss has no weights. Received: "
                    f"{len(parts)} parts. Pass that."
                )
            return self._data(*parts)
        except ValueError as error:
            raise ValueError(f"`validation_data` does not fit. {error}") from error

    def _of_dataset(self, x: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns arguments of `fit`, of a dataset with the size of its batches; refuses one that is shuffled."""
        refuse_moved(x, arguments)
        if arguments.get("batch_size") is not None:
            return arguments
        return {**arguments, "batch_size": expected_batch_size(self, x, arguments.get("person_ids"))}


def refuse_moved(x: Any, arguments: dict[str, Any]) -> None:
    """Refuses a dataset that is shuffled, where arguments of `fit` make it matter which row stands where."""
    if arguments.get("person_ids") is not None or get(arguments.get("sampling") or "poisson").by_epoch:
        refuse_shuffled(x)


def of_recipe(x: Any, y: Any, arguments: dict[str, Any], scale: Callable[[Any], np.ndarray]) -> tuple:
    """Returns images, labels and arguments of `fit` as a recipe takes them: in memory, and scaled.

    Args:
        x, y: As in `DiffusionModel.fit`.
        arguments: Others of `fit`, whose images to validate on are scaled, too.
        scale: Maps images as the recipe gets them to those that its model learns.
    """
    refuse_moved(x, arguments)
    x, y = _in_memory(x, y)
    held_out = arguments.get("validation_data")
    if held_out is not None:
        given = (*held_out, None) if isinstance(held_out, (tuple, list)) else (held_out, None)
        images, labels = _in_memory(*given[:2])
        arguments = {**arguments, "validation_data": (pixels.of_unit_range(images, scale), labels, *given[2:-1])}
    return pixels.of_unit_range(x, scale), y, arguments


def _in_memory(x, y):
    x, y = taken(x, y, 4, labeled=True)
    if is_source(x) and not hasattr(x, "shape"):
        raise ValueError(
            f"A recipe of a diffusion model reads all images into memory. Received: a {type(x).__name__}. Pass "
            "an array of them; or build a model, whose `fit` reads such rows when they are drawn."
        )
    return arrays.input_array(x), y


def taken(x: Any, y: Any, rank: int, labeled: bool) -> tuple[Any, Any]:
    """Returns examples and labels, each as an array or what is one in a file, of the forms that `DP_Model.fit` takes.

    Args:
        x: Array, source, dictionary of one, or with `y` the name of a column; or a dataset, which is read into memory.
        y: Labels, or the name of their column; None where a dataset has them, or there are none.
        rank: Rank of a batch of examples.
        labeled: Whether a dataset must have labels.

    Raises:
        ValueError: no examples, several inputs, weights.
    """
    x, y = by_name(x, y)
    if datasets.is_dataset(x):
        if y is not None:
            raise ValueError(f"A {type(x).__name__} yields its own labels. Received: y as well; leave it out.")
        x, *rest = datasets.read_dataset(x, rank, labeled)
        if len(rest) > 1:
            raise ValueError("The loss of a diffusion model has no weights. Received: a dataset with some. Drop them.")
        y = rest[0] if rest else None
    arrays.refuse_none(x)
    if not is_source(x):
        arrays.refuse_stream(x)
    if isinstance(x, Mapping) or isinstance(y, str):
        received = f"the keys {', '.join(map(repr, x))}" if isinstance(x, Mapping) else f"y={y!r}"
        raise ValueError(
            "A diffusion model learns one array of examples, and class ids as y where it has classes. Received: "
            f"{received}. Pass these arrays; of a file or dictionary of them y may be the name of the labels."
        )
    return x, y


def _fits(shape: tuple, expected: tuple) -> bool:
    return len(shape) == len(expected) and all(b in (None, a) for a, b in zip(shape, expected, strict=True))
