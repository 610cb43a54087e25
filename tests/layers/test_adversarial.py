"""Adversarial search against the answers of every layer: input Jacobian, output norm, parameter gradient."""

import pytest

from lipdp.bounds.check import tightness
from tests.helpers.adversary import TOLERANCE
from tests.helpers.layer_cases import ALL

# Norms of the inputs in turn: of order one, and where saturating functions saturate.
NORMS = (1.0, 8.0)


# By default one of each type; `make test-all` runs the others.
FIRST = {case.name.split("-")[0].split("_")[0].rstrip("0123456789"): case.name for case in reversed(ALL)}.values()
# Other dimensions of these are among the first ones.
LONG = ("SpectralConv3DTranspose", "SpectralConv1DTranspose", "SpectralDepthwiseConv1D", "conv(1,4)")
FIRST = [name for name in FIRST if not name.startswith(LONG)]
CASES = [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in FIRST)) for c in ALL]


@pytest.mark.backend_free
@pytest.mark.parametrize("case", CASES)
def test_no_bound_is_exceeded_and_tight_ones_are_reached(case):
    reached = tightness(case.make(), *case.shapes, norms=NORMS, seed=len(case.name))
    assert all(ratio <= 1.0 + TOLERANCE for ratio in reached.values()), reached
    loose = {kind: reached[kind] for kind in case.tight if reached[kind] < case.reach[kind]}
    assert not loose
