"""What a model remembers about its own training: ledger, plan and where it stands."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from lipdp import accounting, backend
from lipdp.accounting.filter import Filter, SharedFilter
from lipdp.privacy import Ledger, Plan, Privacy, Release, files, provenance
from lipdp.privacy.journal import Journal
from lipdp.privacy.naming import Name
from lipdp.training import seeding
from lipdp.training.request import FitRequest


class Forgets(ValueError):
    """A file would make a model forget releases of its own."""


class Run:
    """The privacy state of one model. It is saved in the model file.

    Args:
        model: The model; None: one without weights.

    Attributes:
        ledger: Everything that this model has released so far.
        request: What asked for the plan: a `fit` that asks for the same continues it.
        plan_start: Number of updates in the ledger when the plan began.
        planned_moments: How many moments the ledger holds that are not released yet, only while a plan is made.
        epoch_key: Key of the permutations of the plan's epochs, if it shuffles, or of their allocation, a secret.
        order: Digest of the rows in their order, for epochs; None where not known. Only a `fit` with a seed writes it.
        importance: Where a plan of importance sampling stands: arguments and state of its budget, all public; or None.
        noise_std: Noise standard deviation per trainable variable in the last `fit`.
        secret: What the batches of the last `fit` are drawn from. A file holds it after a `fit` with a seed only.
        keys: Keys of the noise that updates of fits without a seed began with, as far as callbacks could see them.
        bodies: Digest of code of the user's that the present `fit` with a seed runs, see `training.bodies`.
        driver: What carries out the present or last `fit`, or None before the first.
        traced: What the compiled step was traced for.
        tracing: Whether a training step is being traced right now.
        armed: Whether `fit` is running.
        executing: Whether the present `fit` has finished its first execution.
        rolls_back: Whether what loads a file now brings the weights back where the ledger in it is refused.
        load_error: Why loading this model's state failed, if it did.
        journal: Where releases are reserved before they are made, while `fit` keeps a checkpoint; else None.
    """

    def __init__(self, model: keras.Model | None = None):
        self._model = model
        self.ledger = Ledger()
        self._name = Name()
        self.request: FitRequest | None = None
        self.plan_start = self._releases_of_others = self.planned_moments = 0
        self.epoch_key: tuple[int, ...] | None = None
        self.order: bytes | None = None
        self.importance: dict | None = None
        self.noise_std: tuple[float, ...] = ()
        self.secret: seeding.Secret | None = None
        self.keys: set[bytes] = set()
        self.bodies: str | None = None
        self.driver: Any = None
        self.traced: tuple | None = None
        self.tracing = self.armed = self.executing = self.rolls_back = False
        self.load_error: ValueError | None = None
        self.journal: Journal | None = None

    @contextlib.contextmanager
    def step_traced(self) -> Iterator[None]:
        """Inside, `tracing` holds: weights that metrics are given say who is there."""
        self.tracing = True
        try:
            yield
        finally:
            self.tracing = False

    @property
    def plan(self) -> Plan | None:
        """Returns the plan of the last `fit`, or None."""
        return self.ledger.plan

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Returns the model's own ledger, then those of other models that have trained some of its variables."""
        others = () if self._model is None else provenance.ledgers_of(self._model)
        return provenance.distinct(self.ledger, others)

    @property
    def total(self) -> Ledger:
        """Returns everything that was released about the model's variables, by whichever model."""
        return self._total(0)

    def _total(self, ahead: int) -> Ledger:
        own, *others = self.ledgers
        own = own.ahead(ahead) if ahead else own
        return Ledger.joined([own, *others]) if others else own

    @property
    def examples_per_person(self) -> int:
        """Returns what releases before a plan were told, those of other models too; a plan says it from then on."""
        return max(ledger.examples_per_person for ledger in self.ledgers)

    @property
    def repeatable(self) -> bool:
        """Whether the last `fit` had a seed, so that files hold what it goes on with."""
        return self.secret is not None and self.secret.basis is not None

    @property
    def updates_left(self) -> int:
        """Returns the updates that the current plan still allows."""
        return 0 if self.plan is None else self.plan.updates - (self.ledger.updates - self.plan_start)

    def continued(self, request: FitRequest) -> Plan | None:
        """Returns the current plan if `request` goes on with it, else None."""
        alone = self._releases_of_others == self._count_others()  # the plan's budget knew of no more
        return self.plan if alone and self.updates_left > 0 and request.continues(self.request) else None

    def _count_others(self) -> int:
        return sum(ledger.releases for ledger in self.ledgers[1:])

    def join(self) -> None:
        """Takes the name of the first process: all that train together make its releases, and read its files."""
        self._name.take(backend.of_first(bytes.fromhex(self._name.own())).hex())

    def charge(self, release: Release, count: int = 1, most: int | None = None) -> None:
        """Adds releases to the ledger, before they are made; at `most` so many, with these, are alike."""
        ledger, name = self.ledger, self._name.own()
        if not ledger.origins or ledger.origins[-1][0] != name:
            ledger.origins = [*ledger.origins, [name, ledger.releases]]
        if self.journal is not None:
            most = self.updates_left if most is None else min(most, self.updates_left)
            self.journal.cover(ledger, release, count, most if release.kind == "gradient" else count)
        ledger.charge(release, count)

    def privacy(self, ahead: int = 0) -> Privacy:
        """Returns what was released so far, and `ahead` more updates like the last one, and what it costs."""
        total = self._total(ahead)
        plan = self.plan or total.plan
        # A plan under which nothing was released accounts for nothing.
        under = plan if self.ledger.releases else total.plan
        accountant: Any = under.accountant if under else accounting.get_accountant("pld")
        told = 1 if self.plan else total.examples_per_person  # the plan of another model may be for fewer
        group_size = max(told, plan.sampling.group_size if plan else 1)
        if sum(ledger.releases > 0 for ledger in self.ledgers) > 1:
            accountant = self.beside_filters(accountant, group_size)
        return Privacy(
            total,
            delta=plan.delta if plan else 1e-5,
            accountant=accountant,
            seeded=total.seeded,
            seeded_by_sample=total.seeded_by_sample,
            training_metrics=total.logged,
            steered=total.steered,
            watched=total.watched,
            row_wise=total.row_wise,
            bounded=total.bounded,
            unchecked=total.unchecked,
            adapted=total.adapted,
            uncharged=total.uncharged,
            ids_differ=total.ids_differ,
            unfinished=self._unfinished,
            generators=total.generators,
            examples_per_person=group_size,
            updates_of_others=total.updates - self.ledger.updates,
        )

    def _unfinished(self) -> tuple[int, int, Ledger] | None:
        """Returns how many updates of the plan were made, out of how many, and the ledger with all; None after all."""
        left = self.updates_left
        if self.plan is None or left < 1 or left == self.plan.updates or self.ledger.adaptive:
            return None
        return self.plan.updates - left, self.plan.updates, self._total(left)

    def beside_filters(self, accountant: Any, group_size: int) -> Any:
        """Returns what adds up all releases and more: `accountant`, or, beside filters, their whole budgets with it.

        Raises:
            ValueError: when a filter has kept its budget for another number of examples that change together.
        """
        filters = []
        for ledger in self.ledgers:
            one: Any = ledger.plan.accountant if ledger.plan and ledger.releases else None
            if not isinstance(one, Filter) or one.covers_adaptive:
                continue
            fixed = ledger.plan.sampling.group_size
            if fixed != group_size:
                raise ValueError(
                    "A filter keeps a budget for some of these weights, and it protects one unit. Received: "
                    f"examples_per_person={group_size}; fixed: {fixed}. Pass what was fixed, or train weights of your "
                    "own."
                )
            filters.append((one, ledger.mechanisms(group_size)))
        return SharedFilter(filters) if filters else accountant

    def refuse_spent(self, epsilon: float, delta: float, accountant: Any, group_size: int) -> None:
        """Refuses to plan for a budget that is used up."""
        total = self.total
        used = total.epsilon(delta, accountant, group_size)
        shown = f"epsilon={accounting.round_up(used):.4g} at delta={delta:g}"
        # Calibration leaves up to one per cent of a budget unused; that is not a budget to train on.
        shared = isinstance(accountant, SharedFilter)
        if used >= 0.99 * epsilon and not shared and {entry.kind for entry in total.entries} == {"moments"}:
            enough = _noise_of_half(total, epsilon, delta, accountant, group_size)
            raise ValueError(
                f"The budget: the moments that were released first alone cost {shown}. "
                f"Received: epsilon={epsilon!r}. Build a new model and give them a larger `noise_multiplier`, at about "
                f"{enough:.2g} they cost half of this budget; or give a larger budget."
            )
        if used >= 0.99 * epsilon:
            raise ValueError(
                f"The budget is spent: this model has released {shown} in "
                f"{total.updates} updates{_by_others(total.updates - self.ledger.updates)}"
                f"{', the whole budget of a filter included' if shared else ''}. Received: "
                f"epsilon={epsilon!r}. To train on, give a larger total budget; to start again, build a new model (its "
                "cost adds up outside of this ledger)."
            )

    def adopt(self, plan: Plan, request: FitRequest) -> None:
        """Makes `plan` the current one."""
        if plan is not self.plan:
            self.plan_start, self._releases_of_others = self.ledger.updates, self._count_others()
        self.ledger.plan, self.request = plan, request

    def attribute(self, variables: Iterable[Any]) -> None:
        """Notes that `variables` are about to be trained: whoever holds them holds what is charged from now on."""
        provenance.attribute(self._model, self.ledgers, variables)

    def to_array(self) -> np.ndarray:
        """Returns the state as JSON bytes, to stand beside the weights in every Keras file format."""
        own, *others = self.ledgers
        state = _ledger_state(own) | {
            "request": self.request.to_dict(persons=self.repeatable) if self.request else None,
            "plan_start": self.plan_start,
            "pass_key": self._kept_key(),
            "order": self.order.hex() if self.order and self.repeatable else None,
            "noise_std": list(self.noise_std),
            "secret": self._kept_secret(),
            "adaptive": self.importance,
            "others": [_ledger_state(ledger) for ledger in others],
            "releases_of_others": self._releases_of_others,
        }
        return np.frombuffer(json.dumps(files.stamped(state)).encode(), np.uint8)

    def _kept_key(self) -> tuple[int, ...] | None:
        """Returns what a file holds of the key of the epochs: nothing where it is secret and there was no seed."""
        secret = self.plan is not None and self.plan.sampling.scheme.allocates
        return None if secret and not self.repeatable else self.epoch_key

    def _kept_secret(self) -> list | None:
        """Returns what a file holds of the secret, so that a `fit` with a seed can go on; None without a seed."""
        if self.secret is not None and self.armed:
            self.secret.stand = self.secret.basis and seeding.stand_of(self.driver.model)
        return None if self.secret is None else self.secret.to_list()

    def restore(self, array: Any) -> None:
        """Takes over the state of a file; all of it or, after an error, nothing.

        A model that has itself released something keeps the longer ledger, and refuses a file unless one of the
        two ledgers is the other one, gone on with: forgetting a release would understate epsilon.
        """
        try:
            state = _unstamped(files.parse(np.asarray(array, np.uint8).tobytes()))
            ledger = _ledger_from(state)
            key = state.get("pass_key")  # files of earlier versions lack it
            values = {
                "request": FitRequest.from_dict(state["request"]) if state["request"] else None,
                "plan_start": int(state["plan_start"]),
                "noise_std": tuple(map(float, state["noise_std"])),
                "secret": seeding.Secret.from_list(state.get("secret")),
                "epoch_key": None if key is None else tuple(key),
                "importance": state.get("adaptive"),  # files of earlier versions lack it
                "_releases_of_others": int(state.get("releases_of_others", 0)),
            }
            if state.get("order") is not None:
                values["order"] = bytes.fromhex(state["order"])
            elif ledger != self.ledger or ledger.origins != self.ledger.origins:
                values["order"] = None
            others = [_ledger_from(other) for other in state.get("others", ())]
            check_plan(ledger, values["plan_start"], values["importance"])
        except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"The privacy ledger in the file is corrupt: {error!r}. Nothing was loaded.") from error
        if self.armed or not (self.ledger.covers(ledger) or ledger.covers(self.ledger)):
            if not self.rolls_back:  # Keras sets the weights of layers all the same: they bring their cost along
                provenance.attribute(self._model, [ledger, *others])
            raise Forgets(
                f"This model has made {self.ledger.releases} releases of its own, which loading another model's "
                "ledger would forget, be it a copy of this one that went on by itself. Received: a file with "
                f"{ledger.releases} releases. Load the file into a new model."
            )
        if ledger.releases >= self.ledger.releases:
            held = values["request"] and values["request"].persons
            ledger.ids = self.ledger.ids | ({held} if held else set())
            self.ledger.become(ledger)
            vars(self).update(values)
        # Which of them are trained the file does not say.
        provenance.attribute(self._model, provenance.distinct(self.ledger, others))


