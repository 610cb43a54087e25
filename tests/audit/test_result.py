"""What an audit says."""

import json
import math

import numpy as np
import pytest

from lipdp import accounting
from lipdp.audit import Audit
from lipdp.audit.result import roc

pytestmark = pytest.mark.backend_free

RISK = accounting.risk(noise_multiplier=1.0, sampling_probability=1.0, updates=1)


def made(**bounds):
    points = roc(np.array([0.0, 1.0, 2.0]), np.array([-1.0, 0.0, 1.0]))
    arguments = "white_box", "dpsgd", "poisson", "add_or_remove_one", 4.0, 1e-5, 0.95
    return Audit(*arguments, bounds, "curve", {"assumes": "coins"}, points, RISK)


def test_a_bound_below_epsilon_proves_nothing():
    found = made(curve=3.0, rates=1.0)
    assert (found.epsilon_lower, found.ratio, found.flagged) == (3.0, 0.75, False)
    assert "at least 3 " in found.statement() and "95 %" in found.statement() and "coins" in found.statement()
    assert "proves nothing" in str(found)


def test_a_bound_above_epsilon_is_said_loudly():
    found = made(curve=math.inf, rates=5.0)
    assert found.flagged and "ABOVE THE STATED EPSILON" in found.statement()
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["epsilon_lower"] is None and values["bounds"] == {"curve": None, "rates": 5.0} and values["flagged"]


def test_figures_are_not_rounded_in_their_own_favor():
    arguments = "white_box", "dpsgd", "poisson", "add_or_remove_one", 2.00049, 1e-5, 0.95
    found = Audit(*arguments, {"curve": 1.99951}, "curve", {}, None, None)
    assert "at most 2.001 as stated, and at least 1.999 " in found.statement()
    assert "1.999 <= epsilon <= 2.001" in repr(found)


def test_the_headline_must_be_there():
    with pytest.raises(ValueError, match="headline"):
        made(rates=1.0)
    with pytest.raises(ValueError, match="bounds"):
        made(curve=1.0, guess=2.0)


def test_rates_at_all_thresholds():
    points = roc(np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    assert points.T.tolist() == [[0.0, 0.0], [0.0, 0.5], [0.5, 1.0], [1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("bounds", [{"curve": 3.0, "rates": 0.0}, {"curve": math.inf}])
def test_the_plot_shows_attack_and_bounds(bounds):
    attack, bars = made(**bounds).plot().axes
    assert {line.get_label() for line in attack.lines} == {"at most, for epsilon 4", "attack", "guessing"}
    assert len(bars.patches) == len(bounds)
