"""A new layer brings all that is needed: no table, registry or exporter names it."""

import importlib
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import bounds, layers, losses
from lipdp.bounds.check import tightness
from lipdp.norms import L2Ball

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


class Gains(layers.LipschitzLayer):
    """Multiplies each channel by a gain; the gains have norm at most 1."""

    gradient_formula = "‖x‖ ‖g‖"

    def build(self, input_shape):
        self.gains = self.add_weight(
            name="gains", shape=(input_shape[-1],), initializer="random_normal", constraint=L2Ball(1.0)
        )

    def call(self, inputs):
        return inputs * self.gains

    def parameter_bounds(self, input_bounds, cotangent_bound):
        return (input_bounds[0] * cotangent_bound,)

    def stock_layer(self):
        gains = ops.convert_to_numpy(self.gains)
        return keras.layers.Dense(len(gains), use_bias=False, name=self.name), [np.diag(gains)]


class Rotation(layers.LipschitzLayer):
    """Rolls the last axis, by a function with a gradient of its own."""

    def call(self, inputs):
        return _rolled(inputs)

    def export_call(self, stock, inputs):
        return ops.roll(inputs, 1, axis=-1)


@ops.custom_gradient
def _rolled(inputs):
    def backward(*args, upstream=None):
        return ops.roll(upstream if upstream is not None else args[0], -1, axis=-1)

    return ops.roll(inputs, 1, axis=-1), backward


def test_its_export_comes_from_the_class():
    inputs = keras.Input((3, 4))
    shared = Gains(name="shared")
    model = keras.Model(inputs, Rotation()(shared(ops.abs(shared(inputs)))))
    plain = lipdp.export(model)
    x = np.random.default_rng(0).standard_normal((5, 3, 4)).astype("float32")
    np.testing.assert_allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
    assert [layer.name for layer in plain.layers].count("shared") == 1 and plain.count_params() == 16


def test_its_bounds_come_from_the_class():
    for layer in (Gains(), Rotation()):
        assert all(ratio <= 1.0 + 1e-4 for ratio in tightness(layer, (3, 4)).values())
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=2.0), Gains(name="gains"), Rotation()])
    propagated = bounds.propagate(model, 3.0)
    assert 6.0 <= propagated.gradient(model.trainable_variables[0]) <= 6.001
    assert lipdp.certify.lipschitz(model) <= 1.001


def test_weights_past_its_constraint_have_no_certificate():
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=2.0), Gains(name="gains")])
    model.set_weights([np.full(4, 10.0, "float32")])
    with pytest.raises(
        ValueError, match=r"within their constraints. Received: layer 'gains'.*L2Ball.*trained_lipschitz"
    ):
        lipdp.certify.lipschitz(model)
    model.layers[-1].gains.assign(L2Ball(1.0)(model.layers[-1].gains))
    assert lipdp.certify.lipschitz(model) <= 1.001


def test_the_summary_and_training_know_it():
    model = lipdp.DP_Sequential([layers.BoundedInput((4,)), Gains(name="gains"), layers.SpectralDense(2)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy(temperature=1.0))
    x = np.random.default_rng(0).standard_normal((20, 4)).astype("float32")
    model.fit(x, np.arange(20) % 2, batch_size=10, epochs=1, epsilon=5.0, delta=1e-3, verbose=0)
    assert np.linalg.norm(model.get_weights()[0]) <= 1.0 + 1e-6
    lines = []
    model.summary_bounds(print_fn=lines.append)
    assert any("gains" in line for line in "\n".join(lines).splitlines())


def test_the_tables_know_it(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    tables = importlib.import_module("tightness")
    monkeypatch.setattr(layers, "Gains", Gains, raising=False)
    assert "| `Gains` | 1 | `‖x‖ ‖g‖` | - |" in tables.render()
