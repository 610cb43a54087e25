"""The best denoiser of mixtures: its value by Bayes' rule, what sets it, and what it costs."""

import dataclasses

import keras
import numpy as np
import pytest

from lipdp import accounting, diffusion
from lipdp.diffusion.class_moments import ClassMoments, Mixtures, mixtures
from lipdp.diffusion.recipes import recipe

pytestmark = pytest.mark.backend_free


def moments(shape=(8, 8, 1), classes=2, frequencies=4, norm=4.8, center=0.0):
    return ClassMoments(image_shape=shape, num_classes=classes, frequencies=frequencies, norm=norm, center=center)


def with_mixture(classes=2, components=4, size=8, **settings):
    network = diffusion.unet((size, size, 1), classes, channels=8, multipliers=(1,), blocks=1, slim=True)
    mixture = diffusion.ClassMixture(classes, components, **{"frequencies": 4, "center": 0.0, **settings})
    output = keras.layers.Add()([network.output, mixture(network.inputs)])
    model = diffusion.DiffusionModel(keras.Model(network.inputs, output), num_classes=classes)
    model.compile("adam")
    return model, mixture


def two_kinds(count=2000, seed=0):
    """Classes of a mean of their own, each of two kinds that are far apart."""
    rng = np.random.default_rng(seed)
    y, kind = np.arange(count) % 2, rng.choice([-1.0, 1.0], (count, 1, 1, 1))
    slope = np.linspace(-1.0, 1.0, 8)[:, None, None]
    x = np.where(y[:, None, None, None] == 1, 0.4, -0.4) + 0.4 * kind * slope
    return (x + 0.05 * rng.standard_normal((count, 8, 8, 1))).astype("float32"), y


def any_mixtures(of, components, seed=0):
    rng, size = np.random.default_rng(seed), of.size
    axes = np.stack([np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(of.num_classes)])
    variances = rng.uniform(0.0, 0.1, (of.num_classes, size))
    variances[:, :4] = 0.0
    shares = rng.dirichlet(np.ones(components), of.num_classes)
    return Mixtures(of, shares, 0.3 * rng.normal(size=(of.num_classes, components, size)), variances, axes)


def by_bayes(of, found, floor, x, sigma, label):
    """The mean of the clean image under a mixture, from covariances of all entries."""
    patterns = np.stack([of.images(one[None])[0].ravel() - of.center for one in np.eye(of.size)]).astype(float)
    size = patterns.shape[1]
    within = found.axes[label].T @ np.diag(found.variances[label]) @ found.axes[label]
    covariance = patterns.T @ within @ patterns + floor**2 * np.eye(size)
    inverse = np.linalg.inv(covariance + sigma**2 * np.eye(size))
    logs, means = [], []
    for share, center in zip(found.shares[label], found.centers[label], strict=True):
        mean = of.center + center @ patterns
        logs.append(np.log(share) - 0.5 * (x.ravel() - mean) @ inverse @ (x.ravel() - mean))
        means.append(mean + covariance @ inverse @ (x.ravel() - mean))
    weights = np.exp(np.array(logs) - max(logs))
    return (weights / weights.sum() @ np.array(means)).reshape(x.shape)


@pytest.mark.parametrize("components", [1, 5])
@pytest.mark.parametrize("name", ["edm", "v", "vp", "ve"])
def test_it_gives_the_mean_of_the_clean_image(name, components):
    of = moments(shape=(6, 4, 2), classes=3, frequencies=3, norm=2.0, center=0.2)
    found = any_mixtures(of, components)
    layer = diffusion.ClassMixture(3, components, frequencies=3, center=0.2, floor=0.07, denoiser=name)
    inputs = [keras.Input((6, 4, 2)), keras.Input(()), keras.Input((), dtype="int32")]
    network = keras.Model(inputs, layer(inputs))
    layer.learn(found)
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(6, 6, 4, 2)).astype("float32"), np.arange(6) % 3
    for sigma in (0.01, 0.3, 2.0, 40.0):
        given = map(keras.ops.convert_to_tensor, (x, np.full(6, sigma, "float32"), labels.astype("int32")))
        noisy, levels, wanted = given
        clean = keras.ops.convert_to_numpy(layer.denoiser.denoise(network, noisy, levels, wanted))
        expected = [by_bayes(of, found, 0.07, row, sigma, label) for row, label in zip(x, labels, strict=True)]
        assert np.allclose(clean, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["edm", "v", "vp", "ve"])
