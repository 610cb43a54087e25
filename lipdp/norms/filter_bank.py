"""The norm of several strided convolutions of one image, bounded from above in the frequency domain."""

import math
from collections.abc import Sequence

import numpy as np

from lipdp.norms.exact import positive_definite

# Far above the rounding of float64 transforms and Gram matrices of these sizes, relative to the trace.
_ROUNDING = 1e-10


def same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Returns zeros before and after one axis under Keras' `padding="same"`."""
    total = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
    return total // 2, total - total // 2


def filter_bank_norm(banks: Sequence[tuple[np.ndarray, int, float]], size: tuple[int, int]) -> float:
    """Bounds the norm of `x -> (gain_i * conv_i(x))_i` from above; all convolutions read one image channel.

    Args:
        banks: Per convolution its real kernel `(height, width, filters)`, its stride and its gain >= 0.
            Padding is "same" (zeros). Every stride divides the largest one.
        size: Height and width of the image.

    Returns:
        A float that is never below the norm of the joint linear map.

    Raises:
        ValueError: a stride does not divide the largest one.

    **Guarantee.** Put the image on a torus of m points per axis, m a multiple of the largest stride S and m >= n + k
    + S: no padded window then wraps around to the image, so each convolution is a restriction of a circular one,
    sampled on a coset of `s Z`. With `H_f(w) = sum_t k_f(t) exp(i w (t - pad))` and per axis the S frequencies `w + 2
    pi a / S`, sampling by s couples those that differ by multiples of `2 pi / s`: the squared norm is at most the
    largest eigenvalue, over all groups of S x S frequencies, of `sum_i gain_i^2 / s_i^2 sum_f conj(H_f(a)) H_f(a') [a
    = a' mod S / s_i]` (Parseval). A Cholesky factorization of `t I - G` that runs to completion proves `G <= t I` up
    to rounding; rounding is charged as 1e-10 of the trace.

    Example:
        >>> import numpy as np
        >>> from lipdp.norms import filter_bank_norm
        >>> round(filter_bank_norm([(np.ones((2, 2, 1)), 2, 0.5)], (8, 8)), 6)  # plain windows of norm 2
        1.0
    """
    largest = max(stride for _, stride, _ in banks)
    if any(largest % stride for _, stride, _ in banks):
        raise ValueError(f"Every stride must divide the largest. Received: strides={[s for _, s, _ in banks]}.")
    torus = [
        -(-(n + max(kernel.shape[axis] for kernel, _, _ in banks) + largest) // largest) * largest
        for axis, n in enumerate(size)
    ]
    groups = sum(gain**2 * _gram(kernel, stride, largest, size, torus) for kernel, stride, gain in banks)
    trace = float(np.max(np.trace(groups, axis1=1, axis2=2).real))
    if trace == 0.0:
        return 0.0
    bound = float(np.linalg.eigvalsh(groups)[:, -1].max()) + _ROUNDING * trace
    while not positive_definite(bound * np.eye(largest**2) - groups):
        bound += _ROUNDING * trace
    return math.nextafter(math.sqrt(bound + _ROUNDING * trace), math.inf)


def _gram(kernel, stride, largest, size, torus) -> np.ndarray:
    """One Hermitian matrix per group of `largest ** 2` frequencies: (groups, largest ** 2, largest ** 2)."""
    kernel = np.asarray(kernel, np.float64)
    placed = np.zeros((kernel.shape[-1], *torus))
    rows, columns = (
        (np.arange(k) - same_padding(n, k, stride)[0]) % m
        for k, n, m in zip(kernel.shape[:2], size, torus, strict=True)
    )
    placed[:, rows[:, None], columns] = np.moveaxis(kernel, -1, 0)
    symbols = np.conj(np.fft.fft2(placed))
    # Frequency a m / S + g belongs to group g.
    split = symbols.reshape(len(placed), largest, torus[0] // largest, largest, torus[1] // largest)
    split = split.transpose(2, 4, 0, 1, 3).reshape(-1, len(placed), largest**2)
    classes = np.arange(largest) % (largest // stride)
    coupled = np.kron(classes[:, None] == classes, classes[:, None] == classes)
    return np.conj(split.transpose(0, 2, 1)) @ split * (coupled / stride**2)
