"""The recipe of De et al. 2022: a wide residual network, views of each image, an average of the weights."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import certify, layers, models
from lipdp.models import classifier

SHAPE, COUNT = (8, 8, 3), 60
CIFAR = (32, 32, 3), 10, 50000


def small(**changes):
    settings = {"depth": 10, "width": 1, "batch_size": 20, "epochs": 2, "augmentation_multiplicity": 2}
    settings |= {"learning_rate": 1.0, **changes}
    return dataclasses.replace(models.wide_resnet_recipe(SHAPE, 3, COUNT, 8.0), **settings)


def images():
    rng = np.random.default_rng(0)
    return rng.random((COUNT, *SHAPE)).astype("float32"), np.arange(COUNT) % 3


class Weights(keras.callbacks.Callback):
    """The weights after each update."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append([ops.convert_to_numpy(v).copy() for v in self.model.trainable_variables])


@pytest.fixture(scope="module")
def fitted():
    keras.utils.set_random_seed(0)
    weights, recipe = Weights(), small(ema_momentum=0.7)
    model = recipe.fit(*images(), epsilon=8.0, delta=1e-3, verbose=0, training_metrics=False, callbacks=[weights])
    return recipe, model, weights.kept


def convolutions(network):
    return [layer for layer in network.layers if isinstance(layer, keras.layers.Conv2D)]


@pytest.mark.slow
def test_it_trains_by_dpsgd_within_the_budget(fitted):
    recipe, model, kept = fitted
    assert len(kept) == recipe.updates(COUNT) == model.run.ledger.updates == 6
    assert [entry.kind for entry in model.run.ledger.entries] == ["gradient"]
    assert 7.9 < model.privacy.epsilon() <= 8.0
    assert model.run.request.microbatch_size == recipe.microbatch_size == 5
    assert model.input_shape == (None, *SHAPE) and model.output_shape == (None, 3)
    assert "val_loss" not in model.history.history and len(model.history.history["epsilon"]) == 2


@pytest.mark.slow
def test_the_averages_are_what_is_returned(fitted):
    recipe, model, kept = fitted
    for i, variable in enumerate(model.trainable_variables):
        average, share = kept[0][i], recipe.ema_momentum
        for weights in kept[1:]:
            average = share * average + (1.0 - share) * weights[i]
        np.testing.assert_allclose(ops.convert_to_numpy(variable), average, atol=1e-5)


@pytest.mark.slow
@pytest.mark.backend_free
def test_files_and_exports_compute_the_same(fitted, tmp_path):
    recipe, model, _ = fitted
    x, y = images()
    logits = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), logits, atol=1e-5)
    assert loaded.optimizer.use_ema and loaded.optimizer.ema_momentum == recipe.ema_momentum
    assert loaded.run.ledger == model.run.ledger
    # What stands alone names no class of lipdp.
    plain = lipdp.export(model)
    np.testing.assert_allclose(plain.predict(x, verbose=0), logits, atol=1e-5)
    assert "lipdp>" not in plain.to_json()
    with pytest.raises(ValueError, match="StandardizedConv2D"):
        certify.radii(model, x)
    with pytest.raises(ValueError, match="use_ema=True"):
        model.fit(x, y, batch_size=20, epsilon=9.0, delta=1e-3, verbose=0, strategy="clipless")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("shape", "depth", "width", "count"),
    [((32, 32, 3), 16, 4, 2748890), ((28, 28, 1), 16, 4, 2748602), ((8, 8, 3), 10, 1, 78106)],
)
def test_networks_have_their_sizes(shape, depth, width, count):
    network, plain = (models.wide_resnet(shape, 10, depth, width, standardized=s) for s in (True, False))
    found = convolutions(network)
    assert all(type(layer) is layers.StandardizedConv2D for layer in found)
    assert all(type(layer) is keras.layers.Conv2D for layer in convolutions(plain))
    assert plain.count_params() == count == network.count_params() - sum(layer.filters for layer in found)
    assert len(found) == depth - 4 + 4 and not any(layer.use_bias for layer in found)
    strides = [layer.strides for layer in found]
    assert strides.count((2, 2)) == 4  # where groups begin, and beside it
    assert all(layer.groups == 16 for layer in network.layers if "normalization" in layer.name)
    # What it knows of images are constants.
    assert network.get_layer("rescaling").get_config()["scale"] == 4.0
    again = keras.Model.from_config(network.get_config())
    assert again.to_json() == network.to_json()


