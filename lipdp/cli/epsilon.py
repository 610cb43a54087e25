"""`lipdp epsilon`: what a training run costs. Needs neither Keras nor a framework."""

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.planned import facts, planned, whom
from lipdp.report import numbers


def run(options, argv) -> None:
    """Writes the epsilon of `options`."""
    sampling, updates = planned(options)
    mechanism = accounting.Mechanism.of_updates(None, options.noise_multiplier, updates, sampling)
    value = accounting.compose([mechanism], options.delta, options.accountant)
    if options.json:
        arguments = {"noise_multiplier": options.noise_multiplier} | facts(sampling)
        how = accounting.describe([mechanism], options.delta, options.accountant)
        output.write_json(
            {"epsilon": value, "delta": options.delta, **arguments, "updates": updates, "accountant": how}
        )
        return
    output.write(
        f"epsilon {numbers.up(value)} at delta {options.delta:g} after {updates} updates ({options.accountant}"
        f"{whom(sampling)})"
    )
