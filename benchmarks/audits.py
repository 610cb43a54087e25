"""Audits of every strategy, sampler and backend, audits of known faults, and how tight joint bounds of networks are.

    KERAS_BACKEND=tensorflow python benchmarks/audits.py               # 69 white-box audits, results/audits.json
    KERAS_BACKEND=jax python benchmarks/audits.py                      # the other 69, into the same file
    python benchmarks/audits.py --part faults                          # results/audit_faults.json
    python benchmarks/audits.py --part tightness                       # results/audit_tightness.json
    python benchmarks/audits.py --part render                          # only the tables of docs/howto/audit.md

Each run is kept when it is done; a series that was cut short goes on. Every audit is at 95 % by itself. With sound
training and an attack that reaches epsilon, up to one of 20 might exceed it by chance; the rates of both sides are
bounded apart, so that the chance is near 0.3 % each (a normal error of 2 * 1.96 / sqrt(2) deviations).
"""

import argparse
import json
import math
import pathlib
import re
import sys
import time

from common import RESULTS, Series

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "howto" / "audit.md"
sys.path.insert(0, str(ROOT))

EPSILONS = (1.0, 4.0, 10.0)
STRATEGIES = ("clipless", "dpsgd", "adaclip")
# Where persons are drawn, each has twice as many rows as are in an update.
PERSONS, ROWS_PER_PERSON = "poisson of persons", 2


def places():
    """Returns what to audit: strategy, sampler, epsilon."""
    from lipdp.accounting import SAMPLERS

    # Those with one plan, whose curves are computed once, follow each other.
    drawn = (*SAMPLERS, PERSONS)
    kinds = [(strategy, sampler, epsilon) for sampler in drawn for epsilon in EPSILONS for strategy in STRATEGIES]
    return [*kinds, *(("dpis", sampler, epsilon) for sampler in ("poisson", PERSONS) for epsilon in EPSILONS)]


def audits(runs: int | None) -> None:
    import keras

    from lipdp import audit

    series, backend = Series("audits", ("strategy", "sampler", "backend", "epsilon")), keras.backend.backend()
    for strategy, sampler, epsilon in places():
        if not series.missing(strategy, sampler, backend, epsilon):
            continue
        # Another process may have added to the file.
        series = Series("audits", ("strategy", "sampler", "backend", "epsilon"))
        start = time.perf_counter()
        drawn = {"rows_per_person": ROWS_PER_PERSON} if sampler == PERSONS else {"sampling": sampler}
        found = audit.white_box(strategy, epsilon=epsilon, runs=runs, **drawn)
        keras.backend.clear_session()
        row = {"strategy": strategy, "sampler": sampler, "backend": backend, "epsilon": epsilon}
        series.add({**row, **_measured(found), "seconds": round(time.perf_counter() - start, 1)}, summary=summary)
        print(row, repr(found), flush=True)


def _measured(found) -> dict:
    names = ("score", "trials", "hits", "false_alarms", "updates", "noise_multiplier", "sampling_probability", "runs")
    facts = found.to_dict()
    return {
        "stated": round(found.epsilon, 4),
        "lower": _rounded(found.epsilon_lower),
        "lower_without_curve": _rounded(found.bounds["rates"]),
        "flagged": found.flagged,
        "relation": found.relation,
        "confidence": found.confidence,
        **{name: facts[name] for name in names},
    }


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def summary(runs: list) -> dict:
    return {"audits": len(runs), "flagged": sum(run["flagged"] for run in runs), "confidence_of_each": 0.95}


def faults() -> None:
    from tests.helpers.audit_faults import FAULTS

    series = Series("audit_faults", ("number",))
    for number, fault in enumerate(FAULTS):
        if not series.missing(number):
            continue
        row = {"number": number, "fault": fault.name}
        for name, faulty in (("sound", False), ("faulty", True)):
            row[name] = _measured(fault.audit(faulty))
        series.add(row)
        print(fault.name, row["sound"]["lower"], row["faulty"]["stated"], row["faulty"]["lower"], flush=True)


