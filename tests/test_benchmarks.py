"""The benchmarks of cost still call what `fit` calls."""

import importlib
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("module", "network", "steps"),
    [("step_cost", "mlp", ("clipless", "plain", "ordinary")), ("per_example", "cnn", ("private", "plain"))],
)
def test_steps_can_be_timed(monkeypatch, module, network, steps):
    monkeypatch.syspath_prepend(FOLDER)
    made = {step: importlib.import_module(module).stepper(network, step, 8) for step in steps}
    before = {step: [v.numpy().copy() for v in one.model.trainable_variables] for step, one in made.items()}
    times = importlib.import_module("stepping").interleaved(made, 1)
    for step, one in made.items():
        assert len(times[step]) == 1 and times[step][0] > 0.0
        if not one._jax:
            assert any((v.numpy() != b).any() for v, b in zip(one.model.trainable_variables, before[step], strict=True))
