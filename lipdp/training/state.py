"""What a model remembers about its own training: plan, ledger and settings."""

import json
import operator
import uuid
from dataclasses import dataclass

import numpy as np

from lipdp import accounting
from lipdp.privacy.guarantee import Privacy
from lipdp.privacy.ledger import Ledger, Release
from lipdp.privacy.plan import Plan


@dataclass(frozen=True)
class Settings:
    """Constants that the compiled training step depends on."""

    batch_size: int
    chunk: int | None
    training_metrics: bool
    strategy: str = ""
    traced: str = ""


class Run:
    """The privacy state of one model. It is saved in the model file.

    Attributes:
        ledger: Everything released so far.
        history: Where the ledger comes from: pairs of the random name of a `Run` that charged to it, and how many
            releases there were before. Copies of one model share it until one of them goes on.
        plan: The plan of the last `fit`, or None.
        request: The arguments that made the plan: a `fit` with the same ones continues it.
        plan_start: Number of updates in the ledger when the plan began.
        pass_key: Key of the permutations of the plan's passes over the data, if it shuffles.
        settings: Constants of the compiled step, or None before the first `fit`.
        strategy: The strategy of the present or last `fit`, or None before the first.
        adaptive: Where an adaptive plan (DPIS) stands: arguments and state of its budget, all public; or None.
        conductor: What carries out the updates of an adaptive plan in the present `fit`.
        noise_std: Noise standard deviation per trainable variable in the last `fit`.
        seeded: Whether any `fit` used a fixed seed.
        tracing_training: Whether a training step is being traced right now.
        armed: Whether `fit` is running.
        executing: Whether the present `fit` has finished its first execution.
        load_error: Why loading this model's state failed, if it did.
        logged: Names of training metrics that were logged, which the guarantee does not cover.
    """

    def __init__(self):
        self.ledger = Ledger()
        self.history: list[list] = []
        self._name = uuid.uuid4().hex
        self.plan: Plan | None = None
        self.request: dict | None = None
        self.plan_start = 0
        self.pass_key: tuple[int, int] | None = None
        self.settings: Settings | None = None
        self.strategy = None
        self.adaptive: dict | None = None
        self.conductor = None
        self.noise_std: tuple[float, ...] = ()
        self.seeded = False
        self.logged: tuple[str, ...] = ()
        self.tracing_training = False
        self.armed = self.executing = False
        self.load_error: ValueError | None = None

    @property
    def updates_left(self) -> int:
        """Updates that the current plan still allows."""
        return 0 if self.plan is None else self.plan.updates - (self.ledger.updates - self.plan_start)

    def charge(self, release: Release, count: int = 1) -> None:
        """Adds releases to the ledger, before they are made."""
        if not self.history or self.history[-1][0] != self._name:
            self.history = [*self.history, [self._name, self.ledger.releases]]
        self.ledger.charge(release, count)

    def privacy(self) -> Privacy:
        return Privacy(
            self.ledger,
            delta=self.plan.delta if self.plan else 1e-5,
            accountant=self.plan.accountant if self.plan else "pld",
            seeded=self.seeded,
            training_metrics=self.logged,
            examples_per_person=self.plan.sampling.group_size if self.plan else 1,
        )

    def plan_for(self, request: dict, wanted: int) -> Plan:
        """The plan under which `wanted` more updates may run, without changing anything.

        Args:
            request: `num_examples`, `batch_size`, `epsilon`, `noise_multiplier`, `delta`, `accountant`,
                `strategy`, `sampler`, `capacity`, `examples_per_person`.
            wanted: Updates asked for, >= 1.

        Raises:
            ValueError: the budget is spent, or neither budget nor noise is given.
        """
        if request == self.request and self.updates_left > 0:
            return self.plan
        if self.ledger.adaptive:
            raise ValueError(
                "This model was trained with an adaptive strategy (DPIS), whose releases are accounted at one order. "
                f"Received: strategy={request['strategy'][0]!r}. Go on with DPIS, or build a new model (its cost adds "
                "up outside of this ledger)."
            )
        sampling = _sampling(request)
        accountant = self._accountant(request, sampling, wanted)
        epsilon, noise, delta = request["epsilon"], request["noise_multiplier"], request["delta"]
        if epsilon is None:
            epsilon = accountant.budget  # nothing may pass a filter's budget
        public = {"sampling": sampling, "delta": delta, "accountant": accountant}
        if epsilon is None and noise is None:
            raise ValueError(
                "Say how private the training must be: `fit(epsilon=1.0, delta=1e-5)` for a budget, or "
                "`fit(noise_multiplier=1.1)`. Received: neither."
            )
        if epsilon is None:
            return Plan(updates=wanted, noise_multiplier=noise, epsilon=None, **public)
        spent = self.ledger.mechanisms(sampling.group_size)
        self._refuse_spent(epsilon, delta, accountant, sampling.group_size)
        if noise is None:
            return Plan.calibrated(updates=wanted, epsilon=epsilon, spent=spent, **public)
        allowed = accounting.max_updates(
            epsilon=epsilon,
            delta=delta,
            sampler=sampling,
            noise_multiplier=noise,
            accountant=accountant,
            spent=spent,
        )
        if allowed < 1:
            raise ValueError(
                f"One update with noise_multiplier={noise!r} already costs more than what is left of "
                f"epsilon={epsilon!r}. Raise `noise_multiplier`, or leave it out to have it calibrated."
            )
        return Plan(updates=min(allowed, wanted), noise_multiplier=noise, epsilon=epsilon, **public)

    def _accountant(self, request, sampling, wanted) -> accounting.Accountant:
        """The accountant; a filter has its order, budget and unit from before the first release."""
        present = self.plan.accountant if self.plan and self.ledger.updates else None
        filtered = present is not None and present.budget is not None
        if request["accountant"] != "filter":
            accountant = accounting.get_accountant(request["accountant"])
        elif present is None:
            accountant = _planned_filter(request, sampling, wanted)
        elif filtered:
            accountant = present
        else:
            raise ValueError(
                "A filter must be there before the first release: its order and budget may not depend on results. "
                f"Received: accountant='filter' after {self.ledger.updates} updates under {present.name!r}. Use "
                f"accountant={present.name!r}, or build a new model."
            )
        if accountant.budget is None:
            return accountant
        if present is not None:
            if accountant != present:
                raise ValueError(
                    "Order and budget of a filter are fixed before the first release. Received: "
                    f"accountant={request['accountant']!r} after {self.ledger.updates} updates. Use "
                    "accountant='filter' for the one there is, or a new model."
                )
            self._refuse_other_unit(sampling)
        wish, delta = request["epsilon"], request["delta"]
        if delta != accountant.delta or (wish is not None and wish > accountant.budget):
            raise ValueError(
                "The filter's budget was fixed before the first release and cannot grow. Received: epsilon="
                f"{wish!r}, delta={delta!r}; fixed: epsilon={accountant.budget!r}, delta={accountant.delta!r}. Pass no "
                "larger epsilon and this delta."
            )
        return accountant

    def _refuse_other_unit(self, sampling) -> None:
        """Refuses to change what a filter protects: it bounds the cost of one unit only on the paths not taken."""
        unit = (sampling.group_size, sampling.relation)
        fixed = (self.plan.sampling.group_size, self.plan.sampling.relation)
        if unit != fixed:
            raise ValueError(
                "A filter protects one unit, fixed before the first release. Received: "
                f"examples_per_person={unit[0]} and sampling={sampling.name!r} (relation {unit[1]!r}); fixed: "
                f"examples_per_person={fixed[0]} and relation {fixed[1]!r}. Pass what was fixed, or build a new model "
                "(its cost adds up outside of this ledger)."
            )

    def _refuse_spent(self, epsilon, delta, accountant, group_size) -> None:
        used = self.ledger.epsilon(delta, accountant, group_size)
        # Calibration leaves up to one per cent of a budget unused; that is not a budget to train on.
        if used >= 0.99 * epsilon:
            raise ValueError(
                f"The budget is spent: this model has released epsilon={used:.4g} at delta={delta:g} in "
                f"{self.ledger.updates} updates. Received: epsilon={epsilon!r}. To train on, give a larger "
                "total budget; to start again, build a new model (its cost adds up outside of this ledger)."
            )

    def adopt(self, plan: Plan, request: dict) -> None:
        """Makes `plan` the current one."""
        if plan is not self.plan:
            self.plan_start = self.ledger.updates
        self.plan, self.request = plan, request

    def to_array(self) -> np.ndarray:
        """The state as JSON bytes, to stand beside the weights in every Keras file format."""
        state = {
            "ledger": json.loads(self.ledger.to_json()),
            "history": self.history,
            "plan": self.plan.to_dict() if self.plan else None,
            "request": self.request,
            "plan_start": self.plan_start,
            "pass_key": self.pass_key,
            "noise_std": list(self.noise_std),
            "seeded": self.seeded,
            "logged": list(self.logged),
            "adaptive": self.adaptive,
        }
        return np.frombuffer(json.dumps(state).encode(), np.uint8)

    def restore(self, array) -> None:
        """Takes over the state of a file; all of it or, after an error, nothing.

        A model that has itself released something keeps the longer ledger, and refuses a file unless one of the
        two ledgers is the other one, gone on with: forgetting a release would understate epsilon.
        """
        try:
            state = json.loads(np.asarray(array, np.uint8).tobytes())
            ledger = Ledger.from_json(json.dumps(state["ledger"]))
            history = state["history"]
            if isinstance(history, str):  # files of earlier versions hold the first name only
                history = [[history, 0]] if ledger.releases else []
            key = state.get("pass_key")  # files of earlier versions lack it
            taken = {
                "ledger": ledger,
                "history": [[str(name), int(start)] for name, start in history],
                "plan": Plan.from_dict(state["plan"]) if state["plan"] else None,
                "request": state["request"],
                "plan_start": int(state["plan_start"]),
                "noise_std": tuple(map(float, state["noise_std"])),
                "seeded": bool(state["seeded"]),
                "logged": tuple(map(str, state["logged"])),
                "pass_key": None if key is None else tuple(key),
                "adaptive": state.get("adaptive"),  # files of earlier versions lack it
            }
        except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"The privacy ledger in the file is corrupt: {error!r}. Nothing was loaded.") from error
        if not self._shares(ledger, taken["history"]):
            raise ValueError(
                f"This model has released {self.ledger.updates} updates of its own, which loading another model's "
                "ledger would forget, be it a copy of this one that went on by itself. Received: a file with "
                f"{ledger.updates} updates. Load the file into a new model."
            )
        if ledger.releases >= self.ledger.releases:
            vars(self).update(taken)

    def _shares(self, ledger: Ledger, history) -> bool:
        """Whether this ledger and that one are two moments of one history."""
        shorter, longer = sorted((self.ledger, ledger), key=lambda each: each.releases)
        # Equal releases are not enough: two copies may have made the same ones, each with noise of its own.
        origins = ([part for part in each if part[1] < shorter.releases] for each in (self.history, history))
        return longer.continues(shorter) and operator.eq(*origins)


def _sampling(request: dict) -> accounting.Sampling:
    sampling = accounting.Sampling(request["sampler"], request["capacity"])
    return sampling.bind(request["num_examples"], request["batch_size"], request["examples_per_person"])


def _planned_filter(request: dict, sampling, wanted: int) -> accounting.Filter:
    """The filter whose order suits the planned run."""
    if request["epsilon"] is None:
        raise ValueError(
            "A filter needs a budget that is fixed in advance. Received: accountant='filter', epsilon=None. "
            "Pass the largest epsilon you may ever want to spend."
        )
    budget = {"epsilon": request["epsilon"], "delta": request["delta"]}
    noise = request["noise_multiplier"] or accounting.calibrate(
        **budget, accountant="rdp", sampler=sampling, updates=wanted
    )
    return accounting.plan_filter(**budget, mechanism=accounting.Mechanism.of_updates(None, noise, wanted, sampling))
