"""The classifier that labels drawn images: what it costs is charged, saved and stated, and its labels are right."""

import dataclasses

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, diffusion
from lipdp.accounting.schemes import SCHEMES
from lipdp.diffusion import labels
from lipdp.privacy import provenance

SHAPE, CLASSES, COUNT = (8, 8, 1), 3, 600


def bars(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 x 8 in [-1, 1] whose class is where they are bright."""
    rng, y = np.random.default_rng(seed), np.arange(count) % CLASSES
    x = rng.uniform(-1.0, -0.6, (count, *SHAPE)).astype("float32")
    for row, one in enumerate(y):
        x[row, 2 * one : 2 * one + 3] += 1.2
    return x, y


def network():
    return diffusion.unet(SHAPE, CLASSES, channels=4, multipliers=(1,), blocks=1, slim=True)


@pytest.fixture(scope="module")
def trained():
    """A classifier of a third of the budget, and the settings that made it."""
    recipe = dataclasses.replace(labels.label_recipe(SHAPE, CLASSES, COUNT, 4.0), epochs=20)
    model = recipe.fit(*bars(COUNT), delta=1e-5, verbose=0, seed=0)
    return recipe, model


def test_a_recipe_costs_what_it_was_asked_for():
    for count, epsilon in ((60000, 0.5), (60000, 5.0), (600, 2.0), (30000, 1.0)):
        recipe = labels.label_recipe((28, 28, 1), 10, count, epsilon)
        mechanisms = recipe.first_releases(accounting.Sampling("poisson").bind(count, count))
        assert 0.98 * epsilon < accounting.compose(mechanisms, 1e-5, "pld") <= epsilon
    assert labels.label_recipe((28, 28, 1), 10, 60000, 0.5).frequencies == (12, 12)


@pytest.mark.slow
def test_labels_are_right_where_images_were_drawn_for_others(trained):
    _, classifier = trained
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=classifier)
    x, y = bars(90, seed=1)
    assert (model.classify(x) == y).mean() > 0.9
    assert model.classify(x).dtype == np.int32


@pytest.mark.slow
def test_a_budget_holds_the_classifier_and_files_keep_both(trained, tmp_path):
    _, classifier = trained
    cost = classifier.privacy.epsilon(1e-5)
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=classifier)
    assert model.privacy.epsilon(1e-5) == pytest.approx(cost)
    model.compile("adam")
    x, y = bars(COUNT)
    kernels = [np.array(weight) for weight in model.classifier.get_weights()]
    model.learn_moments(x, y, noise_multiplier=5.0, num_images=64, batch_size=32, frequencies=4, epochs=1, verbose=0)
    model.fit(x, y, epsilon=6.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)
    assert cost < 4.2 and 5.9 < model.privacy.epsilon() <= 6.0
    assert model.privacy.epsilon() == pytest.approx(accounting.compose(mechanisms(model), 1e-5, "pld"), rel=1e-6)
    for before, after in zip(kernels, model.classifier.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)

    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.classify(x), model.classify(x))
    assert again.privacy.epsilon() == model.privacy.epsilon()
    # Whoever takes only the classifier out of the file takes its ledger along.
    alone = lipdp.DP_Model(again.classifier.inputs, again.classifier.outputs)
    assert alone.privacy.epsilon(1e-5) >= cost - 1e-9
    with pytest.raises(ValueError, match="The budget is spent"):
        again.fit(x, y, epsilon=6.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)


def mechanisms(model):
    return [entry.mechanism() for ledger in provenance.ledgers_of(model) for entry in ledger.entries]


@pytest.mark.slow
def test_the_gradients_of_the_generator_leave_the_classifier_alone(trained):
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=trained[1])
    plain = diffusion.DiffusionModel(network(), num_classes=CLASSES)
    assert len(model.trainable_variables) == len(plain.trainable_variables)
    assert trained[1].trainable and len(trained[1].trainable_variables) == 4, "the user's own is as it was"


@pytest.mark.slow
def test_a_copy_of_the_generator_without_the_classifier_costs_both(trained):
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=trained[1])
    model.compile("adam")
    model.fit(*bars(COUNT), noise_multiplier=4.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)
    both = model.privacy.epsilon()
    assert trained[1].privacy.epsilon(1e-5) < both
    assert len(provenance.ledgers_of(model)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", ["poisson", *(pytest.param(s, marks=pytest.mark.slow) for s in ("shuffle", "fixed_size"))]
)
@pytest.mark.parametrize("group", [1, 2])
def test_a_recipe_charges_what_it_says_beforehand(sampling, group):
    if group > 1 and not SCHEMES[sampling].group_relations:
        pytest.skip("nothing is known of groups")
    recipe = diffusion.recipe(SHAPE, CLASSES, COUNT, updates=2, batch_size=60, microbatch_size=None)
    own = dataclasses.replace(labels.label_recipe(SHAPE, CLASSES, COUNT, 8.0), epochs=2, hidden=4)
    bound = accounting.Sampling(sampling).bind(COUNT, 60, group)
    recipe = dataclasses.replace(recipe, classifier=own).for_sampling(bound)
    x, y = bars(COUNT)
    how = {"sampling": sampling, "examples_per_person": group}
    classifier = recipe.train_classifier(x, y, delta=1e-5, verbose=0, **how)
    said = recipe.first_releases(bound)
    assert 7.8 < accounting.compose(said, 1e-5, "pld") <= 8.01, "its budget, whatever the sampling"
    found = [entry.mechanism(group) for entry in classifier.run.ledger.entries]
    assert sorted(found, key=repr) == sorted(said, key=repr) and len(said) == 2
    if (sampling, group) == ("shuffle", 1):
        model = recipe.fit((x + 1.0) / 2.0, y, noise_multiplier=20.0, delta=1e-5, verbose=0, **how)
        assert model.privacy.epsilon() > accounting.compose(said, 1e-5, "pld")


def test_recipes_of_28_pixels_have_one():
    recipe = diffusion.recipe((28, 28, 1), 10, 60000, epsilon=1.0)
    assert recipe.classifier is not None
    spent = recipe.first_releases(accounting.Sampling("poisson").bind(60000, recipe.batch_size))
    assert accounting.compose(spent, 1e-5, "pld") < 0.8
    assert diffusion.recipe((28, 28, 1), 10, 60000, epsilon=1.0, classifier=None).classifier is None
    assert diffusion.recipe((28, 28, 1), 10, 60000, epsilon=1.0, handwritten=True).classifier is None
    assert diffusion.recipe((28, 28, 1), 1, 60000, epsilon=1.0).classifier is None
    assert diffusion.recipe((8, 8, 1), 10, 1000).classifier is None


@pytest.mark.backend_free
@pytest.mark.parametrize("classes", [pytest.param(None, marks=pytest.mark.slow), 4])
def test_classifiers_that_do_not_fit_are_refused(trained, classes):
    own = diffusion.unet(SHAPE, classes, channels=4, multipliers=(1,), blocks=1, slim=True)
    with pytest.raises(ValueError, match="one logit for each class"):
        diffusion.DiffusionModel(own, num_classes=classes, classifier=trained[1])


def test_without_a_classifier_nothing_is_labeled():
    with pytest.raises(ValueError, match="has no classifier"):
        diffusion.DiffusionModel(network(), num_classes=CLASSES).classify(bars(3)[0])


@pytest.mark.slow
def test_an_untrained_classifier_is_trained_first():
    classifier = labels.label_recipe(SHAPE, CLASSES, COUNT, 4.0).build(COUNT)
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=classifier)
    model.compile("adam")
    with pytest.raises(ValueError, match="classifier that the model was given, train that first"):
        model.fit(*bars(COUNT), noise_multiplier=4.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)
    assert not model.run.ledger.releases
    with pytest.raises(ValueError, match="was not trained"):
        model.classify(bars(3)[0])


@pytest.mark.slow
def test_layers_that_compute_with_their_weights_are_copied_whole():
    """`Normalization` computes with what it makes of its weights when they are loaded, not with them."""
    x, _ = bars(30)
    normalization = keras.layers.Normalization()
    normalization.adapt(x)
    inputs = keras.Input(SHAPE)
    flat = keras.layers.Flatten()(normalization(inputs))
    own = keras.Model(inputs, keras.layers.Dense(CLASSES)(flat))
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=own)
    np.testing.assert_allclose(model.classifier.predict(x, verbose=0), own.predict(x, verbose=0), atol=1e-5)

    images, noise, label = keras.Input(SHAPE), keras.Input(()), keras.Input(())
    generator = network()
    whole = keras.Model([images, noise, label], generator([normalization(images), noise, label]))
    model = diffusion.DiffusionModel(whole, num_classes=CLASSES)
    object.__setattr__(model, "_averaged", [weight.numpy() for weight in whole.trainable_variables])
    rows = [x, np.zeros(len(x), "float32"), np.zeros(len(x), "float32")]
    np.testing.assert_allclose(
        model.averaged_network().predict(rows, verbose=0), whole.predict(rows, verbose=0), atol=1e-5
    )


@pytest.mark.slow
def test_the_classifier_stays_as_it_is(trained):
    model = diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=trained[1])
    with pytest.raises(AttributeError):
        model.classifier = trained[1]
    model.trainable = False
    model.trainable = True
    model.compile("adam")
    before = model.classifier.get_weights()
    model.fit(*bars(COUNT), noise_multiplier=4.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)
    for old, new in zip(before, model.classifier.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert model.classify(np.zeros((0, *SHAPE), "float32")).shape == (0,)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, ValueError, "No privacy budget given"),
        ({"epsilon": 1.0}, ValueError, "costs epsilon="),
        ({"epsilon": 20.0, "accountant": "filter"}, ValueError, "must begin before the first release"),
        ({"epsilon": 20.0, "wrong": 1}, TypeError, "wrong"),
        ({"epsilon": 20.0, "validation_split": 0.1}, ValueError, "validation_split"),
        ({"epsilon": 20.0, "y": np.zeros(COUNT)}, ValueError, "Labels must be class ids"),
    ],
)
def test_what_cannot_end_well_does_not_begin(monkeypatch, settings, error, words):
    monkeypatch.setattr(labels.LabelRecipe, "fit", lambda *_, **__: pytest.fail("trained"))
    own = labels.label_recipe(SHAPE, CLASSES, COUNT, 8.0)
    recipe = diffusion.recipe(SHAPE, CLASSES, COUNT, updates=2, batch_size=60, classifier=own)
    x, y = bars(COUNT)
    with pytest.raises(error, match=words):
        recipe.fit((x + 1.0) / 2.0, settings.pop("y", y), delta=1e-5, verbose=0, **settings)


@pytest.mark.parametrize(("sampling", "group"), [("shuffle", 1), ("fixed_size", 1), ("poisson", 3)])
def test_fit_of_a_recipe_suits_its_noise_to_the_sampling(monkeypatch, sampling, group):
    """What comes first costs the same part of the budget, however batches are drawn."""
    seen = []

    class Stopped(Exception):
        pass

    def stop(self, x, y, **kwargs):
        seen.append(self)
        raise Stopped

    monkeypatch.setattr(diffusion.Recipe, "train_classifier", stop)
    recipe = diffusion.recipe((28, 28, 1), CLASSES, 6000, epsilon=1.0)
    x, y = np.zeros((6000, 28, 28, 1), "float32"), np.arange(6000) % CLASSES
    with pytest.raises(Stopped):
        recipe.fit(x, y, epsilon=1.0, delta=1e-5, sampling=sampling, examples_per_person=group)
    bound = accounting.Sampling(sampling).bind(6000, recipe.batch_size, group)
    assert accounting.compose(seen[0].first_releases(bound), 1e-5, "pld") < 0.8


@pytest.mark.parametrize("wrong", ["a name", keras.Sequential([keras.layers.Dense(3)])])
def test_classifiers_that_cannot_be_copied_are_refused(wrong):
    with pytest.raises(ValueError, match="must be a Sequential or functional model"):
        diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=wrong)


@pytest.mark.slow
def test_a_classifier_that_dpis_has_trained_is_refused():
    recipe = labels.label_recipe(SHAPE, CLASSES, COUNT, 4.0)
    own = recipe.build(COUNT)
    own.fit(*bars(COUNT), strategy="dpis", epsilon=8.0, delta=1e-5, batch_size=100, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="Train it with DPSGD"):
        diffusion.DiffusionModel(network(), num_classes=CLASSES, classifier=own)
