"""Accuracy and certified accuracy of a trained model on held-out examples."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from lipdp import checks
from lipdp.report import numbers

_CURVE_POINTS = 61


# Certified unless others are asked for.
RADII = (0.1, 0.5, 1.0)


def check_radii(radii: Sequence[float]) -> None:
    """Refuses radii that are negative or not finite."""
    for radius in radii:
        checks.not_negative("radii", radius)


def measure(
    model: Any, x: np.ndarray, y: np.ndarray, radii: Sequence[float], person_ids: np.ndarray | None = None
) -> dict:
    """Returns accuracy and certified accuracy of a model on examples.

    Args:
        model: a trained model of layers with bounds.
        x: examples.
        y: class ids.
        radii: radii to certify at.
        person_ids: whose the examples are, if that is known.

    Returns:
        A dictionary, ready for JSON: `examples` and, if known, `persons`, how many there are, `accuracy`,
        `most_frequent_class`, the accuracy of always naming that one, of two classes `auc`, `lipschitz` of the model,
        `median_radius`, `certified` (one entry per radius) and `curve` (pairs of radius and certified accuracy).
    """
    from lipdp import certify

    certified = certify.radii(model, x)
    # Up to the radius beyond which hardly anything is certified.
    grid = np.linspace(0.0, float(np.quantile(certified, 0.995)), _CURVE_POINTS)
    share = certify.certified_accuracy(model, x, y, at=[0.0, *radii, *grid])
    return {
        "examples": len(y),
        **({} if person_ids is None else {"persons": len(np.unique(person_ids))}),
        "accuracy": share[0.0],
        **_beside(model.predict(x, verbose=0), y),
        "lipschitz": certify.lipschitz(model),
        "median_radius": float(np.median(certified)),
        "certified": [{"radius": float(r), "accuracy": share[float(r)]} for r in radii],
        "curve": [[float(r), share[float(r)]] for r in grid],
    }


def accuracy(model: Any, x: np.ndarray, y: np.ndarray, person_ids: np.ndarray | None = None) -> dict:
    """Returns the accuracy alone, in the form of `measure`, of a model that is not trained for certificates."""
    logits = model.predict(x, verbose=0)
    share = float((logits.argmax(axis=1) == y).mean())
    persons = {} if person_ids is None else {"persons": len(np.unique(person_ids))}
    return {"examples": len(y), **persons, "accuracy": share, **_beside(logits, y), "certified": [], "curve": []}


def _beside(logits: np.ndarray, y: np.ndarray) -> dict:
    """Returns what accuracy is to be read beside: that of the most frequent class, and the AUC of two classes."""
    y = np.asarray(y).reshape(len(logits))
    found = {"most_frequent_class": float(np.unique(y, return_counts=True)[1].max() / len(y))}
    if logits.shape[1] > 2:
        return found
    score = logits[:, -1] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    return found | {"auc": area_under_curve(score, y > 0.5)}


def area_under_curve(score: np.ndarray, positive: np.ndarray) -> float | None:
    """Returns the area under the ROC curve: how often a positive example has the higher score of a pair.

    Args:
        score: of each example; equal ones count half.
        positive: whether it is of the class that high scores are to mean.

    Returns:
        A number in [0, 1]; None where all examples are of one class.

    Example:
        >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
        0.75
    """
    below, above = np.sort(score[~positive]), score[positive]
    if not len(below) or not len(above):
        return None
    wins = np.searchsorted(below, above, "left") + np.searchsorted(below, above, "right")
    return float(wins.sum() / (2 * len(below) * len(above)))


def of_persons(held_out: dict) -> str:
    """Returns whose the examples of a result are, as the end of a phrase; empty where that is not known."""
    return f" of {held_out['persons']} persons" if "persons" in held_out else ""


def lines(held_out: dict) -> list[str]:
    """Returns the result of `measure`, or of its like of another task, as lines of text."""
    if "bits_per_byte" in held_out:
        return [
            f"{held_out['bits_per_byte']:.3f} bits per byte on {held_out['examples']} held-out texts"
            f"{of_persons(held_out)}; a uniform guess needs {held_out['uniform_bits_per_byte']:g}"
        ]
    if "mean_absolute_error" in held_out:
        return _of_numbers(held_out)
    first = [
        f"accuracy {numbers.percent(held_out['accuracy'])} on {held_out['examples']} held-out examples"
        f"{of_persons(held_out)}"
    ]
    if "most_frequent_class" in held_out:  # runs of earlier versions have none
        first.append(f"always naming their most frequent class: {numbers.percent(held_out['most_frequent_class'])}")
    if held_out.get("auc") is not None:
        first.append(f"area under the ROC curve {numbers.area(held_out['auc'])} (a guess: 0.5)")
    if not held_out["certified"]:  # of a model without certificates
        return first
    certified = ", ".join(f"{numbers.percent(c['accuracy'])} within {c['radius']:g}" for c in held_out["certified"])
    return [
        *first,
        f"certified accuracy {certified} (L2 distance in the model's input)",
    ]


def _of_numbers(held_out: dict) -> list[str]:
    unit = f" {held_out['unit']}" if held_out["unit"] else ""
    errors = {name: numbers.plain(held_out[name]) for name in held_out if name.endswith("error")}
    found = [
        f"mean absolute error {errors['mean_absolute_error']}{unit} on {held_out['examples']} held-out examples"
        f"{of_persons(held_out)}; the middle of the range for all of them: {errors['middle_mean_absolute_error']}",
        f"root mean squared error {errors['root_mean_squared_error']}{unit}; the middle of the range: "
        f"{errors['middle_root_mean_squared_error']}",
    ]
    if held_out["r_squared"] is None:
        return found
    share = numbers.r_squared(held_out["r_squared"])
    return [*found, f"R squared {share} (their own mean for all of them: 0)"]


def warn_of_frequent(held_out: dict | None) -> None:
    """Says on standard error where a model is no more accurate than naming one class whatever the example."""
    frequent = (held_out or {}).get("most_frequent_class")
    if frequent is None or held_out["accuracy"] > frequent:
        return
    sys.stderr.write(
        "lipdp train: warning: on the held-out examples the model is no more accurate than always naming their most "
        "frequent class. Where the other classes are rare it may still rank examples well: choose a threshold on its "
        "score, see Rare classes in docs/howto/tables.md. Otherwise it has learned nothing: train on more examples, "
        "with a larger epsilon, or, where you have asked for few epochs, for more of them.\n"
    )


def tell_reached(options: argparse.Namespace, recipe: Any) -> None:
    """Says on standard error what the recipe has reached in the benchmarks, where it is left as it is."""
    changed = (
        *(options.epochs, options.batch_size, options.learning_rate, options.clip_norm, options.validation_split),
        *(options.noise_multiplier, options.delta, options.person_column, options.backbone),
        *(
            options.recipe not in (None, "accurate"),
            options.sampling != "poisson",
            options.examples_per_person != 1,
            options.accountant != "pld",
        ),
    )
    if options.task != "classifier" or recipe.bounded or recipe.method != "dpsgd" or any(changed):
        return
    from lipdp.models.reached import reached

    found = reached(options.dataset, options.epsilon)
    if found is not None:
        sys.stderr.write(
            f"lipdp train: note: in the benchmarks this recipe reached {found['accuracy']:.1f} % on the test set of "
            f"{options.dataset} at epsilon {found['epsilon']:g} (runs: {found['seeds']}).\n"
        )
