"""Private moments: released once, charged first, planned for, and never forgotten."""

import itertools
import json

import jsonschema
import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, callbacks, checks, layers, losses, privacy, strategies
from lipdp.layers.frequencies import cosines
from lipdp.sampling import randomness
from lipdp.training import moments, outputs

SHAPE, COUNT = (4, 3), 600


def data(count=COUNT, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(count, *SHAPE)) * [0.1, 1.0, 0.5] + [1.0, 2.0, -1.0]).astype("float32")
    return x, (x[:, 0, 1] > 2.0).astype("int32")


def network(front=(), norm=6.0, **settings):
    model = lipdp.DP_Sequential(
        [
            keras.Input(SHAPE),
            *front,
            layers.PrivateNormalization(norm, name="moments", **settings),
            layers.BoundedInput(norm=5.0),
            layers.Flatten(),
            layers.SpectralDense(2),
        ]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def fit(model, x=None, y=None, **settings):
    own = {"batch_size": 100, "epochs": 1, "epsilon": 4.0, "strategy": "dpsgd", "verbose": 0}
    if x is None:
        x, y = data()
    return model.fit(x, y, **own | settings)


def kinds(model):
    return [(entry.kind, entry.count) for entry in model.run.ledger.entries]


FIRST = [("moments", 1), ("moments", 1)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"strategy": "clipless"}, marks=pytest.mark.backend_free),
        pytest.param({"strategy": "adaclip"}, marks=pytest.mark.slow),
        pytest.param({"strategy": "dpis"}, marks=pytest.mark.backend_free),
        pytest.param({"sampling": "fixed_size"}, marks=pytest.mark.slow),
        pytest.param({"sampling": "random_allocation"}, marks=pytest.mark.slow),
        pytest.param({"sampling": "shuffle"}, marks=pytest.mark.slow),
        pytest.param({"sampling": "truncated_poisson"}, marks=pytest.mark.slow),
        pytest.param({"accountant": "filter"}, marks=pytest.mark.slow),
        pytest.param({"accountant": "rdp"}, marks=pytest.mark.slow),
        pytest.param({"epsilon": None, "risk": {"advantage": 0.3}}, marks=pytest.mark.backend_free),
        pytest.param({"examples_per_person": 2}, marks=pytest.mark.slow),
        pytest.param({"person_ids": np.arange(COUNT) // 3, "batch_size": 50}, marks=pytest.mark.backend_free),
    ],
    ids=lambda settings: "-".join(map(str, settings)) or "default",
)
def test_moments_and_updates_share_one_budget(settings):
    model = network()
    fit(model, **settings)
    assert kinds(model)[:2] == FIRST
    entries = model.run.ledger.entries
    count = COUNT // 3 if "person_ids" in settings else COUNT
    assert [entry.sensitivity for entry in entries[:2]] == pytest.approx([6.0 / count, 36.0 / (4 * 3**0.5) / count])
    assert all(entry.noise_multiplier == 8.0 and entry.sampling.sampling_probability == 1.0 for entry in entries[:2])
    if settings.get("epsilon", 4.0):
        assert 3.9 < model.privacy.epsilon() <= 4.0 * (1 + 1e-9)
    assert model.layers[0].adapted and float(model.layers[0].num_examples.numpy()) == count


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_cost_is_that_of_two_gaussians_beside_the_updates():
    model = network(noise_multiplier=2.0)
    fit(model, epsilon=None, noise_multiplier=1.0)
    parts = [accounting.Mechanism(1.0, 2.0, 2), accounting.Mechanism(1 / 6, 1.0, 6)]
    assert model.privacy.epsilon() == pytest.approx(accounting.compose(parts, 1e-5), rel=1e-6)


@pytest.mark.parametrize("relation, distance", [("add_or_remove_one", 1.0), ("replace_one", 2.0)])
@pytest.mark.backend_free
def test_replacing_an_example_costs_twice_the_distance(relation, distance):
    whole = accounting.Sampling("poisson", relation=relation).bind(COUNT, COUNT)
    cost = accounting.compose([accounting.Mechanism.of_updates(None, 8.0, 1, whole)], 1e-5)
    gaussian = accounting.compose([accounting.Mechanism(1.0, 8.0 / distance, 1)], 1e-5)
    assert cost == pytest.approx(gaussian, rel=1e-3)


