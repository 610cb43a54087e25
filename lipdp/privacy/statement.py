"""The sentences of the privacy statement, and what `fit` announces, that depend on sampler, relation and group."""

import math

SAMPLERS = {
    "poisson": "Poisson, as executed: each example enters each batch independently, with probability q.",
    "truncated_poisson": "truncated Poisson, as executed: each example enters each batch independently, with "
    "probability q; from a batch that is too large a uniformly random part is dropped.",
    "fixed_size": "fixed size, as executed: each batch is a uniformly random set of B examples.",
    "shuffle": "shuffled epochs, as executed: each example once per epoch, in a new random order each time.",
    "fixed_order": "epochs in a fixed order, as executed: each example once per epoch.",
}
ONE = {
    "add_or_remove_one": "add or remove one example.",
    "zero_out_one": "zero out one example: its gradient becomes zero, its place in the batches stays.",
    "replace_one": "replace one example by any other one.",
}
MANY = {
    "add_or_remove_one": "add or remove all examples of one person, at most {}.",
    "zero_out_one": "zero out all examples of one person, at most {}: their gradients become zero, their places in "
    "the batches stay.",
    "replace_one": "replace all examples of one person, at most {}, by any other ones.",
}


IMPORTANCE = (
    "importance sampling, as executed: each example enters each batch independently, with a probability in "
    "proportion to the norm of its clipped gradient, at most q."
)
# What is released, and what its sensitivity is of.
KINDS = {
    "gradient": "averaged gradient",
    "norm_sum": "sum of clipped gradient norms",
    "clip_sum": "sum of clipped gradient norms that sets the clip norm",
    "count": "number of examples",
}


def meaning(facts: dict) -> list[str]:
    """Returns unit, relation, samplers and what is public."""
    gradients = [release for release in facts["releases"] if release["kind"] == "gradient"] or facts["releases"]
    public, released = sizes(facts["releases"])
    listed = ", ".join(map(str, public or released))
    most, relation = facts["examples_per_person"], facts["neighbouring_relation"]
    if most == 1:
        unit = "Unit: one example (one row of the training data). A person with several rows is protected less."
    else:
        unit = f"Unit: one person with at most {most} examples. That nobody has more was not checked."
    number = f"N = {listed} training examples. N is treated as public, so is the expected batch size B."
    if not public:
        number = f"N = {listed} training examples, a noisy count that was released. B is public."
    elif released:
        number += f" Other plans took N = {', '.join(map(str, released))}, a noisy count that was released."
    adaptive = _adaptive(facts)
    samplers = sorted({release["sampler"] for release in gradients if release["strategy"] not in adaptive})
    return [
        unit,
        f"Neighbouring relation: {ONE[relation] if most == 1 else MANY[relation].format(most)}",
        *(f"Sampler: {SAMPLERS[sampler]}" for sampler in samplers),
        *([f"Sampler: {IMPORTANCE}"] if adaptive else []),
        number,
    ]


def sizes(releases: list[dict]) -> tuple[list[int], list[int]]:
    """Returns the numbers of examples that were declared, hence public, and those that were released noisy counts.

    A noisy count opens its plan, and what its strategy releases next is charged with that number.
    """
    public, released, count = set(), set(), None
    gradients = any(release["kind"] == "gradient" for release in releases)
    for release in releases:
        if release["kind"] == "count":
            count, private = release, None
            continue
        if count is not None and private is None and release["strategy"] == count["strategy"]:
            private = release["num_examples"]
        if release["kind"] == "gradient" or not gradients:
            noisy = count is not None and (release["strategy"], release["num_examples"]) == (count["strategy"], private)
            (released if noisy else public).add(release["num_examples"])
    if not public | released:  # only counts so far
        released = {release["num_examples"] for release in releases}
    return sorted(public), sorted(released)


