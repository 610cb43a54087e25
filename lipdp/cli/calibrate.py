"""`lipdp calibrate`: the noise that a budget asks for. Needs neither Keras nor a framework."""

import argparse
from typing import Any

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.schedule import exception, schedule, to_json
from lipdp.report import numbers


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the noise multiplier for `options`."""
    sampling, updates = schedule(options)
    shared = {"delta": options.delta, "accountant": options.accountant}
    wanted = {name: getattr(options, name) for name in ("advantage", "tpr", "fpr")}
    run: dict[str, Any] = {"sampler": sampling, "updates": updates, "accountant": options.accountant}
    if any(value is not None for value in wanted.values()):
        noise = accounting.calibrate(epsilon=options.epsilon, **wanted, **run)
    else:
        noise = accounting.calibrate(epsilon=options.epsilon, delta=options.delta, **run)
    mechanism = accounting.Mechanism.of_updates(None, noise, updates, sampling)
    spent = accounting.compose([mechanism], **shared)
    risk = accounting.risk_of([mechanism], options.accountant)
    if options.json:
        found = {"noise_multiplier": noise, "epsilon": spent, "budget": options.epsilon, "updates": updates}
        found |= {name: value for name, value in wanted.items() if value is not None} | {"risk": risk.to_dict()}
        how = accounting.describe([mechanism], **shared)
        output.write_json({**found, "delta": options.delta, **to_json(sampling), "accountant": how})
        return
    output.write(
        f"noise multiplier {noise:g}: epsilon {numbers.epsilon(spent)} at delta {options.delta:g} after {updates} "
        f"updates ({options.accountant}{exception(sampling)}); {risk}"
    )
