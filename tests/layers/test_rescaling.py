"""Rescaling by private ranges: what it finds, what one example can change, its constant, and what it refuses."""

import importlib
import math

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, layers


def released(layer, rows, deviation=0.0, seed=0, weights=None):
    """The layer after both of its queries, with noise of this standard deviation in each entry of the averages."""
    layer.build((None, *rows.shape[1:]))
    rng = np.random.default_rng(seed)
    for query in layer.queries():
        average = query.total(rows, weights) / len(rows)
        query.take(average + deviation * rng.normal(size=average.shape), deviation, len(rows))
    return layer


def ranges(layer):
    return np.stack([keras.ops.convert_to_numpy(layer.low), keras.ops.convert_to_numpy(layer.high)], axis=1)


def columns(count=20000, seed=0):
    """Columns as tables have them, and the range that each should about get."""
    rng = np.random.default_rng(seed)
    found = {
        "height": (rng.normal(170, 10, count), (140, 200)),
        "income": (rng.lognormal(10, 0.5, count), (2000, 120000)),
        "year": (rng.integers(1990, 2020, count), (1984, 2032)),
        "share": (rng.random(count), (0, 1.02)),
        "small": (rng.normal(0, 1e-6, count), (-5e-6, 5e-6)),
        "balance": (rng.normal(-2e6, 1e5, count), (-2.4e6, -1.6e6)),
        "flag": (rng.integers(0, 2, count), (0, 1.1)),
        "rare": (rng.random(count) < 1e-3, (-1, 1)),
        "nothing": (np.zeros(count), (-1, 1)),
        "same": (np.full(count, 5.0), (4.9, 5.2)),
    }
    return np.stack([c for c, _ in found.values()], axis=1).astype("float32"), [r for _, r in found.values()]


@pytest.mark.backend_free
@pytest.mark.parametrize("multiplier", [1.0, 8.0, 24.0])
def test_ranges_hold_most_of_each_column_whatever_its_unit(multiplier):
    x, expected = columns()
    deviation = multiplier * math.sqrt(x.shape[1]) / len(x)
    found = ranges(released(layers.PrivateRescaling(), x, deviation))
    inside = ((x >= found[:, 0]) & (x <= found[:, 1])).mean(axis=0)
    assert (inside[[0, 1, 2, 3, 4, 5, 6, 8, 9]] > 0.94 - 0.003 * multiplier).all(), inside
    wide = np.array([high - low for low, high in expected])
    assert (found[:, 1] - found[:, 0] <= 2.5 * wide).all(), found


@pytest.mark.backend_free
def test_few_rows_of_one_size_are_found_where_no_bin_rises_above_the_noise():
    x = np.random.default_rng(0).uniform(1000, 60000, (300, 4)).astype("float32")
    found = ranges(released(layers.PrivateRescaling(), x, 20.0 * 2 / 300))
    assert ((found[:, 1] > 1000) & (found[:, 1] < 2**24)).all(), found


@pytest.mark.backend_free
@pytest.mark.parametrize("seed", range(5))
def test_thin_columns_keep_most_of_their_range(seed):
    rng = np.random.default_rng(seed)
    x = np.stack([rng.uniform(20, 200, 6000), rng.integers(1, 7, 6000), rng.normal(0, 1, 6000)], axis=1)
    found = ranges(released(layers.PrivateRescaling(), x.astype("float32"), 48.0 * 3**0.5 / 6000, seed))
    inside = ((x >= found[:, 0]) & (x <= found[:, 1])).mean(axis=0)
    assert (inside > [0.8, 0.8, 0.6]).all(), (inside, found)
    assert (found[:, 1] - found[:, 0] < [260, 9, 17]).all(), found


@pytest.mark.slow
def test_values_go_to_the_unit_interval_and_are_clipped():
    layer = released(layers.PrivateRescaling(), columns()[0])
    x = columns(500, seed=1)[0]
    x[0] *= 1000
    low, high = ranges(layer).astype("float64").T
    expected = np.clip((x - low) * (2 / (high - low)) - 1, -1, 1)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, atol=2e-3)
    assert layer.adapted and float(keras.ops.convert_to_numpy(layer.num_examples)) == 20000


