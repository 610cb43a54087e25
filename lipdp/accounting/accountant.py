"""The one interface behind which every accountant lives."""

import abc

from lipdp.accounting import checks
from lipdp.accounting.mechanism import Mechanism

_REGISTRY: dict[str, "Accountant"] = {}
_WITH_SETTINGS: dict = {}


class Accountant(abc.ABC):
    """Turns a list of releases into epsilon.

    A new accountant subclasses this, sets `name`, implements the two methods and calls `register`.
    """

    name: str = ""

    @abc.abstractmethod
    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns a valid epsilon of all `mechanisms` together (already canonical).

        `math.inf` says that there is no guarantee. With `rough` the bound may be looser by a few percent when
        that is quicker: it guides searches, and is never reported.
        """

    @abc.abstractmethod
    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict:
        """Returns what a reader needs to repeat the number: name, library and version, settings."""


def register(accountant: Accountant) -> None:
    """Makes an accountant known under its name."""
    _REGISTRY[accountant.name] = accountant


def get(name: str) -> Accountant:
    """Returns the accountant called `name`, "pld" say, or "filter:..." with its settings; ValueError otherwise."""
    kind, _, settings = name.partition(":") if isinstance(name, str) else (name, "", "")
    if settings and kind in _WITH_SETTINGS:
        return _WITH_SETTINGS[kind](settings)
    return _REGISTRY[checks.choice("accountant", name, names())]


def check_name(name: str) -> str:
    """Returns the name of an accountant; ValueError when there is none."""
    get(name)
    return name


def names() -> tuple[str, ...]:
    """Returns the names of the accountants."""
    return tuple(sorted(_REGISTRY))
