"""The one interface behind which every accountant lives."""

import abc

from lipdp import checks
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

    def guarantee(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the epsilon to state; what is spent, unless the accountant covers choices made on the way."""
        return self.epsilon(mechanisms, delta)

    @abc.abstractmethod
    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict:
        """Returns what a reader needs to repeat the number: name, library and version, settings."""


def register(accountant: Accountant) -> None:
    """Makes an accountant known under its name."""
    _REGISTRY[accountant.name] = accountant


def register_with_settings(name: str, make) -> None:
    """Makes accountants known whose name goes on with settings, as "filter:8:2.0:1e-5"; `make` gets the settings."""
    _WITH_SETTINGS[name] = make


def get(name: str) -> Accountant:
    """Returns the accountant called `name`, "pld" say, or "filter:..." with its settings; ValueError otherwise."""
    kind, _, settings = name.partition(":") if isinstance(name, str) else (name, "", "")
    if settings and kind in _WITH_SETTINGS:
        return _WITH_SETTINGS[kind](settings)
    if kind == "filter" and kind in _WITH_SETTINGS:
        raise ValueError(
            f'The filter needs an order and a budget that are fixed in advance. Received: accountant="{name}". Let '
            "fit(epsilon=...) choose them, or pass what lipdp.accounting.plan_filter returns."
        )
    if kind in _WITH_SETTINGS:
        raise ValueError(
            f'This accountant needs settings that are fixed in advance. Received: accountant="{name}". Write '
            f'"{kind}:" and the settings behind it.'
        )
    return _REGISTRY[checks.choice("accountant", name, names())]


def check_name(name: str) -> str:
    """Returns the name of an accountant; ValueError when there is none."""
    get(name)
    return name


def unsupported(name: str, mechanism: Mechanism) -> ValueError:
    """Returns the error for releases that an accountant has no bound for."""
    return ValueError(
        f'The accountant "{name}" has no bound for such releases. Received: sampler={mechanism.sampler!r}, '
        f'relation={mechanism.relation!r}, group_size={mechanism.group_size}. Use accountant="pld".'
    )


def names() -> tuple[str, ...]:
    """Returns the names of the accountants that need no settings."""
    return tuple(sorted(_REGISTRY))