@pytest.mark.slow
def test_before_a_fit_inputs_are_only_clipped():
    layer = layers.PrivateRescaling()
    x = np.array([[0.5, -3.0], [-0.25, 7.0]], "float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x)), np.clip(x, -1, 1))
    assert not layer.adapted


@pytest.mark.backend_free
@pytest.mark.parametrize("shape", [(1,), (5,), (4, 3), (2, 3, 2)])
def test_no_example_moves_a_histogram_by_more_than_its_sensitivity(shape):
    rng = np.random.default_rng(0)
    layer = released(layers.PrivateRescaling(), rng.normal(size=(200, *shape)).astype("float32"))
    candidates = [
        np.zeros(shape),
        np.ones(shape),
        np.full(shape, np.inf),
        np.full(shape, np.nan),
        np.full(shape, 3e38),
        np.full(shape, -1e-38),
        *(rng.standard_t(1, shape) * 10.0 ** rng.uniform(-30, 30, shape) for _ in range(300)),
    ]
    reached = 0.0
    for query in layer.queries():
        assert query.sensitivity == math.sqrt(shape[-1])
        for example in candidates:
            one = np.asarray(example, "float32")[None]
            added = query.total(one, None)
            assert (added >= 0).all() and np.linalg.norm(added) <= query.sensitivity * (1 + 1e-12)
            reached = max(reached, np.linalg.norm(added) / query.sensitivity)
            # A row of a person that counts in part moves it in part.
            np.testing.assert_allclose(query.total(one, np.array([0.25])), 0.25 * added)
    assert reached == pytest.approx(1.0)


@pytest.mark.backend_free
def test_sums_are_those_of_single_rows(monkeypatch):
    monkeypatch.setattr(importlib.import_module("lipdp.layers.rescaling"), "_AT_ONCE", 100)
    x = columns(64)[0]
    layer = released(layers.PrivateRescaling(), x)
    weights = np.random.default_rng(1).random(64)
    for query in layer.queries():
        parts = sum(w * query.total(row[None], None) for w, row in zip(weights, x, strict=True))
        np.testing.assert_allclose(query.total(x, weights), parts, atol=1e-9)


def test_the_certificate_is_that_of_the_narrowest_range():
    layer = released(layers.PrivateRescaling(), columns()[0][:, [0, 3, 6]])
    model = keras.Sequential([keras.Input((3,)), layer])
    largest = 2.0 / np.diff(ranges(layer).astype("float64"), axis=1).min()
    assert largest <= certify.lipschitz(model) <= largest * (1.0 + 1e-4)
    for value in (1e9, -3e38, np.inf, -np.inf, np.nan):
        out = keras.ops.convert_to_numpy(layer(np.full((1, 3), value, "float32")))
        assert np.linalg.norm(out) <= layer.trained_output_bound((1.0,)) == layer.output_bound((1.0,)), value


def network(front=(), count=4, **settings):
    model = lipdp.DP_Sequential(
        [keras.Input((count,)), *front, layers.PrivateRescaling(**settings), keras.layers.Dense(2, name="logits")]
    )
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.slow
def test_fit_releases_ranges_once_within_its_budget_and_files_keep_them(tmp_path):
    x = columns(4000)[0][:, :4]
    y = (x[:, 0] > 170).astype("int32")
    model = network()
    own = {"epsilon": 2.0, "epochs": 1, "batch_size": 200, "verbose": 0, "seed": 3}
    model.fit(x, y, **own)
    entries = model.run.ledger.entries
    assert [(e.kind, e.count, e.strategy) for e in entries][0] == ("moments", 3, "private_rescaling")
    assert entries[0].sensitivity == pytest.approx(2.0 / 4000) and entries[0].noise_multiplier == 8.0
    assert 1.9 < model.privacy.epsilon() <= 2.0
    assert "counts of values in each column, averaged" in " ".join(model.privacy.statement().split())
    before = ranges(model.layers[0])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(ranges(loaded.layers[0]), before)
    loaded.fit(x[:2000], y[:2000], **own | {"epsilon": 4.0})
    np.testing.assert_array_equal(ranges(loaded.layers[0]), before)
    assert sum(e.count for e in loaded.run.total.entries if e.kind == "moments") == 3
    stock = lipdp.export(model)
    np.testing.assert_allclose(stock.predict(x[:50], verbose=0), model.predict(x[:50], verbose=0), atol=1e-5)


@pytest.mark.slow
def test_moments_behind_it_are_those_of_rescaled_columns():
    x = columns(4000)[0][:, :4]
    model = network([], noise_multiplier=0.01)
    model = lipdp.DP_Sequential(
        [
            keras.Input((4,)),
            layers.PrivateRescaling(0.01),
            layers.PrivateNormalization(2.0, 0.01),
            layers.BoundedInput(norm=2.0),
            layers.SpectralDense(2),
        ]
    )
    model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy())
    model.fit(x, (x[:, 0] > 170).astype("int32"), noise_multiplier=1.0, epochs=1, batch_size=500, verbose=0, seed=1)
    own = [(e.strategy, e.count) for e in model.run.ledger.entries if e.kind == "moments"]
    assert own == [("private_rescaling", 3), ("private_normalization", 2)]
    rescaled = keras.ops.convert_to_numpy(model.layers[0](x))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model.layers[1].mean), rescaled.mean(axis=0), atol=0.02)


