"""Names of those who make releases: equal releases under two names count as two."""

import os


class Name:
    """A random name, and for each process that is forked another one: its releases have noise of their own.

    Example:
        >>> name = Name()
        >>> len(name.own()), name.own() == name.own()
        (32, True)
    """

    def __init__(self):
        self._of_processes: dict[int, str] = {}

    def own(self) -> str:
        """Returns the name in this process, 32 hexadecimal digits."""
        return self._of_processes.setdefault(os.getpid(), os.urandom(16).hex())

    def take(self, name: str) -> None:
        """Takes that of another process, which makes the same releases."""
        self._of_processes[os.getpid()] = name
