"""`lipdp epsilon`: what a training run costs. Needs neither Keras nor a framework."""

import argparse

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.schedule import exception, schedule, to_json
from lipdp.report import numbers


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the epsilon of `options`."""
    sampling, updates = schedule(options)
    mechanism = accounting.Mechanism.of_updates(None, options.noise_multiplier, updates, sampling)
    value = accounting.compose([mechanism], options.delta, options.accountant)
    risk = accounting.risk_of([mechanism], options.accountant)
    if options.json:
        arguments = {"noise_multiplier": options.noise_multiplier} | to_json(sampling)
        how = accounting.describe([mechanism], options.delta, options.accountant)
        found = {"epsilon": value, "delta": options.delta, **arguments}
        output.write_json({**found, "updates": updates, "accountant": how, "risk": risk.to_dict()})
        return
    output.write(
        f"epsilon {numbers.epsilon(value)} at delta {options.delta:g} after {updates} updates ({options.accountant}"
        f"{exception(sampling)})",
        f"risk: {risk}",
    )
