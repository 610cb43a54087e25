"""The content of a report, whatever its format: headline numbers, notes, settings, bounds of the layers."""

from lipdp.privacy import statement
from lipdp.report import numbers
from lipdp.report.folder import RunFolder

HELD_OUT_NOTE = (
    "Accuracies are measured on {examples} held-out examples. These are not among the N training {counted} and "
    "epsilon does not cover them: if they are private too, do not publish these numbers."
)
ERRORS_NOTE = HELD_OUT_NOTE.replace("Accuracies are", "Errors are", 1)
BITS_NOTE = HELD_OUT_NOTE.replace("Accuracies are", "Bits per byte are", 1)
NO_HELD_OUT_NOTE = "No examples were held out, so nothing was measured: see lipdp train --validation-split."
SAMPLES_NOTE = (
    "Samples follow from the released weights: any number of them costs no further privacy. A loss on held-out "
    "examples is not covered by epsilon."
)
NOT_PRIVATE_NOTE = (
    "Columns and curves marked (not private) were computed on the private training data without noise. They are "
    "outside the guarantee: do not publish them."
)
READ_OFF_NOTE = "Read off the private rows before training, outside the guarantee: {}."
SEED_NOTE = (
    "A fixed seed was used, and this report names it. The guarantee holds only against people who can neither know "
    "nor guess it."
)


# What the headline numbers mean.
_TERMS = {
    "right guesses": "is how often somebody who knows all other data, and who sees the weights after every update, can "
    "tell at most whether one {unit} was used, if both answers are equally likely. Tossing a coin is right in 50.",
    "epsilon": "bounds how much the weights can say about one {unit}. At 0 they say nothing; the smaller, the stronger "
    "the protection.",
    "delta": "is a small part of the chance that epsilon does not bound. It has to be far below 1 / N.",
    "bits per byte": "is how many bits the model needs on average for each next byte of the held-out texts, their ends "
    "included: the fewer, the better.",
    "mean absolute error": "is how far the predictions are off on the held-out examples, on average, in the unit of "
    "the target.",
    "R squared": "is the share of the variance of the held-out targets that the predictions explain: 1 where all are "
    "right, 0 where they are no better than the mean of these targets.",
    "accuracy": "is the share of the held-out examples whose class the model names.",
    "area under the curve": "is the chance that the model gives a held-out example of the second class a higher score "
    "than one of the first. It tells how well a model ranks where one class is rare.",
    "certified": "accuracy is the share of the held-out examples that are classified correctly and stay so under any "
    "change of the input of at most that L2 norm. It is proven for each of them.",
}


def lead(run: RunFolder) -> str:
    """Returns the first sentences: what an attacker can do, or that nothing bounds it."""
    if run.privacy["epsilon"] is None:
        return "There is no finite guarantee: the noise was too small, or more was released than the budget allows."
    return statement.in_plain_words(run.privacy) or "Nothing has been released."


def facts(run: RunFolder) -> str:
    """Returns how many updates were made, when, and how long they took."""
    text = f"{run.privacy['updates']} noisy updates"
    started, seconds = run.run.get("started"), run.run.get("seconds")
    if started:
        text += f", started {started}"
    if seconds is not None:
        text += f", {seconds:.0f} s"
    return text + "."


def terms(run: RunFolder) -> list[tuple[str, str]]:
    """Returns `(name, meaning)` of the headline numbers."""
    unit = "person" if run.privacy.get("examples_per_person", 1) > 1 else run.privacy.get("unit", "example")
    return [(name, _TERMS[name].format(unit=unit)) for name in dict.fromkeys(name for _, name, _ in tiles(run))]


def tiles(run: RunFolder) -> list[tuple[str, str, str]]:
    """Returns the headline numbers as `(value, name, remark)`."""
    privacy, held_out = run.privacy, run.results["held_out"]
    budget = run.run["settings"].get("epsilon")
    rows = [
        *_guesses(privacy),
        (numbers.epsilon(privacy["epsilon"]), "epsilon", f"of a budget of {budget:g}" if budget else "spent"),
        (f"{privacy['delta']:g}", "delta", _relation(privacy)),
    ]
    if held_out and "bits_per_byte" in held_out:
        guess = f"held-out texts; a uniform guess needs {held_out['uniform_bits_per_byte']:g}"
        rows.append((f"{held_out['bits_per_byte']:.2f}", "bits per byte", guess))
    elif held_out and "mean_absolute_error" in held_out:
        rows += _errors(held_out)
    elif not run.samples and run.run["settings"].get("task") not in ("language", "regression"):
        rows += _accuracy(held_out or {})
    for mark in held_out["certified"] if held_out else ():
        rows.append((numbers.percent(mark["accuracy"]), "certified", f"within L2 radius {mark['radius']:g}"))
    return rows


