"""The one interface behind which every accountant lives, and the one place that reads their names."""

import abc
from collections.abc import Callable

from lipdp import checks
from lipdp.accounting.mechanism import Mechanism

_REGISTRY: dict[str, "Accountant"] = {}
_WITH_SETTINGS: dict[str, Callable[..., "Accountant"]] = {}
# By kind: what it needs, and how to get it.
_NEEDS = {
    "filter": "`accountant` needs an order and a budget that are fixed in advance, as "
    '"filter:ORDER:EPSILON:DELTA". Let fit(epsilon=...) choose them, or pass what '
    "lipdp.accounting.plan_filter returns.",
    "rdp_order": '`accountant` of the form "rdp_order:ORDER" or "rdp_order:ORDER:EPSILON:DELTA" is what importance '
    'sampling writes into its ledger. To train so, pass fit(strategy="dpis", epsilon=...), which chooses it; for a '
    'plan of your own use "pld", "rdp" or "filter".',
}


class Accountant(abc.ABC):
    """Turns a list of releases into epsilon.

    A new accountant subclasses this, sets `name`, implements the two methods and calls `register`.

    Attributes:
        name: how users and files call it; two accountants of one class and name are equal.
        order: the RDP order that was fixed in advance, or None.
        budget: the epsilon that was fixed in advance, or None.
        delta: the delta of the budget, or None.
        covers_adaptive: whether noise and sampling of a release may follow from earlier releases (DPIS).
        shared: whether the budget was kept for a part of the releases only.
    """

    name: str = ""
    order: float | None = None
    budget: float | None = None
    delta: float | None = None
    covers_adaptive: bool = False
    shared: bool = False

    @abc.abstractmethod
    def epsilon(self, mechanisms: tuple[Mechanism, ...], delta: float, rough: bool = False) -> float:
        """Returns a valid epsilon of all `mechanisms` together (already canonical).

        `math.inf` says that there is no guarantee. With `rough` the bound may be looser by a few percent when
        that is quicker: it guides searches, and is never reported.
        """

    def guarantee(self, mechanisms: tuple[Mechanism, ...], delta: float) -> float:
        """Returns the epsilon to state: what is spent, or the budget of an accountant that has one."""
        return self.epsilon(mechanisms, delta)

    @abc.abstractmethod
    def describe(self, mechanisms: tuple[Mechanism, ...], delta: float) -> dict:
        """Returns what a reader needs to repeat the number: name, library and version, settings."""

    def __eq__(self, other) -> bool:
        return self.name == other.name if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    def __repr__(self) -> str:
        return f"<accountant {self.name}>"


def register(accountant: Accountant) -> None:
    """Makes an accountant known under its name."""
    _REGISTRY[accountant.name] = accountant


def register_with_settings(name: str, make: Callable[..., Accountant]) -> None:
    """Makes accountants known whose name goes on with settings, as "filter:8.0:2.0:1e-05".

    Args:
        name: what stands before the first colon.
        make: called with the settings as strings; raises `ValueError` or `TypeError` for wrong ones.
    """
    _WITH_SETTINGS[name] = make


def get_accountant(identifier: str | Accountant) -> Accountant:
    """Returns an accountant from its name or itself.

    Args:
        identifier: an `Accountant`, one of `names()`, or a name with settings, as "filter:8.0:2.0:1e-05".

    Raises:
        ValueError: when there is no such accountant, or its settings are missing or wrong.

    Example:
        >>> get_accountant("filter:8.0:2.0:1e-05").budget
        2.0
    """
    if isinstance(identifier, Accountant):
        return identifier
    kind, *settings = identifier.split(":") if isinstance(identifier, str) else [identifier]
    if isinstance(identifier, str) and kind in _WITH_SETTINGS:
        try:
            return _WITH_SETTINGS[kind](*settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f'{_NEEDS[kind]} Received: accountant="{identifier}" ({error}).') from error
    return _REGISTRY[checks.choice("accountant", identifier, names())]


def unsupported(name: str, mechanism: Mechanism) -> ValueError:
    """Returns the error for releases that an accountant has no bound for."""
    return ValueError(
        f'The accountant "{name}" has no bound for such releases. Received: sampler={mechanism.sampler!r}, '
        f'relation={mechanism.relation!r}, group_size={mechanism.group_size}. Use accountant="pld".'
    )


def names() -> tuple[str, ...]:
    """Returns the names of the accountants that need no settings."""
    return tuple(sorted(_REGISTRY))
