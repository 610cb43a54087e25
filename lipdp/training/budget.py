"""The plan that a budget allows, for what a model has released already."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

from lipdp import accounting, checks, isolation
from lipdp.accounting import Accountant, Filter, Mechanism, risk_budget
from lipdp.privacy import Plan, Release
from lipdp.training.request import FitRequest
from lipdp.training.state import Run


def plan_for(run: Run, request: FitRequest) -> Plan:
    """Returns the plan under which the updates asked for may run, without changing anything.

    Raises:
        ValueError: the budget is spent, neither budget nor noise is given, or no cost is known of everything together.
    """
    continued = run.continued(request)
    if continued is not None:
        return continued
    total = run.total
    total.check_unit(request.sampling)
    if total.adaptive:
        raise ValueError(
            "These weights were trained with an adaptive strategy (DPIS), whose releases are accounted at one order. "
            f"Received: strategy={request.strategy.name!r}. Go on with DPIS, or build a new model (its cost adds "
            "up outside of this ledger)."
        )
    accountant = _accountant(run, request)
    # Nothing may pass a filter's budget.
    epsilon = accountant.budget if request.epsilon is None else request.epsilon
    noise, delta, scheme = request.noise_multiplier, request.delta, request.sampling
    plan: dict[str, Any] = {"sampling": scheme, "delta": delta, "epsilon": epsilon, "accountant": accountant}
    if len(run.ledgers) > 1:
        accountant = run.beside_filters(accountant, scheme.group_size)
    spent = total.mechanisms(scheme.group_size)
    _check_sum(spent, Mechanism.of_updates(None, noise or 1.0, 1, scheme), delta, accountant)
    if request.risk is not None:
        used: dict[str, Any] = {"accountant": accountant, "spent": spent}
        noise = risk_budget.noise_for(request.risk, updates=request.updates, sampling=scheme, **used)
    if epsilon is None and noise is None:
        raise ValueError(
            "No privacy budget given. Received: epsilon=None, noise_multiplier=None. Pass `fit(epsilon=1.0, "
            "delta=1e-5)` for a budget, `fit(risk={'advantage': 0.1})` for a bound on what attacks can do, or "
            "`fit(noise_multiplier=1.1)`."
        )
    if epsilon is None:
        return Plan(updates=request.updates, noise_multiplier=noise, **plan)
    run.refuse_spent(epsilon, delta, accountant, scheme.group_size)
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "accountant": accountant, "sampler": scheme}
    if noise is None:
        noise = accounting.calibrate(updates=request.updates, spent=spent, **terms)
        return Plan(updates=request.updates, noise_multiplier=noise, **plan)
    allowed = accounting.max_updates(noise_multiplier=noise, spent=spent, **terms)
    if allowed < 1:
        raise ValueError(
            f"One update with noise_multiplier={noise!r} already costs more than what is left of "
            f"epsilon={epsilon!r}. Raise `noise_multiplier`, or leave it out to have it calibrated."
        )
    return Plan(updates=min(allowed, request.updates), noise_multiplier=noise, **plan)


def check_earlier_budgets(run: Run, request: FitRequest) -> None:
    """Refuses a `fit` that would drop the persons whom earlier ones protect; warns of other ids, delta or risk.

    Args:
        run: The state of the model.
        request: A `fit` that does not go on with the plan before.

    Raises:
        ValueError: Earlier releases protect persons with more examples.
    """
    plans = [ledger.plan for ledger in run.ledgers if ledger.plan is not None and ledger.releases]
    most = max([run.examples_per_person, *(plan.sampling.group_size for plan in plans)])
    if request.sampling.group_size < most:
        raise ValueError(
            f"Earlier training of these weights protects persons with up to {most} examples, and their epsilon would "
            f"grow unseen. Received: examples_per_person={request.sampling.group_size}. Pass "
            f"examples_per_person={most} again."
        )
    persons, number = request.persons, request.sampling.num_examples
    if persons is not None and any(ledger.of_other_ids(persons, number) for ledger in run.ledgers):
        warnings.warn(
            f"Earlier training of these weights drew persons by other ids. Received: `person_ids` of {number} persons, "
            "other than before or in another order. Epsilon of all of it together holds for who is one "
            "person, with all rows, by the ids of all fits, as with more rows of the same persons. Where one person of "
            "these ids is several of those before, or the reverse, build a new model (its cost adds up outside of this "
            "ledger).",
            stacklevel=checks.users_line(),
        )
    least = min((plan.delta for plan in plans), default=1.0)
    if request.delta > least and request.epsilon is not None:
        warnings.warn(
            f"Earlier training of these weights had a budget at delta={least:g}, and this one is at a larger delta. "
            f"Received: delta={request.delta:g}. Epsilon is stated at this one from now on; pass delta={least:g} to "
            "keep to the budget before.",
            stacklevel=checks.users_line(),
        )
    if run.request is not None and run.request.risk is not None and request.risk is None:
        warnings.warn(
            f"Earlier training of these weights was to keep the risk {run.request.risk!r}, and this one is not bound "
            "by it. Pass the same `risk` in place of a budget to keep it.",
            stacklevel=checks.users_line(),
        )


def unchecked(strategy: Any, accountant: Any) -> set[str]:
    """Returns which of them is the user's own, for the statement: what it says of itself is believed."""
    given = {"strategy": type(strategy), "accountant": type(accountant)}
    return {f"{what} {kind.__name__}" for what, kind in given.items() if isolation.root(kind) != "lipdp"}


