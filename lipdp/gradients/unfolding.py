"""What each tap of a convolution kernel reads, and the gradients it makes."""

import itertools
import math
from dataclasses import dataclass

from keras import ops

from lipdp import backend
from lipdp.gradients.factors import MatrixLayout, Outer, Whole, flat_sum, sum_of_squares, zeroed


@dataclass(frozen=True)
class Geometry:
    """A convolution over channels-last images.

    Attributes:
        kernel, strides, dilation: One integer per spatial axis.
        padding: One pair (before, after) per spatial axis; None: computed from the sizes as `"same"` does.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] | None

    def pads(self, sizes, outputs) -> list[tuple[int, int]]:
        """Returns the padding for an image of `sizes` that is read at `outputs` places."""
        if self.padding is not None:
            return list(self.padding)
        pads = []
        for n, m, k, s, d in zip(sizes, outputs, self.kernel, self.strides, self.dilation, strict=True):
            total = d * (k - 1) if s == 1 else max((m - 1) * s + d * (k - 1) + 1 - n, 0)
            pads.append((total // 2, total - total // 2))
        return pads

    def slices(self, image, places, channels_first: bool = False):
        """Returns for each tap what it reads: `(rows, *places, channels)`, a strided part of the padded image.

        Args:
            image: `(rows, *sizes, channels)`.
            places: Number of output places along each axis; integers, or scalars where they are not known.
            channels_first: Whether channels stand before the sizes and places instead.
        """
        first = 2 if channels_first else 1
        sizes = image.shape[first : first + len(self.kernel)]
        pads = self.pads(sizes, places)
        cut = [max(-a, 0) for a, _ in pads]
        pads = [(max(a, 0), max(b, 0)) for a, b in pads]
        taps = [
            [t * d + c for t, d, c in zip(tap, self.dilation, cut, strict=True)]
            for tap in itertools.product(*(range(k) for k in self.kernel))
        ]
        # A slice with steps costs several times one without: for many taps the steps are taken once, for all of them.
        known = all(isinstance(n, int) for n in (*sizes, *places))
        if known and len(taps) > math.prod(self.strides) > 1:
            yield from self._folded(image, first, sizes, pads, taps, places)
            return
        image = _padded(image, first, pads)
        for starts in taps:
            axes = [slice(b, b + (m - 1) * s + 1, s) for b, m, s in zip(starts, places, self.strides, strict=True)]
            yield image[(*(slice(None),) * first, *axes)]

    def _folded(self, image, first, sizes, pads, taps, places):
        """The slices of an image whose residues modulo the strides were separated."""
        room, grown = [], []
        for axis, (n, m, s, (before, after)) in enumerate(zip(sizes, places, self.strides, pads, strict=True)):
            read = max(starts[axis] for starts in taps) + (m - 1) * s + 1
            length = -(-max(read, before + n + after) // s) * s
            room.append(length // s)
            grown.append((before, length - before - n))
        image = _padded(image, first, grown)
        lead, rest = ops.shape(image)[:first], ops.shape(image)[first + len(sizes) :]
        image = ops.reshape(image, (*lead, *itertools.chain(*zip(room, self.strides, strict=True)), *rest))
        residues = [first + 2 * axis + 1 for axis in range(len(sizes))]
        others = [axis for axis in range(1, len(image.shape)) if axis not in residues]
        image = ops.transpose(image, (*residues, 0, *others))
        for starts in taps:
            phase = [b % s for b, s in zip(starts, self.strides, strict=True)]
            axes = [slice(b // s, b // s + m) for b, s, m in zip(starts, self.strides, places, strict=True)]
            yield image[(*phase, *(slice(None),) * first, *axes)]


class Taps:
    """Gradients of a kernel as a list of matrices `(batch, *groups, inputs, outputs)`, one per tap or one for all.

    Stacking them would cost as much as half of making them.

    Args:
        make: Function that returns the list.
        shape: Shape of the kernel.
        positions: Number of places of the output, or None.
        arrange: Turns `(*groups, inputs, outputs)` into the last two axes of the kernel.
        restore: The inverse, for a kernel `(taps, a, b)`.
    """

    def __init__(self, make, shape, positions, arrange=None, restore=None):
        self._make, self._shape, self._list, self._positions = make, tuple(shape), None, positions
        self._arrange = (lambda t, leading: t) if arrange is None else arrange
        self._restore = (lambda t: t) if restore is None else restore

    def _matrices(self):
        if self._list is None:
            self._list = backend.made_once(self._make())
        return self._list

    def whole(self):
        parts = self._matrices()
        batch = ops.shape(parts[0])[0]
        stacked = ops.stack([self._arrange(t, (batch,)) for t in parts], axis=1)
        return ops.reshape(stacked, (batch, *self._shape))

    def squared_norm(self):
        return sum_of_squares(*self._matrices())

    def scaled_squared_norm(self, center, inverse_scale):
        parts = self._matrices()
        center, scale = (
            ops.reshape(ops.broadcast_to(t, self._shape), (len(parts), -1, self._shape[-1]))
            for t in (center, inverse_scale)
        )
        return sum_of_squares(
            *(self._restore(scale[k]) * (part - self._restore(center[k])) for k, part in enumerate(parts))
        )

    def weighted_sum(self, coefficients):
        parts = self._matrices()
        row = ops.expand_dims(coefficients, 0)
        flat = ops.concatenate([flat_sum(row, t) for t in parts], axis=0)
        matrices = ops.reshape(flat, (len(parts), *parts[0].shape[1:]))
        return ops.reshape(self._arrange(matrices, (len(parts),)), self._shape)

    def masked(self, keep):
        return Whole(zeroed(self.whole(), keep))

    def cost(self):
        size = math.prod(self._shape)
        return "whole gradients", size, size * (self._positions or 1)

    def merged(self, other):
        if not isinstance(other, Taps) or self._shape != other._shape:
            return None
        mine, theirs = self._matrices, other._matrices
        return Taps(
            lambda: [a + b for a, b in zip(mine(), theirs(), strict=True)],
            self._shape,
            self._positions,
            self._arrange,
            self._restore,
        )


def kernel_factor(rows, image, g, geometry: Geometry, shape):
    """Returns the factor of a kernel `(*kernel, inputs, outputs)`, without groups.

    Args:
        image: What is read in patches, `(rows, *sizes, inputs)`.
        g: What the patches are multiplied with, `(rows, *places, outputs)`.
    """
    places = [ops.shape(g)[k + 1] if size is None else size for k, size in enumerate(g.shape[1:-1])]
    taps, inputs, outputs = math.prod(geometry.kernel), image.shape[-1], g.shape[-1]
    layout = MatrixLayout(shape)
    if taps == 1:
        (only,) = geometry.slices(image, places)
        return Outer(rows.positions(only), rows.positions(g), layout)
    positions = _positions(rows, g, places)
    if positions is not None and positions * (taps * inputs + outputs) < taps * inputs * outputs:
        patches = ops.concatenate(list(geometry.slices(image, places)), axis=-1)
        return Outer(rows.positions(patches), rows.positions(g), layout)
    few = inputs < 4 and all(isinstance(p, int) for p in places)

    def all_at_once():
        """For few channels: one product per example; channels first, so that a row of the patches is a row."""
        image_first = ops.transpose(image, (0, len(image.shape) - 1, *range(1, len(image.shape) - 1)))
        patches = ops.concatenate(list(geometry.slices(image_first, places, channels_first=True)), axis=1)
        size = math.prod(places)
        matrix = ops.matmul(ops.reshape(patches, (-1, taps * inputs, size)), ops.reshape(g, (-1, size, outputs)))
        if rows.views != 1:
            matrix = ops.sum(rows.examples(matrix), axis=1)
        return [matrix]

    def tap(part):
        # The rows of `image` are those of `g`, which is checked: their number is not asked for at each tap.
        return rows.positions(part) if positions is None else ops.reshape(part, (-1, positions, inputs))

    def each():
        cotangents = rows.positions(g)
        return backend.in_turn(lambda s: backend.contract(tap(s), cotangents), geometry.slices(image, places))

    def patches_at_once():
        patches = ops.concatenate(list(geometry.slices(image, places)), axis=-1)
        return [backend.contract(rows.positions(patches), rows.positions(g))]

    if backend.large_products() and not few:
        return Taps(patches_at_once, shape, _places(g))
    return Taps(all_at_once if few else each, shape, _places(g))


def _positions(rows, g, places):
    """Places of all rows of an example, or None where they are not known before the step runs."""
    return None if rows.views is None or None in g.shape[1:-1] else rows.views * math.prod(places)


def _places(g):
    return None if None in g.shape[1:-1] else math.prod(g.shape[1:-1])


def _padded(image, first: int, pads):
    """`image` with zeros around the axes from `first` on."""
    if not any(p for pair in pads for p in pair):
        return image
    return ops.pad(image, [*[(0, 0)] * first, *pads, *[(0, 0)] * (len(image.shape) - first - len(pads))])


def grouped_factor(rows, image, g, geometry: Geometry, shape, groups: int):
    """As `kernel_factor` for `groups` groups of channels; kernel `(*kernel, inputs / groups, outputs)`."""
    places = [ops.shape(g)[k + 1] if size is None else size for k, size in enumerate(g.shape[1:-1])]
    inputs, outputs = shape[-2], g.shape[-1] // groups

    def split(tensor, width):
        """`(batch, groups, positions, width)`."""
        tensor = rows.positions(tensor)
        tensor = ops.reshape(tensor, (rows.batch, -1 if tensor.shape[1] is None else tensor.shape[1], groups, width))
        return ops.transpose(tensor, (0, 2, 1, 3))

    def each():
        cotangents = split(g, outputs)
        return backend.in_turn(lambda s: backend.contract(split(s, inputs), cotangents), geometry.slices(image, places))

    def arrange(matrix, leading):
        n = len(leading)
        matrix = ops.transpose(matrix, (*range(n), n + 1, n, n + 2))
        return ops.reshape(matrix, (*leading, inputs, groups * outputs))

    def restore(kernel):
        return ops.transpose(ops.reshape(kernel, (inputs, groups, outputs)), (1, 0, 2))

    return Taps(each, shape, _places(g), arrange, restore)


def depthwise_factor(rows, image, g, geometry: Geometry, shape):
    """Returns the factor of a depthwise kernel `(*kernel, channels, multiplier)`."""
    places = [ops.shape(g)[k + 1] if size is None else size for k, size in enumerate(g.shape[1:-1])]
    channels, multiplier = shape[-2:]
    positions = _positions(rows, g, places)
    image = ops.expand_dims(image, -1)

    def tap(part):
        return rows.positions(part, 2) if positions is None else ops.reshape(part, (-1, positions, channels, 1))

    def each():
        cotangents = rows.positions(ops.reshape(g, (*ops.shape(g)[:-1], channels, multiplier)), 2)
        return backend.in_turn(lambda s: ops.sum(tap(s) * cotangents, axis=1), geometry.slices(image, places))

    return Taps(each, shape, _places(g))
