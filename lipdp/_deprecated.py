"""Names of earlier versions: each works for one release more and warns with its new name.

A module that moved is a line in `MOVED`. Everything else is said beside the new name:

    __getattr__ = renamed_attributes(__name__, rows="microbatch")           # module level: `module.rows`

    @renamed_arguments(views="augmentation_multiplicity")                   # a function, or a class: its constructor
    def fit(augmentation_multiplicity=1): ...

    relation = renamed_property("relation", "neighboring_relation")         # in a class body, read only

    mode = renamed_value("mode", mode, normalise="normalize")               # a word among the values of an argument

    return cls(**renamed_keys(config, multiplicity="augmentation_multiplicity"))   # `from_config`; old files are silent
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

MOVED = {
    "lipdp.accounting.checks": "lipdp.checks",
    "lipdp.accounting.importance": "lipdp.accounting.dpis",
    "lipdp.accounting.pairs": "lipdp.accounting.dominating_pairs",
    "lipdp.accounting.search": "lipdp.accounting.selection",
    "lipdp.accounting.tilting": "lipdp.accounting.fft_composition",
    "lipdp.arguments": "lipdp.training.model_checks",
    "lipdp.bounds.search": "lipdp.bounds.adversary",
    "lipdp.charging": "lipdp.training.callbacks",
    "lipdp.gradients.chunks": "lipdp.gradients.microbatch",
    "lipdp.gradients.patches": "lipdp.gradients.unfolding",
    "lipdp.importance": "lipdp.training.importance",
    "lipdp.layers.sampling": "lipdp.layers.resampling",
    "lipdp.ledger": "lipdp.privacy.ledger",
    "lipdp.networks": "lipdp.models.plain",
    "lipdp.plan": "lipdp.privacy.plan",
    "lipdp.recipes": "lipdp.models.classifier",
    "lipdp.run": "lipdp.training.state",
    "lipdp.sampling.importance": "lipdp.sampling.proposal",
    "lipdp.signal": "lipdp.report.signal_to_noise",
    "lipdp.strategies.views": "lipdp.strategies.augmentation",
    "lipdp.wording": "lipdp.privacy.statement",
}


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns that `old` is now called `new`; the caller's caller is blamed by default."""
    warnings.warn(f"`{old}` is deprecated: use `{new}`.", DeprecationWarning, stacklevel=stacklevel)


def renamed_attributes(module: str, **renamed: str) -> Callable[[str], Any]:
    """Returns a module-level `__getattr__` that finds the attributes of `module` by their old names too."""

    def find(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{renamed[name]}")
        return getattr(sys.modules[module], renamed[name])

    return find


def renamed_arguments(**renamed: str) -> Callable[[Callable], Callable]:
    """Returns a decorator for a function or a class that takes keyword arguments by their old names too."""

    def decorate(function):
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__)
            return function

        @functools.wraps(function)
        def call(*args, **kwargs):
            for old in renamed.keys() & kwargs.keys():
                warn(f"{old}=", f"{renamed[old]}=")
            return function(*args, **renamed_keys(kwargs, **renamed))

        # Keras reads the names of a constructor's arguments without looking behind wrappers.
        call.__signature__ = inspect.signature(function)
        return call

    return decorate


def renamed_keys(values: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
    """Returns `values` under the new names, without a warning; TypeError when both names are there."""
    for old in renamed.keys() & values.keys():
        if renamed[old] in values:
            raise TypeError(f"`{old}` is the old name of `{renamed[old]}`. Received: both. Pass the new one.")
    return {renamed.get(name, name): value for name, value in values.items()}


def renamed_property(old: str, new: str) -> property:
    """Returns a read-only property, to be called `old`, that gives the attribute `new`."""

    def read(self):
        warn(old, new)
        return getattr(self, new)

    return property(read, doc=f"Deprecated: use `{new}`.")


def renamed_value(argument: str, value: Any, **renamed: str) -> Any:
    """Returns `value`, by its new name when it is one of `renamed`."""
    if not isinstance(value, str) or value not in renamed:
        return value
    warn(f"{argument}={value!r}", f"{argument}={renamed[value]!r}", stacklevel=4)
    return renamed[value]


class _MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module of `MOVED` by its old name: both names are the same module."""

    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module):
        warn(module.__name__, MOVED[module.__name__])
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


def install() -> None:
    """Makes the old module names importable; called once by `lipdp/__init__`."""
    # Last, so that it never hides a module that is there.
    sys.meta_path.append(_MovedModules())