@pytest.mark.slow
def test_what_is_released_is_near_the_moments_and_noisy():
    x, y = data(20000)
    model = network(norm=12.0)
    fit(model, x, y, batch_size=2000)
    layer = model.layers[0]
    np.testing.assert_allclose(layer.mean.numpy(), x.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(layer.variance.numpy().ravel(), x.var(axis=0).mean(axis=0), rtol=0.1, atol=0.05)
    assert np.abs(layer.mean.numpy() - x.mean(axis=0)).min() > 0.0


@pytest.mark.backend_free
def test_the_noise_has_the_size_that_is_charged():
    # Rows of zeros: what is left is the noise.
    x, y = np.zeros((COUNT, 400), "float32"), np.arange(COUNT) % 2
    model = lipdp.DP_Sequential(
        [keras.Input((400,)), layers.PrivateNormalization(3.0, noise_multiplier=5.0, axis=None), keras.layers.Dense(2)]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    fit(model, x, y)
    mean = model.layers[0].mean.numpy()
    expected = 5.0 * 3.0 / COUNT
    assert 0.87 * expected < mean.std() < 1.13 * expected
    assert abs(mean.mean()) < 4.0 * expected / 20.0


@pytest.mark.parametrize("row", [1e9, -1e9, np.nan, np.inf, 0.3])
@pytest.mark.backend_free
def test_one_row_moves_the_sums_by_its_sensitivity_at_most(row):
    model = network(front=[layers.LayerCentering(name="front")])
    layer = model.layers[1]
    x, _ = data(50)
    x = x.copy()
    x[7] = np.linspace(-1.0, 1.0, 12).reshape(SHAPE).astype("float32") * row
    without = np.delete(x, 7, axis=0)
    layer.set_mean(np.full(SHAPE, 0.1))
    for query in layer.queries():
        sums = [moments._Rows(model, layer, rows, None).sum(query.total) for rows in (x, without)]
        assert np.linalg.norm(sums[0] - sums[1]) <= query.sensitivity * (1.0 + 1e-6)


@pytest.mark.slow
def test_one_row_more_does_not_change_how_others_are_rounded():
    """Equal rows, at the edge of a bin: what a product in front of the layer makes of them decides about all."""
    rng = np.random.default_rng(0)
    x, kernel = np.repeat(rng.normal(size=(1, 64)), 90, axis=0).astype("float32"), rng.normal(size=(64, 8))
    product = keras.Sequential([keras.Input((64,)), keras.layers.Dense(8, use_bias=False)])
    product.set_weights([kernel])
    few, many = (product.predict(x[:count], verbose=0, batch_size=256)[0] for count in (2, 90))
    near = np.float32(1.0) / many * (1.0 + 2.0**-24 * np.arange(-40, 41, dtype="float32")[:, None])
    apart = np.frexp(near * few)[1] != np.frexp(near * many)[1]
    scale = near[apart.argmax(axis=0), np.arange(8)]
    front = [keras.layers.Dense(8, use_bias=False, trainable=False), keras.layers.Rescaling(scale.tolist())]
    model = lipdp.DP_Sequential([keras.Input((64,)), *front, layers.PrivateRescaling(), keras.layers.Dense(2)])
    front[0].set_weights([kernel])
    query = model.layers[2].queries()[0]
    counts = (1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 80, 81)
    sums = [moments._Rows(model, model.layers[2], x[:count], None).sum(query.total) for count in counts]
    for (count, before), (other, after) in itertools.pairwise(zip(counts, sums, strict=True)):
        assert np.linalg.norm(after - before) <= (other - count) * query.sensitivity * (1.0 + 1e-6)


@pytest.mark.backend_free
class ByPlace(keras.layers.Layer):
    """Sums of images `(28, 28)` that XLA rounds by the place of an image in its batch: on TensorFlow, and on JAX."""

    def call(self, images):
        kernel = cosines(5, 28)
        across = keras.ops.reshape(keras.ops.matmul(kernel, images), (-1, 28, 1))
        products = keras.ops.reshape(keras.ops.matmul(kernel, across), (-1, 25))
        return keras.ops.concatenate([keras.ops.sum(images, axis=1), products], axis=1)


def test_a_row_in_front_does_not_change_how_others_are_counted():
    """One row more in front of the others gives each another place."""
    front = keras.Sequential([keras.Input((28, 28)), ByPlace()])
    image = np.abs(np.random.default_rng(0).normal(size=(28, 28)))

    def places(scale):
        """Where a row with this image is counted elsewhere than one place further, among the entries of a column."""
        rows = np.repeat((image * scale).astype("float32")[None], 256, axis=0)
        powers = np.frexp(np.abs(outputs.Outputs(front, 256)(rows)))[1]
        return max((np.flatnonzero(np.diff(column) == step) for column in powers.T for step in (1, -1)), key=len)

    made = np.abs(outputs.Outputs(front, 256)(np.repeat(image[None], 256, axis=0).astype("float32")))
    scales = ((1.0 + 3e-8 * t) / entry for entry in made[0][np.ptp(made, axis=0) > 0.0] for t in range(-10, 10))
    scale = next((scale for scale in scales if len(places(scale))), 1.0)  # where there is none, none moves
    x = np.zeros((8 * 256, 28, 28), "float32")
    for start in range(0, len(x), 256):
        x[start + places(scale)] = image * scale
    model = lipdp.DP_Sequential([front, layers.PrivateRescaling(), keras.layers.Dense(2)])
    layer = model.layers[1]
    query = layer.queries()[0]
    sums = [moments._Rows(model, layer, rows, None).sum(query.total) for rows in (x, np.concatenate([x[:1], x]))]
    assert np.linalg.norm(sums[1] - sums[0]) <= query.sensitivity * (1.0 + 1e-6)


def test_all_rows_of_a_person_count_as_one():
    ids = np.array([0] * 40 + [1] * 5 + list(range(2, 7)))
    shares = lipdp.sampling.Persons(ids, 8).shares()
    np.testing.assert_allclose(np.bincount(ids, shares), np.ones(7), rtol=1e-12)
    model = network()
    layer = model.layers[0]
    x = np.full((50, *SHAPE), 1e5, "float32")
    whole = moments._Rows(model, layer, x, shares).sum(layer.queries()[0].total)
    others = moments._Rows(model, layer, x[40:], shares[40:]).sum(layer.queries()[0].total)
    assert np.linalg.norm(whole - others) == pytest.approx(6.0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_source_is_read_a_part_at_a_time(tmp_path, monkeypatch):
    x, y = data()
    file = tmp_path / "x.npy"
    np.save(file, x)
    monkeypatch.setattr(moments, "_AT_ONCE", 12 * 70)
    found = []
    for rows in (x, np.load(file, mmap_mode="r")):
        model = network()
        found.append(
            moments._Rows(model, model.layers[0], *_prepared(rows), None).sum(model.layers[0].queries()[0].total)
        )
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    model = network()
    fit(model, np.load(file, mmap_mode="r"), y)
    assert kinds(model)[:2] == FIRST


def _prepared(rows):
    return lipdp.sampling.as_rows(rows, np.zeros(len(rows), "int32"), 3)[:1]


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_second_fit_keeps_them():
    model = network()
    fit(model, epochs=1)
    mean = model.layers[0].mean.numpy().copy()
    fit(model, epsilon=8.0)
    assert [kind for kind, _ in kinds(model)].count("moments") == 2
    np.testing.assert_array_equal(model.layers[0].mean.numpy(), mean)


@pytest.mark.slow
def test_a_seed_repeats_them_and_other_data_do_not():
    x, y = data()
    other = x.copy()
    other[3] += 0.01
    means = []
    for rows in (x, x, other):
        keras.utils.set_random_seed(0)
        model = network()
        fit(model, rows, y, seed=7)
        means.append(model.layers[0].mean.numpy())
    np.testing.assert_array_equal(means[0], means[1])
    # By the noise, not by the hundredth of one row.
    assert np.abs(means[2] - means[0]).max() > 0.01


@pytest.mark.slow
def test_files_hold_moments_and_charges(tmp_path):
    model = network()
    fit(model)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert kinds(loaded) == kinds(model) and loaded.layers[0].adapted
    fit(loaded, epsilon=8.0)
    assert [kind for kind, _ in kinds(loaded)].count("moments") == 2
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = network()
    fresh.load_weights(tmp_path / "model.weights.h5")
    assert kinds(fresh) == kinds(model) and fresh.layers[0].adapted


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_model_that_shares_the_layer_holds_the_charges():
    model = network()
    fit(model)
    shared = model.layers[0]
    other = lipdp.DP_Sequential([keras.Input(SHAPE), shared, layers.Flatten(), keras.layers.Dense(2)])
    other.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    assert other.privacy.epsilon() == pytest.approx(model.privacy.epsilon())
    fit(other, epsilon=8.0)
    assert [kind for kind, _ in kinds(other)] == ["gradient"]
    assert sum(entry.kind == "moments" for entry in other.run.total.entries) == 2


class _Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.backend_free
def test_an_interrupted_fit_goes_on_with_the_same_moments(tmp_path, seed):
    path = tmp_path / "run.weights.h5"
    model = network()
    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=3, seed=seed, callbacks=[callbacks.Checkpoint(path, 1), _Stop()])
    mean = model.layers[0].mean.numpy()
    again = network()
    fit(again, epochs=3, seed=seed, callbacks=[callbacks.Checkpoint(path, 1)])
    np.testing.assert_array_equal(again.layers[0].mean.numpy(), mean)
    assert [kind for kind, _ in kinds(again)].count("moments") == 2
    assert again.privacy.epsilon() <= 4.0


def _double():
    """A model with two layers that need moments."""
    model = lipdp.DP_Sequential(
        [
            keras.Input(SHAPE),
            layers.PrivateNormalization(6.0, noise_multiplier=6.0, name="one"),
            layers.PrivateNormalization(6.0, noise_multiplier=6.0, name="two"),
            layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def _stopping(monkeypatch, after):
    """Has the release of moments stop after so many of them, by whichever layer."""
    count, release = [0], moments.Moments._noisy

    def noisy(*arguments):
        count[0] += 1
        if count[0] > after:
            raise KeyboardInterrupt
        return release(*arguments)

    monkeypatch.setattr(moments.Moments, "_noisy", noisy)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accountant": "filter"},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"strategy": "dpis"}, {"seed": 5})),
    ],
    ids=str,
)
def test_a_fit_that_was_stopped_before_its_first_update_keeps_to_the_budget(monkeypatch, settings):
    model = _double()
    for after in (1, 3):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            _stopping(patch, after)
            fit(model, **settings)
    fit(model, **settings)
    count = sum(entry.count for entry in model.run.ledger.entries if entry.kind == "moments")
    assert count == 1 + 3 + 2
    assert 3.9 < model.privacy.epsilon() <= 4.0 * (1.0 + 1e-9)
    assert all(layer.adapted for layer in model.layers[:2])


@pytest.mark.backend_free
def test_moments_that_a_fit_without_a_filter_released_keep_one_out(monkeypatch):
    model = _double()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _stopping(patch, 1)
        fit(model)
    with pytest.raises(ValueError, match="before the first release"):
        fit(model, accountant="filter")
    assert model.run.ledger.releases == 1


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_plan_under_which_nothing_was_released_keeps_no_filter_out(monkeypatch):
    model = _double()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(moments.Moments, "release", _interrupted)
        fit(model)
    assert model.run.plan is not None and not model.run.ledger.releases
    fit(model, accountant="filter")
    assert model.privacy.to_dict()["plans_fixed_in_advance"] == "not needed"


def _interrupted(*arguments):
    raise KeyboardInterrupt


@pytest.mark.backend_free
def test_two_releases_never_share_noise(monkeypatch):
    model, seen, release = _double(), [], moments.Moments._noisy

    def noisy(self, total, entry, x):
        found = release(self, total, entry, x)
        count = entry.sampling.num_examples
        seen.append((found - total / count) / (entry.noise_multiplier * entry.sensitivity))
        return found

    monkeypatch.setattr(moments.Moments, "_noisy", noisy)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(layers.PrivateNormalization, "set_mean", _once())
        patch.setattr(checks, "replaced", lambda thing: [])  # as if it stood in the source
        fit(model, seed=5)
    fit(model, seed=5)
    first = [np.ravel(part)[:3] for part in seen]
    assert len(first) >= 5
    for i, one in enumerate(first):
        assert all(np.abs(one - other).max() > 1e-3 for other in first[:i])


def _once():
    """`set_mean` that fails when it is called for the second time."""
    calls, whole = [], layers.PrivateNormalization.set_mean

    def set_mean(layer, mean):
        calls.append(layer)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(layer, mean)

    return set_mean


@pytest.mark.backend_free
def test_no_file_of_a_seeded_run_gives_the_noise_again(tmp_path):
    x, y = data()
    model = network()
    fit(model, x, y, seed=5)
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = network()
    loaded.load_weights(tmp_path / "model.weights.h5")
    totals = moments._Rows(loaded, loaded.layers[0], x, None).sum(loaded.layers[0].queries()[0].total)
    again = randomness.generator(loaded.run.secret.draws, "moments").normal(size=SHAPE)
    exact, released = totals / COUNT, loaded.layers[0].mean.numpy()
    assert np.abs(released - exact - 8.0 * 6.0 / COUNT * again).max() > 0.01


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("seed", [None, 5])
def test_a_fit_that_was_stopped_within_the_moments_goes_on_from_its_checkpoint(tmp_path, monkeypatch, seed):
    keep = callbacks.Checkpoint(tmp_path / "run.weights.h5")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _stopping(patch, 3)
        fit(_double(), seed=seed, callbacks=[keep])
    again = _double()
    fit(again, seed=seed, callbacks=[callbacks.Checkpoint(tmp_path / "run.weights.h5")])
    assert 3.9 < again.privacy.epsilon() <= 4.0 * (1.0 + 1e-9)
    assert sum(entry.count for entry in again.run.ledger.entries if entry.kind == "moments") == 3 + 2


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_noise_of_a_source_hangs_on_all_of_its_rows(tmp_path):
    x, y = data(5000)
    other = x.copy()
    other[1234] += 0.01  # a row that the sample of a source leaves out
    means = []
    for rows in (x, other):
        np.save(tmp_path / "x.npy", rows)
        keras.utils.set_random_seed(0)
        model = network()
        fit(model, np.load(tmp_path / "x.npy", mmap_mode="r"), y, batch_size=500, seed=7)
        means.append(model.layers[0].mean.numpy())
    assert np.abs(means[0] - means[1]).max() > 1e-3


@pytest.mark.backend_free
def test_a_layer_is_looked_at_where_it_stands_in_this_model():
    inputs = keras.Input(SHAPE)
    layer = layers.PrivateNormalization(6.0)
    layer(inputs)  # elsewhere first
    trained = layers.SpectralDense(3, name="trained")(inputs)
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(layer(trained))))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="while the layers in front of it train"):
        fit(model)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_moments_that_came_in_by_value_are_pointed_out():
    model = network()
    fit(model)
    other = network()
    for ours, theirs in zip(other.weights, model.weights, strict=True):
        ours.assign(theirs.numpy())
    with pytest.warns(UserWarning, match="came into this model by value"):
        fit(other)