def test_noise_levels_are_those_of_the_input(name):
    denoiser = diffusion.denoisers.get(name)
    sigma = np.geomspace(0.002, 60.0, 50).astype("float32")
    found = denoiser.level(denoiser.scalings(keras.ops.convert_to_tensor(sigma))[3])
    assert np.allclose(keras.ops.convert_to_numpy(found), sigma, rtol=2e-3)


def test_the_label_that_stands_for_any_has_the_moments_of_all():
    of = moments()
    found = any_mixtures(of, 3)
    layer = diffusion.ClassMixture(2, 3, frequencies=4, center=0.0)
    layer([keras.Input((8, 8, 1)), keras.Input(()), keras.Input((), dtype="int32")])
    layer.learn(found)
    # Mean square of each coefficient, from the components one by one.
    of_components = np.square(found.centers) + np.einsum("cd,cdi->ci", found.variances, np.square(found.axes))[:, None]
    expected = np.einsum("cm,cmi->i", found.shares, of_components) / 2
    axes, variances = (keras.ops.convert_to_numpy(each)[2] for each in (layer.axes, layer.variances))
    mean = keras.ops.convert_to_numpy(layer.centers)[2, 0] @ axes
    assert np.allclose(np.square(mean) + variances @ np.square(axes), of.norm**2 * expected, rtol=1e-4)


@pytest.mark.slow
def test_before_moments_are_known_it_returns_zeros():
    model, mixture = with_mixture()
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32")
    found = mixture([x, np.zeros(4, "float32"), np.arange(4) % 3])
    assert not keras.ops.convert_to_numpy(found).any()
    assert model.privacy.epsilon() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, None])
def test_what_is_drawn_has_the_kinds_of_its_class(classes, tmp_path):
    (x, y), (model, _) = two_kinds(), with_mixture(classes, floor=0.05)
    y = None if classes is None else y
    model.learn_moments(x, y, noise_multiplier=1.0, seed=1)
    labels = None if y is None else np.arange(400) % 2
    drawn = model.sample(400, labels, diffusion.DDIM(20), seed=0)
    slopes = (drawn * np.linspace(-1.0, 1.0, 8)[:, None, None]).mean(axis=(1, 2, 3)) / np.mean(
        np.linspace(-1, 1, 8) ** 2
    )
    assert (np.abs(np.abs(slopes) - 0.4) < 0.2).mean() > 0.9
    assert 0.3 < (slopes > 0).mean() < 0.7
    if labels is not None:
        means = drawn.mean(axis=(1, 2, 3))
        assert abs(means[::2].mean() + 0.4) < 0.1 and abs(means[1::2].mean() - 0.4) < 0.1
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded.sample(4, seed=3), model.sample(4, seed=3))
    assert loaded.run.ledger == model.run.ledger


@pytest.mark.slow
def test_it_trains_with_the_network_and_what_it_costs_is_planned_for():
    (x, y), (model, mixture) = two_kinds(500), with_mixture()
    model.learn_moments(x, y, noise_multiplier=8.0, rounds=3)
    (release,) = model.run.ledger.entries
    assert (release.kind, release.noise_multiplier, release.count) == ("moments", 8.0, 4)
    alone = accounting.epsilon(noise_multiplier=8.0, sampling_probability=1.0, updates=4, delta=1e-4)
    assert model.run.ledger.epsilon(1e-4) == pytest.approx(alone, rel=1e-6)
    before = [keras.ops.convert_to_numpy(weight) for weight in mixture.weights]
    model.fit(x, y, batch_size=50, epochs=1, epsilon=4.0, delta=1e-4, verbose=0)
    assert 3.9 < model.privacy.epsilon() <= 4.0
    assert not mixture.trainable_weights
    assert all(np.array_equal(a, keras.ops.convert_to_numpy(b)) for a, b in zip(before, mixture.weights, strict=True))
    assert "4 noisy moments of the data and 10 noisy updates" in model.privacy.statement().replace("\n", " ")


