"""How far the gradients of a sample stay below their bounds, as a plot."""

from typing import Any

from lipdp.report.plots import BLUE, INK, STYLE


def plot_tightness(rows: list[dict]) -> Any:
    """Draws the tightness of each trainable layer on a public or consented sample.

    Args:
        rows: what `model.summary_bounds(x, y)` returned.

    Returns:
        A `matplotlib.figure.Figure`; a notebook shows it after `%matplotlib inline`, `savefig` writes it to a file.

    Raises:
        ValueError: when the rows hold no measurement.

    **Guarantee.** None: the plot shows measurements on the sample, which no epsilon covers, and says so.

    Example:
        >>> rows = [{"layer": "logits", "gradient_bound": 2.0, "measured": 1.0, "tightness": 0.5}]
        >>> plot_tightness(rows).axes[0].get_xlabel()
        'largest measured gradient norm over its bound (not private)'
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    measured = [row for row in rows if row.get("tightness") is not None]
    if not measured:
        raise ValueError(
            "The rows hold no measurement. Received: rows of `summary_bounds()` without a sample. Call "
            "`summary_bounds(x, y)` with public or consented examples."
        )
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 1.2 + 0.36 * len(measured)), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(measured))
        axes.barh(places, [row["tightness"] for row in measured], 0.6, color=BLUE)
        axes.set_yticks(list(places), [row["layer"] for row in measured])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 1), xlabel="largest measured gradient norm over its bound (not private)")
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0))
        for place, row in zip(places, measured, strict=True):
            side, color = ("right", "white") if row["tightness"] > 0.6 else ("left", INK)
            label = f" {row['measured']:.3g} of {row['measured'] / (row['tightness'] or 1.0):.3g} "
            axes.text(row["tightness"], place, label, va="center", ha=side, color=color, fontsize=9)
    return figure
