"""A fixed scattering transform: features of high quality that cost no privacy."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.layers.base import LipschitzLayer, integer_between, require_channels_last
from lipdp.layers.products import product
from lipdp.layers.wavelets import low_pass, morlet
from lipdp.norms.filter_bank import filter_bank_norm, same_padding

PRESETS = {"accurate": (0.1, 1.0, 6.0), "robust": (1.0, 1.0, 1.0)}

_UNIT = 2.0**-24
# Floor of a modulus: keeps its derivative finite at zero.
_FLOOR = 1e-18
# Images with more columns than so many sides of a kernel are convolved.
_WIDE = 8


@_keras.serializable
class Scattering2D(LipschitzLayer):
    """Moduli of wavelet coefficients, averaged over windows: a fixed, non-expansive first layer.

    `(phi * x, phi * |psi_j * x|, phi * |psi_k * |psi_j * x||)` with k > j, for every channel by itself. It has no
    weights and treats every example alone, so its features cost no privacy and may be computed once, before `fit`;
    put in front of the trained head, it extends certificates to pixels (see the example).

    Args:
        weights: Factors of the orders 0, 1 and 2, as a preset or three numbers >= 0. `"accurate"`,
            `(0.1, 1, 6)`, lifts the small second order: best accuracy, small certified radii. `"robust"`,
            `(1, 1, 1)`, is close to an isometry on smooth images: larger radii for some accuracy.
        scales: Number J of wavelet scales, 1 to 3; features are sampled every `2 ** J` pixels.
        angles: Number A of orientations, 2 to 32.
        mirrored: Whether to average the features with those of the image mirrored left to right, where the class of an
            image does not depend on it (objects, but not digits). An image and its mirror image then give the same, up
            to the order of places, so only the left half of these is kept: half the inputs, hence half the weights and
            less noise behind it.

    Call arguments:
        inputs: Images `(batch, height, width, channels)` with known inner sizes, both sides at least `2 ** J`.

    Returns:
        Tensor `(batch, ceil(height / 2 ** J), ceil(width / 2 ** J), channels * K)` with
        `K = 1 + J A + J (J - 1) / 2 A ** 2`: 81 features at each of 7 x 7 places of a 28 x 28 image. With `mirrored`
        only the first `ceil(ceil(width / 2 ** J) / 2)` places of each row.

    Raises:
        ValueError: an argument is out of range, the image is too small, a size is unknown, or the image
            format is channels first.

    Example:
        >>> import keras, numpy as np
        >>> import lipdp
        >>> from lipdp import layers
        >>> front = keras.Sequential([keras.Input((28, 28, 1)), layers.Scattering2D("accurate")])
        >>> x = np.random.default_rng(0).random((4, 28, 28, 1)).astype("float32")
        >>> features = front.predict(x, verbose=0)  # once; `head.fit(features, y, ...)` trains on them
        >>> head = lipdp.DP_Sequential([layers.BoundedInput((7, 7, 81), norm=1.5), layers.Flatten(),
        ...                             layers.SpectralDense(10)])
        >>> whole = keras.Sequential([front, head])  # takes images
        >>> lipdp.certify.lipschitz(whole) < 1.001
        True

    **Guarantee.** 1-Lipschitz in the L2 norm and `||y|| <= ||x||` (plus 1e-12), for every real image and these
    weights. Proof: `||a| - |b|| <= |a - b|` also for complex numbers, so a difference of images passes from stage to
    stage no larger than the linear maps allow. From the last order to the first, `c` of a stage is the norm of the
    joint map `(w phi, c_j psi_j)` with the `c_j` of the later stages, bounded by `norms.filter_bank_norm` for this
    image size, zero padding, strides and their aliases included; the outputs are divided by the `c` of the first stage
    plus the float32 error below. The kernels are real (real and imaginary parts apart), so the Littlewood-Paley sum in
    it is the symmetrized one. Channels are separate: any number of them has the constant of one. Float32: a sum of k
    products, in any order, errs by at most `k u / (1 - k u)` of the sum of their moduli, and convolution with
    `|kernel|` has norm at most its l1 norm (Young). Carried through the stages this is below 1e-3 of the constant (for
    3 scales 1e-2), far above what is measured. With `mirrored`, an average of two such maps, one of them behind an
    isometry, and fewer places: by the triangle inequality no larger. Not covered: TF32 where `predict` is called
    outside of lipdp; privacy does not rest on it with a `BoundedInput` after it, as in the example.
    """

    def __init__(
        self,
        weights: str | Sequence[float] = "accurate",
        scales: int = 2,
        angles: int = 8,
        mirrored: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.mirrored = checks.boolean("mirrored", mirrored)
        self._orders = _order_weights(weights)
        require_channels_last(self)
        self.order_weights = weights if isinstance(weights, str) else self._orders
        self.scales = integer_between("scales", scales, 1, 3)
        self.angles = integer_between("angles", angles, 2, 32)

    @property
    def channels(self) -> int:
        """Number of features per place and input channel."""
        return 1 + self.scales * self.angles + self.scales * (self.scales - 1) // 2 * self.angles**2

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = tuple(input_shape)
        if len(shape) != 4 or None in shape[1:]:
            raise ValueError(
                f"Layer '{self.name}' needs images of a known size (height, width, channels): its constant depends on "
                f"it. Received: input shape {shape}."
            )
        if min(shape[1:3]) < 2**self.scales:
            raise ValueError(
                f"Layer '{self.name}' samples every {2**self.scales} pixels. Received: input shape {shape}. Use "
                "larger images or fewer `scales`."
            )
        self._size = shape[1:3]
        self.constant = sum(self._bound(0, -1, 0, self._size))

    def call(self, inputs: Any) -> Any:
        places = self.compute_output_shape(inputs.shape)[2]
        if not self.mirrored:
            return self._features(inputs)
        both = (self._features(images)[:, :, :places] for images in (inputs, ops.flip(inputs, axis=2)))
        return 0.5 * sum(both)

    def _features(self, inputs: Any) -> Any:
        """Returns the features of all places of images."""
        height, width, channels = inputs.shape[1:]
        images = ops.reshape(ops.transpose(inputs, (0, 3, 1, 2)), (-1, height, width, 1))
        features = ops.concatenate(self._outputs(images, 0, -1, 0), axis=1)
        features = ops.reshape(features, (-1, channels * self.channels, *features.shape[2:]))
        return ops.transpose(features, (0, 2, 3, 1))

    def _outputs(self, images, order: int, last: int, resolution: int) -> list:
        """Returns the features `(rows, k, h, w)` of a stage and the next ones for images `(rows, height, width, 1)`."""
        height, width = images.shape[1:3]
        gain = self._orders[order] * 2 ** (self.scales - resolution) / self.constant
        features = [self._average(ops.reshape(images, (-1, 1, height, width)), resolution, gain)]
        if order < 2:
            for scale in range(last + 1, self.scales):
                moduli = self._moduli(images, scale - resolution)
                if order == 1 or scale == self.scales - 1:
                    # Nothing but the average is left to do.
                    gain = self._orders[order + 1] * 2 ** (self.scales - scale) / self.constant
                    features.append(self._average(moduli, scale, gain))
                    continue
                rows = ops.reshape(moduli, (-1, *moduli.shape[2:], 1))
                for part in self._outputs(rows, order + 1, scale, scale):
                    features.append(ops.reshape(part, (-1, self.angles * part.shape[1], *part.shape[2:])))
        return features

    def _moduli(self, images, scale: int):
        """Returns moduli of wavelet coefficients sampled every `2 ** scale`, `(rows, angles, height, width)`."""
        kernel = 2.0**scale * morlet(scale, self.angles)
        coefficients = _convolved(images[..., 0], kernel, 2**scale)
        real, imaginary = coefficients[:, :, : self.angles], coefficients[:, :, self.angles :]
        squares = ops.maximum(ops.square(real) + ops.square(imaginary), _FLOOR * _FLOOR)
        return ops.transpose(ops.sqrt(squares), (0, 2, 1, 3))

    def _average(self, images, resolution: int, gain: float):
        """Returns the low-pass of the last two axes, as one matrix for each."""
        taps, step = low_pass(self.scales - resolution)[:, None], 2 ** (self.scales - resolution)
        rows, columns = (_along_rows(taps, n, step) for n in images.shape[2:])
        return ops.swapaxes(product(ops.swapaxes(product(images, columns), 2, 3), gain * rows), 2, 3)

    def _bound(self, order: int, last: int, resolution: int, size) -> tuple[float, float]:
        """Returns, for a stage and all after it, before the division, the Lipschitz constant and the float32 error of
        the outputs over the norm of the image."""
        stride, taps = 2 ** (self.scales - resolution), low_pass(self.scales - resolution)
        banks = [(np.outer(taps, taps)[:, :, None], stride, stride * self._orders[order])]
        error = banks[0][2] * _rounding(banks[0][0])
        for scale in range(last + 1, self.scales) if order < 2 else ():
            kernel, step = morlet(scale - resolution, self.angles), 2 ** (scale - resolution)
            later, later_error = self._bound(order + 1, scale, scale, tuple(-(-n // step) for n in size))
            banks.append((kernel, step, step * later))
            # Errors of this stage are carried on, errors of later stages are relative to their input.
            error += step * (later + later_error) * _rounding(kernel) + step * later_error * _mass(kernel)
        return filter_bank_norm(banks, size), error

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return input_bounds[0] + 1e6 * _FLOOR  # the floors of up to 1e12 moduli

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        height, width, channels = input_shape[1:]
        if self.built and (height, width) != self._size:
            raise ValueError(
                f"Layer '{self.name}' was built for images of size {self._size}. Received: {(height, width)}. Use "
                "another Scattering2D layer for them."
            )
        step = 2**self.scales
        places = -(-width // step)
        places = -(-places // 2) if self.mirrored else places
        return (input_shape[0], -(-height // step), places, channels * self.channels)

    def get_config(self) -> dict[str, Any]:
        own: dict[str, Any] = {"weights": self.order_weights, "scales": self.scales, "angles": self.angles}
        # Files without it stay as they were.
        return {**super().get_config(), **own, **({"mirrored": True} if self.mirrored else {})}


def _order_weights(weights) -> tuple[float, float, float]:
    if isinstance(weights, str):
        return PRESETS[checks.choice("weights", weights, PRESETS, hint="Or pass three numbers.")]
    try:
        values = tuple(checks.between("weights", w, 0, 1e6) for w in weights)
    except (TypeError, ValueError):
        values = ()
    if len(values) != 3 or max(values) < 1e-6:
        raise ValueError(
            "`weights` must be three numbers from 0 to 1e6, one per order, not all zero. Received: "
            f"weights={weights!r}."
        )
    return values


def _convolved(images: Any, kernel: np.ndarray, step: int) -> Any:
    """Returns images `(rows, height, width)` convolved with a kernel `(k, k, filters)` and sampled every `step` pixels,
    with zero padding, `(rows, h, filters, w)`.

    As a product of some rows of pixels with a matrix, for two rows of places at once: on a CPU, a convolution of one
    channel is many times slower, unless most of the matrix is zero.
    """
    size, filters = len(kernel), kernel.shape[-1]
    # Constants of an export stand in its file.
    if images.shape[2] > _WIDE * size or isinstance(images, keras.KerasTensor):
        found = ops.conv(images[..., None], kernel[:, :, None].astype("float32"), step, "same", "channels_last")
        return ops.transpose(found, (0, 1, 3, 2))
    (height, width), (top, _) = images.shape[1:], same_padding(images.shape[1], size, step)
    places, read = -(-height // step), size + step
    starts = [2 * step * pair for pair in range(-(-places // 2))]
    padded = ops.pad(images, ((0, 0), (top, max(starts[-1] + read - top - height, 0)), (0, 0)))
    windows = [ops.reshape(padded[:, start : start + read], (-1, read * width)) for start in starts]
    along = np.stack([_along_rows(row, width, step) for row in kernel])
    matrix = np.zeros((read, width, 2, along.shape[-1]), "float32")
    matrix[:size, :, 0], matrix[step:, :, 1] = along, along
    found = product(ops.stack(windows, axis=1), matrix.reshape(read * width, -1))
    return ops.reshape(found, (-1, 2 * len(starts), filters, along.shape[-1] // filters))[:, :places]


def _along_rows(kernel: np.ndarray, width: int, step: int) -> np.ndarray:
    """Returns the matrix `(width, filters * w)` of the convolution of a row of pixels with a kernel `(k, filters)`."""
    size, filters = kernel.shape
    before, _ = same_padding(width, size, step)
    matrix = np.zeros((width, filters, -(-width // step)))
    for place in range(matrix.shape[-1]):
        first = place * step - before
        taps = slice(max(first, 0), min(first + size, width))
        matrix[taps, :, place] = kernel[taps.start - first : taps.stop - first]
    return matrix.reshape(width, -1)


def _mass(kernel: np.ndarray) -> float:
    """Returns a bound on the norm of the convolution with the moduli of a kernel `(height, width, filters)`."""
    return float(np.linalg.norm(np.abs(kernel).sum(axis=(0, 1))))


def _rounding(kernel: np.ndarray) -> float:
    """Returns a bound on the float32 error of a convolution and its modulus, over the norm of the image."""
    count = kernel.shape[0] * kernel.shape[1] + 8
    return 1.001 * count * _UNIT * _mass(kernel)