def test_constants_carry_the_cost_of_the_moments():
    (x, y), (model, mixture) = two_kinds(200), with_mixture()
    model.learn_moments(x, y, noise_multiplier=8.0)
    inputs = model.network.inputs
    other = diffusion.DiffusionModel(keras.Model(inputs, mixture(inputs)), num_classes=2)
    assert other.privacy.epsilon() == pytest.approx(model.privacy.epsilon()) != 0.0


def test_one_image_moves_the_sums_of_each_round_by_at_most_their_sensitivity():
    rng, of = np.random.default_rng(0), moments()
    (x, y), centers = two_kinds(20), 0.3 * rng.normal(size=(2, 5, 16))
    before, largest = of.sums(x, y, None, centers), 0.0
    hostile = [
        *(10.0**k * rng.standard_normal((8, 8, 1)) for k in range(-2, 9)),
        *(np.full((8, 8, 1), value) for value in (0.0, 1.0, 1e30, np.nan, np.inf)),
        *of.images(4.0 * centers[0]),
    ]
    for row in hostile:
        for label in (0, 1):
            x_with, y_with = np.concatenate([x, row[None].astype("float32")]), np.append(y, label)
            after = of.sums(x_with, y_with, None, centers)
            assert np.isfinite(after).all()
            largest = max(largest, float(np.linalg.norm(after - before)))
    assert 0.99 * of.sensitivity < largest <= of.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("components", [3, 5, 7, 13, 32])
def test_an_image_moves_no_other_one_where_centers_are_alike(components):
    rng, of = np.random.default_rng(0), moments(classes=1, center=-0.6)
    for _ in range(60):
        centers = np.repeat(0.3 * rng.normal(size=(1, 1, of.size)), components, axis=1)
        for count in (1, 2, 3, 4, 5, 7, 8, 11, 15, 16):
            x, y = rng.uniform(-1, 1, (count + 1, 8, 8, 1)).astype("float32"), np.zeros(count + 1, int)
            moved = of.sums(x, y, None, centers) - of.sums(x[:count], y[:count], None, centers)
            assert np.linalg.norm(moved) <= of.sensitivity * (1 + 1e-9)


def test_all_that_is_asked_of_the_data_are_the_queries_that_are_charged():
    of, rng = moments(), np.random.default_rng(0)
    x, y = two_kinds(200)
    seen = []

    def query(centers):
        seen.append(centers)
        return of.sums(x, y, None, centers) + rng.normal(size=of.sums(x, y, None, centers).shape)

    found = mixtures(of, query, 6, 3, 1.0, np.random.default_rng(1))
    assert len(seen) == 4 and seen[0] is None
    assert [centers.shape for centers in seen[1:]] == [(2, 6, 16)] * 3
    assert np.allclose(found.shares.sum(axis=1), 1.0)
    seen.clear()
    mixtures(of, query, 1, 0, 1.0, np.random.default_rng(1))
    assert len(seen) == 1


def test_noise_above_everything_gives_finite_mixtures():
    of, rng = moments(), np.random.default_rng(0)

    def query(centers):
        return 1e4 * rng.normal(size=of.sums(*two_kinds(20), None, centers).shape)

    found = mixtures(of, query, 6, 2, 1e4, np.random.default_rng(1))
    assert all(np.isfinite(value).all() for value in (found.shares, found.centers, found.variances))
    assert (found.shares > 0).all()


def test_rounds_find_the_kinds():
    of, (x, y) = moments(), two_kinds(4000)
    rng = np.random.default_rng(0)

    def query(centers):
        sums = of.sums(x, y, None, centers)
        return sums + rng.normal(size=sums.shape)

    one = mixtures(of, query, 1, 0, 1.0, np.random.default_rng(1))
    many = mixtures(of, query, 4, 2, 1.0, np.random.default_rng(1))
    # What components explain, no covariance has to.
    assert many.variances.sum() < 0.2 * one.variances.sum()


