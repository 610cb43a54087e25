"""Noisy moments of classes: sensitivity, what is drawn from them, and what `fit` makes of their cost."""

import math
import re

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, backend, diffusion
from lipdp.diffusion.class_moments import ClassMoments, mixtures
from lipdp.diffusion.recipes import recipe
from tests.helpers.models import zero


def moments(shape=(8, 8, 1), classes=2, frequencies=4, norm=3.0, center=-0.6):
    return ClassMoments(image_shape=shape, num_classes=classes, frequencies=frequencies, norm=norm, center=center)


def of_sums(of, sums, deviation):
    """One normal distribution for each class."""
    return mixtures(of, lambda centers: sums, 1, 0, deviation, np.random.default_rng(0))


def small(network=None):
    model = diffusion.DiffusionModel(network or dense(), num_classes=2)
    model.compile(keras.optimizers.Adam(1e-3))
    return model


def dense():
    """A network for two classes that compiles in no time."""
    inputs = [keras.Input((8, 8, 1)), keras.Input(()), keras.Input((), dtype="int32")]
    level, label = (keras.layers.Reshape((1,))(x) for x in inputs[1:])
    known = [keras.layers.Flatten()(x) for x in (inputs[0], level, keras.layers.Embedding(3, 4)(label))]
    out = keras.layers.Dense(64)(keras.layers.Concatenate()(known))
    return keras.Model(inputs, keras.layers.Reshape((8, 8, 1))(out))


