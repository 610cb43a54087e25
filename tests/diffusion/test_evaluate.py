"""Evaluation: closed forms of the distance, classifiers that learn what can be learned, and what is refused."""

import keras
import numpy as np
import pytest

from lipdp import diffusion
from lipdp.diffusion import evaluate


def whitened(n, d, seed):
    """Points whose mean is exactly 0 and whose covariance is exactly the identity."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    x -= x.mean(0)
    return x @ np.linalg.inv(np.linalg.cholesky(np.atleast_2d(np.cov(x, rowvar=False)))).T


def stripes(n, seed):
    """Images of two classes, horizontal and vertical stripes at a random place, with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = rng.normal(0, 0.2, (n, 10, 10, 1)).astype("float32") - 0.5
    for i, row in enumerate(rng.integers(0, 10, n)):
        (x[i, row] if y[i] else x[i, :, row])[...] += 1.0
    return x, y.astype("int32")


@pytest.mark.backend_free
def test_frechet_distance_in_closed_form():
    x, y = whitened(400, 3, 0), whitened(300, 3, 1)
    assert diffusion.frechet_distance(x, y) == pytest.approx(0.0, abs=1e-6)
    # tr(C1 + C2 - 2 (C1 C2)^(1/2)) of commuting covariances is the sum of squared differences of deviations.
    scales, shift = np.array([1.0, 2.0, 0.5]), np.array([1.0, -2.0, 0.0])
    assert diffusion.frechet_distance(x, y * scales + shift) == pytest.approx(5.0 + 0.0 + 1.0 + 0.25)
    # In general the trace is that of the root of the product, here from its eigenvalues.
    mix = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.2, 0.0, 0.7]])
    first, second = np.diag(scales**2), mix @ mix.T
    cross = np.sqrt(np.linalg.eigvals(first @ second).real).sum()
    expected = np.trace(first) + np.trace(second) - 2 * cross
    assert diffusion.frechet_distance(x * scales, y @ mix.T) == pytest.approx(expected)


@pytest.mark.backend_free
def test_frechet_distance_of_singular_covariances_and_one_feature():
    x = np.random.default_rng(0).normal(size=(20, 50))
    # Roots of eigenvalues that should be zero: 1e-8 each.
    assert diffusion.frechet_distance(x, x) == pytest.approx(0.0, abs=1e-4)
    line = whitened(50, 1, 0)
    assert diffusion.frechet_distance(line, 3 * line + 1) == pytest.approx(1 + 4)


@pytest.mark.backend_free
def test_features_are_pluggable():
    images = np.random.default_rng(0).normal(size=(30, 4, 4, 1))

    def features(batch):
        return batch.reshape(len(batch), -1)[:, :3]

    direct = diffusion.frechet_distance(features(images), features(2 * images))
    assert diffusion.frechet_distance(images, 2 * images, features, batch_size=7) == pytest.approx(direct)
    with pytest.raises(ValueError, match="Pass `features`"):
        diffusion.frechet_distance(images, images)
    with pytest.raises(ValueError, match="at least two"):
        diffusion.frechet_distance(images[:1], images, features)
    with pytest.raises(ValueError, match="one size"):
        diffusion.frechet_distance(features(images), features(images)[:, :2])


@pytest.mark.slow
@pytest.mark.backend_free
def test_classifier_features_separate_what_matters():
    x, y = stripes(600, 0)
    features = diffusion.classifier_features(x, y, num_classes=2, epochs=3)
    assert features.output_shape == (None, 128)
    other, labels = stripes(400, 1)
    same = diffusion.frechet_distance(x, other, features)
    one_class = diffusion.frechet_distance(x, other[labels == 0], features)
    noise = diffusion.frechet_distance(x, np.random.default_rng(0).normal(0, 0.5, other.shape), features)
    assert same < 0.1 * one_class and same < 0.1 * noise


@pytest.mark.slow
@pytest.mark.backend_free
def test_downstream_accuracy_rises_with_the_quality_of_the_images():
    x, y = stripes(900, 0)
    test, test_labels = stripes(400, 1)
    # Weights of the best epoch on held-out synthetic images are the ones that are tested.
    good = diffusion.downstream_accuracy(x, y, test, test_labels, ["cnn"], epochs=12)["cnn"]
    wrong = diffusion.downstream_accuracy(x, 1 - y, test, test_labels, ["cnn"], epochs=12)["cnn"]
    assert good > 0.9 and wrong < 0.1


