"""Tokens: repeated ones add, and the scale keeps the sum within the bound."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses
from tests.helpers.adversary import TOLERANCE, Probe, norm, top


def test_gradient_and_output_reach_their_bounds_on_one_repeated_token():
    layer = layers.BoundedEmbedding(5, 2, max_norm=1.5)
    probe = Probe(layer, (6,), dtype="int32")
    rng, reached = np.random.default_rng(0), []
    for tokens in (np.full(6, 3), np.arange(6), *rng.integers(-3, 9, (6, 6))):
        (jacobian,) = probe.parameter_jacobians(tokens[None])
        reached.append(top(jacobian))
        layer.embeddings.assign(layer.embeddings.constraint(100.0 * rng.standard_normal((5, 2))))
        assert norm(probe.value(tokens[None])) == pytest.approx(1.5, rel=1e-5)
    assert max(reached) == pytest.approx(1.0, abs=1e-5)
    assert max(reached) <= 1.0 + TOLERANCE
    assert bounds.rules(layer).parameter_bounds((float("inf"),), 0.5) == (0.5,)


def test_tokens_out_of_range_are_the_nearest_ones():
    layer = layers.BoundedEmbedding(3, 2)
    y = keras.ops.convert_to_numpy(layer(np.array([[-7, 0, 2, 90]])))[0]
    np.testing.assert_array_equal(y[0], y[1])
    np.testing.assert_array_equal(y[2], y[3])


def test_check_takes_tokens():
    ratios = bounds.check(layers.BoundedEmbedding(4, 2), (3,), dtype="int32", print_fn=lambda text: None)
    assert ratios["jacobian"] == 0.0 and 0.5 <= ratios["gradient"] <= 1.0 + TOLERANCE


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_text_classifier_trains_and_saves(tmp_path):
    """The first token decides the class."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 20, (2000, 8))
    y = (x[:, 0] >= 10).astype("int32")
    inputs = keras.Input((8,), dtype="int32")
    tokens = layers.BoundedEmbedding(20, 8)(inputs)
    tokens = layers.ResidualAverage()([tokens, layers.Abs()(layers.TokenMixing(8)(tokens))])
    outputs = layers.SpectralDense(2)(layers.Flatten()(layers.Abs()(layers.SpectralDense(8)(tokens))))
    model = lipdp.DP_Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(4.0, momentum=0.9), losses.SparseCategoricalCrossentropy(temperature=20.0))
    model.fit(x, y, batch_size=500, epochs=15, epsilon=50.0, delta=1e-4, seed=0, verbose=0, training_metrics=False)
    predicted = model.predict(x, verbose=0).argmax(1)
    assert np.mean(predicted == y) >= 0.7
    model.save(tmp_path / "text.keras")
    loaded = keras.saving.load_model(tmp_path / "text.keras")
    np.testing.assert_array_equal(loaded.predict(x[:5], verbose=0), model.predict(x[:5], verbose=0))
    with pytest.raises(ValueError, match="without a Lipschitz constant"):
        lipdp.certify.radii(model, x[:5])
