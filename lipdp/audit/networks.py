"""Small networks on which one example can reach what is charged for it, with canaries in orthogonal directions."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from scipy import linalg

from lipdp import checks, layers, losses, strategies
from lipdp.model import DP_Model, DP_Sequential

# How much longer than its clip norm a canary's gradient is: clipping takes all of it.
_LONG = 1e4
# A target out of reach: the gradient of the absolute error is then the same at each update.
_TARGET = 1e3


@dataclasses.dataclass(frozen=True)
class Canaries:
    """A network and examples for it, each with a gradient of its own direction that is as long as allowed.

    Args:
        make: Returns the model, compiled; called with an optimizer.
        x: One canary per row.
        y: Their labels.
        null: One row `(1, ...)` of x whose gradient is zero.
        null_y: Its label.
        opposite_y: Labels with which each gradient points the other way; None where there are none.
    """

    make: Callable[[Any], keras.Model]
    x: np.ndarray
    y: np.ndarray
    null: np.ndarray
    null_y: np.ndarray
    opposite_y: np.ndarray | None = None

    def opposite(self) -> np.ndarray:
        """Returns the labels with which gradients point the other way."""
        if self.opposite_y is None:
            raise ValueError(
                "The canaries have no opposite, which this audit needs. Received: opposite_y=None. Pass labels with "
                "which each gradient points the other way."
            )
        return self.opposite_y


def dense(strategy: strategies.Strategy, canaries: int) -> Canaries:
    """Returns one linear layer with one output and the absolute error: canary i is the i-th input alone.

    The gradient of the weights is the input or its opposite, so for clipless the bound of the whole network is reached.
    """
    canaries = checks.integer("canaries", canaries, minimum=1)

    def make(optimizer):
        if strategy.per_example:
            inputs = keras.Input((canaries,))
            outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
            model, loss = DP_Model(inputs, outputs), "mean_absolute_error"
        else:
            bounded = layers.BoundedInput((canaries,), norm=1.0)
            model, loss = DP_Sequential([bounded, layers.SpectralDense(1)]), losses.MeanAbsoluteError()
        model.compile(optimizer, loss=loss)
        return model

    size = _LONG * _clip_norm(strategy) if strategy.per_example else 1.0
    return _with_targets(make, size * np.eye(canaries, dtype="float32"))


def convolution(strategy: strategies.Strategy, canaries: int, side: int = 12, taps: int = 3) -> Canaries:
    """Returns one convolution under a fixed average: canary i is the i-th channel, constant in place.

    All taps of the kernel then get the same gradient, up to the border: the case on which its bound is tight.
    """
    channels = checks.integer("canaries", canaries, minimum=1)

    def make(optimizer):
        inputs = layers.BoundedInput((side, side, channels), norm=1.0)
        hidden = layers.SpectralConv2D(1, taps)
        model = DP_Sequential([inputs, hidden, keras.layers.Flatten(), _average()])
        model.compile(optimizer, loss=losses.MeanAbsoluteError())
        return model

    _only_clipless(strategy, "convolution")
    x = np.zeros((channels, side, side, channels), "float32")
    for i in range(channels):
        x[i, ..., i] = 1.0 / side
    return _with_targets(make, x)


def feature_map_bias(strategy: strategies.Strategy, canaries: int, side: int = 8) -> Canaries:
    """Returns a bias on a feature map, absolute values and a fixed average; canaries differ in the signs of channels.

    The gradient of the bias is the sum over all places, which agree in each channel: the case on which its bound is
    tight. Signs are rows of a Hadamard matrix, hence orthogonal. `canaries` must be a power of 2.
    """
    channels = checks.integer("canaries", canaries, minimum=1)
    if channels & (channels - 1):
        raise ValueError(f"`canaries` must be a power of 2 for a bias. Received: canaries={canaries!r}.")

    def make(optimizer):
        inputs = layers.BoundedInput((side, side, channels), norm=1.0)
        model = DP_Sequential([inputs, layers.Bias(), layers.Abs(), keras.layers.Flatten(), _average()])
        model.compile(optimizer, loss=losses.MeanAbsoluteError())
        return model

    _only_clipless(strategy, "feature map bias")
    size = 1.0 / (side * np.sqrt(channels))
    signs = np.broadcast_to(linalg.hadamard(channels)[:, None, None, :], (channels, side, side, channels))
    board = np.where(np.indices((side, side)).sum(0) % 2, -1.0, 1.0)[None, :, :, None] * np.ones((1, 1, 1, channels))
    return _with_targets(make, (size * signs).astype("float32"), (size * board).astype("float32"))


NETWORKS: dict[str, Callable[[Any, int], Canaries]] = {
    "dense": dense,
    "convolution": convolution,
    "feature_map_bias": feature_map_bias,
}


def _average():
    """Returns a fixed layer of norm 1 that weighs all its inputs alike."""

    def alike(shape, dtype=None):
        return keras.ops.ones(shape, dtype) / np.sqrt(shape[0])

    dense = layers.SpectralDense(1, kernel_initializer=alike)
    dense.trainable = False
    return dense


def _with_targets(make, x, null=None):
    targets = np.full((len(x), 1), _TARGET, "float32")
    null = np.zeros_like(x[:1]) if null is None else null
    return Canaries(make, x, targets, null, targets[:1], -targets)


def _clip_norm(strategy) -> float:
    norm = getattr(strategy, "total_clip_norm", None) or getattr(strategy, "clip_norm", 1.0)
    return max(1.0, float(norm))


def _only_clipless(strategy, name: str) -> None:
    if strategy.per_example:
        raise ValueError(
            f"The network {name!r} is for bounds, which strategies that clip do not use. Received: "
            f"strategy={strategy.name!r}. Pass network='dense'."
        )
