"""`lipdp group`: epsilon for groups of examples, and what the usual conversion gives. Needs no framework."""

import argparse

from lipdp import accounting
from lipdp.cli import output, schedule
from lipdp.cli.parser import chosen
from lipdp.report import numbers


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes epsilon for each group size of `options`."""
    run = chosen(options, "noise_multiplier", "updates", "delta")
    how = chosen(options, "sampler", "accountant")
    schedule.check_probability(options)
    if options.sampling_probability is not None:
        sampled = chosen(options, "sampling_probability")
    elif options.sampler == "fixed_size":
        sampled = chosen(options, "batch_size", "num_examples")
    else:
        bound = accounting.Sampling().bind(options.num_examples, options.batch_size)
        sampled = {"sampling_probability": bound.sampling_probability}
    rows = []
    for size in options.sizes:
        row = {"group_size": size, "epsilon": accounting.group_epsilon(size, **run, **sampled, **how)}
        if options.sampler == "poisson":
            row["vadhan"] = accounting.vadhan_epsilon(size, **run, **sampled)
        rows.append(row)
    if options.json:
        output.write_json({**run, **sampled, **how, "groups": rows})
        return
    lines = [f"{'group size':>10}  {'epsilon':>10}" + ("  by conversion" if options.sampler == "poisson" else "")]
    for row in rows:
        line = f"{row['group_size']:>10}  {numbers.epsilon(row['epsilon']):>10}"
        lines.append(line + (f"  {numbers.epsilon(row['vadhan']):>13}" if "vadhan" in row else ""))
    if max(row["epsilon"] for row in rows) > 100.0:
        lines.append("An epsilon above 100 is no meaningful guarantee.")
    output.write(*lines)
