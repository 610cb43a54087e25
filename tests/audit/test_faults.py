"""Known faults are flagged, and nothing is flagged without them."""

import pytest

from tests.helpers.audit_faults import FAULTS

# The others take longer; the benchmark runs all of them with more trials.
_QUICK = ("noise of 0.7 times its size", "bias of a feature map without its sqrt(HW)", "noise key used again")


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=f.name, marks=[] if f.name in _QUICK else pytest.mark.slow) for f in FAULTS]
)
def test_a_fault_is_flagged(fault):
    found = fault.audit(quick=True, seed=0)
    assert found.flagged, found.statement()
    assert "ABOVE THE STATED EPSILON" in found.statement()


@pytest.mark.backend_free
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_same_audit_without_the_fault_is_not_flagged(fault):
    assert not fault.audit(faulty=False, quick=True, seed=0).flagged


@pytest.mark.backend_free
def test_faults_do_not_stay():
    from lipdp import optimizer

    before = optimizer._add_noise
    with FAULTS[0].inject():
        assert optimizer._add_noise is not before
    assert optimizer._add_noise is before
