"""Layers whose constants `fit` reads off the data, with noise, and charges."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from lipdp import checks
from lipdp.layers.base import ShapePreserving


@dataclasses.dataclass(frozen=True)
class Query:
    """One noisy average over the rows that reach a layer.

    Args:
        sensitivity: largest L2 norm of what one example adds to the sum.
        total: from rows `(n, ...)` and their weights `(n,)` in [0, 1], None for 1 each, to their sum.
        take: gives the layer the noisy average, the standard deviation of the noise in each of its entries, and the
            number of examples.
    """

    sensitivity: float
    total: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
    take: Callable[[np.ndarray, float, int], None]


class ReleasedConstants(ShapePreserving):
    """Base of the layers whose constants the first `fit` of a model releases with noise, see `training.moments`."""

    # What `fit` says is released, and the name in the ledger.
    released = ""
    mechanism = ""
    # Whether entries are counted by thresholds, so that the last bit of an entry may move a whole row.
    counts = False

    def __init__(self, noise_multiplier: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.noise_multiplier = checks.between("noise_multiplier", noise_multiplier, 1e-3, 1e6)

    def sizes(self, input_shape: tuple[int | None, ...]) -> tuple[int, ...]:
        """Returns the shape of one example; refuses one that is not known."""
        if None in tuple(input_shape)[1:] or len(input_shape) < 2:
            raise ValueError(
                f"Layer '{self.name}' needs a known size on every axis but the batch: its constants belong to single "
                f"entries. Received: input shape {tuple(input_shape)}. Give the input a full shape."
            )
        return tuple(int(n or 0) for n in tuple(input_shape)[1:])

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.num_examples = self.add_weight(name="num_examples", shape=(), initializer="zeros", trainable=False)

    def queries(self) -> tuple[Query, ...]:
        """Returns what is to be released, in this order; later ones read what the earlier ones gave."""
        raise NotImplementedError

    def adapt(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"What this layer needs of the data is private, so `fit` reads it, with noise, as part of its budget. "
            f"Received: adapt of layer '{self.name}'. Leave it out."
        )

    @property
    def adapted(self) -> bool:
        """Whether a `fit` has released the constants."""
        return bool(self.built and float(ops.convert_to_numpy(self.num_examples)) > 0.0)

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        # Not known before `fit` has released the constants.
        return (float("inf"),)
