"""Batches for training a denoiser without privacy, as the plain regression that it is."""

from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import checks
from lipdp.diffusion import denoisers


class NoisyBatches(keras.utils.PyDataset):
    """Noised examples and what the network should return, with fresh noise each time: `network.fit(batches)`.

    For public data: `fit` of a plain Keras model has no privacy.

    Args:
        x: clean examples `(N, ...)`, entries in [-1, 1].
        labels: class ids `(N,)`, or None.
        denoiser: a `Denoiser` or its name.
        batch_size: examples per step; a remainder waits for the next epoch.
        label_dropout: probability in [0, 1) with which a label becomes `no_label`, for guidance.
        no_label: the id that stands for "no label"; needed with `label_dropout`.
        seed: non-negative integer that makes order and noise repeatable, or None.
        **kwargs: `workers`, `use_multiprocessing`, `max_queue_size`, as in Keras.

    Raises:
        ValueError: when an argument is out of its range.

    Example:
        >>> import numpy as np
        >>> from lipdp import diffusion
        >>> (x, c_noise), target = diffusion.NoisyBatches(np.zeros((8, 2)), batch_size=4, seed=0)[0]
        >>> x.shape, c_noise.shape, target.shape
        ((4, 2), (4,), (4, 2))
    """

    def __init__(
        self,
        x: np.ndarray,
        labels: np.ndarray | None = None,
        denoiser: Any = "edm",
        batch_size: int = 256,
        label_dropout: float = 0.0,
        no_label: int | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if labels is not None and len(labels) != len(x):
            raise ValueError(f"One label per example. Received: {len(labels)} labels for {len(x)} examples.")
        self.batch_size = checks.integer("batch_size", batch_size, minimum=1)
        if self.batch_size > len(x):
            raise ValueError(f"`batch_size` must be at most {len(x)}, the examples. Received: batch_size={batch_size}.")
        self.label_dropout, self.no_label = checks.below_one("label_dropout", label_dropout), no_label
        if label_dropout and (labels is None or no_label is None):
            raise ValueError(
                f"`label_dropout` needs `labels` and `no_label`. Received: label_dropout={label_dropout!r}, "
                f"no_label={no_label!r}. Pass both, or label_dropout=0."
            )
        self.x, self.labels = np.asarray(x, "float32"), None if labels is None else np.asarray(labels, "int32")
        self.denoiser = denoisers.get(denoiser)
        self._seeds = np.random.SeedSequence(seed)
        self.on_epoch_end()

    def __len__(self):
        return len(self.x) // self.batch_size

    def __getitem__(self, index):
        rng = np.random.default_rng([*self._words, index])
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        x = self.x[rows]
        noise, u = rng.standard_normal(x.shape, "float32"), rng.random(len(rows), "float32")
        x, c_noise, target = (ops.convert_to_numpy(t) for t in self.denoiser.training_pair(x, noise, u))
        if self.labels is None:
            return (x, c_noise), target
        dropped = rng.random(len(rows)) < self.label_dropout
        return (x, c_noise, np.where(dropped, self.no_label or 0, self.labels[rows]).astype("int32")), target

    def on_epoch_end(self) -> None:
        self._words = [int(word) for word in self._seeds.spawn(1)[0].generate_state(4)]
        self._order = np.random.default_rng(self._words).permutation(len(self.x))
