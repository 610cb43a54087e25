"""Sampling probability and number of updates, from whichever words describe them."""

import math
import warnings

from lipdp import checks


def sampling(options) -> tuple[float, int]:
    """Returns `(sampling_probability, updates)`.

    Args:
        options: with `sampling_probability` or `batch_size` and `num_examples`; with `updates` or `epochs`.

    Raises:
        ValueError: when one is missing, given twice or out of range.
    """
    pair = (options.batch_size, options.num_examples)
    if (options.sampling_probability is None) == (pair == (None, None)) or (None in pair and pair != (None, None)):
        raise ValueError(
            f"The sampling is not determined. Received: --sampling-probability {options.sampling_probability}, "
            f"--batch-size {options.batch_size}, --num-examples "
            f"{options.num_examples}. Pass either the first one or both of the others."
        )
    if (options.updates is None) == (options.epochs is None):
        raise ValueError(
            f"The length of the run is not determined. Received: --updates {options.updates}, --epochs "
            f"{options.epochs}. Pass one of them."
        )
    if options.sampling_probability is not None:
        probability = checks.probability("sampling_probability", options.sampling_probability)
        return probability, _updates(options, math.ceil(1.0 / probability - 1e-9))
    batch_size = checks.integer("batch_size", options.batch_size, minimum=1)
    num_examples = checks.integer("num_examples", options.num_examples, minimum=1)
    if batch_size > num_examples:
        raise ValueError(
            f"The expected batch is larger than the data. Received: --batch-size {batch_size}, --num-examples "
            f"{num_examples}. Pass a batch size of at most the number of examples."
        )
    if 1.0 > options.delta >= 1.0 / num_examples:
        warnings.warn(
            f"delta is not below 1 / N: publishing one whole example would be allowed. Received: --delta "
            f"{options.delta:g}, --num-examples {num_examples}.",
            stacklevel=2,
        )
    return batch_size / num_examples, _updates(options, math.ceil(num_examples / batch_size))


def settings(options, probability: float) -> dict:
    """Returns sampler, relation and group as the arguments of `accounting.epsilon`."""
    if options.sampler == "poisson" and options.examples_per_person == 1:
        return {}
    made = {"sampler": options.sampler, "group_size": options.examples_per_person}
    if options.num_examples is not None:
        made["num_examples"] = options.num_examples
    if options.sampler == "truncated_poisson" and options.num_examples is not None:
        expected = probability * options.num_examples
        made["capacity"] = math.ceil(expected + 6.0 * math.sqrt(expected))
    return made


def whom(options, mechanism) -> str:
    """Returns for whom epsilon holds, where that is not the usual."""
    if options.sampler == "poisson" and options.examples_per_person == 1:
        return ""
    persons = f" of one person with at most {options.examples_per_person} rows" * (options.examples_per_person > 1)
    return f"; {options.sampler}, {mechanism.relation.replace('_', ' ')}{persons}"


def _updates(options, updates_per_epoch: int) -> int:
    if options.updates is not None:
        return checks.integer("updates", options.updates, minimum=1)
    return checks.integer("epochs", options.epochs, minimum=1) * updates_per_epoch