def test_each_query_has_noise_of_its_own(monkeypatch):
    from lipdp.diffusion import class_moments

    exact = []
    plain = ClassMoments.sums

    def sums(self, *args):
        exact.append(plain(self, *args))
        return exact[-1]

    asked = []

    def stop(of, query, components, rounds, deviation, rng):
        centers = np.zeros((of.num_classes, components, of.size))
        asked.extend((query(each), deviation) for each in (None, centers, centers))
        raise KeyError

    monkeypatch.setattr(ClassMoments, "sums", sums)
    monkeypatch.setattr(class_moments, "mixtures", stop)
    x, y = two_kinds(100)
    for seed in (None, 3, 3):
        with pytest.raises(KeyError):
            with_mixture()[0].learn_moments(x, y, noise_multiplier=5.0, seed=seed)
    noise = [(noisy - sums).ravel() for (noisy, _), sums in zip(asked, exact, strict=True)]
    sensitivity = np.sqrt(1.3125)
    assert all(deviation == pytest.approx(5.0 * sensitivity) for _, deviation in asked)
    assert all(abs(part.std() / (5.0 * sensitivity) - 1.0) < 0.12 for part in noise)
    for i, j in ((1, 2), (4, 5), (1, 4)):
        assert abs(np.corrcoef(noise[i], noise[j])[0, 1]) < 0.2
    assert all(np.array_equal(noise[i], noise[i + 3]) for i in (3, 4, 5))


@pytest.mark.slow
def test_a_recipe_charges_what_it_says_beforehand():
    settings = recipe((8, 8, 1), 2, 500, moments_noise=9.0, moments_components=3, moments_frequencies=4, updates=2)
    x, y = two_kinds(500)
    model = settings.fit((np.clip(x, -1, 1) + 1) / 2, y, epsilon=4.0, delta=1e-4, seed=0, verbose=0)
    sampling = accounting.Sampling("poisson").bind(500, 50)
    (entry,) = (entry for entry in model.run.ledger.entries if entry.kind == "moments")
    assert settings.first_releases(sampling) == (entry.mechanism(),)
    alone = dataclasses.replace(settings, moments_components=1)
    whole = accounting.Sampling("poisson").bind(500, 500)
    assert alone.first_releases(sampling) == (accounting.Mechanism.of_updates(None, 9.0, 1, whole),)


def test_the_noise_of_a_recipe_goes_by_how_often_the_data_are_asked():
    shape = (28, 28, 1), 10, 60000
    for epsilon, changes in ((1.0, {}), (1.0, {"moments_components": 32}), (10.0, {}), (4.0, {"moments_rounds": 5})):
        settings = recipe(*shape, epsilon=epsilon, classifier=None, **changes)
        (moments,) = settings.first_releases(accounting.Sampling("poisson").bind(60000, 2048))
        assert accounting.compose((moments,), 1e-5) < 0.8 * epsilon
    assert recipe(*shape, epsilon=10.0).moments_components == 32
    without = recipe(*shape, epsilon=10.0, moments_components=0)
    assert (without.moments_components, without.moments_noise) == (0, 1.4)
    assert recipe(*shape, epsilon=10.0, guidance=1.0).label_dropout == 0.1
    with pytest.raises(ValueError, match="Set `moments_noise`"):
        recipe((14, 14, 1), 10, 60000, network="cpu-14", moments_components=8)
    with pytest.raises(ValueError, match="without labels"):
        recipe(*shape, epsilon=10.0, guidance=1.0, label_dropout=0.0)
    with pytest.raises(ValueError, match="moments_rounds"):
        recipe(*shape, epsilon=10.0, moments_rounds=0)


