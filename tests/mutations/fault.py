"""One fault: a piece of a file and what replaces it."""

import dataclasses
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of one place that must not go unseen.

    Args:
        file: In the package, as "strategies/clipping.py".
        name: What is wrong, in a few words; unique in its file.
        old: Text that occurs once in the file.
        new: What replaces it.
        tests: The tests that must see it, as pytest takes them, relative to the folder of tests: the fewest that do.
        equivalent: Why nothing can see it, for a change that changes nothing.
    """

    file: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def id(self) -> str:
        return f"{self.file}: {self.name}"

    def path(self, root: Path = ROOT) -> Path:
        """Returns the file under `root`."""
        return root / "lipdp" / self.file

    def applied(self, text: str) -> str:
        """Returns the text with the fault in it; ValueError where `old` is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.id}: this text is there {text.count(self.old)} times, not once: {self.old!r}.")
        return text.replace(self.old, self.new)


def faults(file: str, tests: str, *rows: tuple) -> list[Fault]:
    """Returns the faults of one file.

    Args:
        file: See `Fault`.
        tests: What sees the faults of a row that names no tests: separated by spaces.
        *rows: Each `(name, old, new)`, and perhaps tests of its own, and perhaps why it is equivalent.
    """
    return [
        Fault(file, name, old, new, tuple((rest[0] if rest and rest[0] else tests).split()), *rest[1:])
        for name, old, new, *rest in rows
    ]