@pytest.mark.slow
def test_persons_count_once_however_many_rows_they_have():
    x = columns(3000)[0][:, :4]
    persons = np.concatenate([np.zeros(1000, int), np.arange(1, 2001)])
    x[:1000] = 1e12  # one person cannot move a range
    model = network(noise_multiplier=2.0)
    y = (np.arange(3000) % 2).astype("int32")
    model.fit(x, y, person_ids=persons, epsilon=8.0, epochs=1, batch_size=100, verbose=0, seed=0)
    assert (ranges(model.layers[0])[:, 1] < 1e6).all()
    assert model.run.ledger.entries[0].sampling.num_examples == 2001


@pytest.mark.slow
def test_a_row_that_overflows_in_front_of_it_stays_within_the_bound():
    front = keras.layers.Dense(3, use_bias=False, trainable=False)
    model = lipdp.DP_Sequential(
        [
            keras.Input((3,)),
            front,
            layers.PrivateRescaling(),
            layers.SpectralDense(8),
            layers.Abs(),
            layers.SpectralDense(2),
        ]
    )
    front.set_weights([4 * np.array([[1, 1, 1], [-1, 1, -1], [0, 1, 1]], "float32")])
    model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy())
    x = np.random.default_rng(0).normal(size=(1000, 3)).astype("float32")
    x[5] = [3e38, 3e38, 0.0]
    own = {"epsilon": 4.0, "epochs": 2, "batch_size": 100, "seed": 0, "verbose": 0}
    model.fit(x, (x[:, 0] > 0).astype("int32"), strategy="clipless", **own)
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.slow
def test_refuses():
    with pytest.raises(ValueError, match="noise_multiplier"):
        layers.PrivateRescaling(0.0)
    with pytest.raises(ValueError, match="known size"):
        layers.PrivateRescaling().build((None, None, 3))
    with pytest.raises(ValueError, match="known size"):
        layers.PrivateRescaling().build((None,))
    with pytest.raises(ValueError, match="Leave it out"):
        layers.PrivateRescaling().adapt(np.zeros((3, 2)))
    model = network([keras.layers.Dense(4, name="first")])
    with pytest.raises(ValueError, match="first"):
        model.fit(np.zeros((64, 4), "float32"), np.arange(64) % 2, epsilon=2.0, batch_size=32, verbose=0)
