"""Clean examples and their labels, as users pass them and as a diffusion model takes them."""

from typing import Any

import numpy as np

from lipdp.diffusion import pixels
from lipdp.diffusion.labels import class_ids
from lipdp.sampling.source import is_source


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
            ValueError: labels that do not fit, or no arrays.
        """
        if self._is_taken(x, y):
            return super().evaluate(x, y, *args, **kwargs)
        if not hasattr(x, "shape") and not isinstance(x, list):
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
        nothing = getattr(y, "shape", None) == (len(y) if hasattr(y, "__len__") else None, 1)
        return nothing and (self.num_classes is None or isinstance(x, tuple | list))

    def _data(self, x, y=None):
        """Returns what the model takes: `x` or `(x, labels)`, and targets that the loss ignores."""
        x = x if is_source(x) else np.asarray(x, "float32")
        pixels.warn_of_range(x, self.network.inputs[0].shape[1:])
        nothing = np.zeros((len(x), 1), "float32")
        if self.num_classes is None:
            if y is not None:
                raise ValueError("This model has no classes. Received: labels. Leave them out, or set `num_classes`.")
            return x, nothing
        return (x, class_ids(y, len(x), self.num_classes).astype("float32")), nothing