@pytest.mark.slow
def test_what_the_moments_leave_to_the_updates_is_what_the_page_says():
    """`docs/diffusion.md` and the docstring of `learn_moments`, for 60,000 images."""
    whole, sampler = (accounting.Sampling("poisson").bind(60000, size) for size in (60000, 2048))

    def more_noise(epsilon, noise_multiplier, times):
        settings = {"sampler": sampler, "updates": recipe((28, 28, 1), 10, 60000, epsilon=epsilon).updates}
        settings |= {"epsilon": epsilon, "delta": 1e-5}
        moments = accounting.Mechanism.of_updates(None, noise_multiplier, times, whole)
        return accounting.calibrate(**settings, spent=(moments,)) / accounting.calibrate(**settings) - 1.0

    for epsilon, expected in ((10.0, 0.09), (4.0, 0.11), (2.0, 0.13)):
        noise = recipe((28, 28, 1), 10, 60000, epsilon=epsilon).moments_noise
        assert more_noise(epsilon, noise, 3) == pytest.approx(expected, abs=0.01)
    assert more_noise(1.0, 8.0, 1) == pytest.approx(0.11, abs=0.01)
    assert more_noise(1.0, 8.0, 3) == pytest.approx(0.6, abs=0.02)


@pytest.mark.slow
def test_guidance_of_a_network_that_always_saw_labels_is_refused():
    network = with_mixture()[0].network
    model = diffusion.DiffusionModel(network, num_classes=2, label_dropout=0.0)
    with pytest.raises(ValueError, match="label_dropout=0"):
        model.sample(2, guidance=1.0)
    assert model.sample(2, sampler=diffusion.DDIM(2), seed=0).shape == (2, 8, 8, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"components": 0}, "components"),
        ({"floor": 0.0}, "floor"),
        ({"frequencies": 0}, "frequencies"),
        ({"center": float("nan")}, "center"),
        ({"denoiser": "unknown"}, "Unknown denoiser"),
    ],
)
def test_what_is_out_of_range_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        diffusion.ClassMixture(2, **settings)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_anything_is_released():
    (x, y), (model, _) = two_kinds(50), with_mixture()
    for settings, words in (
        ({"frequencies": 6}, "has `frequencies`=4"),
        ({"center": 0.5}, "has `center`=0.0"),
        ({"rounds": 0}, "rounds"),
    ):
        with pytest.raises(ValueError, match=words):
            model.learn_moments(x, y, **settings)
    assert model.run.ledger.releases == 0
    inputs = [keras.Input((8, 8, 1)), keras.Input(())]
    with pytest.raises(ValueError, match="takes what the network of a diffusion model takes"):
        diffusion.ClassMixture(2)(inputs)
    output = diffusion.ClassMixture(None)(inputs)
    output = keras.layers.Add()([output, diffusion.ClassMixture(None)(inputs)])
    twice = diffusion.DiffusionModel(keras.Model(inputs, output))
    with pytest.raises(ValueError, match="one ClassMixture at most"):
        twice.learn_moments(x)

    for denoiser, own in (("edm", "v"), (diffusion.EDM(0.5), "edm")):
        other, _ = with_mixture(denoiser=own)
        other = diffusion.DiffusionModel(other.network, denoiser, num_classes=2)
        with pytest.raises(ValueError, match="the denoiser of the model"):
            other.learn_moments(x, y)
    other = diffusion.DiffusionModel(with_mixture()[0].network, diffusion.EDM(p_mean=0.0), num_classes=2)
    other.learn_moments(x, y)

    network = diffusion.unet((8, 8, 1), 2, channels=8, multipliers=(1,), blocks=1, slim=True)
    smaller = [keras.layers.AveragePooling2D(2)(network.inputs[0]), *network.inputs[1:]]
    output = keras.layers.UpSampling2D(2)(diffusion.ClassMixture(2, 4, frequencies=4)(smaller))
    output = keras.layers.Add()([network.output, output])
    other = diffusion.DiffusionModel(keras.Model(network.inputs, output), num_classes=2)
    with pytest.raises(ValueError, match="must see the images of the network"):
        other.learn_moments(x, y)
    assert other.run.ledger.releases == 0

    class Own(diffusion.EDM):
        pass

    with pytest.raises(ValueError, match="find the noise level"):
        diffusion.ClassMixture(2, denoiser=Own())
