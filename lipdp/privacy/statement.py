"""The sentences of the privacy statement, and what `fit` announces."""

import math
from typing import Any

from lipdp import checks
from lipdp.accounting import SCHEMES, round_up
from lipdp.privacy.release import ADAPTIVE

COVERED = (
    "the weights after every update, hence every checkpoint and the final model;",
    "the state of the optimizer;",
    "averages of the weights;",
    "whatever is computed from these without looking at the training data again.",
)

MOMENTS = "the moments of the data that were released first, and what layers hold of them;"

NOT_COVERED = (
    "Other models that were trained on the same data, as in a search for settings or an ensemble: each spends a budget "
    "of its own, and what all of them cost together is more than is stated here.",
    "Data that are not rows of the training data, such as the nodes of a graph that a layer holds.",
    "Early stopping, learning-rate control and model selection that look at private data, such as training metrics "
    "or a private validation set.",
    "Rows that were held out, by validation_split or as validation_data: they are not among the N that are protected, "
    "and metrics on them, or on training rows that were copied into them, with all that follows these, say what they "
    "say about them.",
    "Weights that came in by value: initial weights from another training on the same data (set_weights, assign, files "
    "of plain Keras models) bring their cost along, and it is not counted here. Layers that models share are followed.",
    "Training of the same weights by Keras' own fit, or by code of the user, before, between or after the fits that "
    "are listed: it has no noise, and nothing of it is charged.",
    "Preprocessing fitted to the data, or done on many rows at once: means, vocabularies, adapted layers, class "
    "weights, removed outliers, padding to the longest row, maps over the batches of a data pipeline. Rows that were "
    "copied into the data several times.",
    "Rows that were chosen by their place, as by slices, shards or fixed counts: one row more brings others in or out.",
    "Errors and warnings about the data, as of labels or entries out of range: they count or quote private rows.",
    "Floating-point arithmetic: the Gaussian noise is a float32 approximation. Rounding of matrix products is covered "
    "as independent errors (1e-5 per layer).",
    "Rounding by place: the backend may round a row by its place in the batch. Rows made to stand exactly at a kink, "
    "as that of a ReLU, or at a threshold can cross it together when one row more moves them to other places.",
    "Seeds, the state of the random generators (in model files of runs with a fixed seed) and who was in which "
    "batch: keep them secret. Who knows a generator's state can subtract the noise.",
    "Going on from an older file: what was released after it was written, on a branch that was lost, is in the ledger "
    "only where `lipdp.callbacks.Checkpoint` loads the file together with its journal.",
    "Choosing one of several files of a run, as ModelCheckpoint(save_best_only=True) does: what was chosen has cost "
    "what the latest file that was looked at states.",
    "Side channels: running time, memory, and the realized size of each batch.",
)

PERSON = {
    "add_or_remove_one": "add or remove one person, with all their rows.",
    "zero_out_one": "zero out one person: their place stays, but they contribute nothing to any release.",
    "replace_one": "replace one person, with all their rows, by any other one.",
}
ONE = {
    "add_or_remove_one": "add or remove one example.",
    "zero_out_one": "zero out one example: its place in the batches stays, but it contributes nothing to any release.",
    "replace_one": "replace one example by any other one.",
}
MANY = {
    "add_or_remove_one": "add or remove all examples of one person, at most {}.",
    "zero_out_one": "zero out all examples of one person, at most {}: their places in the batches stay, but they "
    "contribute nothing to any release.",
    "replace_one": "replace all examples of one person, at most {}, by any other ones.",
}


SEVERAL_IDS = (
    "Fits were given other ids or other numbers of persons. Epsilon of all of them together holds for who is one "
    "person, with all their rows, by the ids of each of these fits."
)
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
    "moments": "averages or sums of clipped inputs, or of their products",
}
# By the strategy, where the kind says less.
_WHAT = {"private_rescaling": "counts of values in each column, averaged"}


# Who is attacked, and what the attacker wants to know.
_ATTACKED = {
    ("example", False): ("but for one example", "whether that example was used"),
    ("person", False): ("but for the examples of one person", "whether these were used"),
    ("example", True): ("but not which of two examples one of them was", "which it was"),
    ("person", True): ("but not which of two persons some of them came from", "who it was"),
}