@pytest.mark.slow
@pytest.mark.backend_free
def test_classifiers_can_be_models_of_ones_own():
    x, y = stripes(600, 0)

    def own(name, **options):
        model = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Flatten(), keras.layers.Dense(2)], name=name)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return options and model.compile(keras.optimizers.SGD(0.5), loss, **options) or model

    models = own("as_compiled", metrics=["accuracy"]), own("as_others")
    found = diffusion.downstream_accuracy(x, y, x, y, ["logistic_regression", *models], epochs=2)
    assert list(found) == ["logistic_regression", "as_compiled", "as_others"]
    assert isinstance(models[0].optimizer, keras.optimizers.SGD) and isinstance(
        models[1].optimizer, keras.optimizers.Adam
    )
    # The same network, begun from the same seed, and trained in place.
    assert found["as_others"] == models[1].evaluate(x, y, verbose=0, return_dict=True)["accuracy"]
    with pytest.raises(ValueError, match="'own' twice"):
        diffusion.downstream_accuracy(x, y, x, y, [own("own"), own("own")], epochs=1)
    with pytest.raises(ValueError, match=r"metrics=\['accuracy'\] to `compile` of 'own'"):
        diffusion.downstream_accuracy(x, y, x, y, [own("own", metrics=["mse"])], epochs=1)


@pytest.mark.slow
def test_the_epoch_is_chosen_on_synthetic_images(monkeypatch):
    seen = {}

    def fit(self, x, y, **options):
        seen.update(options, size=len(x))

    monkeypatch.setattr(keras.Sequential, "fit", fit)
    x, y = stripes(50, 0)
    found = diffusion.downstream_accuracy(x, y, x + 9.0, y, ["logistic_regression", "mlp"], held_out=0.2)
    assert set(found) == {"logistic_regression", "mlp"} and all(0 <= v <= 1 for v in found.values())
    chosen, _ = seen["validation_data"]
    assert seen["size"] == 40 and len(chosen) == 10 and chosen.max() < 5.0, "no real image has a say"
    assert seen["epochs"] == 50 and seen["batch_size"] == 128
    (callback,) = seen["callbacks"]
    assert callback.monitor == "val_accuracy" and callback.restore_best_weights and callback.patience == 50


@pytest.mark.backend_free
@pytest.mark.parametrize(("name", "count"), [("logistic_regression", 7850), ("mlp", 79510), ("cnn", 241546)])
def test_the_classifiers_of_the_paper(name, count):
    network = evaluate.classifier(name, (28, 28, 1), 10)
    assert network.count_params() == count
    assert evaluate.classifier(name, (14, 14, 1), 10).output_shape == (None, 10)


@pytest.mark.backend_free
def test_bad_input():
    x, y = stripes(20, 0)
    with pytest.raises(ValueError, match="`name` must be one of 'logistic_regression'"):
        evaluate.classifier("vit", (8, 8, 1), 10)
    with pytest.raises(ValueError, match="of one size"):
        diffusion.downstream_accuracy(x, y, x[:, :5], y)
    with pytest.raises(ValueError, match="`held_out`"):
        diffusion.downstream_accuracy(x, y, x, y, held_out=0.01)
    with pytest.raises(ValueError, match="Pass `features`.*classifier_features"):
        diffusion.frechet_distance(x, x)


@pytest.mark.slow
@pytest.mark.backend_free
def test_inception_weights_that_are_none(tmp_path):
    x = np.zeros((6, 8, 8, 1), "float32")
    with pytest.raises(ValueError, match="No file of Inception weights"):
        diffusion.inception_distance(x, x, tmp_path / "none.h5")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save_weights(tmp_path / "other.weights.h5")
    # Keras itself only warns, and leaves random weights.
    with pytest.raises(ValueError, match="does not hold weights"):
        diffusion.inception_distance(x, x, tmp_path / "other.weights.h5")


@pytest.mark.slow
def test_inception_weights_of_the_user(tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (3, 8, 8, 1)).astype("float32")
    file = tmp_path / "inception.weights.h5"
    keras.utils.set_random_seed(0)
    keras.applications.InceptionV3(include_top=False, weights=None, pooling="avg").save_weights(file)
    far = diffusion.inception_distance(x, 0.2 * x, file)
    assert far > 10 * diffusion.inception_distance(x, 0.99 * x, file) >= 0
    assert diffusion.inception_distance(np.repeat(x, 3, -1), 0.2 * x, file) == pytest.approx(far)
    with pytest.raises(ValueError, match="Images must be"):
        diffusion.inception_distance(x[..., 0], x, file)
