"""Rescaling by ranges of the data, which `fit` reads with noise and charges."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops
from scipy import stats

from lipdp import _keras
from lipdp.layers.released import Query, ReleasedConstants

# Values are counted by sign and power of two, from 2 ** -31 to 2 ** 63: what is smaller counts as zero, what is larger
# in the last bin. Then twice in equal parts of the range that this gives.
_SMALLEST, _LARGEST, _PARTS = -30, 63, 64
_POWERS = _LARGEST - _SMALLEST + 1
# Chance that noise alone makes a bin of the first count look filled, anywhere; and how much of a column the ranges of
# the others hold: what lies far out, such as a -999 that stands for nothing, is left out.
_MISTAKE, _HELD = 1e-3, 0.95
_AT_ONCE = 2**20  # entries that are counted
# Room for the float32 roundings of one subtraction and one product.
_ROUNDING = 1.0 + 1e-6


@_keras.serializable
class PrivateRescaling(ReleasedConstants):
    """Maps each column from its range in the data, released with noise by `fit`, to [-1, 1], and clips what is outside.

    For columns in units that nobody has described, some in millimeters and some in dollars: without it the largest
    numbers hide all others. The smallest and largest value of a column are those of two people; here the first `fit` of
    a model with this layer releases ranges that hold most of the data as three Gaussian queries, charges these to the
    model's ledger, and spends what is left of the budget on the updates. Later fits keep them. Ranges that are publicly
    known cost nothing, and are better: see `lipdp.data.Table`. `PrivateNormalization` may follow, or `BoundedInput`.

    Args:
        noise_multiplier: Noise standard deviation of each of the three releases over its sensitivity, in [1e-3, 1e6].
            About `24 / epsilon` for budgets below 3, else 8. It takes some `60 noise_multiplier sqrt(columns)`
            examples before ranges are better than columns as they are, if those are of one size. The tails of a column,
            about a twentieth of it, are clipped.

    Call arguments:
        inputs: Tensor of shape `(batch, ..., columns)` with known inner sizes.

    Returns:
        Tensor of the same shape, in [-1, 1]. Before the first `fit` the inputs, clipped to that.

    Raises:
        ValueError: an argument is out of range, or an inner size is unknown.

    Example:
        >>> import keras, numpy as np, lipdp
        >>> from lipdp import layers
        >>> rng = np.random.default_rng(0)
        >>> x = np.stack([rng.normal(170, 10, 4000), rng.normal(40_000, 9_000, 4000)], axis=1).astype("float32")
        >>> model = lipdp.DP_Sequential([keras.Input((2,)), layers.PrivateRescaling(), keras.layers.Dense(2)])
        >>> model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy())
        >>> _ = model.fit(x, np.arange(4000) % 2, epsilon=4.0, verbose=0)
        >>> first = model.run.ledger.entries[0]
        >>> first.kind, first.count, bool(130 < model.layers[0].low[0] < 165)
        ('moments', 3, True)

    **Guarantee.** Conditions: each row of what reaches the layer depends on one example, and nothing in front of it is
    trained; `fit` refuses what does not fulfil that. Bound: each release is a histogram for each column. With P entries
    of an example in a column, each adds `1 / P` to one bin, so that the histogram of a column grows by at most 1 in L1
    and in L2 norm, and those of C columns by `sqrt(C)`; the average over N examples moves by `sqrt(C) / N`. The bins of
    a later one follow from those before. Ranges are computed from noisy counts alone. Given them, the layer is a map of
    each entry with the Lipschitz constant `2 / (high - low)` of the narrowest range, and an output of norm
    `sqrt(entries)` at most. Not covered: ranges set by hand.
    """

    lipschitz_formula = "2 / smallest range"
    released = "Ranges"
    mechanism = "private_rescaling"
    counts = True

    def __init__(self, noise_multiplier: float = 8.0, **kwargs: Any):
        super().__init__(noise_multiplier, **kwargs)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self._shape = self.sizes(input_shape)
        columns = self._shape[-1:]
        self.low = self.add_weight(
            name="low", shape=columns, initializer=keras.initializers.Constant(-1.0), trainable=False
        )
        self.high = self.add_weight(name="high", shape=columns, initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        low, high = ops.convert_to_tensor(self.low), ops.convert_to_tensor(self.high)
        return _bounded((inputs - low) * (2.0 / (high - low)) - 1.0)

    def export_call(self, stock: Any, inputs: Any) -> Any:
        low, high = self._range()
        moved = keras.layers.Rescaling(1.0, offset=(-low).tolist())(inputs)
        return _bounded(keras.layers.Rescaling((2.0 / (high - low)).tolist(), offset=-1.0)(moved))

    def queries(self) -> tuple[Query, ...]:
        sensitivity = math.sqrt(self._shape[-1])
        powers, parts = (functools.partial(_by_parts, count) for count in (self._count_powers, self._count_parts))
        return (
            Query(sensitivity, powers, self._take_powers),
            Query(sensitivity, parts, self._take_parts),
            Query(sensitivity, parts, self._take_last_parts),
        )

    def _norm(self) -> float:
        """Returns the largest norm of the output."""
        return math.sqrt(math.prod(self._shape))

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return self._norm()

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        low, high = self._range()
        return (_ROUNDING * 2.0 / float((high - low).min()),)

    def trained_output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return self._norm()

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.asarray(ops.convert_to_numpy(v), "float64") for v in (self.low, self.high))  # type: ignore[return-value]

    def _count_powers(self, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Returns how often each power of two occurs in each column, of either sign: `(columns, 2 powers + 1)`."""
        rows = rows.astype("float64")
        finite = np.isfinite(rows)
        _, power = np.frexp(np.where(finite, rows, 0.0))
        bins = np.clip(power, _SMALLEST - 1, _LARGEST) - (_SMALLEST - 1)
        bins = np.where(rows == 0.0, 0, bins) * np.where(rows < 0.0, -1, 1) + _POWERS
        return _histogram(bins, 2 * _POWERS + 1, finite, weights)

    def _take_powers(self, average: np.ndarray, deviation: float, num_examples: int) -> None:
        level = float(stats.norm.isf(_MISTAKE / average.size)) * deviation
        filled = np.array([_stretch(column, level) or _heaviest(column - deviation) for column in average])
        powers = 2.0 ** np.arange(_SMALLEST, _LARGEST + 1)
        low = np.concatenate([-powers[::-1], [0.0], powers / 2])[filled[:, 0]]
        high = np.concatenate([-powers[::-1] / 2, [0.0], powers])[filled[:, 1]]
        # A column of zeros: whatever else there is keeps its sign.
        nothing = high <= low
        self.low.assign(np.where(nothing, -1.0, low).astype("float32"))
        self.high.assign(np.where(nothing, 1.0, high).astype("float32"))

    def _count_parts(self, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Returns how many values lie in each part of the present range: `(columns, parts)`."""
        low, high = self._range()
        with np.errstate(invalid="ignore", over="ignore"):
            parts = np.floor((rows.astype("float64") - low) * (_PARTS / (high - low)))
            inside = (parts >= 0) & (parts < _PARTS)
        return _histogram(np.where(inside, parts, 0).astype(int), _PARTS, inside, weights)

    def _take_parts(self, average: np.ndarray, deviation: float, num_examples: int) -> None:
        low, high = self._range()
        filled = np.array([_shortest(column) for column in average])
        width = (high - low) / _PARTS
        self.low.assign((low + width * filled[:, 0]).astype("float32"))
        self.high.assign((low + width * (filled[:, 1] + 1)).astype("float32"))

    def _take_last_parts(self, average: np.ndarray, deviation: float, num_examples: int) -> None:
        self._take_parts(average, deviation, num_examples)
        self.num_examples.assign(float(num_examples))


def _bounded(x: Any) -> Any:
    """Returns what lies in [-1, 1]; what is not a number becomes 0, or the bound of the output would not hold."""
    return ops.clip(ops.where(ops.isnan(x), 0.0, x), -1.0, 1.0)


def _by_parts(count: Callable, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Returns a count of all rows, some at a time: it takes several times their memory."""
    step = max(1, _AT_ONCE // max(1, math.prod(rows.shape[1:])))
    starts = range(0, max(1, len(rows)), step)
    return sum(count(rows[i : i + step], None if weights is None else weights[i : i + step]) for i in starts)


def _histogram(bins: np.ndarray, count: int, counted: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Returns how much each bin of each column holds, `(columns, count)`, where every row weighs 1 unless `weights`."""
    columns = bins.shape[-1]
    share = counted * (columns / max(1, math.prod(bins.shape[1:])))
    if weights is not None:
        share = share * weights.reshape(-1, *[1] * (bins.ndim - 1))
    flat = (bins + count * np.arange(columns)).ravel()
    return np.bincount(flat, share.ravel(), minlength=count * columns).reshape(columns, count)


def _stretch(column: np.ndarray, level: float) -> tuple[int, int] | None:
    """Returns the first and the last bin of all neighbors that together hold more than noise would, if there are any.

    One bin at a time, then two, four and so on of those further out: tails may be thin. Noise alone stays below `level`
    in one bin.
    """
    found, sums = None, np.concatenate([[0.0], np.cumsum(column)])
    for width in 2 ** np.arange(int(math.log2(len(column))) + 1):
        starts = np.flatnonzero(sums[width:] - sums[:-width] > level * math.sqrt(width))
        ends = starts + width - 1
        if found is None:
            found = (starts[0], ends[-1]) if len(starts) else None
            continue
        before, after = starts[ends < found[0]], ends[starts > found[1]]
        found = (min([found[0], *before[:1]]), max([found[1], *after[-1:]]))
    return found


def _heaviest(column: np.ndarray) -> tuple[int, int]:
    """Returns the first and the last bin of the neighbors with the largest sum."""
    sums = np.concatenate([[0.0], np.cumsum(column)])
    start = np.maximum.accumulate(np.where(sums == np.minimum.accumulate(sums), np.arange(len(sums)), 0))
    last = int(np.argmax(sums[1:] - sums[start[:-1]]))
    return start[last], last


def _shortest(column: np.ndarray) -> tuple[int, int]:
    """Returns the first and the last bin of the fewest neighbors that hold nearly all; of all bins where none do."""
    sums = np.concatenate([[0.0], np.cumsum(column)])
    for width in range(1, len(column)):
        held = sums[width:] - sums[:-width]
        if held.max() >= _HELD:
            return int(held.argmax()), int(held.argmax()) + width - 1
    return 0, len(column) - 1