def in_plain_words(facts: dict) -> str | None:
    """Returns epsilon and delta as what an attacker can do; None where there is nothing or no end to tell.

    Args:
        facts: what `Privacy.to_dict` returned; of older versions too.

    **Guarantee.**
    Conditions: those of epsilon and delta; both cases are equally likely to the attacker.
    Bound: the least that is known on the probability of a right guess, rounded up: (e^epsilon + delta) /
    (1 + e^epsilon), or what `accounting.risk` has from all pairs of epsilon and delta that hold.
    Not covered: an attacker who knows beforehand that one case is likelier is right more often.
    Source: Kairouz, Oh & Viswanath 2015, theorem 2.1: half of 1 plus the largest total variation.

    Example:
        >>> "in at most 88.1 of 100 cases" in in_plain_words({"epsilon": 2.0, "delta": 1e-5})
        True
    """
    if not facts["epsilon"]:
        return None
    relation = facts.get("neighboring_relation") or facts.get("neighbouring_relation", "add_or_remove_one")
    unit = "person" if facts.get("examples_per_person", 1) > 1 else facts.get("unit", "example")
    known, question = _ATTACKED[unit, relation == "replace_one"]
    shown_right = float(guesses(facts))
    who = f"somebody who knows all training data {known}, and who sees the weights after every update,"
    if shown_right >= 100.0:
        return f"In plain words: this guarantee alone does not keep {who} from telling {question}."
    return (
        f"In plain words: {who} can tell {question} in at most {shown_right:g} of 100 cases, if both answers are "
        "equally likely. Tossing a coin is right in 50."
    )


def delta_in_words(facts: dict) -> str | None:
    """Returns what delta is, as `in_plain_words` does for the guesses; None where there is nothing to tell.

    Args:
        facts: what `Privacy.to_dict` returned; of older versions too.

    Example:
        >>> "at most 7.39 times" in delta_in_words({"epsilon": 2.0, "delta": 1e-5})
        True
    """
    epsilon = facts["epsilon"]
    if not epsilon:
        return None
    times = f"{round_up(math.exp(epsilon), 3):,g} times (e^epsilon)" if epsilon < 10.0 else "e^epsilon times"
    one_in = math.floor((1.0 + 1e-12) / facts["delta"])
    return (
        "What delta is: a small part of the chance that epsilon does not bound. Anything found in what was released is "
        f"at most {times} as likely in one of these two cases as in the other, plus delta: 1 in {one_in:,}. Delta has "
        "to be far below 1 / N: one of that size could cover publishing a row in full."
    )


def covered(releases: list[dict]) -> list[str]:
    """Returns what the guarantee covers."""
    return [*([MOMENTS] if any(release["kind"] == "moments" for release in releases) else []), *COVERED]


def released(facts: dict) -> str:
    """Returns what was released, in a few words."""
    moments = sum(release["count"] for release in facts["releases"] if release["kind"] == "moments")
    updates = f"{facts['updates']} noisy updates"
    if not moments:
        return updates
    return f"{moments} noisy moments of the data" + (f" and {updates}" if facts["updates"] else "")


def guesses(facts: dict) -> str:
    """Returns how many of 100 guesses can be right, rounded up, as text."""
    right = right_guesses(facts["epsilon"], facts["delta"])
    if "risk" in facts:
        right = min(right, facts["risk"]["right_guesses"])
    digits = 10.0 if right < 0.99 else 100.0
    return f"{math.ceil(100.0 * right * digits - 1e-9) / digits:g}"


def right_guesses(epsilon: float, delta: float) -> float:
    """Returns the largest probability of a right guess between two equally likely neighboring data sets."""
    return min(1.0, (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon)))


def meaning(facts: dict) -> list[str]:
    """Returns unit, relation, samplers and what is public."""
    gradients = [release for release in facts["releases"] if release["kind"] == "gradient"] or facts["releases"]
    public, released = sizes(facts["releases"])
    listed = public or released
    most, relation, drawn = facts["examples_per_person"], facts["neighboring_relation"], facts.get("rows_per_person")
    if drawn:
        unit = (
            "Unit: one person, with any number of rows, as the ids said that `fit` was given. That all rows of a "
            "person have one id was not checked."
        )
    elif most == 1:
        unit = "Unit: one example (one row of the training data). A person with several rows is protected less."
    else:
        unit = f"Unit: one person with at most {most} examples. That nobody has more was not checked."
    counted = "persons with training examples" if drawn else "training examples"
    counted = f"N = {checks.either(listed)} {counted}{', by plan' if len(listed) > 1 else ''}"
    number = f"{counted}. N is treated as public, so is the expected batch size B."
    if not public:
        number = f"{counted}, a noisy count that was released. B is public."
    elif released:
        number += f" Other plans took N = {checks.either(released)}, a noisy count that was released."
    adaptive = _adaptive(facts)
    samplers = sorted({release["sampler"] for release in gradients if release["strategy"] not in adaptive})
    change = PERSON[relation] if drawn else ONE[relation] if most == 1 else MANY[relation].format(most)
    how = [*(SCHEMES[sampler].statement for sampler in samplers), *([IMPORTANCE] if adaptive else [])]
    return [
        unit,
        *([SEVERAL_IDS] if facts.get("ids_of_persons_differ") else []),
        f"Neighboring relation: {change}",
        *(f"Sampler: {text.replace('example', 'person') if drawn else text}" for text in how),
        *([_contribution(drawn, {release["kind"] for release in facts["releases"]})] if drawn else []),
        number,
    ]