def _adaptive(facts: dict) -> set[str]:
    """Names of the strategies whose noise and sampling followed from earlier releases."""
    return {release["strategy"] for release in facts["releases"] if release["kind"] != "gradient"}


def releases(facts: dict) -> list[str]:
    """Returns one line per entry of the ledger, and one per kind for those that followed from earlier releases."""
    adaptive, groups = _adaptive(facts), {}
    for i, entry in enumerate(facts["releases"]):
        key = (entry["kind"], entry["strategy"], entry["num_examples"], entry["expected_batch_size"])
        groups.setdefault(key if entry["strategy"] in adaptive else i, []).append(entry)
    return [_line(group) for group in groups.values()]


def _line(group: list[dict]) -> str:
    one, largest = group[0], group[0]["largest_batch_size"]
    return (
        f"{sum(entry['count'] for entry in group)} x {one['kind']} ({one['strategy']}, {one['sampler']}): "
        f"N = {one['num_examples']}, B = {one['expected_batch_size']}, "
        f"{'' if largest is None else f'at most {largest} in a batch, '}"
        f"q = {_range(group, 'sampling_probability')}, "
        f"noise multiplier = {_range(group, 'noise_multiplier')}, L2 sensitivity of the {KINDS[one['kind']]} = "
        f"{_range(group, 'sensitivity')}, noise allocation = {one['noise_allocation']}."
    )


def _range(group: list[dict], name: str) -> str:
    low, high = (f"{pick(entry[name] for entry in group):.6g}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def group(facts: dict) -> str:
    """Returns epsilon of one group size."""
    size, epsilon = facts["group_size"], facts["epsilon"]
    plain = facts["epsilon_without_amplification"]
    change = {"add_or_remove_one": "add or remove", "zero_out_one": "zero out", "replace_one": "replace"}
    relation = change[facts["neighbouring_relation"]]
    value = "infinite" if epsilon is None else up(epsilon)
    return (
        f"Groups of up to {size} examples ({relation}): epsilon = {value}; without amplification "
        f"{'infinite' if plain is None else up(plain)}."
    )


_ANNOUNCED = {
    "poisson": "Poisson sampling",
    "truncated_poisson": "truncated Poisson sampling",
    "fixed_size": "batches of constant size",
    "shuffle": "shuffled epochs, NOT amplified",
    "fixed_order": "epochs in fixed order, NOT amplified",
}


def announcement(plan, updates: int, adaptive: bool, training_metrics: bool) -> str:
    """Returns what `fit` says before it trains: noise, budget and batches, and what epsilon does not cover."""
    budget = "" if plan.epsilon is None else f" for epsilon={plan.epsilon:g}, delta={plan.delta:g}"
    most = plan.examples_per_person
    persons = "" if most == 1 else f" Epsilon is for a person with at most {most} examples."
    if adaptive:
        lines = [
            f"Private training by importance sampling, noise multiplier at most about {plan.noise_multiplier:.5g}"
            f"{budget}; {updates} updates of about {plan.batch_size} examples out of {plan.num_examples}."
        ]
    else:
        lines = [
            f"Private training: noise multiplier {plan.noise_multiplier:.5g}{budget}; {updates} updates of "
            f"{plan.batch_size} expected examples out of {plan.num_examples} ({_ANNOUNCED[plan.sampler]}).{persons}"
        ]
    if training_metrics:
        lines.append(
            "The loss and metrics shown without the prefix val_ are computed on the private training data and "
            "are NOT covered by epsilon; fit(training_metrics=False) leaves them out."
        )
    return "\n".join(lines)


def escape(text: str) -> str:
    """Returns `text` with the characters that Markdown would take as its own."""
    for character in "\\`*_|<>[]":
        text = text.replace(character, "\\" + character)
    return text


def up(value: float) -> str:
    """Returns four significant digits, rounded up: a printed epsilon is never too small."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    text = f"{value:.4g}"
    return text if float(text) >= value else f"{value + 0.5 * unit:.4g}"