def check_moments(run: Run, release: Release, count: int, group_size: int) -> None:
    """Refuses moments that no plan has counted, where nothing could be stated once they were released.

    Args:
        run: The state of the model.
        release: One of the moments.
        count: How many of them.
        group_size: How many examples of one person they were told of.

    Raises:
        ValueError: They protect another unit, no cost is known of everything together, or a filter's budget ends.
    """
    total, plan = run.total, run.plan
    total.check_unit(release.sampling)
    size = plan.sampling.group_size if plan else max(run.examples_per_person, group_size)
    accountant: Any = plan.accountant if plan else accounting.get_accountant("pld")
    delta = plan.delta if plan else 1e-5
    planned = dataclasses.replace(release, count=count).mechanism(size)
    charged = [*run.ledger.mechanisms(size), planned]
    if isinstance(accountant, Filter) and math.isinf(accounting.guarantee(charged, delta, accountant)):
        raise ValueError(
            "These moments cost more than is left of the filter's budget. Received: "
            f"noise_multiplier={release.noise_multiplier!r} after {run.ledger.releases} releases. Pass a larger one."
        )
    if len(run.ledgers) > 1:
        accountant = run.beside_filters(accountant, size)
    _check_sum(total.mechanisms(size), planned, delta, accountant)


def _check_sum(spent: tuple[Mechanism, ...], planned: Mechanism, delta: float, accountant: Accountant) -> None:
    """Refuses to plan what could not be stated together with what was released."""
    accounting.common_relation([*spent, planned])
    if accountant != accounting.get_accountant("pld"):  # it has a bound for every mechanism, and takes longer
        accounting.compose([*spent, planned], delta, accountant)