def _contribution(most: int, kinds: set[str]) -> str:
    rows = "one row, chosen" if most == 1 else f"at most {most} rows, chosen"
    each = f"{rows} uniformly at random for each update, whose gradients are averaged"
    together = "all rows, averaged" if kinds == {"moments"} else each
    if "moments" in kinds and len(kinds) > 1:
        together += "; in the moments all rows, averaged"
    return (
        f"Contribution of a person: {together}. This was enforced: the sensitivity is that of the average, whatever "
        "number of rows a person has."
    )


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
    return {release["strategy"] for release in facts["releases"] if release["kind"] in ADAPTIVE}


def releases(facts: dict) -> list[str]:
    """Returns one line per entry of the ledger, and one per kind for those that followed from earlier releases."""
    adaptive, groups = _adaptive(facts), {}
    for i, entry in enumerate(facts["releases"]):
        key = (entry["kind"], entry["strategy"], entry["num_examples"], entry["expected_batch_size"])
        groups.setdefault(key if entry["strategy"] in adaptive else i, []).append(entry)
    return [_line(group) for group in groups.values()]


def _line(group: list[dict]) -> str:
    one, largest = group[0], group[0]["largest_batch_size"]
    what = _WHAT.get(one["strategy"], KINDS[one["kind"]])
    return (
        f"{sum(entry['count'] for entry in group)} x {one['kind']} ({one['strategy']}, {one['sampler']}): "
        f"N = {one['num_examples']}, B = {one['expected_batch_size']}, "
        f"{'' if largest is None else f'at most {largest} in a batch, '}q = {_range(group, 'sampling_probability')}, "
        f"noise multiplier = {_range(group, 'noise_multiplier')}, L2 sensitivity of the {what} = "
        f"{_range(group, 'sensitivity')}, noise allocation = {one['noise_allocation']}."
    )


def _range(group: list[dict], name: str) -> str:
    low, high = (f"{pick(entry[name] for entry in group):.6g}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def group(facts: dict) -> str:
    """Returns epsilon of one group size."""
    change = facts["neighboring_relation"].removesuffix("_one").replace("_", " ")
    who = f"{facts['group_size']} {facts.get('unit', 'example')}s"
    return (
        f"Groups of up to {who} ({change}): epsilon = {shown(facts['epsilon'])}; without "
        f"amplification {shown(facts['epsilon_without_amplification'])}."
    )


# Stands among the names of metrics on the training data.
VALIDATED = "validation metrics (validation_data are among the training data)"
TRAINING_METRICS = (
    "The loss and metrics shown without the prefix val_ are computed on the private training data and "
    "are NOT covered by epsilon; fit(training_metrics=False) leaves them out."
)


KEY_FROM_A_SAMPLE = (
    "Of data that were read row by row from a source, the key came from length, types, shapes and at most 64 rows, "
    "evenly spread from the first to the last, not from all rows. Two runs with this seed on sources that differ in "
    "other rows alone share noise, and together they reveal more than epsilon says."
)


def announcement(plan: Any, updates: int, strategy: str, goal: str | None = None) -> str:
    """Returns what `fit` says before `updates` updates of a plan: strategy, noise, budget (or goal) and batches."""
    sampling = plan.sampling
    most = sampling.group_size
    persons = "" if most == 1 else f" Epsilon is for a person with at most {most} examples."
    goal = _budget(plan) if goal is None else f" for {goal}"
    return (
        f"Private training with strategy '{strategy}': noise multiplier {plan.noise_multiplier:.6g}{goal}; "
        f"{updates} updates of {sampling.batch_size} expected {_drawn(sampling)} out of {sampling.num_examples} "
        f"({sampling.scheme.announcement}).{persons}"
    )


def importance_announcement(plan: Any, updates: int, strategy: str) -> str:
    """Returns the same for importance sampling, whose noise follows from what is released on the way."""
    return (
        f"Private training with strategy '{strategy}' (importance sampling): noise multiplier at most about "
        f"{plan.noise_multiplier:.6g}{_budget(plan)}; {updates} updates of about {plan.sampling.batch_size} "
        f"{_drawn(plan.sampling)} out of {plan.sampling.num_examples}."
    )


def _drawn(sampling) -> str:
    if sampling.rows_per_person is None:
        return "examples"
    return f"persons (at most {sampling.rows_per_person} rows of each)"


def _budget(plan) -> str:
    return "" if plan.epsilon is None else f" for epsilon={plan.epsilon:g}, delta={plan.delta:g}"


def escape(text: str) -> str:
    """Returns `text` with the characters that Markdown would take as its own."""
    for character in "\\`*_|<>[]":
        text = text.replace(character, "\\" + character)
    return text


def shown(value: float | None) -> str:
    """Returns an epsilon in four significant digits, rounded up: it is never too small. None is infinite."""
    return "infinite" if value is None else f"{round_up(value):.4g}"
