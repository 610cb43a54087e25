"""Freed memory goes back to the system."""

import ctypes

from lipdp.gradients import memory


def test_nothing_fails_without_such_a_function(monkeypatch):
    memory.give_back()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    memory.give_back()

    for error in (OSError, TypeError):

        def absent(name, error=error):
            raise error(name)

        monkeypatch.setattr(ctypes, "CDLL", absent)
        memory.give_back()
