"""Settings that cannot learn are named before the run, from public numbers alone."""

import re
import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers, losses, strategies
from lipdp.training import advice

pytestmark = [pytest.mark.backend_free, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 8)).astype("float32"), np.arange(200) % 3


def fit(optimizer, strategy="clipless", epochs=60, clip=0.5, **arguments):
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(3)])
    model.compile(optimizer, losses.SparseCategoricalCrossentropy(clip=clip))
    arguments = {"noise_multiplier": 1.0, "batch_size": 200, "delta": 1e-4, "training_metrics": False, **arguments}
    model.fit(X, Y, epochs=epochs, strategy=strategy, verbose=0, **arguments)
    return model


@pytest.mark.slow
def test_the_default_rate_of_sgd_is_too_small():
    with pytest.warns(UserWarning, match="learning rate is too small") as caught:
        fit("sgd")
    text = next(str(w.message) for w in caught if w.category is UserWarning)
    # The rate, the longest gradient, the updates, and a rate to try.
    for part in ("a rate of 0.01", "60 updates", "Try a rate of"):
        assert part in text
    assert {w.filename for w in caught if w.category is UserWarning} == {__file__}


@pytest.mark.slow
def test_a_schedule_counts_with_its_mean():
    rate = keras.optimizers.schedules.PolynomialDecay(0.02, 60, end_learning_rate=0.0)
    with pytest.warns(UserWarning, match="learning rate is too small"):
        fit(keras.optimizers.SGD(rate))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"optimizer": keras.optimizers.SGD(1.0)},
        {"optimizer": "adam"},
        {"optimizer": keras.optimizers.SGD(0.05, momentum=0.95), "strategy": strategies.DPSGD(5.0)},
        {"optimizer": "sgd", "epochs": 5},  # a trial
        {"optimizer": keras.optimizers.SGD(0.0)},  # meant to stand still
    ],
)
def test_what_can_learn_is_left_alone(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(**arguments)


@pytest.mark.slow
def test_a_recipe_takes_its_own_rate_as_it_is():
    """It was chosen by experiment, and is low where rows are few; that of a network of the user's is looked at."""
    recipe = lipdp.recipe((8,), 3, 60, epsilon=0.5)
    settings = {"epsilon": 0.5, "delta": 1e-3, "training_metrics": False, "verbose": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = recipe.fit(X[:60], Y[:60], **settings)
    model.compile("sgd", losses.SparseCategoricalCrossentropy())
    with pytest.warns(UserWarning, match="learning rate is too small"):
        model.fit(X[:60], Y[:60], epochs=30, batch_size=30, strategy="dpsgd", **settings | {"epsilon": 0.7})


def test_noise_that_outweighs_all_gradients():
    with pytest.warns(UserWarning, match="Noise outweighs") as caught:
        fit(keras.optimizers.SGD(5.0), batch_size=2, steps_per_epoch=1, noise_multiplier=20.0)
    text = next(str(w.message) for w in caught if w.category is UserWarning)
    assert "batch_size=2" in text and "Try a batch size of" in text


@pytest.mark.slow
def test_the_suggested_rate_is_not_warned_of_again():
    with pytest.warns(UserWarning, match="too small") as caught:
        fit("sgd")
    text = next(str(w.message) for w in caught if w.category is UserWarning)
    rate = float(text.split("Try a rate of ")[1].split(";")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(keras.optimizers.SGD(rate))


def test_a_clip_above_all_gradients_does_nothing():
    with pytest.warns(UserWarning, match="clip of the loss does nothing") as caught:
        fit(keras.optimizers.SGD(1.0), clip=1.5)
    text = next(str(w.message) for w in caught if w.category is UserWarning)
    for part in ("clip=1.5", "3 outputs", "longer than 1.41", "try 0.3"):
        assert part in text
    assert {w.filename for w in caught if w.category is UserWarning} == {__file__}


@pytest.mark.parametrize(
    ("weights", "more", "warned"),
    [
        ({0: 1e-4, 1: 0.01, 2: 1e-4}, {}, True),
        ({0: 1e-4, 1: 0.01}, {}, False),  # class 2 has weight 1
        ({0: 0.01, 1: 1.0, 2: 0.01}, {}, False),
        ({0: 0.01, 1: 1.0, 2: 0.01}, {"clip_norm": 10.0}, True),
        ({0: 1e-4, 1: 0.01, 2: 1e-4}, {"clip_norm": 0.01}, False),
        ({0: 1e-4, 1: 0.01, 2: 1e-4}, {"quantile": 0.5}, False),
    ],
)
def test_weights_of_classes_that_are_small_beside_the_clip_norm(weights, more, warned):
    """Of all gradients nothing but noise was left."""
    model, strategy = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), strategies.DPSGD(**more)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advice.of_class_weight(model, strategy, weights)
    assert len(caught) == warned
    if warned:
        assert "Divide all of them by the largest" in str(caught[0].message)


def test_fit_warns_of_small_weights_of_classes():
    weights = {"class_weight": {0: 1e-3, 1: 1e-3, 2: 1e-3}}
    with pytest.warns(UserWarning, match="class_weight of at most 0.001, clip_norm=1. Divide"):
        fit("adam", strategy="dpsgd", epochs=1, **weights)


def certified(layer, lipschitz):
    inputs = keras.Input((8,))
    x = layers.SpectralDense(4)(layers.BoundedInput(norm=2.0)(inputs))
    x = keras.layers.Add()([x, layers.Abs()(x)]) if layer == "sum" else layer(x)
    model = lipdp.DP_Model(inputs, layers.SpectralDense(3)(x))
    metric = certify.CertifiedAccuracy(0.1, lipschitz)
    model.compile(keras.optimizers.SGD(1.0), losses.SparseCategoricalCrossentropy(), metrics=["accuracy", metric])
    return model


@pytest.mark.parametrize(
    ("layer", "lipschitz", "text"),
    [
        (layers.Abs(), 1.0, None),
        ("sum", 1.0, "certified_accuracy_0.1, of lipschitz=1, .* bring to 2[.] Pass that"),
        ("sum", 2.0, None),
        (keras.layers.Dense(4), 1.0, "without a bound for all weights. Leave it out"),
    ],
)
def test_a_metric_that_counts_more_rows_than_are_certified(layer, lipschitz, text):
    """It took 1 for the constant of a sum of two paths, without a word."""
    model = certified(layer, lipschitz)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        advice.advise(model, 1.0, None, 1, 40)
    assert len(caught) == (text is not None)
    assert text is None or re.search(text, str(caught[0].message))