# What the statement says of a ledger, in words.
_WORDS = ("logged", "steered", "watched", "row_wise", "bounded", "unchecked", "adapted", "uncharged")


def _ledger_state(ledger: Ledger) -> dict:
    return {
        "ledger": json.loads(ledger.to_json()),
        "history": ledger.origins,
        "plan": ledger.plan.to_dict() if ledger.plan else None,
        "seeded": ledger.seeded,
        "seeded_by_sample": ledger.seeded_by_sample,
        **{name: list(getattr(ledger, name)) for name in _WORDS},
        "ids_differ": ledger.ids_differ,
        "examples_per_person": ledger.examples_per_person,
        "generators": list(ledger.generators),
    }


def _ledger_from(state: dict) -> Ledger:
    ledger = Ledger.from_json(json.dumps(state["ledger"]))
    origins = state["history"]
    if isinstance(origins, str):  # files of earlier versions hold the first name only
        origins = [[origins, 0]] if ledger.releases else []
    ledger.origins = [[str(name), int(start)] for name, start in origins]
    ledger.plan = Plan.from_dict(state["plan"]) if state["plan"] else None
    ledger.seeded = bool(state["seeded"])
    # Files of earlier versions lack these.
    ledger.seeded_by_sample = bool(state.get("seeded_by_sample", False))
    ledger.ids_differ = bool(state.get("ids_differ", False))
    ledger.examples_per_person = int(state.get("examples_per_person", 1))
    ledger.generators = tuple(map(str, state.get("generators", ["threefry64"] if ledger.releases else [])))
    for name in _WORDS:
        setattr(ledger, name, tuple(map(str, state.get(name, ()))))
    return ledger


