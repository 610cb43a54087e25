"""What the stated epsilon assumes about when plans were chosen, in words."""

from lipdp.accounting import Accountant
from lipdp.privacy import statement


def keeps_budget(accountant: Accountant) -> bool:
    """Returns whether `fit` has kept to order and budget from the first release on; with DPIS that is only assumed."""
    return accountant.budget is not None and not accountant.covers_adaptive


def in_words(facts: dict, accountant: Accountant) -> str:
    """Returns the sentences of the statement.

    Args:
        facts: what `Privacy.to_dict` returned.
        accountant: what has computed epsilon.
    """
    spent = statement.shown(facts["epsilon_spent"])
    if accountant.shared:
        return (
            "The stated epsilon counts the whole budget of a filter, which was fixed before its first release. That "
            "part also holds when noise, batch size or length of later fits under the filter were chosen in view of "
            "earlier results. What models without it released beside it is added at the order of the filter; only "
            "the plans of these must not have followed from results."
        )
    if keeps_budget(accountant):
        return (
            "The stated epsilon is a budget that was fixed in advance. It also holds when noise, batch size or "
            f"length of later fits were chosen in view of earlier results. Used up so far: {spent}."
        )
    if facts["adaptive"]:
        return (
            "Noise, sampling and clip norm of each epoch followed from noisy sums released before. A privacy "
            "filter covers that: costs add up at one order, up to a budget. The stated epsilon is that budget. It "
            "assumes that order and budget, and plans without a filter, were chosen without regard to results, not "
            f"raised in view of them. Used up so far: {spent}."
        )
    if facts["plans"] > 1:
        return (
            f"{facts['plans']} plans were run. The stated epsilon assumes that all of them were fixed in "
            'advance, not chosen in view of earlier results; accountant="filter" covers such choices.'
        )
    return "The stated epsilon assumes that the plan, its length included, was fixed in advance."


def of_stopping(facts: dict) -> list[str]:
    """Returns what the statement says of a plan of which not all updates were made: nothing where all were.

    Whether what stopped it will have it go on, as after a crash, or was a choice is not known.
    """
    stopped = facts.get("stopped_early")
    if stopped is None:
        return []
    return [
        f"Stopped after {stopped['updates']} of {stopped['planned_updates']} updates of the plan, unless it goes on. "
        "If what stopped it followed from what was released, as metrics on held-out rows do, epsilon is that with the "
        f"whole plan: {statement.shown(stopped['epsilon_of_whole_plan'])}. If it followed from the training data, no "
        "epsilon covers that."
    ]