def networks() -> dict:
    """Returns networks by name, as functions of an optimizer, with the labels to try."""
    import keras
    import numpy as np

    import lipdp
    from lipdp import layers, losses

    def dense(outputs, loss):
        def make(optimizer):
            hidden = [layer for _ in range(2) for layer in (layers.SpectralDense(32), layers.Abs())]
            model = lipdp.DP_Sequential([layers.BoundedInput((16,), norm=4.0), *hidden, layers.SpectralDense(outputs)])
            model.compile(optimizer, loss=loss())
            return model

        return make

    def convolutional(optimizer):
        blocks = [
            layer for _ in range(2) for layer in (layers.SpectralConv2D(8, 3), layers.Abs(), layers.L2NormPooling2D(2))
        ]
        model = lipdp.DP_Sequential(
            [layers.BoundedInput((12, 12, 1), norm=4.0), *blocks, keras.layers.Flatten(), layers.SpectralDense(10)]
        )
        model.compile(optimizer, loss=losses.SparseCategoricalCrossentropy(temperature=1.0))
        return model

    def single(optimizer):
        model = lipdp.DP_Sequential([layers.BoundedInput((16,), norm=4.0), layers.SpectralDense(1)])
        model.compile(optimizer, loss=losses.MeanAbsoluteError())
        return model

    far, classes = np.array([[1e3], [-1e3]]), np.arange(10)
    return {
        "one layer, absolute error": (single, far),
        "3 dense layers, absolute error": (dense(1, losses.MeanAbsoluteError), far),
        "3 dense layers, 10 classes": (dense(10, losses.SparseCategoricalCrossentropy), classes),
        "2 convolutions and a dense layer, 10 classes": (convolutional, classes),
    }


def tightness() -> None:
    import keras

    from lipdp import audit

    series = Series("audit_tightness", ("network",))
    for name, (make, labels) in networks().items():
        if not series.missing(name):
            continue
        found = audit.worst_case(make("sgd"), labels, tries=600, steps=4000)
        weights = make("sgd")
        present = audit.worst_case(weights, labels, tries=60, steps=1500, move_weights=False)
        measured = audit.white_box("clipless", epsilon=4.0, network=found.canaries(make), runs=800)
        layers = [
            {key: _plain(row[key]) for key in ("variable", "bound", "at_worst", "largest")} for row in found.layers
        ]
        row = {"network": name, "joint": round(found.joint, 4), "joint_initial": round(present.joint, 4)}
        series.add({**row, "layers": layers, "audit": _measured(measured)})
        keras.backend.clear_session()
        print(name, found.joint, present.joint, repr(measured), flush=True)


def _plain(value):
    return round(value, 4) if isinstance(value, float) else value


def table(runs: list) -> str:
    """The audits by strategy and sampler: the range of lower bounds over epsilon, worst and best of the backends."""
    lines = [
        "| strategy | sampler | epsilon 1: at least | epsilon 4: at least | epsilon 10: at least |",
        "|---|---|---|---|---|",
    ]
    kinds = list(dict.fromkeys((run["strategy"], run["sampler"]) for run in runs))
    for kind in kinds:
        cells = []
        for epsilon in EPSILONS:
            here = [r for r in runs if (r["strategy"], r["sampler"]) == kind and r["epsilon"] == epsilon]
            cells.append(" / ".join(f"{run['lower']:.2f}" for run in sorted(here, key=lambda r: r["backend"] == "jax")))
        lines.append(f"| {' | '.join([*kind, *cells])} |")
    return "\n".join(lines)


def fault_table(runs: list) -> str:
    lines = [
        "| fault | epsilon, stated | at least, by audit | at least, without the fault |",
        "|---|---|---|---|",
    ]
    for run in runs:
        faulty, sound = run["faulty"], run["sound"]
        lower = "infinite" if faulty["lower"] is None else f"{faulty['lower']:.2f}"
        lines.append(f"| {run['fault']} | {faulty['stated']:.2f} | {lower} | {sound['lower']:.2f} |")
    return "\n".join(lines)


def tightness_table(runs: list) -> str:
    lines = [
        "| network | gradient over joint bound | with initial weights | each layer by itself, at most | "
        "epsilon 4: at least |",
        "|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda run: -run["joint"]):
        layers = ", ".join(f"{row['largest']:.2f}" for row in run["layers"])
        lower = run["audit"]["lower"]
        lines.append(f"| {run['network']} | {run['joint']:.2f} | {run['joint_initial']:.2f} | {layers} | {lower:.2f} |")
    return "\n".join(lines)


def update(text: str) -> str:
    """Returns a page with the tables between its markers renewed."""
    for name, render in (("faults", fault_table), ("tightness", tightness_table)):
        runs = json.loads((RESULTS / f"audit_{name}.json").read_text())["runs"]
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        table = render(runs)
        text = pattern.sub(lambda match, table=table: match[1] + table + "\n" + match[2], text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("audits", "faults", "tightness", "render"), default="audits")
    parser.add_argument("--runs", type=int, default=None, help="runs that each audit observes; default: 300")
    options = parser.parse_args()
    if options.part == "audits":
        audits(options.runs)
    elif options.part != "render":
        {"faults": faults, "tightness": tightness}[options.part]()
    DOCUMENT.write_text(update(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
