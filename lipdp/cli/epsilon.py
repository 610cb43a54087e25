"""`lipdp epsilon`: what a training run costs. Needs neither Keras nor a framework."""

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.planned import sampling, settings, whom
from lipdp.report import numbers


def run(options, argv) -> None:
    """Writes the epsilon of `options`."""
    probability, updates = sampling(options)
    arguments = {"noise_multiplier": options.noise_multiplier, "sampling_probability": probability}
    arguments |= settings(options, probability)
    value = accounting.epsilon(**arguments, updates=updates, delta=options.delta, accountant=options.accountant)
    mechanism = accounting.Mechanism.of_updates(**arguments, updates=updates)
    if options.json:
        how = accounting.describe([mechanism], options.delta, options.accountant)
        output.write_json(
            {"epsilon": value, "delta": options.delta, **arguments, "updates": updates, "accountant": how}
        )
        return
    output.write(
        f"epsilon {numbers.up(value)} at delta {options.delta:g} after {updates} updates ({options.accountant}"
        f"{whom(options, mechanism)})"
    )