def _accountant(run: Run, request: FitRequest) -> Accountant:
    """Returns the accountant; a filter has its order, budget and unit from before the first release."""
    released = run.ledger.releases - run.planned_moments
    present: Any = run.plan.accountant if run.plan and released else None
    accountant: Any = request.accountant
    if accountant != "filter":
        accountant = accounting.get_accountant(accountant)
    asked = accountant == "filter" or isinstance(accountant, Filter)
    if len(run.ledgers) > 1 and (asked or isinstance(present, Filter)):
        raise ValueError(
            "A filter keeps its budget only while it charges everything itself. Received: accountant="
            f"{getattr(present or accountant, 'name', accountant)!r} on weights that another model has trained as "
            "well. Use accountant='pld' in a new model that shares them, or train weights of your own."
        )
    if not asked:
        _refuse_to_leave(present, accountant)
        return accountant
    if released and not isinstance(present, Filter):
        name = accounting.get_accountant(present or "pld").name
        raise ValueError(
            "A filter must be there before the first release: its order and budget may not depend on results. "
            f"Received: accountant={getattr(accountant, 'name', accountant)!r} after {released} "
            f"release{'s' if released > 1 else ''} without one. Use accountant={name!r}, or build a new model."
        )
    if accountant == "filter":
        accountant = _planned_filter(request) if present is None else present
    if accountant.covers_adaptive and accountant != present:
        raise ValueError(
            "Such an accountant is what importance sampling writes into its ledger. Received: "
            f"accountant={accountant.name!r}. Pass strategy='dpis' with epsilon=..., which chooses its order, or "
            "accountant='pld', 'rdp' or 'filter'."
        )
    if present is not None:
        if accountant != present:
            raise ValueError(
                "Order and budget of a filter are fixed before the first release. Received: "
                f"accountant={accountant.name!r} after {run.ledger.updates} updates. Use accountant='filter' for "
                "the one there is, or a new model."
            )
        _refuse_other_unit(run, request)
    if request.delta != accountant.delta or (request.epsilon is not None and request.epsilon > accountant.budget):
        raise ValueError(
            "The filter's budget was fixed before the first release and cannot grow. Received: "
            f"epsilon={request.epsilon!r}, delta={request.delta!r}; fixed: epsilon={accountant.budget!r}, "
            f"delta={accountant.delta!r}. Pass no larger epsilon and this delta. To keep a part for "
            "later, give the whole budget to the first fit, and a noise_multiplier of its own."
        )
    return accountant


def _refuse_to_leave(present: Any, accountant: Accountant) -> None:
    """Refuses to state by another accountant what only the budget of a filter covers."""
    if isinstance(present, Filter) and not present.covers_adaptive:
        raise ValueError(
            "A model that began with a filter keeps its budget: noise that was chosen on the way is covered by nothing "
            f"else. Received: accountant={accountant.name!r} after releases under {present.name!r}. Use "
            "accountant='filter', or build a new model (its cost adds up outside of this ledger)."
        )


def _refuse_other_unit(run: Run, request: FitRequest) -> None:
    """Refuses to change what a filter protects: it bounds the cost of one unit only on the paths not taken."""
    now, fixed = request.sampling, run.plan.sampling
    if (now.group_size, now.relation) != (fixed.group_size, fixed.relation):
        raise ValueError(
            "A filter protects one unit, fixed before the first release. Received: "
            f"examples_per_person={now.group_size} and sampling={now.name!r} (relation {now.relation!r}); fixed: "
            f"examples_per_person={fixed.group_size} and relation {fixed.relation!r}. Pass what was fixed, or build a "
            "new model (its cost adds up outside of this ledger)."
        )


def _planned_filter(request: FitRequest) -> Filter:
    """Returns the filter whose order suits the planned run."""
    if request.epsilon is None:
        raise ValueError(
            "A filter needs a budget that is fixed in advance. Received: accountant='filter', epsilon=None, "
            f"risk={request.risk!r}. Pass the largest epsilon you may ever want to spend, in place of a risk."
        )
    terms: dict[str, Any] = {"epsilon": request.epsilon, "delta": request.delta}
    run: dict[str, Any] = {"sampler": request.sampling, "updates": request.updates}
    noise = request.noise_multiplier or accounting.calibrate(**terms, accountant="rdp", **run)
    mechanism = accounting.Mechanism.of_updates(noise_multiplier=noise, **run)
    return accounting.plan_filter(**terms, mechanism=mechanism)