@pytest.mark.backend_free
def test_moments_alone_that_pass_the_budget_say_so():
    with pytest.raises(ValueError, match="released first alone cost epsilon=0.6"):
        fit(network(), epsilon=0.5)


@pytest.mark.backend_free
def test_a_refused_fit_releases_and_charges_nothing():
    model = network(noise_multiplier=0.1)
    with pytest.raises(ValueError, match="budget"):
        fit(model, epsilon=0.5)
    assert kinds(model) == [] and not model.layers[0].adapted


@pytest.mark.backend_free
def test_a_charge_comes_before_its_release(monkeypatch):
    def fails(*_):
        raise RuntimeError("the machine stops")

    model = network()
    monkeypatch.setattr(layers.PrivateNormalization, "set_mean", fails)
    with pytest.raises(RuntimeError, match="the machine stops"):
        fit(model)
    assert kinds(model) == [("moments", 1)]


@pytest.mark.backend_free
def test_an_update_that_was_never_made_does_not_take_the_moments_back():
    class Fails(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise RuntimeError("a callback")

    model = network()
    with pytest.raises(RuntimeError, match="a callback"):
        fit(model, callbacks=[Fails()])
    assert kinds(model) == FIRST and model.layers[0].adapted


@pytest.mark.slow
@pytest.mark.backend_free
def test_inputs_may_leave_sizes_open():
    numbers, tokens = keras.Input((4,), name="numbers"), keras.Input((None,), name="tokens")
    read = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 4)(tokens))
    both = keras.layers.Concatenate()([layers.PrivateNormalization(4.0)(numbers), read])
    model = lipdp.DP_Model([numbers, tokens], keras.layers.Dense(2)(both))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(COUNT, 4)), rng.integers(0, 9, size=(COUNT, 6))]
    fit(model, x, (np.arange(COUNT) % 2).astype("int32"))
    assert kinds(model)[:2] == FIRST