def data(count=200, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = np.where(y[:, None, None, None] == 1, 0.7, -0.7) + 0.1 * rng.standard_normal((count, 8, 8, 1))
    return np.clip(x, -1, 1).astype("float32"), y


def test_one_image_moves_the_sums_by_at_most_their_sensitivity():
    rng, of = np.random.default_rng(0), moments()
    hostile = [
        rng.uniform(-1, 1, (8, 8, 1)),
        np.full((8, 8, 1), 1e30),
        np.full((8, 8, 1), -0.6),
        np.full((8, 8, 1), np.nan),
        np.full((8, 8, 1), np.inf),
        1e-3 * rng.standard_normal((8, 8, 1)),
        np.where(np.arange(64).reshape(8, 8, 1) == 3, 3e38, 0.0),
        *(10.0**k * rng.standard_normal((8, 8, 1)) for k in range(-2, 9)),
    ]
    x, y = data(20)
    before = of.sums(x, y, None)
    largest = 0.0
    for row in hostile:
        for label in (0, 1):
            after = of.sums(np.concatenate([x, row[None].astype("float32")]), np.append(y, label), None)
            assert np.isfinite(after).all()
            largest = max(largest, float(np.linalg.norm(after - before)))
    assert 0.99 * of.sensitivity < largest <= of.sensitivity * (1 + 1e-9)


@pytest.mark.slow
def test_rows_of_one_person_count_one_together():
    rng, of = np.random.default_rng(0), moments()
    model, (x, y) = small(), data(40)
    ids = np.append(np.arange(40), np.full(30, 99))
    mine = 1e3 * rng.standard_normal((30, 8, 8, 1)).astype("float32")
    from lipdp.sampling import Persons

    shares = Persons(ids, 8).shares()
    with_person = of.sums(np.concatenate([x, mine]), np.append(y, np.arange(30) % 2), shares)
    assert np.linalg.norm(with_person - of.sums(x, y, None)) <= of.sensitivity * (1 + 1e-9)
    model.learn_moments(
        np.clip(np.concatenate([x, mine]), -1.0, 1.0),
        np.append(y, np.arange(30) % 2),
        person_ids=ids,
        frequencies=4,
        num_images=64,
        batch_size=32,
        epochs=1,
        verbose=0,
    )
    assert model.run.ledger.unit == "person"
    assert model.run.ledger.entries[0].sampling.num_examples == 41


def test_a_class_of_its_own_for_each_label_and_rows_that_are_not_finite_add_nothing():
    of, (x, y) = moments(), data(10)
    sums = of.sums(x, y, None)
    alone = of.sums(x[y == 1], np.ones(5, int), None)
    assert np.allclose(sums[1], alone[1])
    assert not alone[0].any()
    x[0] = np.nan
    assert np.allclose(of.sums(x, y, None), of.sums(x[1:], y[1:], None))


def test_coefficients_go_back_to_images():
    of = moments(shape=(8, 6, 3), frequencies=8, norm=100.0)
    x = np.random.default_rng(0).uniform(-1, 1, (5, 8, 6, 3)).astype("float32")
    assert of.sizes == (8, 6, 3)
    assert np.allclose(of.images(of.coefficients(x)), x, atol=1e-5)


def test_drawn_images_have_the_moments_of_their_class():
    rng, of = np.random.default_rng(0), moments(frequencies=3, norm=6.0, center=0.0)
    smooth = of.images(rng.standard_normal((20000, 9)) @ np.diag(np.linspace(0.01, 0.05, 9)) + 0.02)
    found = of_sums(of, of.sums(smooth, np.arange(20000) % 2, None), 1e-6)
    drawn = found.draw(np.arange(20000) % 2, rng)
    assert np.allclose(drawn.mean(axis=0), smooth.mean(axis=0), atol=0.01)
    assert np.allclose(drawn.std(axis=0), smooth.std(axis=0), rtol=0.05)


def test_a_class_without_images_and_noise_above_everything_draw_images_all_the_same():
    of, (x, y) = moments(), data(20)
    noise = 1e4 * np.random.default_rng(0).normal(size=of.sums(x, y, None).shape)
    for sums, deviation in ((of.sums(x[:0], y[:0], None), 1.0), (noise, 1e4)):
        drawn = of_sums(of, sums, deviation).draw(np.arange(6) % 2, np.random.default_rng(0))
        assert np.isfinite(drawn).all()
        assert np.abs(drawn).max() <= 1.0


@pytest.mark.backend_free
def test_the_noise_is_as_large_as_charged_and_new_each_time(monkeypatch):
    from lipdp.diffusion import class_moments

    seen = []

    def stop(of, query, components, rounds, deviation, rng):
        seen.append((query(None), deviation))
        raise KeyError

    monkeypatch.setattr(class_moments, "mixtures", stop)
    x, y = data()
    for seed in (None, None, 3, 3, 4):
        with pytest.raises(KeyError):
            small().learn_moments(x, y, noise_multiplier=5.0, seed=seed, verbose=0)
    exact = moments(frequencies=12, norm=0.6 * 8).sums(x, y, None)
    noise = [sums - exact for sums, _ in seen]
    assert all(deviation == 5.0 * math.sqrt(1.3125) for _, deviation in seen)
    assert all(abs(part.std() / (5.0 * math.sqrt(1.3125)) - 1.0) < 0.05 for part in noise)
    assert np.array_equal(noise[2], noise[3])
    for i, j in ((0, 1), (0, 2), (2, 4)):
        assert abs(np.corrcoef(noise[i].ravel(), noise[j].ravel())[0, 1]) < 0.1


def test_other_data_have_other_noise_under_one_seed():
    from lipdp.diffusion.class_moments import secret_of

    secrets = {
        secret_of(0, of, noise, known, ledger)
        for of in (moments(), moments(norm=2.0))
        for noise in (1.0, 2.0)
        for known in (b"a", b"b")
        for ledger in ("", "one")
    }
    assert len(secrets) == 16
    assert secret_of(None, moments(), 1.0, b"", "") != secret_of(None, moments(), 1.0, b"", "")


@pytest.mark.slow
@pytest.mark.backend_free
def test_fit_plans_for_what_is_left_and_the_statement_names_the_moments(tmp_path):
    x, y = data(500)
    model = small()
    model.learn_moments(x, y, noise_multiplier=6.0, frequencies=4, num_images=128, epochs=1, verbose=0)
    (release,) = model.run.ledger.entries
    assert (release.kind, release.noise_multiplier, release.count) == ("moments", 6.0, 1)
    assert release.sampling.sampling_probability == 1.0
    alone = accounting.epsilon(noise_multiplier=6.0, sampling_probability=1.0, updates=1, delta=1e-4)
    assert model.run.ledger.epsilon(1e-4) == pytest.approx(alone, rel=1e-6)
    assert model.privacy.updates == 0
    model.fit(x, y, batch_size=50, epochs=1, epsilon=2.0, delta=1e-4, verbose=0)
    assert 1.9 < model.privacy.epsilon() <= 2.0
    alone = accounting.calibrate(epsilon=2.0, delta=1e-4, sampling_probability=0.1, updates=10)
    assert model.run.plan.noise_multiplier > 1.01 * alone
    statement = model.privacy.statement()
    assert "1 noisy moments of the data and 10 noisy updates" in statement.replace("\n", " ")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.run.ledger == model.run.ledger


@pytest.mark.slow
@pytest.mark.backend_free
def test_weights_that_learned_moments_carry_their_cost():
    x, y = data()
    model = small()
    model.learn_moments(x, y, frequencies=4, num_images=64, batch_size=32, epochs=1, verbose=0)
    other = diffusion.DiffusionModel(model.network, num_classes=2)
    assert other.privacy.epsilon() == pytest.approx(model.privacy.epsilon())


@pytest.mark.slow
def test_statistics_that_learned_moments_carry_their_cost():
    """Normalization keeps what it has seen in weights that are not trainable."""
    known = dense()
    seen = keras.layers.BatchNormalization(scale=False, center=False)
    network = keras.Model(known.inputs, seen(known.outputs[0]))
    (x, y), model = data(), small(network)
    before = seen.moving_variance.numpy()
    model.learn_moments(x, y, frequencies=4, num_images=64, batch_size=32, epochs=1, verbose=0)
    assert not np.allclose(seen.moving_variance.numpy(), before)
    inputs = keras.Input((8, 8, 1))
    other = lipdp.DP_Model(inputs, seen(inputs))
    assert other.privacy.epsilon() == pytest.approx(model.privacy.epsilon())


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_network_learns_the_classes_from_moments():
    x, y = data(2000)
    model = small(diffusion.unet((8, 8, 1), 2, channels=8, multipliers=(1,), blocks=1, slim=True))
    model.learn_moments(
        x,
        y,
        noise_multiplier=1.0,
        frequencies=4,
        num_images=512,
        batch_size=64,
        epochs=12,
        learning_rate=5e-3,
        verbose=0,
    )
    drawn = model.sample(40, np.arange(40) % 2, diffusion.DDIM(10), seed=0)
    means = drawn.mean(axis=(1, 2, 3))
    assert means[1::2].mean() - means[::2].mean() > 0.5


@pytest.mark.slow
def test_a_model_without_classes_has_one_normal_distribution():
    network = diffusion.unet((8, 8, 1), None, channels=8, multipliers=(1,), blocks=1, slim=True)
    model = diffusion.DiffusionModel(network)
    model.compile("adam")
    model.learn_moments(data()[0], frequencies=4, num_images=64, batch_size=32, epochs=1, verbose=0)
    assert model.run.ledger.releases == 1


@pytest.mark.slow
def test_a_source_of_rows_has_the_moments_of_its_array():
    class Rows:
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index]

    from lipdp.sampling import as_rows

    x, y = data(60)
    column, _ = as_rows(Rows(), np.zeros((60, 1), "float32"), 4)
    assert np.allclose(moments().sums(column, y, None), moments().sums(x, y, None))
    model = small()
    model.learn_moments(Rows(), y, frequencies=4, num_images=64, batch_size=32, epochs=1, verbose=0, seed=1)
    assert model.run.ledger.seeded_by_sample


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"norm": -1.0}, "norm"),
        ({"frequencies": 0}, "frequencies"),
        ({"center": math.nan}, "center"),
        ({"epochs": 0}, "epochs"),
        ({"num_images": 0}, "num_images"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_images": 5, "batch_size": 6}, "batch_size"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"sampling": "unknown"}, "unknown"),
    ],
)
def test_what_is_out_of_range_is_refused_before_anything_is_released(settings, words):
    model, (x, y) = small(), data(20)
    with pytest.raises(ValueError, match=words):
        model.learn_moments(x, y, **{"verbose": 0, **settings})
    assert model.run.ledger.releases == 0


