"""Where a run ends, when a plan goes on, and what counts towards a budget."""

import dataclasses

import keras
import numpy as np
import pytest

from lipdp import backend, sampling, strategies
from tests.helpers.models import DELTA, blobs, mlp, same, state, weights

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0}


def test_matrix_products_are_exact_while_a_model_trains():
    """TF32 and the like would err by more than bounds and clip norms leave room for."""

    def precision():
        if keras.backend.backend() == "jax":
            import jax

            return jax.config.jax_default_matmul_precision
        import tensorflow as tf

        return tf.config.experimental.tensor_float_32_execution_enabled()

    before, seen, model = precision(), [], mlp()
    look = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs=None: seen.append(precision()))
    model.fit(*blobs(), steps_per_epoch=1, noise_multiplier=1.0, callbacks=[look], **FIT)
    assert seen == ["highest" if keras.backend.backend() == "jax" else False]
    assert precision() == before


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="with JAX each thread has a switch of its own")
@pytest.mark.parametrize("first", [0, 1])
def test_products_stay_exact_until_the_last_of_two_fits_has_ended(first):
    """Of two models in two threads the first to end had the products of the other one made in TF32."""
    import tensorflow as tf

    precision = tf.config.experimental.tensor_float_32_execution_enabled
    before, contexts = precision(), [backend.full_precision(), backend.full_precision()]
    for context in contexts:
        context.__enter__()
    contexts[first].__exit__(None, None, None)
    assert not precision()
    contexts[1 - first].__exit__(None, None, None)
    assert precision() == before


def test_a_callback_that_takes_back_the_stop_gets_no_further_update():
    model, arguments = mlp(), {"noise_multiplier": 1.0, **FIT}

    def stop(batch, logs=None):
        model.stop_training = batch == 3

    def go_on(batch, logs=None):
        model.stop_training = False

    model.fit(*blobs(), callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)], **arguments)
    assert model.run.ledger.updates == 4 < model.run.plan.updates == 10
    with pytest.raises(RuntimeError, match="no update was executed"):
        model.fit(*blobs(), callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=go_on)], **arguments)
    assert model.run.ledger.updates == 10 == int(model.optimizer.iterations)


def stopping(model):
    """A callback that stops `fit` after the first update."""
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", True))


def test_an_interrupted_fit_leaves_no_optimizer_that_trains():
    model = mlp(optimizer=keras.optimizers.SGD(0.3))
    model.fit(*blobs(), noise_multiplier=1.0, callbacks=[stopping(model)], **FIT)
    assert model.run.updates_left == 9
    before, variables = weights(model), model.trainable_variables
    model.optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)
    # Kernels are projected once more, which moves them.
    (bias,) = (w for w in weights(model) if w.ndim == 1)
    np.testing.assert_allclose(bias, next(w for w in before if w.ndim == 1), atol=1e-5)


@pytest.mark.backend_free
def test_a_noise_multiplier_within_a_budget_counts_what_is_spent():
    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=2.0, **FIT)
    budget = 1.2 * model.privacy.epsilon()
    model.fit(*blobs(), epochs=2, epsilon=budget, noise_multiplier=2.1, **FIT)
    assert 10 < model.run.ledger.updates < 30 and 1.1 / 1.2 * budget < model.privacy.epsilon() <= budget


def test_a_plan_goes_on_only_for_the_same_request():
    model = mlp()
    model.fit(*blobs(), epochs=1, noise_multiplier=1.0, callbacks=[stopping(model)], **FIT)
    run, request = model.run, model.run.request
    assert run.continued(dataclasses.replace(request, epochs=7, seed=3)) is run.plan
    for change in (
        {"noise_multiplier": 2.0},
        {"epsilon": 3.0},
        {"delta": DELTA / 2.0},
        {"accountant": "rdp"},
        {"strategy": strategies.Clipless(noise="per_layer")},
        {"sampling": request.sampling.bind(400, 40, 4)},
        {"sampling": request.sampling.bind(400, 20)},
        {"sampling": request.sampling.bind(401, 40)},
        {"sampling": sampling.Sampling("shuffle").bind(400, 40)},
    ):
        assert run.continued(dataclasses.replace(request, **change)) is None, change


@pytest.mark.backend_free
def test_releases_without_a_relation_in_common_are_refused_before_any_is_made():
    model = mlp()
    arguments = {"noise_multiplier": 5.0, "examples_per_person": 3, "steps_per_epoch": 2, **FIT}
    model.fit(*blobs(), sampling="shuffle", **arguments)
    before, epsilon = state(model), model.privacy.epsilon()
    for more in ({}, {"epsilon": 50.0}, {"noise_multiplier": None, "risk": {"advantage": 0.99}}):
        with pytest.raises(ValueError, match="no neighboring relation in common"):
            model.fit(*blobs(), sampling="fixed_size", **arguments | more)
        assert same(state(model), before)
    assert model.privacy.epsilon() == epsilon


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "change",
    [
        {"sampling": "random_allocation", "accountant": "rdp"},
        {"sampling": "random_allocation", "accountant": "autodp"},
        {"examples_per_person": 3, "accountant": "rdp"},
    ],
    ids=str,
)
def test_releases_that_an_accountant_has_no_bound_for_are_refused_before_any_is_made(change):
    model = mlp()
    with pytest.raises(ValueError, match="no bound"):
        model.fit(*blobs(), noise_multiplier=3.0, **FIT, **change)
    assert model.run.ledger.releases == 0


@pytest.mark.backend_free
@pytest.mark.parametrize("change", [{"accountant": "rdp"}, {"examples_per_person": 3}], ids=str)
def test_what_was_released_must_stay_known(change):
    model = mlp()
    model.fit(*blobs(), noise_multiplier=3.0, sampling="random_allocation", **FIT)
    before, epsilon = state(model), model.privacy.epsilon()
    with pytest.raises(ValueError, match="no bound|No sound cost"):
        model.fit(*blobs(), noise_multiplier=3.0, **FIT, **change)
    assert same(state(model), before) and model.privacy.epsilon() == epsilon
