"""The norm of a convolution from above, by the symbol of the kernel on a grid of frequencies."""

from __future__ import annotations

import functools
import math
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from lipdp.norms.exact import _per_axis, spectral_norm

_UNIT = 2.0**-53
_GRAM_STEPS = 4
_EXACT_FREQUENCIES = 64  # how many frequencies are looked at exactly before the cheap bound of the others is taken
_MEMORY = 2**22  # complex numbers per slice of the grid


def conv_fourier_bound(
    kernel: ArrayLike, strides: int | tuple[int, ...] = 1, dilation: int | tuple[int, ...] = 1, grid: int | None = None
) -> float:
    """Bounds the norm of a zero-padded convolution from above, for images of every size.

    Args:
        kernel: Array of shape `(*kernel_size, channels in, channels out)`.
        strides: Integer or one integer per axis.
        dilation: Integer or one integer per axis.
        grid: Frequencies per axis; rounded up to a multiple of the stride and to twice the kernel's extent.
            Default: 512 in one dimension, 64 or 32 in two, 16 in three.

    Returns:
        A float that is never below the norm of the convolution (paddings `same` and `valid`).

    Raises:
        ValueError: the kernel holds NaN or infinities, or has fewer than three axes.

    **Guarantee.** Let e = d (k - 1) + 1 be the extent of the kernel on an axis, and K(w) the sum over taps of exp(-i
    t d w) W_t, a (channels in, channels out) matrix. (1) An image, padded by zeros to a torus so large that nothing
    wraps around, is mapped to all its windows by a circulant operator; the output at stride s is every s-th of these,
    a part of them. On the torus, w and its aliases w_j = w + 2 pi j / s meet in one output frequency, with weights of
    modulus 1 / sqrt(s): the norm is at most sup_w ||[K(w_0) ... K(w_(S-1))]|| / sqrt(S), S the product of the
    strides, which does not depend on the size of the image. (2) For fixed unit vectors u and v, Re <u, [K(w_j)]_j v>
    is, up to a phase, a real trigonometric polynomial of degree n = ceil((e - 1) / 2) on each axis; its maximum is at
    most that over an equidistant grid of g > 2 n points, divided by cos(pi n / g) (Ehlich and Zeller 1964), axis by
    axis. (3) Rounding in float64: an entry of K errs by at most (T + 8) u sum_t |W_t|, T the number of taps; the sum
    over a block in Frobenius norm is added. Norms of blocks come from Gram iteration (Schatten norms, never below) or
    from `spectral_norm` of the real form. The raw maximum over a grid of the image's size, without (2), is no upper
    bound. A kernel of one place is one matrix, at all frequencies: its `spectral_norm`. Not covered: circular or
    reflecting padding.

    Example:
        >>> import numpy as np
        >>> from lipdp.norms import conv_fourier_bound
        >>> round(conv_fourier_bound(np.ones((3, 3, 1, 1))), 1)
        9.0
    """
    kernel = np.ascontiguousarray(kernel, dtype=np.float64)
    if kernel.ndim < 3 or not np.all(np.isfinite(kernel)):
        raise ValueError(
            "The Fourier bound needs an array of finite numbers of shape (*kernel_size, channels in, channels out). "
            f"Received: shape {kernel.shape}, {np.size(kernel) - np.isfinite(kernel).sum()} entries not finite."
        )
    axes = kernel.ndim - 2
    return _bound(
        kernel.tobytes(), kernel.shape, tuple(_per_axis(strides, axes)), tuple(_per_axis(dilation, axes)), grid
    )


