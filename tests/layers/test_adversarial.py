"""Adversarial search against the answers of every layer: input Jacobian, output norm, parameter gradient."""

import pytest

from lipdp.bounds.check import tightness
from tests.helpers.adversary import TOLERANCE
from tests.helpers.layer_cases import ALL

# Norms of the inputs in turn: of order one, and where saturating functions saturate.
NORMS = (1.0, 8.0)


# On JAX, where each case is compiled, one of each type by default.
FIRST = {case.name.split("-")[0].split("_")[0].rstrip("0123456789"): case.name for case in reversed(ALL)}.values()
# Repeats of another case that take longest, and every second geometry of a convolution, whose exact norms others test.
SLOW = {"scattering_mirrored", "scattering_rgb"}
SLOW.update(
    [case.name for case in ALL if case.name.startswith(("conv", "factors", "Spectral")) and "-" in case.name][::2]
)


def _marks(name: str) -> list:
    return [] if name in FIRST else [pytest.mark.backend_free] + [pytest.mark.slow] * (name in SLOW)


CASES = [pytest.param(c, id=c.name, marks=_marks(c.name)) for c in ALL]


@pytest.mark.backend_free
@pytest.mark.parametrize("case", CASES)
def test_no_bound_is_exceeded_and_tight_ones_are_reached(case):
    reached = tightness(case.make(), *case.shapes, norms=NORMS, seed=len(case.name))
    assert all(ratio <= 1.0 + TOLERANCE for ratio in reached.values()), reached
    loose = {kind: reached[kind] for kind in case.tight if reached[kind] < case.reach[kind]}
    assert not loose
