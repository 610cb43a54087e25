"""Adversarial search against the three answers of every layer: input Jacobian, output norm, parameter gradient."""

import numpy as np
import pytest
from cases import ALL
from search import (
    TOLERANCE,
    Probe,
    assign,
    largest_input_jacobians,
    largest_output,
    largest_parameter_gradient,
    weight_settings,
)

from lipdp import bounds

# Norms of the inputs in turn: of order one, and where saturating functions saturate.
SIZES = (1.0, 8.0)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_no_bound_is_exceeded_and_tight_ones_are_reached(case):
    rng = np.random.default_rng(len(case.name))
    probe = Probe(case.make(), *case.shapes)
    answers = bounds.answers(probe.model.layers[-1])
    reached = {"output": 0.0, "jacobian": 0.0, "parameter": 0.0}
    settings = weight_settings(probe.variables[0], rng) if probe.variables else [None]
    for setting in settings:
        if setting is not None:
            assign(probe.variables, [setting])
        for size in SIZES if setting is None else SIZES[:1]:
            # Unequal norms tell the inputs of a merge apart.
            sizes = tuple(size * (1.0 + 0.5 * k) for k in range(len(case.shapes)))
            constants = answers.input_lipschitz(sizes)
            found = largest_input_jacobians(probe, sizes, rng)
            ratios = [f / c for f, c in zip(found, constants, strict=True)]
            reached["jacobian"] = max(reached["jacobian"], *ratios)
            output = largest_output(probe, sizes, rng) / answers.output_bound(sizes)
            reached["output"] = max(reached["output"], output)
    if probe.variables:
        (bound,) = answers.parameter_bounds((2.0,), 1.0)
        reached["parameter"] = largest_parameter_gradient(probe, 2.0, rng) / bound
    assert all(ratio <= 1.0 + TOLERANCE for ratio in reached.values()), reached
    loose = {kind: reached[kind] for kind in case.tight if reached[kind] < case.reach[kind]}
    assert not loose