@pytest.mark.backend_free
def test_rows_that_are_no_images_or_others_are_refused():
    inputs = keras.Input((4,)), keras.Input(())
    network = keras.Model(inputs, keras.layers.Dense(4)(inputs[0]) + zero(inputs[1]))
    model = diffusion.DiffusionModel(network)
    with pytest.raises(ValueError, match="those of images"):
        model.learn_moments(np.zeros((10, 4)))
    with pytest.raises(ValueError, match="do not fit"):
        small().learn_moments(np.zeros((10, 6, 6, 1)), np.zeros(10, int))


def test_one_process_releases_moments(monkeypatch):
    model, (x, y) = small(), data(20)
    monkeypatch.setattr(backend, "processes", lambda: (1, 2))
    with pytest.raises(ValueError, match="by one process.*Received: 2 processes"):
        model.learn_moments(x, y)
    assert model.run.ledger.releases == 0


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_recipe_charges_what_it_says_beforehand():
    settings = recipe((8, 8, 1), 2, 500, moments_noise=6.0, moments_images=64, moments_epochs=1)
    x, y = data(500)
    model = settings.build()
    settings.learn_moments(model, settings.images((x + 1) / 2), y, verbose=0, seed=None, epsilon=2.0)
    (entry,) = model.run.ledger.entries
    sampling = accounting.Sampling("poisson").bind(500, 50)
    assert settings.first_releases(sampling) == (entry.mechanism(),)
    assert recipe((8, 8, 1), 2, 500).first_releases(sampling) == ()


