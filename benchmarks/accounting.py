"""How long the accounting takes, beside the unmodified dp-accounting.

python benchmarks/accounting.py
"""

import time

import common
from dp_accounting import dp_event, mechanism_calibration
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import stats

Q, UPDATES, DELTA = 256 / 60000, 2350, 1e-5


def cold():
    """Forgets every number computed so far."""
    from lipdp.accounting import composition, pld, rdp

    for cached in (composition._compose, pld._single, pld._moments, rdp.single):
        cached.cache_clear()


def timed(function, repetitions: int, fresh: bool) -> dict:
    seconds, wall, value = [], [], None
    for _ in range(repetitions):
        if fresh:
            cold()
        start, clock = time.perf_counter(), time.process_time()
        value = function()
        seconds.append(time.process_time() - clock)  # of the processor: others share this machine
        wall.append(time.perf_counter() - start)
    return {"value": value, "seconds": common.spread(seconds), "wall": common.spread(wall), "runs": repetitions}


def library_calibration() -> float:
    def event(noise):
        return dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(Q, dp_event.GaussianDpEvent(noise)), UPDATES)

    return float(mechanism_calibration.calibrate_dp_mechanism(PLDAccountant, event, 1.0, DELTA))


def library_group(size: int, step: float) -> float:
    made = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        1.0,
        list(range(size + 1)),
        list(stats.binom.pmf(range(size + 1), size, 0.01)),
        value_discretization_interval=step,
    )
    return float(made.self_compose(2000).get_epsilon_for_delta(1e-6))


def table(results: dict) -> str:
    lines = ["| question | lipdp | s | dp-accounting | s | ratio |", "|---|---|---|---|---|---|"]
    for name, row in results.items():
        ours, theirs = row["lipdp"], row["dp_accounting"]
        a, b = ours["seconds"]["median"], theirs["seconds"]["median"]
        lines.append(f"| {name} | {ours['value']:.5g} | {a:.2f} | {theirs['value']:.5g} | {b:.1f} | {b / a:.0f} |")
    return "\n".join(lines)


def main() -> None:
    from lipdp import accounting

    group = dict(noise_multiplier=1.0, sampling_probability=0.01, updates=2000, delta=1e-6)
    run = dict(sampling_probability=Q, updates=UPDATES, delta=DELTA)
    cases = {
        "noise for epsilon 1 (N 60000, B 256, 10 epochs)": (
            lambda: accounting.calibrate(epsilon=1.0, **run),
            library_calibration,
        ),
        "epsilon, group of 4 (T 2000, q 0.01, noise 1)": (
            lambda: accounting.group_epsilon(4, **group),
            lambda: library_group(4, 1e-3),
        ),
        "epsilon, group of 16 (T 2000, q 0.01, noise 1)": (
            lambda: accounting.group_epsilon(16, **group),
            lambda: library_group(16, 1e-3),
        ),
    }
    results = {}
    for name, (ours, theirs) in cases.items():
        results[name] = {"lipdp": timed(ours, 7, True), "dp_accounting": timed(theirs, 1, False)}
        print(name, results[name])
    common.write("accounting", {"delta": DELTA, "results": results})


if __name__ == "__main__":
    main()
