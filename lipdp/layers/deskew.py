"""Characters moved to the middle of their image and sheared upright."""

from typing import Any

import numpy as np
from keras import ops

from lipdp import _keras
from lipdp.layers.base import ShapePreserving, require_channels_last
from lipdp.layers.unbounded import Unbounded

# Floor of a sum that is divided by: an image without ink stays where it is.
_FLOOR = 1e-6


@_keras.serializable
class Deskew2D(Unbounded, ShapePreserving):
    """Moves the ink of each image to its middle and shears it until its axis is vertical (deskewing).

    A fixed first layer for characters written by hand, bright on a ground of 0: slant and place say nothing of the
    class. It has no weights and treats every example alone, so it costs no privacy and may be computed once, before
    `fit`. Behind it come `Scattering2D` or any other network. Not for certificates, see below.

    Call arguments:
        inputs: Images `(batch, height, width, channels)` with values in [0, 1] and known inner sizes. Ink is the mean
            of the channels; what is negative counts as none.

    Returns:
        Tensor of the same shape: each pixel is read, by bilinear interpolation, off the place that it comes from, and
        is 0 where that is outside of the image.

    Raises:
        ValueError: the input is not a batch of images of known size, or the image format is channels first.

    Example:
        >>> import numpy as np
        >>> from lipdp import layers
        >>> slanted = np.fliplr(np.eye(5, dtype="float32"))[None, :, :, None]
        >>> np.asarray(layers.Deskew2D()(slanted))[0, :, :, 0].astype(int).tolist()
        [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]

    **Guarantee.** Each row of the output is a function of the same row of the input. There is no Lipschitz constant:
    where little ink decides on the shear, a small change of the image moves every pixel. Certificates through this
    layer are refused, and so is clipless training through it, unless a `ClipGradient` bounds what comes back. Its
    output counts as unbounded: for clipless training a `BoundedInput` follows, as behind any fixed network; strategies
    that clip take it as it is.
    """

    lipschitz_formula = "none: follows the ink"
    unbounded_because = ": a small change of an image may move all of its pixels"
    unbounded_way_out = (
        "Certify what comes behind it, in the norm of deskewed images, or train a network without it, such as "
        "lipdp.recipe(..., method='clipless') or lipdp train --strategy clipless."
    )

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        require_channels_last(self)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if len(input_shape) != 4 or None in tuple(input_shape)[1:]:
            raise ValueError(
                f"Layer '{self.name}' needs images of a known size (height, width, channels). Received: input shape "
                f"{tuple(input_shape)}. Give the input a full shape; add an axis to images without channels."
            )

    def call(self, inputs: Any) -> Any:
        inputs = ops.cast(inputs, self.compute_dtype)  # differences of whole numbers may wrap around
        height, width = inputs.shape[1:3]
        rows, columns = (np.arange(n, dtype="float32")[None] for n in (height, width))
        middle, center = (height - 1) / 2, (width - 1) / 2
        ink = ops.maximum(ops.mean(inputs, axis=-1), 0.0)
        # Sums go along the last axis, as XLA rounds those along another one by the place of an image in its batch.
        down, across = ops.sum(ink, axis=2), ops.sum(ink * (columns - center)[:, None], axis=2)
        mass = ops.maximum(ops.sum(down, axis=1, keepdims=True), _FLOOR)
        row = ops.sum(down * (rows - middle), axis=1, keepdims=True) / mass
        column = ops.sum(across, axis=1, keepdims=True) / mass
        # How far each place is below the mass and to the right of it.
        below = ops.subtract(rows - middle, row)
        right = ops.subtract(columns - center, column)
        spread = ops.maximum(ops.sum(down * ops.square(below), axis=1, keepdims=True), _FLOOR)
        shear = ops.sum(ops.sum(ink * right[:, None, :], axis=2) * below, axis=1, keepdims=True) / spread
        # Where a pixel comes from: its row follows from its own row alone, so one axis is read after the other.
        # By differences: on TensorFlow, Keras' sum takes what has one long axis for a bias, along another axis.
        moved = _read(inputs, ops.subtract(rows, -row), axis=1)
        shift = ops.subtract(shear * (rows - middle), -column)
        return _read(moved, ops.subtract(columns[None], -shift[:, :, None]), axis=2)


def _read(images: Any, origins: Any, axis: int) -> Any:
    """Returns images read at places `(batch, size)` along axis 1, or `(batch, height, size)` along axis 2."""
    size = images.shape[axis]
    # Far outside is outside, and whole numbers stay in range.
    origins = ops.clip(origins, -1.0, float(size))
    first = ops.floor(origins)
    share = origins - first
    shape = (-1, *origins.shape[1:], *(1,) * (images.ndim - origins.ndim))
    share, first = ops.reshape(share, shape), ops.reshape(ops.cast(first, "int32"), shape)
    # A border of zeros on either side.
    padded = ops.pad(images, [(int(a == axis),) * 2 for a in range(4)])
    # Of what is not a number: any place, as the share is none either.
    before, behind = (ops.clip(first + step, 0, size + 1) for step in (1, 2))
    before, behind = (ops.take_along_axis(padded, places, axis=axis) for places in (before, behind))
    return before + share * (behind - before)
