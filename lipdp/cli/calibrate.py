"""`lipdp calibrate`: the noise that a budget asks for. Needs neither Keras nor a framework."""

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.planned import sampling
from lipdp.report import numbers


def run(options, argv) -> None:
    """Writes the noise multiplier for `options`."""
    probability, updates = sampling(options)
    shared = {"sampling_probability": probability, "updates": updates, "delta": options.delta}
    shared["accountant"] = options.accountant
    noise = accounting.calibrate(epsilon=options.epsilon, **shared)
    spent = accounting.epsilon(noise_multiplier=noise, **shared)
    if options.json:
        mechanism = accounting.Mechanism(probability, noise, updates)
        how = accounting.describe([mechanism], options.delta, options.accountant)
        output.write_json(
            {
                "noise_multiplier": noise,
                "epsilon": spent,
                "budget": options.epsilon,
                **shared,
                "accountant": how,
            }
        )
        return
    output.write(
        f"noise multiplier {noise:g}: epsilon {numbers.up(spent)} at delta {options.delta:g} after {updates} updates "
        f"({options.accountant})"
    )
