"""A process that trains many models keeps the programs of those that it still has, not of all."""

import gc
import os
import pathlib
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest

import lipdp
from lipdp import backend, gradients
from tests.helpers.models import DELTA

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow maps no programs.")
MAPS = pathlib.Path("/proc/self/maps")


def trained():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((40, 4), "float32"), np.arange(40) % 3
    model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=DELTA, strategy="dpsgd", verbose=0)
    return model


@pytest.mark.skipif(not MAPS.exists(), reason="Linux only")
@pytest.mark.parametrize(("most", "gone"), [(0, True), (10**9, False)])
def test_many_programs_are_given_back(monkeypatch, most, gone):
    monkeypatch.setattr(backend._steps, "_MANY_PARTS", most)
    gc.collect()
    monkeypatch.setattr(backend._steps, "_TOO_MANY_PARTS", 10**9)
    monkeypatch.setitem(backend._steps._needed, "parts", 0)
    gc.disable()  # what Python does by itself depends on all else in the process
    try:
        first = weakref.ref(trained())
        assert first() is not None
        trained()
        assert (first() is None) is gone
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="Linux only")
def test_programs_of_single_operations_are_given_back_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr(backend._steps, "_MANY_PARTS", 0)
    monkeypatch.setattr(backend._steps, "_TOO_MANY_PARTS", 0)
    model = trained()
    for size in range(60):
        keras.ops.sum(keras.ops.square(keras.ops.ones((size + 1,))) + size)
    monkeypatch.setitem(backend._steps._needed, "parts", 0)
    before = backend._steps._parts()
    backend.release_programs()
    after = backend._steps._parts()
    assert after < before
    # Not again before there are many more.
    assert backend._steps._needed["parts"] == pytest.approx(after, abs=50)
    # Models that are still there go on.
    x, y = np.zeros((40, 4), "float32"), np.arange(40) % 3
    model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=DELTA, strategy="dpsgd", verbose=0)
    assert model.privacy.updates == 4


class Turning(keras.layers.Layer):
    """Keeps rows apart until it is told otherwise."""

    mixes = False

    def call(self, inputs):
        return inputs + keras.ops.sum(inputs, axis=0) if self.mixes else 1.0 * inputs


def test_a_model_that_did_not_change_is_tried_by_the_same_program(monkeypatch):
    from jax.stages import Lowered

    compiled, ordinary = [], Lowered.compile

    def compiling(lowered, *arguments, **options):
        compiled.append(lowered)
        return ordinary(lowered, *arguments, **options)

    monkeypatch.setattr(Lowered, "compile", compiling)
    turning = Turning()
    model = keras.Sequential([keras.Input((4,)), turning, keras.layers.Dense(3)])
    gradients.supported(model)
    once = len(compiled)
    assert once > 0
    gradients.supported(model)
    model.layers[-1].set_weights([np.full((4, 3), 2.0), np.zeros(3)])
    gradients.supported(model)
    assert len(compiled) == once
    turning.mixes = True
    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(model)
    assert len(compiled) > once


def test_models_that_differ_in_the_nest_of_their_inputs_are_both_tried():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    output = keras.layers.Dense(2)(keras.layers.Add()([a, b]))
    for nest in ([a, b], (a, b), {"a": a, "b": b}):
        gradients.supported(keras.Model(nest, output))
    # Of two inputs the model reads one: its text is that of a model which reads the other.
    for read, width in ((a, 3), (b, 3), (a, 4)):
        other = keras.Input((width,))
        gradients.supported(keras.Model([a, b, other], keras.layers.Dense(2)(read)))


def test_a_model_that_calls_functions_of_the_host_is_tried_by_a_program_of_its_own():
    import jax

    def calling(function):
        @lipdp.row_wise
        class Calling(keras.layers.Layer):
            def call(self, inputs):
                fixed = jax.lax.stop_gradient(inputs)
                shape = jax.ShapeDtypeStruct(inputs.shape, inputs.dtype)
                return inputs + jax.lax.stop_gradient(
                    jax.pure_callback(function, shape, fixed, vmap_method="expand_dims")
                )

        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), Calling(), keras.layers.Dense(2)])

    gradients.supported(calling(lambda rows: np.asarray(rows)))
    with pytest.raises(ValueError, match="depends on the other examples"):
        gradients.supported(calling(lambda rows: np.asarray(rows) + np.sum(rows, axis=0)))


def test_a_model_is_tried_by_a_program_where_jax_compiles_none():
    import jax

    with jax.disable_jit():
        gradients.supported(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))


ELSEWHERE = """
import jax, keras
from lipdp import gradients

def tried(names=None, weights=0, rows=0):
    distribution = None if names is None else keras.distribution.DataParallel(devices=names)
    keras.distribution.set_distribution(distribution)
    with jax.default_device(jax.devices()[rows]):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        if names is None:
            for variable in model.variables:
                variable._value = jax.device_put(variable.value, jax.devices()[weights])
        gradients.supported(model)

tried(["cpu:0", "cpu:1"])
tried(["cpu:1", "cpu:0"])
tried(weights=1)
tried(rows=1)
"""


@pytest.mark.slow
def test_models_on_the_same_devices_in_another_order_are_both_tried():
    environment = {
        **os.environ,
        "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
