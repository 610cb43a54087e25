"""`lipdp plan`: any one of budget, noise, epochs and batch size from the others, with tables and plots."""

import argparse
import json
import pathlib

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.parser import chosen
from lipdp.report import numbers, place, planning


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the plan of `options`, and into `options.output` its plots."""
    shared = chosen(options, "num_examples", "delta", "accountant", "sampler", "examples_per_person")
    plan = accounting.solve(**shared, **chosen(options, *accounting.planning.UNKNOWNS))
    budget = options.epsilon or plan["epsilon"]
    tables = {
        "epochs": planning.epochs_table(plan, shared),
        "noise_by_epochs": planning.noise_table(plan, shared, budget),
        "batch_sizes": planning.batch_table(plan, shared, budget),
    }
    signal = None if options.model is None else _signal(options.model, plan)
    written = None if options.output is None else _write(pathlib.Path(options.output), plan, shared, budget)
    risk = planning.risk(plan, shared)
    content = {
        **shared,
        **plan,
        "risk": risk.to_dict(),
        "tables": tables,
        "signal_to_noise": signal,
        "written": written,
    }
    if options.json:
        output.write_json(content)
        return
    output.write(*_lines(plan, shared, risk, tables, budget, signal, written))


def _lines(plan, shared, risk, tables, budget, signal, written):
    person = shared["examples_per_person"]
    whom = "" if person == 1 else f" for a person with at most {person} examples"
    yield (
        f"epsilon {numbers.epsilon(plan['epsilon'])} at delta {plan['delta']:g}{whom}: noise multiplier "
        f"{plan['noise_multiplier']:g}, {plan['epochs']} epochs ({plan['updates']} updates), expected batch size "
        f"{plan['batch_size']} of {shared['num_examples']} ({shared['sampler']}, {shared['accountant']})"
    )
    yield f"risk: {risk}"
    yield f"found: {plan['found'].replace('_', ' ')}"
    yield ""
    yield f"{'epochs':>10}  {'epsilon':>10}  at this noise"
    yield from (f"{epochs:>10}  {numbers.epsilon(epsilon):>10}" for epochs, epsilon in tables["epochs"])
    yield ""
    yield f"{'epochs':>10}  {'noise':>10}  for epsilon {budget:g} at batch size {plan['batch_size']}"
    yield from (f"{epochs:>10}  {noise:>10.6g}" for epochs, noise in tables["noise_by_epochs"])
    yield ""
    yield f"{'batch size':>10}  {'noise':>10}  for epsilon {budget:g} after {plan['epochs']} epochs"
    yield from (f"{size:>10}  {noise:>10.6g}" for size, noise in tables["batch_sizes"])
    if signal is not None:
        yield ""
        yield (
            "signal-to-noise ratio of one update, from the model's bounds: at most "
            f"{_ratio(signal['aligned'])} (all directions agree), {_ratio(signal['independent'])} (independent ones)"
        )
        yield from (f"  {_ratio(row['aligned']):>9}  {row['variable']}" for row in signal["variables"])
    if written is not None:
        yield ""
        yield f"Written: {', '.join(written)}"


def _ratio(value) -> str:
    return "no noise" if value is None else f"{value:.3g}"


def _signal(path, plan) -> dict:
    from lipdp.cli.certify import load

    model = load(pathlib.Path(path))
    from lipdp.report.signal_to_noise import signal_to_noise

    return signal_to_noise(model, noise_multiplier=plan["noise_multiplier"], batch_size=plan["batch_size"])


def _write(folder: pathlib.Path, plan, shared, budget) -> list[str]:
    files = planning.plots(plan, shared, budget)
    place.refuse_dangling(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files["plan.json"] = json.dumps(output.finite({**shared, **plan}), indent=2, allow_nan=False) + "\n"
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in files]
