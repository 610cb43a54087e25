"""Fixed filters of finite support: Morlet wavelets and a Gaussian low-pass."""

import numpy as np

# The usual parameters of scattering networks (Bruna and Mallat 2013) at scale 0.
_WIDTH, _FREQUENCY = 0.8, 0.75 * np.pi
# Window in units of the scale; beyond it the envelope is below 5 % of its height.
_RADIUS = 4


def morlet(scale: int, angles: int) -> np.ndarray:
    """Returns the wavelets of one scale at angles `pi a / angles`, as real kernels.

    Args:
        scale: j >= 0; widths grow and frequencies fall by `2 ** j`.
        angles: Number of orientations.

    Returns:
        Array `(k, k, 2 * angles)`, float64, all real parts first and then all imaginary parts;
        `k = 8 * 2 ** j + 1`. Every filter has mean zero.
    """
    radius = _RADIUS * 2**scale
    width, frequency, slant = _WIDTH * 2**scale, _FREQUENCY / 2**scale, 4.0 / angles
    rows, columns = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    wavelets = []
    for angle in np.pi * np.arange(angles) / angles:
        along = columns * np.cos(angle) + rows * np.sin(angle)
        across = rows * np.cos(angle) - columns * np.sin(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * np.pi * width**2)
        wave = envelope * np.exp(1j * frequency * along)
        wavelets.append(wave - envelope * (wave.sum() / envelope.sum()))
    waves = np.stack(wavelets, axis=-1)
    return np.concatenate([waves.real, waves.imag], axis=-1)


def low_pass(scale: int) -> np.ndarray:
    """Returns a Gaussian of width `0.8 * 2 ** (scale - 1)` and sum 1, for sampling by `2 ** scale`; scale >= 1."""
    radius = _RADIUS * 2 ** (scale - 1)
    taps = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * (_WIDTH * 2 ** (scale - 1)) ** 2))
    return taps / taps.sum()
