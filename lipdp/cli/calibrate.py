"""`lipdp calibrate`: the noise that a budget asks for. Needs neither Keras nor a framework."""

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.planned import facts, planned, whom
from lipdp.report import numbers


def run(options, argv) -> None:
    """Writes the noise multiplier for `options`."""
    sampling, updates = planned(options)
    shared = {"delta": options.delta, "accountant": options.accountant}
    noise = accounting.calibrate(epsilon=options.epsilon, sampler=sampling, updates=updates, **shared)
    mechanism = accounting.Mechanism.of_updates(None, noise, updates, sampling)
    spent = accounting.compose([mechanism], **shared)
    if options.json:
        output.write_json(
            {
                "noise_multiplier": noise,
                "epsilon": spent,
                "budget": options.epsilon,
                "updates": updates,
                "delta": options.delta,
                **facts(sampling),
                "accountant": accounting.describe([mechanism], **shared),
            }
        )
        return
    output.write(
        f"noise multiplier {noise:g}: epsilon {numbers.up(spent)} at delta {options.delta:g} after {updates} updates "
        f"({options.accountant}{whom(sampling)})"
    )