@pytest.mark.backend_free
def test_settings_follow_from_public_facts():
    by_budget = {e: models.wide_resnet_recipe(*CIFAR, e) for e in (None, 0.01, 1.0, 2.0, 8.0, 100.0)}
    updates = {e: recipe.updates(50000) for e, recipe in by_budget.items()}
    assert updates == {None: 871, 0.01: 442, 1.0: 871, 2.0: 1235, 8.0: 2470, 100.0: 2470}
    recipe = by_budget[8.0]
    assert recipe == lipdp.recipe(*CIFAR, 8.0, style="wrn") == classifier.classifier_recipe(*CIFAR, 8.0, "wrn")
    assert (recipe.batch_size, recipe.augmentation_multiplicity, recipe.microbatch_size) == (4096, 16, 128)
    assert recipe.learning_rate == 2.0 and recipe.standardized
    assert not recipe.bounded and not recipe.fixes_layers and recipe.first_releases(None) == ()
    strategy = recipe.strategy()
    assert strategy.augmentation == lipdp.strategies.RandomShift(4, flip=True)
    assert (strategy.augmentation_multiplicity, strategy.clipping, strategy.clip_norm) == (16, "flat", 1.0)
    assert dataclasses.replace(recipe, shift=0, mirrored=False).strategy().augmentation is None
    few = models.wide_resnet_recipe((28, 28, 1), 10, 2000, 1.0)
    assert (few.batch_size, few.updates(2000), few.shift, few.mirrored) == (167, 876, 4, False)
    assert models.wide_resnet_recipe(SHAPE, 2, 3, 1.0).microbatch_size == 1
    assert not lipdp.recipe(*CIFAR, 8.0, style="wrn", handwritten=True).mirrored


@pytest.mark.backend_free
def test_averages_reach_back_over_a_part_of_the_updates():
    recipe = models.wide_resnet_recipe(*CIFAR, 8.0)
    momentum = {e: dataclasses.replace(recipe, epochs=e).momentum_of_averages(50000) for e in (1, 190, 10**4)}
    assert momentum == pytest.approx({1: 1.0 - 10 / 13, 190: 1.0 - 10 / 2470, 10**4: 0.999})
    one = dataclasses.replace(recipe, batch_size=50000, epochs=1)
    assert one.momentum_of_averages(50000) == 0.0
    assert dataclasses.replace(recipe, ema_momentum=0.5).momentum_of_averages(50000) == 0.5
    assert type(convolutions(small(standardized=False).build(COUNT))[0]) is keras.layers.Conv2D
    optimizer = small(ema_momentum=0.5).build(COUNT).optimizer
    assert optimizer.use_ema and optimizer.ema_momentum == 0.5 and optimizer.ema_overwrite_frequency is None
    assert optimizer.momentum == 0.0 and float(optimizer.learning_rate) == 1.0


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "adaclip"}, "DP-SGD. Received: method='adaclip'.*leave style='wrn'"),
        ({"input_shape": (5,)}, "images with sides from 8 pixels on. Received: input_shape=\\(5,\\)"),
        ({"input_shape": (4, 8, 1)}, "from 8 pixels on"),
        ({"depth": 15}, "4 more than a multiple of 6.*Received: depth=15"),
        ({"depth": 4}, "depth"),
        ({"width": 0}, "width"),
        ({"augmentation_multiplicity": 0}, "augmentation_multiplicity"),
        ({"shift": -1}, "shift"),
        ({"mirrored": 1}, "mirrored"),
        ({"standardized": 1}, "standardized"),
        ({"ema_momentum": 1.0}, "ema_momentum"),
        ({"microbatch_size": 0}, "microbatch_size"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dpis"}, "Received: method='dpis'. Pass method='dpsgd'"),
        ({"method": "clipless"}, "other recipes train by other strategies"),
        ({"input_shape": (5,)}, "the default knows tables"),
        ({"front_end": "accurate"}, "front_end='accurate' with style='wrn'"),
        ({"row_norm": 1.0}, "row_norm=1.0 with style='wrn'"),
        ({"rescaled": True}, "rescaled=True with style='wrn'"),
        ({"radius": 0.5}, "style='robust'"),
        ({"num_classes": 1}, "num_classes"),
        ({"num_examples": 0}, "num_examples"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    given = {"input_shape": SHAPE, "num_classes": 3, "num_examples": 60, "epsilon": 1.0, "style": "wrn", **arguments}
    with pytest.raises(ValueError, match=message):
        lipdp.recipe(**given)


@pytest.mark.backend_free
def test_networks_refuse_bad_arguments():
    for arguments, message in (
        (((4, 4, 3), 10), "from 8 pixels on"),
        ((SHAPE, 1), "num_classes"),
        ((SHAPE, 10, 12), "depth=12"),
        ((SHAPE, 10, 16, 0), "width"),
    ):
        with pytest.raises(ValueError, match=message):
            models.wide_resnet(*arguments)
