"""The plots of a report, as SVG text."""

import io
from collections.abc import Callable
from typing import Any

from lipdp.report import numbers
from lipdp.report.folder import NOT_PRIVATE, RunFolder

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BLUE, ORANGE, GREEN = "#2563a8", "#c2571a", "#2f855a"
# Text stays text, and ids are the same each time.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lipdp",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}


def plots(run: RunFolder) -> list[tuple[str, str, str]]:
    """Returns `(title, description, svg)` of every plot for which the run has numbers.

    Args:
        run: a run folder's content.

    Returns:
        A list; the description is the alternative text.
    """
    drawn = [_accuracy(run), _error(run), _epsilon(run), _certified(run), _noise(run), _trade_off(run), _deltas(run)]
    return [plot for plot in drawn if plot]


def _accuracy(run):
    held_out, training = _series(run, "val_accuracy"), _series(run, "accuracy" + NOT_PRIVATE)
    if not held_out and not training:
        return None

    def draw(axes):
        for points, color, style, label in (
            (held_out, BLUE, "-", "held-out examples"),
            (training, ORANGE, "--", "training examples (not private)"),
        ):
            if points:
                axes.plot(*zip(*points, strict=True), style, color=color, label=label, **_marker(points))
        axes.set(xlabel="epoch", ylabel="accuracy")
        _epochs(axes, held_out or training)
        _percent_axis(axes.yaxis)
        if training:
            axes.legend(loc="lower right")

    last = (held_out or training)[-1][1]
    text = f"Accuracy by epoch, {numbers.percent(last)} at the end."
    if training:
        text += " The curve of the training examples is not private."
    return "Accuracy by epoch", text, svg(draw)


def _error(run):
    points = _series(run, "val_mean_absolute_error")
    if not points:
        return None

    def draw(axes):
        axes.plot(*zip(*points, strict=True), "-", color=BLUE, **_marker(points))
        axes.set(xlabel="epoch", ylabel="mean absolute error", ylim=(0, None))
        _epochs(axes, points)

    text = f"Mean absolute error on held-out examples by epoch, {numbers.plain(points[-1][1])} at the end."
    return "Error by epoch", text, svg(draw)


def _epsilon(run):
    points = _series(run, "epsilon")
    if not points:
        return None
    budget = run.run["settings"].get("epsilon")

    def draw(axes):
        axes.plot(*zip(*points, strict=True), color=GREEN, label="spent", **_marker(points))
        if budget:
            axes.axhline(budget, color=ORANGE, linestyle="--", linewidth=1.4, label="budget")
            axes.legend(loc="lower right")
        axes.set(xlabel="epoch", ylabel="epsilon", ylim=(0, 1.12 * max(budget or 0, points[-1][1])))
        _epochs(axes, points)

    text = f"Epsilon spent by epoch, {numbers.epsilon(points[-1][1])} at the end."
    return "Epsilon by epoch", text, svg(draw)


def _certified(run):
    held_out = run.results["held_out"]
    if not held_out or not held_out["curve"]:
        return None
    points, marks = held_out["curve"], held_out["certified"]

    def draw(axes):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=BLUE)
        axes.fill_between(x, y, color=BLUE, alpha=0.08, linewidth=0)
        inside = [m for m in marks if m["radius"] <= x[-1]]
        axes.plot([m["radius"] for m in inside], [m["accuracy"] for m in inside], "o", color=ORANGE)
        axes.set(xlabel="L2 radius around each input", ylabel="certified accuracy", ylim=(0, 1))
        axes.set_xlim(0, max(x[-1], 1e-9))
        _percent_axis(axes.yaxis)

    text = "Certified accuracy by L2 radius: " + ", ".join(
        f"{numbers.percent(m['accuracy'])} at {m['radius']:g}" for m in marks
    )
    return "Certified accuracy by radius", text + ".", svg(draw)


def _noise(run):
    batch_size = run.run["settings"].get("batch_size")
    rows = [row for row in run.results["bounds"] if row["noise_std"] and row["gradient_bound"]]
    if not rows or not batch_size:
        return None
    names = [row["layer"] for row in rows]
    effect = [row["gradient_bound"] / batch_size for row in rows]
    noise = [row["noise_std"] for row in rows]

    def draw(axes):
        places = range(len(rows))
        axes.hlines(places, effect, noise, color=GRID, linewidth=3, zorder=1)
        axes.plot(effect, places, "o", color=BLUE, label="one example, at most (L2 norm)")
        axes.plot(noise, places, "D", color=ORANGE, label="noise, each coordinate (std)")
        axes.set_yticks(list(places), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="size in the averaged gradient", xlim=(0, None))
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:g}")
        # Above the dots, so that the legend never covers one.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=1, borderaxespad=0.2, handlelength=1)

    text = "For each trainable layer, the largest effect of one example and the noise: " + "; ".join(
        f"{n} {e:.3g} and {s:.3g}" for n, e, s in zip(names, effect, noise, strict=True)
    )
    return "One example against the noise", text + ".", svg(draw)


def _trade_off(run):
    points = run.privacy.get("risk", {}).get("trade_off")
    if not points:
        return None

    def draw(axes):
        axes.plot([0, 1], [1, 0], color=MUTED, linestyle="--", linewidth=1.2, label="a coin")
        axes.plot(*zip(*points, strict=True), color=BLUE, label="no attack is below")
        axes.set(xlabel="false positive rate", ylabel="false negative rate", xlim=(0, 1), ylim=(0, 1))
        axes.legend(loc="upper right")

    shown = ", ".join(f"{numbers.percent(y)} at {numbers.percent(x)}" for x, y in points if x in (0.01, 0.1, 0.5))
    return "What attacks can do", f"Least false negative rate by false positive rate: {shown}.", svg(draw)


def _deltas(run):
    points = numbers.deltas(run.privacy)
    if len(points) < 2:
        return None

    def draw(axes):
        axes.plot(*zip(*points, strict=True), color=GREEN, marker="o", markersize=4)
        axes.set(xlabel="epsilon", ylabel="delta", yscale="log", xlim=(0, None))

    shown = ", ".join(f"epsilon {numbers.epsilon(e)} at delta {d:g}" for e, d in points if d <= 1e-3)
    return "Epsilon by delta", f"All of these hold at once: {shown}.", svg(draw)


def _series(run, column) -> list[tuple[float, float]]:
    return [(row["epoch"], row[column]) for row in run.history if column in row]


def _marker(points) -> dict:
    return {"marker": "o", "markersize": 4} if len(points) < 25 else {}


def _epochs(axes, points) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(points) == 1:
        axes.set(xlim=(points[0][0] - 1, points[0][0] + 1), xticks=[points[0][0]])


def _percent_axis(axis) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1.0))


def svg(draw: Callable[[Any], Any], background: str | None = None) -> str:
    """Returns a drawing as SVG text; transparent where no background is given.

    Args:
        draw: is called with the axes.
        background: a color, for drawings that stand alone in a file.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # A Figure of its own, not pyplot: no window system and no global state.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.0, 3.1), layout="constrained")
        draw(figure.add_subplot())
        text = io.StringIO()
        colors = {"transparent": True} if background is None else {"facecolor": background}
        figure.savefig(text, format="svg", metadata={"Date": None}, **colors)
    return text.getvalue()
