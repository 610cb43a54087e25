"""`lipdp calibrate`: the noise that a budget asks for. Needs neither Keras nor a framework."""

import argparse

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.schedule import exception, schedule, to_json
from lipdp.report import numbers


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the noise multiplier for `options`."""
    sampling, updates = schedule(options)
    shared = {"delta": options.delta, "accountant": options.accountant}
    noise = accounting.calibrate(epsilon=options.epsilon, sampler=sampling, updates=updates, **shared)
    mechanism = accounting.Mechanism.of_updates(None, noise, updates, sampling)
    spent = accounting.compose([mechanism], **shared)
    if options.json:
        found = {"noise_multiplier": noise, "epsilon": spent, "budget": options.epsilon, "updates": updates}
        how = accounting.describe([mechanism], **shared)
        output.write_json({**found, "delta": options.delta, **to_json(sampling), "accountant": how})
        return
    output.write(
        f"noise multiplier {noise:g}: epsilon {numbers.epsilon(spent)} at delta {options.delta:g} after {updates} "
        f"updates ({options.accountant}{exception(sampling)})"
    )