@pytest.mark.slow
@pytest.mark.backend_free
def test_two_layers_in_a_row():
    model = lipdp.DP_Sequential(
        [
            keras.Input(SHAPE),
            layers.PrivateNormalization(6.0, name="one"),
            layers.LayerCentering(),
            layers.PrivateNormalization(6.0, noise_multiplier=9.0, name="two"),
            layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    fit(model)
    assert [e.noise_multiplier for e in model.run.ledger.entries[:4]] == [8.0, 8.0, 9.0, 9.0][: len(kinds(model)) - 1]
    # The second one saw what the first one made of the rows.
    assert 0.2 < float(model.layers[2].variance.numpy().mean()) < 10.0


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: network(front=[layers.SpectralDense(3, name="trained")]), "while the layers in front of it train"),
        (lambda: network(front=[keras.layers.Lambda(lambda x: 2.0 * x, name="mix")]), "rows apart"),
        (lambda: _twice(), "2 places"),
        (lambda: _inside(), "0: inside of another layer"),
    ],
)
@pytest.mark.backend_free
def test_refuses_places_without_moments_of_single_rows(make, match):
    model = make()
    with pytest.raises(ValueError, match=match):
        fit(model)
    assert kinds(model) == []


def _twice():
    inputs = keras.Input(SHAPE)
    layer = layers.PrivateNormalization(6.0)
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(layer(layer(inputs)))))
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def _inside():
    inner = keras.Sequential([keras.Input(SHAPE), layers.PrivateNormalization(6.0)])
    model = lipdp.DP_Sequential([keras.Input(SHAPE), inner, keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


@pytest.mark.backend_free
def test_a_private_number_of_examples_is_refused():
    with pytest.raises(ValueError, match="count_noise"):
        fit(network(), strategy=strategies.DPIS(count_noise=10.0))


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_statement_lists_them():
    model = network()
    fit(model, epsilon=None, noise_multiplier=1.0)
    text = model.privacy.statement()
    assert text.count("x moments (private_normalization, poisson)") == 2
    assert "2 noisy moments of the data and 6 noisy updates were released" in text
    covered = text.replace("\n  ", " ").split("Covered\n")[1].split("Not covered")[0]
    assert "the moments of the data that were released first" in covered
    lines = [line for line in covered.splitlines() if line.startswith("- ")]
    assert all(line.endswith(";") for line in lines[:-1]) and lines[-1].endswith(".")
    assert "and of the noise of moments: numpy's Philox" in " ".join(text.split())
    assert "6 noisy updates" in text and "plans were run" not in text
    facts = json.loads(model.privacy.statement("json"))
    jsonschema.validate(facts, privacy.schema())
    assert not facts["adaptive"] and facts["plans"] == 1
    assert facts["groups"]


@pytest.mark.slow
@pytest.mark.backend_free
def test_fit_says_what_it_releases(capsys):
    fit(network(), verbose=2)
    assert "what layer 'moments' reads are released first, with noise multiplier 8 each" in capsys.readouterr().out