def _noise_of_half(total: Ledger, epsilon: float, delta: float, accountant: Any, group_size: int) -> float:
    """Returns a noise multiplier with which all that was released would cost half of `epsilon`, to 5 % of it."""
    factor = 1.05
    while factor < 1e6:
        quieter = Ledger()
        for entry in total.entries:
            noise = factor * entry.noise_multiplier
            quieter.charge(dataclasses.replace(entry, noise_multiplier=noise, count=0), entry.count)
        if quieter.epsilon(delta, accountant, group_size) <= 0.5 * epsilon:
            break
        factor *= 1.05
    return factor * max(entry.noise_multiplier for entry in total.entries)


def _by_others(updates: int) -> str:
    return f", {updates} of them by other models that share its weights" if updates else ""


_KEYS = {"ledger", "history", "plan", "request", "plan_start", "pass_key", "noise_std", "seeded", "logged", "adaptive"}


def _unstamped(state: Any) -> dict:
    """Returns the state of a file, whose checksum must match; files of version 0.1.0 have none."""
    if not isinstance(state, dict):
        raise TypeError(f"a dictionary, not {type(state).__name__}")
    if files.has_stamp(state) or not state.keys() <= _KEYS:
        try:
            state = files.unstamped(state)
        except ValueError as error:
            said = f"The privacy ledger in the file is corrupt: {error}. Nothing was loaded. Take another copy."
            raise ValueError(said) from error
    return state


def check_plan(ledger: Ledger, start: int, importance: dict | None) -> None:
    """Refuses a state whose plan charges other updates than its ledger holds: one of the two has lost releases."""
    plan = ledger.plan
    if plan is None:
        return
    reason, seen = None, 0
    if not 0 <= start <= ledger.updates:
        reason = f"the plan began after {start} updates"
    for release in ledger.entries:
        if release.kind != "gradient":
            continue
        seen += release.count
        if seen > start and importance is None:
            charged = release.noise_multiplier, release.sampling
            if charged != (plan.noise_multiplier, plan.sampling.for_group(1)):
                reason = f"the plan has noise multiplier {plan.noise_multiplier!r} and {plan.sampling}"
    if importance is not None:
        done, each = importance["state"], importance["arguments"]["updates_per_epoch"]
        made = (done["epoch"] - 1) * each + done["updates"] if done["epoch"] else 0
        if made > ledger.updates - start:
            reason = f"the plan has made {made} updates since update {start}"
    if reason:
        raise ValueError(
            f"Plan and ledger in the file disagree: {reason}. Received: a ledger with {ledger.updates} updates, "
            f"{ledger.entries!r}. Nothing was loaded. Take another copy of the file."
        )
