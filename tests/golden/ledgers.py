"""Calls of `lipdp.accounting`, and ledgers whose statements 0.1.0 wrote; no framework is needed."""

import importlib

from lipdp import accounting
from lipdp.accounting import Mechanism
from tests.golden.cases import call

RUN = {"noise_multiplier": 1.1, "sampling_probability": 256 / 60000, "updates": 500, "delta": 1e-5}
SMALL = {"noise_multiplier": 2.0, "sampling_probability": 0.1, "updates": 40, "delta": 1e-4, "num_examples": 500}
BUDGET = {"epsilon": 2.0, "delta": 1e-5, "sampling_probability": 0.02, "updates": 200}
PLAN = {"num_examples": 2000, "delta": 1e-5}


def _epsilon(**arguments):
    return lambda: accounting.epsilon(**arguments)


def _calibrate(**arguments):
    return lambda: accounting.calibrate(**arguments)


def _most(**arguments):
    return lambda: accounting.max_updates(**arguments)


def _group(size, **arguments):
    return lambda: accounting.group_epsilon(size, **arguments)


def _solve(**arguments):
    return lambda: accounting.solve(**PLAN, **arguments)


def _filter(budget, *mechanisms):
    def use():
        name = accounting.plan_filter(epsilon=budget, delta=1e-5, mechanism=mechanisms[0])
        return [
            getattr(name, "name", name),  # was a name, became an object that has one
            accounting.compose(mechanisms, 1e-5, name),
            accounting.guarantee(mechanisms, 1e-5, name),
            accounting.describe(mechanisms, 1e-5, name),
        ]

    return use


def _without(names, values):
    return {k: v for k, v in values.items() if k not in names}


_GROUP = _without(("num_examples",), SMALL)
CALLS = {
    "epsilon": _epsilon(**RUN),
    "epsilon rdp": _epsilon(**RUN, accountant="rdp"),
    "epsilon autodp": _epsilon(**RUN, accountant="autodp"),
    "epsilon whole": _epsilon(**RUN | {"sampling_probability": 1.0, "updates": 5}),
    "epsilon zero updates": _epsilon(**RUN | {"updates": 0}),
    "epsilon poisson zero out": _epsilon(**SMALL, relation="zero_out_one"),
    "epsilon poisson replace": _epsilon(**SMALL, relation="replace_one"),
    "epsilon poisson group": _epsilon(**SMALL, group_size=3),
    "epsilon truncated": _epsilon(**SMALL, sampler="truncated_poisson", capacity=70),
    "epsilon truncated tight": _epsilon(**SMALL, sampler="truncated_poisson", capacity=50),
    "epsilon truncated replace": _epsilon(**SMALL, sampler="truncated_poisson", capacity=60, relation="replace_one"),
    "epsilon fixed size": _epsilon(**SMALL, sampler="fixed_size"),
    "epsilon fixed size zero out": _epsilon(**SMALL, sampler="fixed_size", relation="zero_out_one"),
    "epsilon fixed size add": _epsilon(**SMALL, sampler="fixed_size", relation="add_or_remove_one"),
    "epsilon fixed size group": _epsilon(**SMALL, sampler="fixed_size", group_size=4),
    "epsilon shuffle": _epsilon(**SMALL, sampler="shuffle"),
    "epsilon shuffle replace": _epsilon(**SMALL, sampler="shuffle", relation="replace_one"),
    "epsilon shuffle group": _epsilon(**SMALL, sampler="shuffle", group_size=3),
    "epsilon fixed order": _epsilon(**SMALL | {"updates": 41}, sampler="fixed_order"),
    "epsilon fixed order rdp": _epsilon(**SMALL, sampler="fixed_order", accountant="rdp"),
    "group": _group(4, **_GROUP),
    "group zero": _group(0, **_GROUP),
    "group fixed size": _group(
        3, noise_multiplier=2.0, batch_size=50, num_examples=500, updates=40, delta=1e-4, sampler="fixed_size"
    ),
    "group shuffle": _group(2, **_GROUP, sampler="shuffle"),
    "group vadhan": lambda: accounting.vadhan_epsilon(4, **_GROUP),
    "calibrate": _calibrate(**BUDGET),
    "calibrate rdp": _calibrate(**BUDGET, accountant="rdp"),
    "calibrate autodp": _calibrate(**BUDGET, accountant="autodp"),
    "calibrate group": _calibrate(**BUDGET, group_size=2),
    "calibrate shuffle": _calibrate(**BUDGET, sampler="shuffle"),
    "calibrate fixed size": _calibrate(**BUDGET, sampler="fixed_size", num_examples=1000),
    "calibrate truncated": _calibrate(**BUDGET, sampler="truncated_poisson", num_examples=1000, capacity=40),
    "calibrate after": _calibrate(**BUDGET, spent=(Mechanism(0.02, 1.5, 100),)),
    "most": _most(epsilon=2.0, delta=1e-5, sampling_probability=0.02, noise_multiplier=1.0),
    "most rdp": _most(epsilon=2.0, delta=1e-5, sampling_probability=0.02, noise_multiplier=1.0, accountant="rdp"),
    "most shuffle": _most(epsilon=4.0, delta=1e-5, sampling_probability=0.1, noise_multiplier=4.0, sampler="shuffle"),
    "solve noise": _solve(epsilon=2.0, epochs=4, batch_size=100),
    "solve epochs": _solve(epsilon=2.0, noise_multiplier=1.5, batch_size=100),
    "solve batch": _solve(epsilon=2.0, noise_multiplier=1.5, epochs=4, accountant="rdp"),
    "solve epsilon": _solve(noise_multiplier=1.5, epochs=4, batch_size=100, examples_per_person=2),
    "solve fixed size": _solve(noise_multiplier=1.5, epochs=4, batch_size=100, sampler="fixed_size"),
    "filter": _filter(3.0, Mechanism(0.05, 1.2, 60), Mechanism(0.1, 2.0, 10)),
    "filter zero out": _filter(6.0, Mechanism(0.05, 2.0, 20, relation="zero_out_one")),
    "filter shuffle": _filter(8.0, Mechanism(1.0, 3.0, 4, "shuffle")),
    "search": lambda: accounting.search_epsilon(**RUN, runs=10),
    "mixture": lambda: accounting.compose([Mechanism(0.1, 2.0, 5), Mechanism(1.0, 4.0, 2, "shuffle")], 1e-5),
}


