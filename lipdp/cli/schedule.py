"""Sampling and number of updates of a run, from whichever options describe them."""

import argparse
import warnings
from typing import Any

from lipdp import checks
from lipdp.accounting import Sampling, schemes


def schedule(options: argparse.Namespace) -> tuple[Sampling, int]:
    """Returns the sampling and the number of updates.

    Args:
        options: with `sampling_probability` or `batch_size` and `num_examples`; with `updates` or `epochs`; with
            `sampler` and `examples_per_person`.

    Raises:
        ValueError: when one is missing, given twice or out of range.
    """
    check_probability(options)
    if (options.updates is None) == (options.epochs is None):
        raise ValueError(
            f"The number of updates is not determined. Received: --updates {options.updates}, --epochs "
            f"{options.epochs}. Pass one of them."
        )
    persons = checks.integer("examples_per_person", options.examples_per_person, minimum=1)
    if options.sampling_probability is not None:
        sampling = schemes.get(options.sampling_probability, options.sampler, group_size=persons)
    else:
        sampling = Sampling(options.sampler).bind(options.num_examples, options.batch_size, persons)
        if 1.0 > options.delta >= 1.0 / sampling.num_examples:
            warnings.warn(
                f"delta is not below 1 / N: publishing one whole example would be allowed. Received: --delta "
                f"{options.delta:g}, --num-examples {sampling.num_examples}.",
                stacklevel=2,
            )
    if options.updates is not None:
        return sampling, checks.integer("updates", options.updates, minimum=1)
    return sampling, checks.integer("epochs", options.epochs, minimum=1) * sampling.updates_per_epoch


def check_probability(options: argparse.Namespace) -> None:
    """Refuses a sampling probability that is missing, or given twice: by itself, and by the sizes."""
    pair = (options.batch_size, options.num_examples)
    if (options.sampling_probability is None) == (pair == (None, None)) or (None in pair and pair != (None, None)):
        raise ValueError(
            "The sampling probability is not determined. Received: --sampling-probability "
            f"{options.sampling_probability}, --batch-size {options.batch_size}, --num-examples "
            f"{options.num_examples}. Pass either the first one or both of the others."
        )


def to_json(sampling: Sampling) -> dict:
    """Returns the sampling as the JSON output has it: the usual one by its probability alone."""
    values: dict[str, Any] = {"sampling_probability": sampling.sampling_probability}
    if _is_usual(sampling):
        return values
    values |= {"sampler": sampling.name, "group_size": sampling.group_size}
    sizes = {"num_examples": sampling.num_examples, "capacity": sampling.capacity}
    return values | {name: value for name, value in sizes.items() if value is not None}


def exception(sampling: Sampling) -> str:
    """Returns sampler, relation and person that epsilon holds for, where they are not the usual ones."""
    if _is_usual(sampling):
        return ""
    persons = f" of one person with at most {sampling.group_size} rows" * (sampling.group_size > 1)
    return f"; {sampling.name}, {sampling.relation.replace('_', ' ')}{persons}"


def _is_usual(sampling: Sampling) -> bool:
    return sampling.name == "poisson" and sampling.group_size == 1
