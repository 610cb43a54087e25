"""The plot of an audit."""

import math
from typing import Any

import numpy as np

from lipdp.accounting import round_down, round_up
from lipdp.report.plots import BLUE, GREEN, INK, MUTED, ORANGE, STYLE


def draw(audit: Any) -> Any:
    """Returns the figure of an `Audit`: rates of the attack, and bounds."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        _rates(left, audit)
        _bounds(right, audit)
    return figure


def _rates(axes, audit) -> None:
    rates = np.concatenate([np.geomspace(1e-4, 0.01, 60), np.linspace(0.011, 1.0, 140)])
    if audit.risk is not None:
        allowed = audit.risk.true_positive_rate(rates)
        axes.plot(rates, allowed, color=ORANGE, label=f"at most, for epsilon {round_up(audit.epsilon, 3):.3g}")
    if audit.points is not None:
        axes.plot(*audit.points, color=BLUE, label="attack")
    axes.plot(rates, rates, "--", color=MUTED, linewidth=1.0, label="guessing")
    axes.set(xscale="log", xlim=(1e-4, 1.0), ylim=(0.0, 1.0))
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title="Attack")
    axes.legend(loc="upper left")


def _bounds(axes, audit) -> None:
    names = list(audit.bounds)
    most = max([audit.epsilon, *(value for value in audit.bounds.values() if math.isfinite(value))])
    for place, name in enumerate(names):
        value = audit.bounds[name]
        color = ORANGE if value > audit.epsilon else GREEN if name == audit.headline else BLUE
        axes.barh(place, min(value, 1.2 * most), 0.55, color=color)
        text, length = f" {round_down(value, 3):.3g} " if math.isfinite(value) else " infinite ", min(value, 1.2 * most)
        side, ink = ("right", "white") if length > 0.3 * most else ("left", INK)
        axes.text(length, place, text, va="center", ha=side, color=ink, fontsize=9)
    axes.axvline(audit.epsilon, color=ORANGE, label=f"stated: {round_up(audit.epsilon, 3):.3g}")
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    sure = f"{100.0 * audit.confidence:g} %"
    axes.set(xlim=(0.0, 1.5 * most), xlabel=f"lower bound on epsilon, confidence {sure}", title="Bounds")
    axes.legend(loc="lower right", handlelength=1.0)  # beside the line that it names
