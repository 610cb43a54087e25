"""Adversarial search against the answers of every layer: input Jacobian, output norm, parameter gradient."""

import pytest
from cases import ALL
from search import TOLERANCE

from lipdp.bounds.check import tightness

# Norms of the inputs in turn: of order one, and where saturating functions saturate.
NORMS = (1.0, 8.0)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_no_bound_is_exceeded_and_tight_ones_are_reached(case):
    reached = tightness(case.make(), *case.shapes, norms=NORMS, seed=len(case.name))
    assert all(ratio <= 1.0 + TOLERANCE for ratio in reached.values()), reached
    loose = {kind: reached[kind] for kind in case.tight if reached[kind] < case.reach[kind]}
    assert not loose
