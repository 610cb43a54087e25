"""Masks that reach the output: metrics leave out what they hide, in training as in `evaluate` of Keras."""

import keras
import numpy as np
import pytest
from keras import layers

import lipdp

COUNT, LENGTH = 40, 6
RNG = np.random.default_rng(0)
X = RNG.integers(1, 9, (COUNT, LENGTH)) * (np.arange(LENGTH) < RNG.integers(1, LENGTH, COUNT)[:, None])
Y = {"tags": X % 3, "kind": X[:, 0] % 2}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def tagger(several: bool = False) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((LENGTH,))
    words = layers.Embedding(9, 4, mask_zero=True)(inputs)
    outputs = {"tags": layers.Dense(3, name="tags")(words)}
    if several:
        outputs["kind"] = layers.Dense(2, name="kind")(layers.GlobalAveragePooling1D()(words))
    return keras.Model(inputs, outputs if several else outputs["tags"])


def told(several: bool) -> dict:
    """What `compile` gets of loss and metrics."""
    if not several:
        return {"loss": LOSS, "metrics": ["accuracy"]}
    return {"loss": {"tags": LOSS, "kind": LOSS}, "metrics": {"tags": ["accuracy"], "kind": ["accuracy"]}}


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("microbatch", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_metrics_of_training_leave_out_what_is_hidden(several, microbatch):
    """On TensorFlow `fit` ended with incompatible shapes; on JAX padding was counted."""
    y = Y if several else Y["tags"]
    plain = tagger(several)
    plain.compile("sgd", **told(several))
    expected = plain.evaluate(X, y, batch_size=COUNT, verbose=0, return_dict=True)
    model = lipdp.DP_Model.from_keras(tagger(several))
    model.compile(keras.optimizers.SGD(0.0), **told(several))
    found = model.fit(
        X, y, batch_size=COUNT, noise_multiplier=1.0, delta=1e-3, strategy="dpsgd", sampling="shuffle",
        microbatch_size=microbatch, verbose=0,
    ).history  # fmt: skip
    names = [name for name in expected if name.endswith("accuracy")]
    assert len(names) == 1 + several
    for name in names:
        assert found[name][0] == pytest.approx(expected[name], abs=1e-6)
        assert model.evaluate(X, y, verbose=0, return_dict=True)[name] == pytest.approx(expected[name], abs=1e-6)


@pytest.mark.backend_free
def test_weights_of_rows_weigh_their_places():
    """Keras multiplied weights of rows with a mask of places."""
    weights = np.linspace(0.5, 2.0, COUNT)
    model = lipdp.DP_Model.from_keras(tagger())
    model.compile("sgd", **told(False), weighted_metrics=["accuracy"])
    found = model.evaluate(X, Y["tags"], sample_weight=weights, batch_size=COUNT, verbose=0, return_dict=True)
    right = model.predict(X, verbose=0).argmax(-1) == Y["tags"]
    for name, there in (("accuracy", X > 0), ("weighted_accuracy", (X > 0) * weights[:, None])):
        assert found[name] == pytest.approx((right * there).sum() / there.sum(), abs=1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize("last", [(), pytest.param((1,), marks=pytest.mark.slow)])
def test_metrics_of_places_are_those_of_keras_with_and_without_a_last_axis(last):
    """Without it AUC ended `fit` with shapes that do not fit."""
    x = RNG.normal(size=(COUNT, LENGTH, 2)).astype("float32")
    y = (x[..., 0] > RNG.normal(size=(COUNT, LENGTH))).astype("int32").reshape(COUNT, LENGTH, *last)

    def compiled(kind):
        net = keras.Sequential(
            [keras.Input((LENGTH, 2)), layers.Dense(1, activation="sigmoid", kernel_initializer="ones")]
        )
        model = kind(net)
        metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision"), "accuracy", "mae"]
        model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", metrics=metrics)
        return model

    plain, model = compiled(lambda net: net), compiled(lipdp.DP_Model.from_keras)
    expected = plain.evaluate(x, y, batch_size=COUNT, verbose=0, return_dict=True)
    found = model.fit(
        x, y, batch_size=COUNT // 2, noise_multiplier=1.0, delta=1e-3, sampling="shuffle", strategy="dpsgd", verbose=0,
        validation_data=(x, y),
    ).history  # fmt: skip
    for name in ("auc", "precision", "accuracy", "mae"):
        assert found[name][0] == pytest.approx(expected[name], abs=1e-5)
        assert found[f"val_{name}"][0] == pytest.approx(expected[name], abs=1e-5)
