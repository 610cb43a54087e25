"""Fits whose statements were written down when what they ask for came, after 0.1.0."""

import keras
import numpy as np

from tests.golden import cases

# Persons of one to nine rows.
PERSONS = {"person_ids": [f"person {i}" for i in np.repeat(np.arange(18), np.arange(18) % 9 + 1)], "batch_size": 6}

# Name -> (model, strategy, arguments of `fit`).
CASES = {
    "persons": (cases.spectral, "clipless", {**PERSONS, "noise_multiplier": 2.0}),
    "persons, one row, shuffled": (
        cases.spectral,
        "clipless",
        {**PERSONS, "rows_per_person": 1, "noise_multiplier": 4.0, "sampling": "shuffle"},
    ),
    "persons, fixed size": (cases.plain, "dpsgd", {**PERSONS, "epsilon": 6.0, "sampling": "fixed_size"}),
    "random allocation": (cases.spectral, "clipless", {"sampling": "random_allocation", "noise_multiplier": 1.5}),
    "random allocation of persons": (
        cases.plain,
        "dpsgd",
        {**PERSONS, "sampling": "random_allocation", "epsilon": 4.0},
    ),
    "risk, advantage": (cases.spectral, "clipless", {"risk": {"advantage": 0.2}}),
    "risk, rates": (cases.plain, "dpsgd", {"risk": {"tpr": 0.05, "fpr": 0.01}, "seed": None}),
    "risk of persons": (cases.spectral, "clipless", {**PERSONS, "risk": {"advantage": 0.3}}),
}


def described(name: str) -> dict:
    """Statement and facts after a fit."""
    make, strategy, arguments = CASES[name]
    keras.utils.set_random_seed(0)
    model = make()
    cases.train(model, strategy=strategy, **arguments)
    return {
        "text": model.privacy.statement(),
        "repr": repr(model.privacy),
        "facts": cases.facts(model.privacy),
        "plan": model.run.plan.to_dict(),
    }
