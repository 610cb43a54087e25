"""The plan that a budget allows, for what a model has released already."""

from __future__ import annotations

from typing import Any

from lipdp import accounting
from lipdp.accounting import Accountant, Filter, risk_budget
from lipdp.privacy import Plan
from lipdp.training.request import FitRequest
from lipdp.training.state import Run


def plan_for(run: Run, request: FitRequest) -> Plan:
    """Returns the plan under which the updates asked for may run, without changing anything.

    Raises:
        ValueError: the budget is spent, or neither budget nor noise is given.
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
    if request.risk is not None:
        used: dict[str, Any] = {"accountant": accountant, "spent": total.mechanisms(scheme.group_size)}
        noise = risk_budget.noise_for(request.risk, updates=request.updates, sampling=scheme, **used)
    if epsilon is None and noise is None:
        raise ValueError(
            "No privacy budget given. Received: epsilon=None, noise_multiplier=None. Pass `fit(epsilon=1.0, "
            "delta=1e-5)` for a budget, `fit(risk={'advantage': 0.1})` for a bound on what attacks can do, or "
            "`fit(noise_multiplier=1.1)`."
        )
    terms: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "accountant": accountant}
    if epsilon is None:
        return Plan(sampling=scheme, updates=request.updates, noise_multiplier=noise, **terms)
    run.refuse_spent(epsilon, delta, accountant, scheme.group_size)
    spent = total.mechanisms(scheme.group_size)
    if noise is None:
        return Plan.calibrated(sampling=scheme, updates=request.updates, spent=spent, **terms)
    allowed = accounting.max_updates(sampler=scheme, noise_multiplier=noise, spent=spent, **terms)
    if allowed < 1:
        raise ValueError(
            f"One update with noise_multiplier={noise!r} already costs more than what is left of "
            f"epsilon={epsilon!r}. Raise `noise_multiplier`, or leave it out to have it calibrated."
        )
    return Plan(sampling=scheme, updates=min(allowed, request.updates), noise_multiplier=noise, **terms)


def _accountant(run: Run, request: FitRequest) -> Accountant:
    """Returns the accountant; a filter has its order, budget and unit from before the first release."""
    present: Any = run.plan.accountant if run.plan and run.ledger.releases else None
    accountant = request.accountant
    if len(run.ledgers) > 1 and (accountant == "filter" or isinstance(present, Filter)):
        raise ValueError(
            "A filter keeps its budget only while it charges everything itself. Received: accountant="
            f"{getattr(present or accountant, 'name', accountant)!r} on weights that another model has trained as "
            "well. Use accountant='pld' in a new model that shares them, or train weights of your own."
        )
    if accountant == "filter":
        if present is None:
            accountant = _planned_filter(request)
        elif not isinstance(present, Filter):
            raise ValueError(
                "A filter must be there before the first release: its order and budget may not depend on results. "
                f"Received: accountant='filter' after {run.ledger.updates} updates under {present.name!r}. Use "
                f"accountant={present.name!r}, or build a new model."
            )
        else:
            accountant = present
    accountant = accounting.get_accountant(accountant)
    if not isinstance(accountant, Filter):
        return accountant
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
