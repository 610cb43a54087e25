"""`lipdp calibrate`: the noise that a budget asks for. Needs neither Keras nor a framework."""

from lipdp import accounting
from lipdp.cli import output
from lipdp.cli.planned import sampling, settings, whom
from lipdp.report import numbers


def run(options, argv) -> None:
    """Writes the noise multiplier for `options`."""
    probability, updates = sampling(options)
    shared = {"sampling_probability": probability, "updates": updates, "delta": options.delta}
    shared |= settings(options, probability)
    kind = {name: value for name, value in shared.items() if name != "delta"}
    shared["accountant"] = options.accountant
    noise = accounting.calibrate(epsilon=options.epsilon, **shared)
    spent = accounting.epsilon(noise_multiplier=noise, **shared)
    mechanism = accounting.Mechanism.of_updates(noise_multiplier=noise, **kind)
    if options.json:
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
        f"({options.accountant}{whom(options, mechanism)})"
    )