def _accuracy(held_out: dict) -> list[tuple[str, str, str]]:
    """Returns the accuracy beside what a guess reaches, and what two classes are ranked by."""
    frequent, area = (held_out.get(name) for name in ("most_frequent_class", "auc"))  # earlier versions wrote none
    remark = "" if frequent is None else f"; the most frequent class alone: {numbers.percent(frequent)}"
    rows = [(numbers.percent(held_out.get("accuracy")), "accuracy", f"held-out examples{remark}")]
    if area is not None:
        rows.append((numbers.area(area), "area under the curve", "held-out examples; a guess: 0.5"))
    return rows


def _errors(held_out: dict) -> list[tuple[str, str, str]]:
    """Returns the errors of predicted numbers beside that of the middle of the range."""
    unit, trivial = held_out["unit"], numbers.plain(held_out["middle_mean_absolute_error"])
    remark = f"{unit}{unit and '; '}held-out examples; the middle of the range: {trivial}"
    rows = [(numbers.plain(held_out["mean_absolute_error"]), "mean absolute error", remark)]
    if held_out["r_squared"] is not None:
        rows.append((numbers.r_squared(held_out["r_squared"]), "R squared", "held-out examples; their mean: 0"))
    return rows


def _guesses(privacy: dict) -> list[tuple[str, str, str]]:
    """Returns the risk in plain words, where the run has it and there is one."""
    if "risk" not in privacy or privacy["epsilon"] is None:
        return []
    return [(f"{statement.guesses(privacy)} of 100", "right guesses", "at most; a coin has 50")]


def _relation(privacy: dict) -> str:
    relation = privacy.get("neighboring_relation") or privacy.get("neighbouring_relation", "add_or_remove_one")
    change = relation.removesuffix("_one").replace("_", " ")
    most = privacy.get("examples_per_person", 1)
    return (
        f"{change} one {privacy.get('unit', 'example')}"
        if most == 1
        else f"{change} one person, at most {most} examples"
    )


def notes(run: RunFolder) -> list[str]:
    """Returns what the reader must know about the numbers."""
    held_out = run.results["held_out"]
    lines = [_held_out_note(held_out) if held_out else NO_HELD_OUT_NOTE]
    if run.samples:
        lines = [SAMPLES_NOTE]
    lines += [READ_OFF_NOTE.format(what) for what in run.privacy.get("read_off_the_data", ())]
    if run.privacy.get("training_metrics_outside_the_guarantee"):
        lines.append(NOT_PRIVATE_NOTE)
    if run.privacy.get("seed_fixed_by_user"):
        lines.append(SEED_NOTE)
    return lines


def _held_out_note(held_out: dict) -> str:
    persons = held_out.get("persons")
    note = BITS_NOTE if "bits_per_byte" in held_out else HELD_OUT_NOTE
    note = ERRORS_NOTE if "mean_absolute_error" in held_out else note
    note = note.format(examples=held_out["examples"], counted="examples" if persons is None else "persons")
    return note if persons is None else note.replace("examples.", f"examples of {persons} persons.", 1)


def settings(run: RunFolder) -> list[tuple[str, str]]:
    """Returns the settings of the run as text."""
    return [(str(k).replace("_", " "), _words(v)) for k, v in run.run["settings"].items() if v is not None]


def bounds_table(run: RunFolder) -> tuple[tuple[str, ...], list]:
    """Returns the heads and the rows of the table of bounds."""
    heads = ("layer", "type", "input bound", "Lipschitz", "gradient bound", "noise")
    rows = []
    for row in run.results["bounds"]:
        bounds = [numbers.short(row[name]) for name in ("input_bound", "lipschitz")]
        bounds.append("" if row["gradient_bound"] is None else numbers.short(row["gradient_bound"]))
        noise = "" if row["noise_std"] is None else f"{row['noise_std']:.4g}"
        rows.append((row["layer"], row["type"], *bounds, noise))
    return heads, rows


def _words(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
