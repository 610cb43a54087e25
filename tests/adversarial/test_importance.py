"""DPIS: what a row moves in a noisy sum and in an update, and how probable it is that it is in one."""

from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

from lipdp import strategies
from lipdp.sampling import Proposal
from lipdp.training import importance
from tests.adversarial.attack import ROWS, TOLERANCE, fixed, watched
from tests.adversarial.cases import CLIPPED, EXECUTIONS

OPTIONS = [
    ("logistic", {}, "default", None),
    pytest.param("mlp", {"clip_scale": 2.0, "count_noise": 8.0}, "default", 7, marks=pytest.mark.slow),
    pytest.param("dropout", {}, "default", 7, marks=pytest.mark.slow),
    pytest.param("shared", {"growth": 1.0, "floor": 1.0}, "eager", 7, marks=pytest.mark.slow),
    pytest.param("convolution", {"clip_norm": 0.01}, "default", None, marks=pytest.mark.slow),
    pytest.param("tokens", {"clip_norm": 30.0, "floor": 1e-3}, "default", None, marks=pytest.mark.slow),
    pytest.param("attention", {"clip_scale": 0.1}, "graph", 5, marks=pytest.mark.slow),
]


class _Silent:
    """A generator whose normals are zero; all else is drawn."""

    def __init__(self, generator):
        self._generator = generator

    def normal(self):
        return 0.0

    def __getattr__(self, name):
        return getattr(self._generator, name)


def _model(name, execution):
    keras.utils.set_random_seed(0)
    model = CLIPPED[name][0](0, strategies.DPIS())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The weights stay, and with them all norms.
    model.compile(watched(keras.optimizers.SGD)(0.0), loss=loss, **EXECUTIONS[execution])
    return model


def _run(model, x, y, options, microbatch, sets):
    """Makes one update of each set of proposed rows, all of which are kept.

    Returns:
        What each update released; the released sums; the probabilities of being in an update, and their bound.
    """
    seen, sums, inclusions, left = [], [], [], list(sets)

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(model, "jax_state_sync", lambda: None)()
            seen.append([ops.convert_to_numpy(v.value).astype("float64") for v in model.optimizer.seen])

    def draw(proposal, rng):
        driver = model.run.driver
        inclusions.append((proposal.inclusion(driver._norms).max(), driver.budget.update.sampling_probability))
        return np.asarray(left.pop(0), int)

    ordinary_generator, ordinary_release = (
        importance.ImportanceDriver._generator, importance.ImportanceDriver._released,
    )  # fmt: skip

    def released(driver, kind, charge, value, noise_multiplier, sensitivity):
        sums.append((kind, value, sensitivity))
        return ordinary_release(driver, kind, charge, value, noise_multiplier, sensitivity)

    with (
        fixed(None),
        # Random layers draw the same in each update, as they would in two runs that are compared.
        mock.patch.object(keras.random.SeedGenerator, "next", lambda seeds, ordered=True: seeds.state.value * 1),
        mock.patch.object(Proposal, "draw", draw),
        mock.patch.object(Proposal, "thresholds", lambda p, rng, index: np.full(len(index), 1e-30, "float32")),
        mock.patch.object(
            importance.ImportanceDriver, "_generator", lambda *arguments: _Silent(ordinary_generator(*arguments))
        ),
        mock.patch.object(importance.ImportanceDriver, "_released", released),
    ):
        model.fit(
            x, y, batch_size=8, epsilon=8.0, delta=1e-3, strategy=strategies.DPIS(norm_sum_noise=5.0, **options),
            microbatch_size=microbatch, steps_per_epoch=len(sets), callbacks=[Keep()], verbose=0,
        )  # fmt: skip
    return seen, sums, inclusions


@pytest.mark.parametrize("name, options, execution, microbatch", OPTIONS)
def test_no_row_moves_an_update_by_more_than_is_charged(name, options, execution, microbatch):
    x, y = CLIPPED[name][1](np.random.default_rng(0))
    usual, model = list(range(ROWS)), _model(name, execution)
    sets = [[], usual, *([*usual, row] for row in range(ROWS, len(x)))]
    (nothing, before, *others), _, inclusions = _run(model, x, y, options, microbatch, sets)
    (release,) = [release for release in model.run.ledger.entries if release.kind == "gradient"]
    # Of no rows an update is nothing but noise, here of ones.
    stddev = release.noise_multiplier * release.sensitivity
    assert all(np.allclose(part, stddev, rtol=1e-5) for part in nothing)
    ratios = [
        np.sqrt(sum(np.sum(np.square(a - b)) for a, b in zip(after, before, strict=True))) / release.sensitivity
        for after in others
    ]
    assert 0.99 <= max(ratios) <= 1.0 + TOLERANCE
    assert all(largest <= charged * (1.0 + 1e-9) for largest, charged in inclusions)


@pytest.mark.slow  # by default strategies/test_dpis.py looks at what is released
@pytest.mark.parametrize("name, options, execution, microbatch", OPTIONS)
def test_no_row_moves_a_noisy_sum_by_more_than_is_charged(name, options, execution, microbatch):
    x, y = CLIPPED[name][1](np.random.default_rng(0))
    options = {"count_noise": 8.0} | options
    found = []
    for rows in (range(ROWS), *([*range(ROWS), row] for row in range(ROWS, len(x)))):
        index = np.asarray(list(rows))
        _, sums, _ = _run(_model(name, execution), x[index], y[index], options, microbatch, [index[:3]] * 2)
        found.append(sums)
    ratios = [
        abs(value - first) / sensitivity
        for sums in found[1:]
        for (_, first, _), (_, value, sensitivity) in zip(found[0], sums, strict=True)
    ]
    assert {kind for kind, _, _ in found[0]} == {"count", "norm_sum", *["clip_sum"] * ("clip_scale" in options)}
    assert 0.9 <= max(ratios) <= 1.0 + TOLERANCE