# A certificate asks several times for the same kernels.
@functools.lru_cache(maxsize=64)
def _bound(data: bytes, shape, strides, dilation, grid) -> float:
    kernel = np.frombuffer(data).reshape(shape)
    largest = np.max(np.abs(kernel), initial=0.0)
    if largest == 0.0:
        return 0.0
    exponent = math.frexp(largest)[1]
    kernel = np.ldexp(kernel, -exponent)  # exact, and nothing overflows
    axes, taps = len(strides), math.prod(shape[:-2])
    if taps == 1:  # one matrix for all frequencies, and for each place alone: strides leave some of these out
        return math.nextafter(math.ldexp(spectral_norm(kernel.reshape(shape[-2:])), exponent), math.inf)
    wanted = grid or (512, 64 if shape[-2] * shape[-1] <= 4096 else 32, 16)[min(axes, 3) - 1]
    sizes, factor = [], 1.0 + 1e-12
    for k, s, d in zip(shape, strides, dilation, strict=False):
        degree = -(-d * (k - 1) // 2)
        size = s * -(-max(wanted, 2 * degree + 2, 4 * degree) // s)
        sizes.append(size)
        factor /= math.cos(math.pi * degree / size)
    aliases = math.prod(strides)
    # Only one of every group of aliases; without strides only one of w and -w.
    halves = [size // s for size, s in zip(sizes, strides, strict=True)]
    if aliases == 1:
        halves[-1] = halves[-1] // 2 + 1
    frequencies = np.array(list(product(*map(range, halves))))
    per_slice = max(1, _MEMORY // (aliases * shape[-2] * shape[-1]))
    rounding = (taps + 8) * _UNIT * math.sqrt(aliases) * float(np.linalg.norm(np.abs(kernel).sum(tuple(range(axes)))))
    best = 0.0
    for start in range(0, len(frequencies), per_slice):
        blocks = _symbols(kernel, frequencies[start : start + per_slice], sizes, strides, dilation)
        best = _largest(blocks, best)
    norm = (best + rounding) / math.sqrt(aliases) * factor
    return math.nextafter(math.ldexp(norm, exponent), math.inf)


def _symbols(kernel, frequencies, sizes, strides, dilation) -> np.ndarray:
    """One matrix per frequency: the symbols of its aliases side by side."""
    axes = len(sizes)
    taps = np.array(list(product(*map(range, kernel.shape[:axes])))) * np.array(dilation)
    shifts = np.array(list(product(*map(range, strides)))) * np.array(sizes) // np.array(strides)
    angles = (frequencies[:, None, :] + shifts[None]) / np.array(sizes)  # in turns
    phases = np.exp(-2j * np.pi * ((angles @ taps.T) % 1.0))
    flat = kernel.reshape(len(taps), -1)
    blocks = (phases.reshape(-1, len(taps)) @ flat).reshape(len(frequencies), len(shifts), *kernel.shape[axes:])
    return blocks.reshape(len(frequencies), -1, kernel.shape[-1])


def _largest(blocks, best: float) -> float:
    """An upper bound on the largest norm among the blocks and `best`."""
    above = _schatten(blocks)
    order = np.argsort(-above)
    for place, index in enumerate(order):
        if above[index] <= best:
            return best
        if place >= _EXACT_FREQUENCIES:
            return float(above[index])
        block = blocks[index]
        # The real form of a complex matrix has the same norm.
        real = np.block([[block.real, -block.imag], [block.imag, block.real]])
        best = max(best, min(spectral_norm(real), float(above[index])))
    return best


def _schatten(blocks) -> np.ndarray:
    """Norms from above: the Schatten norm of order 2^(steps + 1), with its float64 rounding."""
    gram = blocks if blocks.shape[1] >= blocks.shape[2] else np.swapaxes(blocks, 1, 2)
    logarithm = np.zeros(len(blocks))
    for step in range(_GRAM_STEPS + 1):
        norms = np.maximum(np.linalg.norm(gram, axis=(1, 2)), 1e-300)
        logarithm += np.log(norms) / 2**step
        gram = gram / norms[:, None, None]
        if step < _GRAM_STEPS:
            gram = np.conj(np.swapaxes(gram, 1, 2)) @ gram
    # Each product errs by at most (n + 8) u in Frobenius norm, and the last norm is at least 1 / sqrt(n).
    size = max(blocks.shape[1:])
    return np.exp(logarithm) * (1.0 + 16 * size**1.5 * _UNIT * 2)