FIT = {"batch_size": 50, "epochs": 4, "delta": 1e-3, "verbose": 0}
LEARN = {"frequencies": 3, "num_images": 64, "batch_size": 32, "epochs": 1, "verbose": 0}


class Stop(keras.callbacks.Callback):
    """Stops after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


@pytest.mark.backend_free
@pytest.mark.parametrize("accountant", ["pld", pytest.param("filter", marks=pytest.mark.slow)])
def test_a_plan_that_was_not_finished_does_not_go_on_past_its_budget(accountant):
    model, (x, y) = small(), data(200)
    model.fit(x, y, epsilon=1.0, accountant=accountant, callbacks=[Stop()], **FIT)
    model.learn_moments(x, y, noise_multiplier=6.0, **LEARN)
    try:
        model.fit(x, y, epsilon=1.0, accountant=accountant, **FIT)
    except ValueError as error:
        assert "budget" in str(error)
    assert model.privacy.epsilon() <= 1.0


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("accountant", ["filter", "filter:8.0:10.0:0.001"])
def test_no_filter_after_moments_were_released(accountant):
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, noise_multiplier=6.0, **LEARN)
    before = model.privacy.epsilon(1e-3)
    with pytest.raises(ValueError, match="before the first release.*after 1 release.*new model"):
        model.fit(x, y, epsilon=10.0, accountant=accountant, **FIT)
    assert model.run.ledger.releases == 1 and model.privacy.epsilon(1e-3) == before
    model.fit(x, y, epsilon=10.0, callbacks=[Stop()], **FIT)
    assert model.privacy.to_dict()["plans_fixed_in_advance"] == "assumed"


@pytest.mark.slow
@pytest.mark.backend_free
def test_moments_that_could_not_be_stated_are_not_released():
    (x, y), filtered = data(200), small()
    filtered.fit(x, y, noise_multiplier=8.0, epsilon=2.0, accountant="filter", callbacks=[Stop()], **FIT)
    for model, arguments, message in (
        (small(filtered.network), {"examples_per_person": 3}, "one unit.*examples_per_person=3.*fixed: 1"),
        (filtered, {"noise_multiplier": 0.5}, "more than is left of the filter's budget"),
    ):
        before, epsilon = model.run.ledger.to_json(), model.privacy.epsilon()
        with pytest.raises(ValueError, match=message):
            model.learn_moments(x, y, **LEARN | arguments)
        assert model.run.ledger.to_json() == before and model.privacy.epsilon() == epsilon


@pytest.mark.slow
@pytest.mark.backend_free
def test_no_moments_within_a_fit_of_the_same_weights():
    first, (x, y) = small(), data(200)
    other = diffusion.DiffusionModel(first.network, num_classes=2)

    class Meddle(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            other.learn_moments(x, y, **LEARN)

    with pytest.raises(ValueError, match="is running on model"):
        first.fit(x, y, epsilon=1.0, callbacks=[Meddle()], **FIT)
    assert other.run.ledger.releases == 0
    assert not other.run.armed


@pytest.mark.slow
@pytest.mark.backend_free
def test_units_of_moments_and_updates_are_one():
    (x, y), ids = data(200), np.arange(200) // 2
    by_example = small()
    by_example.fit(x, y, noise_multiplier=2.0, callbacks=[Stop()], **FIT)
    with pytest.raises(ValueError, match="cannot change"):
        by_example.learn_moments(x, y, person_ids=ids, **LEARN)
    assert {entry.kind for entry in by_example.run.ledger.entries} == {"gradient"}
    by_person = small()
    by_person.learn_moments(x, y, person_ids=ids, **LEARN)
    statement = " ".join(by_person.privacy.statement().split())
    assert "Contribution of a person: all rows, averaged." in statement
    with pytest.raises(ValueError, match="those of 100 persons. Received: person_ids of 20"):
        by_person.fit(x, y, person_ids=np.arange(200) // 10, epsilon=4.0, **{**FIT, "batch_size": 10})
    by_person.fit(x, y, person_ids=ids, rows_per_person=2, epsilon=4.0, callbacks=[Stop()], **FIT)
    statement = " ".join(by_person.privacy.statement().split())
    assert "at most 2 rows, chosen uniformly" in statement
    assert "in the moments all rows, averaged" in statement


@pytest.mark.backend_free
@pytest.mark.parametrize("count", [150, 250])
def test_one_id_for_each_row(count):
    model, (x, y) = small(), data(200)
    with pytest.raises(ValueError, match="one id for each row"):
        model.learn_moments(x, y, person_ids=np.arange(count), **LEARN)
    assert model.run.ledger.releases == 0


@pytest.mark.backend_free
@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "shuffle", "truncated_poisson", "random_allocation"])
@pytest.mark.parametrize("group", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_relation_is_that_of_the_updates(sampling, group):
    from lipdp.accounting import Sampling
    from lipdp.accounting.schemes import SCHEMES

    if group > 1 and not SCHEMES[sampling].group_relations:
        pytest.skip("nothing is known of groups")
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, sampling=sampling, examples_per_person=group, **LEARN)
    expected = Sampling(sampling).bind(200, 50, group).relation
    assert model.run.ledger.entries[0].sampling.relation == expected
    settings = recipe((8, 8, 1), 2, 200, moments_noise=8.0)
    (said,) = settings.first_releases(Sampling(sampling).bind(200, 50, group))
    assert said == model.run.ledger.entries[0].mechanism(group)


@pytest.mark.slow
@pytest.mark.backend_free
def test_before_the_first_update_epsilon_is_that_of_a_person_too(tmp_path):
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, noise_multiplier=8.0, examples_per_person=4, **LEARN)
    of_four = accounting.compose(model.run.ledger.mechanisms(4), 1e-5)
    assert model.privacy.epsilon() == of_four > 2.0 * model.privacy.epsilon(group_size=1)
    assert "one person with at most 4 examples" in " ".join(model.privacy.statement().split())
    model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").privacy.epsilon() == of_four
    model.fit(x, y, epsilon=8.0, examples_per_person=4, **FIT)
    assert "one person with at most 4 examples" in " ".join(model.privacy.statement().split())


@pytest.mark.backend_free
@pytest.mark.slow
def test_models_that_share_a_network_know_for_whom_it_learned_moments(tmp_path):
    """What only the model itself was told is no less than what it has released."""
    first, (x, y) = small(), data(200)
    first.learn_moments(x, y, examples_per_person=4, **LEARN)
    of_four, second = first.privacy.epsilon(), small(first.network)
    assert second.privacy.epsilon() == of_four
    second.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.privacy.epsilon() == of_four
    for model in (second, loaded, small(first.averaged_network())):
        with pytest.raises(ValueError, match="persons with up to 4 examples"):
            model.fit(x, y, noise_multiplier=4.0, **FIT)
    # What the second one says of one example leaves the first one with four.
    other = small()
    other.fit(x, y, noise_multiplier=4.0, callbacks=[Stop()], **FIT)
    both = small(other.network)
    both.learn_moments(x, y, examples_per_person=4, **LEARN)
    assert both.privacy.to_dict()["examples_per_person"] == 4


@pytest.mark.slow
@pytest.mark.backend_free
def test_held_out_rows_are_none_that_the_moments_know():
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, **LEARN)
    with pytest.raises(ValueError, match="Split the rows first"):
        model.fit(x, y, epsilon=4.0, validation_split=0.2, **FIT)
    settings = recipe((8, 8, 1), 2, 200, moments_noise=6.0, updates=4)
    with pytest.raises(ValueError, match="Split the rows first"):
        settings.fit((x + 1) / 2, y, epsilon=4.0, validation_split=0.2, delta=1e-3, verbose=0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_numbers_of_numpy_and_rows_that_are_pairs():
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, noise_multiplier=np.float32(8.0), **LEARN)

    class Pairs:
        def __len__(self):
            return 200

        def __getitem__(self, index):
            return x[index], y[index]

    with pytest.raises(ValueError, match="do not fit the network. Received: a tuple"):
        small().learn_moments(Pairs(), y, **LEARN)


@pytest.mark.slow
@pytest.mark.backend_free
def test_moments_that_cost_the_whole_budget_name_a_noise_that_does_not():
    model, (x, y) = small(), data(200)
    model.learn_moments(x, y, noise_multiplier=1.0, **LEARN)
    with pytest.raises(ValueError, match=r"alone cost.*at about [\d.]+ they cost half") as refused:
        model.fit(x, y, epsilon=1.0, **FIT)
    better, enough = small(), float(re.search(r"at about ([\d.]+)", str(refused.value))[1])
    better.learn_moments(x, y, noise_multiplier=enough, **LEARN)
    assert 0.4 < better.run.ledger.epsilon(FIT["delta"]) < 0.55