def value(name: str):
    return CALLS[name]()


# ---- ledgers ---------------------------------------------------------------------------------------------------


def _named(name, *modules):
    """A class from where it is now or was in 0.1.0."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(name)


def release(**arguments):
    make = _named("Release", "lipdp.privacy.ledger", "lipdp.ledger")
    usual = {
        "sampling_probability": 0.05,
        "noise_multiplier": 1.2,
        "num_examples": 1000,
        "batch_size": 50,
        "sensitivity": 0.02,
        "strategy": "dpsgd",
        "noise_allocation": "global",
    }
    return call(make, **usual | arguments)


def ledger(*charges):
    made = _named("Ledger", "lipdp.privacy.ledger", "lipdp.ledger")()
    for arguments, updates in charges:
        made.charge(release(**arguments), updates)
    return made


_DPIS = {"strategy": "dpis", "noise_allocation": "global, solved anew in each epoch"}
_SUM = {**_DPIS, "kind": "norm_sum", "sampling_probability": 1.0, "noise_multiplier": 20.0, "sensitivity": 1.0}
_COUNT = {**_SUM, "kind": "count"}
# Name -> (charges, further arguments of `Privacy`).
LEDGERS = {
    "nothing": ([], {}),
    "poisson": ([({}, 60)], {}),
    "poisson rdp, seed and metrics": (
        [({}, 60)],
        {"accountant": "rdp", "seeded": True, "training_metrics": ("loss", "accuracy")},
    ),
    "two plans": ([({}, 30), ({"noise_multiplier": 2.0, "strategy": "clipless"}, 30)], {}),
    "truncated": ([({"sampler": "truncated_poisson", "capacity": 70}, 20)], {}),
    "fixed size": ([({"sampler": "fixed_size"}, 20)], {}),
    "shuffle": ([({"sampler": "shuffle", "noise_multiplier": 3.0}, 45)], {}),
    "fixed order, streams": (
        [({"sampler": "fixed_order", "noise_multiplier": 5.0, "stream": s}, 25) for s in (0, 25)],
        {},
    ),
    "persons": ([({"noise_multiplier": 3.0}, 20)], {"examples_per_person": 3}),
    "persons, fixed size": ([({"sampler": "fixed_size", "noise_multiplier": 4.0}, 20)], {"examples_per_person": 2}),
    "mixture": ([({}, 20), ({"sampler": "shuffle", "noise_multiplier": 4.0}, 20)], {}),
    "filter": ([({}, 20), ({"noise_multiplier": 2.0}, 20)], {"accountant": "filter:6.0:4.0:1e-05"}),
    "filter exceeded": ([({"noise_multiplier": 0.6}, 200)], {"accountant": "filter:6.0:4.0:1e-05"}),
    "dpis": (
        [(_SUM, 1), (_DPIS, 20), (_SUM, 1), ({**_DPIS, "noise_multiplier": 1.1, "sampling_probability": 0.07}, 20)],
        {"accountant": "rdp_order:6.0:4.0:1e-05"},
    ),
    "dpis, private count": (
        [(_COUNT, 1), (_SUM, 1), (_DPIS, 20)],
        {"accountant": "rdp_order:6.0:4.0:1e-05"},
    ),
    "little noise": ([({"noise_multiplier": 0.2}, 60)], {}),
    "no noise": ([({"noise_multiplier": 0.0}, 1)], {}),
    "large delta": ([({}, 60)], {"delta": 0.002}),
}


def charged(name: str) -> str:
    """The text of a ledger, in the words of 0.1.0."""
    return ledger(*LEDGERS[name][0]).to_json()


def privacy(name: str, text: str):
    """What a ledger that was written as `text` guarantees."""
    made = _named("Privacy", "lipdp.privacy")
    read = _named("Ledger", "lipdp.privacy.ledger", "lipdp.ledger").from_json(text)
    return made(read, **{"delta": 1e-5} | LEDGERS[name][1])


def described(name: str, text: str) -> dict:
    """The statement in two formats and its facts."""
    stated = privacy(name, text)
    return {
        "text": stated.statement(),
        "markdown": stated.statement("markdown"),
        "facts": stated.to_dict(),
        "repr": repr(stated),
        "ledger": text,
    }
