"""Accuracy and certified accuracy of a trained model on held-out examples."""

import math

import numpy as np

from lipdp.report import numbers

_CURVE_POINTS = 61


def check_radii(radii) -> None:
    """Refuses radii that are negative or not finite."""
    for radius in radii:
        if not 0.0 <= radius < math.inf:
            raise ValueError(f"A radius is out of range. Received: --radii {radius}. Pass numbers of at least 0.")


def measure(model, x, y, radii) -> dict:
    """Returns what is known about a model on some examples.

    Args:
        model: a trained model of layers with bounds.
        x: examples.
        y: class ids.
        radii: radii to certify at.

    Returns:
        A dictionary, ready for JSON: `examples`, `accuracy`, `lipschitz` of the model, `median_radius`,
        `certified` (one entry per radius) and `curve` (pairs of radius and certified accuracy).
    """
    from lipdp import certify

    found = certify.radii(model, x)
    # Up to where hardly anything is certified, but never past what was asked for by much.
    grid = np.linspace(0.0, float(np.quantile(found, 0.995)), _CURVE_POINTS)
    share = certify.certified_accuracy(model, x, y, at=[0.0, *radii, *grid])
    return {
        "examples": len(y),
        "accuracy": share[0.0],
        "lipschitz": certify.lipschitz(model),
        "median_radius": float(np.median(found)),
        "certified": [{"radius": float(r), "accuracy": share[float(r)]} for r in radii],
        "curve": [[float(r), share[float(r)]] for r in grid],
    }


def lines(held_out: dict) -> list[str]:
    """Returns what `measure` found as lines of text."""
    certified = ", ".join(f"{numbers.percent(c['accuracy'])} within {c['radius']:g}" for c in held_out["certified"])
    return [
        f"accuracy {numbers.percent(held_out['accuracy'])} on {held_out['examples']} held-out examples",
        f"certified accuracy {certified} (L2 distance in the model's input)",
    ]
