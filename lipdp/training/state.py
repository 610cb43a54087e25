"""What a model remembers about its own training: ledger, plan and where it stands."""

from __future__ import annotations

import json
import operator
import uuid
from typing import Any

import numpy as np

from lipdp import files
from lipdp.privacy import Ledger, Plan, Privacy, Release
from lipdp.privacy.journal import Journal
from lipdp.training.request import FitRequest


class Run:
    """The privacy state of one model. It is saved in the model file.

    Attributes:
        ledger: Everything released so far.
        history: Where the ledger comes from: pairs of the random name of a `Run` that charged to it, and how many
            releases there were before. Copies of one model share it until one of them goes on.
        plan: The plan of the last `fit`, or None.
        request: What asked for the plan: a `fit` that asks for the same continues it.
        plan_start: Number of updates in the ledger when the plan began.
        epoch_key: Key of the permutations of the plan's epochs, if it shuffles.
        importance: Where a plan of importance sampling stands: arguments and state of its budget, all public; or None.
        noise_std: Noise standard deviation per trainable variable in the last `fit`.
        seeded: Whether any `fit` used a fixed seed.
        logged: Names of training metrics that were logged, which the guarantee does not cover.
        driver: What carries out the present or last `fit`, or None before the first.
        traced: What the compiled step was traced for.
        tracing: Whether a training step is being traced right now.
        armed: Whether `fit` is running.
        executing: Whether the present `fit` has finished its first execution.
        load_error: Why loading this model's state failed, if it did.
        journal: Where releases are reserved before they are made, while `fit` keeps a checkpoint; else None.
    """

    def __init__(self):
        self.ledger = Ledger()
        self.history: list[list] = []
        self._name = uuid.uuid4().hex
        self.plan: Plan | None = None
        self.request: FitRequest | None = None
        self.plan_start = 0
        self.epoch_key: tuple[int, int] | None = None
        self.importance: dict | None = None
        self.noise_std: tuple[float, ...] = ()
        self.seeded = False
        self.logged: tuple[str, ...] = ()
        self.driver: Any = None
        self.traced: tuple | None = None
        self.tracing = self.armed = self.executing = False
        self.load_error: ValueError | None = None
        self.journal: Journal | None = None

    @property
    def updates_left(self) -> int:
        """Returns the updates that the current plan still allows."""
        return 0 if self.plan is None else self.plan.updates - (self.ledger.updates - self.plan_start)

    def continued(self, request: FitRequest) -> Plan | None:
        """Returns the current plan if `request` goes on with it, else None."""
        return self.plan if self.updates_left > 0 and request.continues(self.request) else None

    def charge(self, release: Release, count: int = 1, most: int | None = None) -> None:
        """Adds releases to the ledger, before they are made; at `most` so many, with these, are alike."""
        if not self.history or self.history[-1][0] != self._name:
            self.history = [*self.history, [self._name, self.ledger.releases]]
        if self.journal is not None:
            most = self.updates_left if most is None else min(most, self.updates_left)
            self.journal.cover(self.ledger, self.history, release, count, most if release.kind == "gradient" else count)
        self.ledger.charge(release, count)

    def privacy(self) -> Privacy:
        """Returns what was released so far and what it costs."""
        return Privacy(
            self.ledger,
            delta=self.plan.delta if self.plan else 1e-5,
            accountant=self.plan.accountant if self.plan else "pld",
            seeded=self.seeded,
            training_metrics=self.logged,
            examples_per_person=self.plan.sampling.group_size if self.plan else 1,
        )

    def refuse_spent(self, epsilon: float, delta: float, accountant: Any, group_size: int) -> None:
        """Refuses to plan for a budget that is used up."""
        used = self.ledger.epsilon(delta, accountant, group_size)
        # Calibration leaves up to one per cent of a budget unused; that is not a budget to train on.
        if used >= 0.99 * epsilon:
            raise ValueError(
                f"The budget is spent: this model has released epsilon={used:.4g} at delta={delta:g} in "
                f"{self.ledger.updates} updates. Received: epsilon={epsilon!r}. To train on, give a larger "
                "total budget; to start again, build a new model (its cost adds up outside of this ledger)."
            )

    def adopt(self, plan: Plan, request: FitRequest) -> None:
        """Makes `plan` the current one."""
        if plan is not self.plan:
            self.plan_start = self.ledger.updates
        self.plan, self.request = plan, request

    def to_array(self) -> np.ndarray:
        """Returns the state as JSON bytes, to stand beside the weights in every Keras file format."""
        state = {
            "ledger": json.loads(self.ledger.to_json()),
            "history": self.history,
            "plan": self.plan.to_dict() if self.plan else None,
            "request": self.request.to_dict() if self.request else None,
            "plan_start": self.plan_start,
            "pass_key": self.epoch_key,
            "noise_std": list(self.noise_std),
            "seeded": self.seeded,
            "logged": list(self.logged),
            "adaptive": self.importance,
        }
        return np.frombuffer(json.dumps(files.stamped(state)).encode(), np.uint8)

    def restore(self, array: Any) -> None:
        """Takes over the state of a file; all of it or, after an error, nothing.

        A model that has itself released something keeps the longer ledger, and refuses a file unless one of the
        two ledgers is the other one, gone on with: forgetting a release would understate epsilon.
        """
        try:
            state = _unstamped(files.parse(np.asarray(array, np.uint8).tobytes()))
            ledger = Ledger.from_json(json.dumps(state["ledger"]))
            history = state["history"]
            if isinstance(history, str):  # files of earlier versions hold the first name only
                history = [[history, 0]] if ledger.releases else []
            key = state.get("pass_key")  # files of earlier versions lack it
            values = {
                "ledger": ledger,
                "history": [[str(name), int(start)] for name, start in history],
                "plan": Plan.from_dict(state["plan"]) if state["plan"] else None,
                "request": FitRequest.from_dict(state["request"]) if state["request"] else None,
                "plan_start": int(state["plan_start"]),
                "noise_std": tuple(map(float, state["noise_std"])),
                "seeded": bool(state["seeded"]),
                "logged": tuple(map(str, state["logged"])),
                "epoch_key": None if key is None else tuple(key),
                "importance": state.get("adaptive"),  # files of earlier versions lack it
            }
            check_plan(ledger, values["plan"], values["plan_start"], values["importance"])
        except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"The privacy ledger in the file is corrupt: {error!r}. Nothing was loaded.") from error
        if not self.shares(ledger, values["history"]):
            raise ValueError(
                f"This model has released {self.ledger.updates} updates of its own, which loading another model's "
                "ledger would forget, be it a copy of this one that went on by itself. Received: a file with "
                f"{ledger.updates} updates. Load the file into a new model."
            )
        if ledger.releases >= self.ledger.releases:
            vars(self).update(values)

    def shares(self, ledger: Ledger, history: list) -> bool:
        """Returns whether this ledger and that one are two moments of one history."""
        shorter, longer = sorted((self.ledger, ledger), key=lambda each: each.releases)
        # Equal releases are not enough: two copies may have made the same ones, each with noise of its own.
        origins = ([part for part in each if part[1] < shorter.releases] for each in (self.history, history))
        return longer.continues(shorter) and operator.eq(*origins)


_KEYS = {"ledger", "history", "plan", "request", "plan_start", "pass_key", "noise_std", "seeded", "logged", "adaptive"}


def _unstamped(state: Any) -> dict:
    """Returns the state of a file, whose checksum must match; files of version 0.1.0 have none."""
    if not isinstance(state, dict):
        raise TypeError(f"a dictionary, not {type(state).__name__}")
    if files.has_stamp(state) or not state.keys() <= _KEYS:
        try:
            state = files.unstamped(state)
        except ValueError as error:
            raise ValueError(
                f"The privacy ledger in the file is corrupt: {error}. Nothing was loaded. Take another copy."
            ) from error
    return state


def check_plan(ledger: Ledger, plan: Plan | None, start: int, importance: dict | None) -> None:
    """Refuses a state whose plan charges other updates than its ledger holds: one of the two has lost releases."""
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
