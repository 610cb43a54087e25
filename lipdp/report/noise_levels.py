"""The plot of the noise levels that training of diffusion configurations emphasizes."""

from typing import Any

import numpy as np

from lipdp.diffusion import denoisers
from lipdp.report.plots import BLUE, GREEN, ORANGE, svg

_PURPLE = "#6b46a8"
_NAMES = {"vp": "VP", "ve": "VE", "v": "v-prediction", "edm": "EDM"}
_COLORS = {"vp": GREEN, "ve": _PURPLE, "v": ORANGE, "edm": BLUE}


def noise_levels(configurations: Any = ("vp", "ve", "v", "edm")) -> tuple[str, str, str]:
    """Returns the plot of the importance of each noise level, figure 3 of Dockhorn et al. 2023.

    Args:
        configurations: names of denoisers in their default settings, or a dictionary of label to `Denoiser`.

    Returns:
        `(title, description, svg)`; the description, the alternative text, names the median level of each.

    Example:
        >>> noise_levels(["edm", "v"])[1]
        'Importance of the noise levels; median level: EDM 0.301, v-prediction 0.575.'
    """
    if not isinstance(configurations, dict):
        configurations = {_NAMES.get(name, name): denoisers.get(name) for name in configurations}
    colors = {_NAMES[name]: color for name, color in _COLORS.items()}
    sigma = np.geomspace(2e-3, 80.0, 400)
    curves = {name: _normalized(denoiser, sigma) for name, denoiser in configurations.items()}

    def draw(axes):
        for name, curve in curves.items():
            axes.plot(sigma, curve, color=colors.get(name), label=name)
        axes.set(xscale="log", xlabel="noise level sigma", ylabel="importance in training")
        axes.set_xlim(sigma[0], sigma[-1])
        axes.set_ylim(0, None)
        axes.legend(loc="upper right")

    medians = ", ".join(f"{name} {_median(curve, sigma):.3f}" for name, curve in curves.items())
    return "Noise levels in training", f"Importance of the noise levels; median level: {medians}.", svg(draw)


def _normalized(denoiser, sigma):
    curve = denoisers.noise_level_importance(denoiser, sigma)
    return curve / np.trapezoid(curve, np.log(sigma))


def _median(curve, sigma) -> float:
    mass = np.cumsum(curve) - curve / 2.0
    return float(np.exp(np.interp(0.5 * np.sum(curve), mass, np.log(sigma))))
