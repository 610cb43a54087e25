"""The tables and plots of a plan."""

import math

from lipdp import accounting
from lipdp.report import numbers
from lipdp.report.plots import BLUE, GREEN, ORANGE, svg


def epochs_table(plan: dict, shared: dict) -> list[tuple[int, float]]:
    """Returns `(epochs, epsilon)` around a plan, at its noise and batch size."""
    counts = sorted({max(1, round(plan["epochs"] * share)) for share in (0.25, 0.5, 1, 1.5, 2, 4)})
    return [(n, _solve(plan, shared, "epsilon", epochs=n)["epsilon"]) for n in counts]


def noise_table(plan: dict, shared: dict, epsilon: float) -> list[tuple[int, float]]:
    """Returns `(epochs, noise multiplier)` around a plan, at its batch size and for the budget `epsilon`."""
    table = []
    for epochs in sorted({max(1, round(plan["epochs"] * share)) for share in (0.25, 0.5, 1, 2, 4)}):
        try:
            noise = _solve(plan, shared, "noise_multiplier", epochs=epochs, epsilon=epsilon)["noise_multiplier"]
        except ValueError:  # no noise is needed
            continue
        table.append((epochs, noise))
    return table


def batch_table(plan: dict, shared: dict, epsilon: float) -> list[tuple[int, float]]:
    """Returns `(batch size, noise multiplier)` around a plan, at its epochs and for the budget `epsilon`."""
    sizes = {max(1, min(shared["num_examples"], round(plan["batch_size"] * s))) for s in (0.25, 0.5, 1, 2, 4, 8)}
    table = []
    for size in sorted(sizes):
        try:
            noise = _solve(plan, shared, "noise_multiplier", batch_size=size, epsilon=epsilon)["noise_multiplier"]
        except ValueError:  # the sampler cannot draw such batches, or no noise is needed
            continue
        table.append((size, noise))
    return table


def risk(plan: dict, shared: dict) -> accounting.Risk:
    """Returns what an attacker can do at most with all updates of a plan."""
    sampling = accounting.Sampling(shared["sampler"])
    sampling = sampling.bind(shared["num_examples"], plan["batch_size"], shared["examples_per_person"])
    return accounting.risk(
        noise_multiplier=plan["noise_multiplier"],
        updates=plan["updates"],
        sampler=sampling,
        accountant=shared["accountant"],
    )


def plots(plan: dict, shared: dict, epsilon: float) -> dict[str, str]:
    """Returns the plots of a plan as SVG text, by file name.

    Args:
        plan: what `accounting.solve` returned.
        shared: the arguments of `accounting.solve` that are not part of the plan.
        epsilon: the budget.
    """
    by_epochs, by_batch = epochs_table(plan, shared), batch_table(plan, shared, epsilon)
    sizes = [size for size, _ in by_batch]
    person = shared["examples_per_person"]
    data = f"N = {shared['num_examples']}, delta = {plan['delta']:g}" + (f", {person} a person" if person > 1 else "")

    def chosen(axes, x, y):
        axes.plot([x], [y], "o", color=ORANGE, markersize=9, zorder=3, label="this plan")

    def epochs(axes):
        axes.plot(*zip(*by_epochs, strict=True), color=GREEN, marker="o", markersize=4)
        axes.axhline(epsilon, color=ORANGE, linestyle="--", linewidth=1.4, label="budget")
        chosen(axes, plan["epochs"], plan["epsilon"])
        axes.set(xlabel="epochs", ylabel="epsilon", ylim=(0, None))
        axes.set_title(f"B = {plan['batch_size']}, noise multiplier {plan['noise_multiplier']:.6g}\n{data}")
        axes.legend(loc="lower right")

    def batches(axes):
        axes.plot(*zip(*by_batch, strict=True), color=BLUE, marker="o", markersize=4)
        chosen(axes, plan["batch_size"], plan["noise_multiplier"])
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(xlabel="expected batch size (examples)", ylabel="noise multiplier", ylim=(0, None))
        axes.set_title(f"epsilon = {numbers.epsilon(epsilon)}, {plan['epochs']} epochs\n{data}")
        axes.legend(loc="upper left")

    noises = [plan["noise_multiplier"] * share for share in (0.7, 0.85, 1.0, 1.25, 1.6, 2.0)]
    cells = [
        [_solve(plan, shared, "epsilon", batch_size=size, noise_multiplier=noise)["epsilon"] for size in sizes]
        for noise in noises
    ]

    def heat(axes):
        from matplotlib.patches import Rectangle

        shown = [[min(value, 1e4) for value in row] for row in cells]
        axes.imshow([[math.log10(value + 1e-9) for value in row] for row in shown], cmap="viridis_r", aspect="auto")
        middle = sorted(value for row in shown for value in row)[len(sizes) * len(noises) // 2]
        for i, row in enumerate(shown):
            for j, value in enumerate(row):
                color = "white" if value > middle else "black"
                axes.text(j, i, numbers.epsilon(value, 2), ha="center", va="center", fontsize=8, color=color)
        if plan["batch_size"] in sizes:
            corner = sizes.index(plan["batch_size"]) - 0.5, noises.index(plan["noise_multiplier"]) - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=ORANGE, linewidth=3, zorder=3))
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_yticks(range(len(noises)), [f"{noise:.3g}" for noise in noises])
        axes.grid(visible=False)
        axes.set(xlabel="expected batch size (examples)", ylabel="noise multiplier")
        axes.set_title(f"epsilon after {plan['epochs']} epochs (framed: this plan)\n{data}")

    drawn = {"epsilon_by_epochs.svg": epochs, "noise_by_batch_size.svg": batches, "epsilon.svg": heat}
    return {name: svg(draw, background="white") for name, draw in drawn.items()}


def _solve(plan: dict, shared: dict, unknown: str, **change) -> dict:
    values = {name: plan[name] for name in ("epsilon", "noise_multiplier", "epochs", "batch_size")}
    return accounting.solve(**(shared | values | change | {unknown: None}))
