"""What every loss must do: a bound that is true and exact, rows that do not see each other, and so on."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from lipdp import losses

# One batch size and few numbers of outputs: backends compile per shape.
SIZE = 128
CLASSES = (2, 3, 10, 100)
SCALES = (0.0, 1e-8, 1e-3, 0.1, 1.0, 10.0, 1e4)


def skewed_priors(num_classes):
    weights = np.arange(1, num_classes + 1) ** 2.0
    return list(weights / weights.sum())


# name -> (loss for C outputs, which labels it takes, numbers of outputs)
CASES = {
    "categorical_crossentropy": (lambda c: losses.CategoricalCrossentropy(), "simplex", CLASSES),
    "categorical_crossentropy_hot": (lambda c: losses.CategoricalCrossentropy(20.0), "simplex", CLASSES),
    "categorical_crossentropy_cold": (lambda c: losses.CategoricalCrossentropy(0.1), "simplex", CLASSES),
    "sparse_categorical_crossentropy": (lambda c: losses.SparseCategoricalCrossentropy(8.0), "ids", CLASSES),
    "binary_crossentropy": (lambda c: losses.BinaryCrossentropy(), "unit", (1, 2, 3, 10)),
    "binary_crossentropy_hot": (lambda c: losses.BinaryCrossentropy(20.0), "unit", (1, 3, 100)),
    "multiclass_hinge": (lambda c: losses.MulticlassHinge(), "onehot", CLASSES),
    "multiclass_hinge_ids": (lambda c: losses.MulticlassHinge(margin=0.01), "ids", CLASSES),
    "multiclass_kr": (lambda c: losses.MulticlassKR(), "onehot", CLASSES),
    "multiclass_kr_skewed": (lambda c: losses.MulticlassKR(skewed_priors(c)), "ids", CLASSES),
    "multiclass_hkr": (lambda c: losses.MulticlassHKR(10.0), "onehot", CLASSES),
    "multiclass_hkr_skewed": (lambda c: losses.MulticlassHKR(0.5, 2.0, skewed_priors(c)), "ids", CLASSES),
    "cosine_low_floor": (lambda c: losses.CosineSimilarity(0.1), "real", (1, 2, 10)),
    "cosine_unit_floor": (lambda c: losses.CosineSimilarity(), "onehot", CLASSES),
    "cosine_high_floor": (lambda c: losses.CosineSimilarity(5.0), "real", (2, 3, 100)),
    "cosine_ids": (lambda c: losses.CosineSimilarity(2.0), "ids", CLASSES),
    "huber": (lambda c: losses.Huber(), "real", (1, 2, 3, 10)),
    "huber_small": (lambda c: losses.Huber(0.01), "onehot", (2, 100)),
    "mean_absolute_error": (lambda c: losses.MeanAbsoluteError(), "real", (1, 2, 3, 10, 100)),
}
ALL = [pytest.param(make, kind, c, id=f"{name}-{c}") for name, (make, kind, cs) in CASES.items() for c in cs]
FEW = [pytest.param(*case.values, id=case.id, marks=[pytest.mark.slow] * (case.values[2] in (3, 100))) for case in ALL]
THREE = [pytest.param(make, kind, 3, id=name) for name, (make, kind, _) in CASES.items()]
TRAINED = [case for case in THREE if case.values[1] == "ids"]  # one of each class that takes ids


def draw_labels(kind, num_outputs, rng, size=SIZE):
    """Return admissible labels: extreme ones for a start, random ones after."""
    ids = np.arange(size, dtype="int32") % num_outputs
    if kind == "ids":
        return ids
    onehot = np.eye(num_outputs, dtype="float32")[ids]
    if kind == "onehot":
        return onehot
    if kind == "simplex":
        soft = rng.dirichlet(np.full(num_outputs, 0.3), size)
        return np.where(np.arange(size)[:, None] < size // 2, onehot, soft).astype("float32")
    if kind == "unit":
        hard = rng.integers(0, 2, (size, num_outputs))
        soft = rng.random((size, num_outputs))
        return np.where(np.arange(size)[:, None] < size // 2, hard, soft).astype("float32")
    scale = 10.0 ** rng.uniform(-4, 4, (size, 1))
    return (scale * rng.normal(size=(size, num_outputs)) + 1e-3).astype("float32")


def draw_logits(num_outputs, rng, size=SIZE):
    """Return logits at all scales: zeros, ties (few distinct values), single large entries, and noise."""
    noise = rng.normal(size=(size, num_outputs))
    ties = rng.integers(-1, 2, (size, num_outputs))
    spikes = np.eye(num_outputs)[rng.integers(0, num_outputs, size)] * rng.choice([-1, 1], (size, 1))
    z = np.choose(rng.integers(0, 3, (size, 1)), [noise, ties, spikes])
    return (z * rng.choice(SCALES, (size, 1))).astype("float32")


def norms(gradient):
    return np.linalg.norm(np.asarray(gradient, "float64"), axis=-1)


@pytest.mark.backend_free
@pytest.mark.parametrize("make, kind, num_outputs", ALL)
def test_no_adversary_exceeds_the_constant_and_one_reaches_it(make, kind, num_outputs, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(num_outputs)
    y = draw_labels(kind, num_outputs, rng)
    z = draw_logits(num_outputs, rng)
    best, best_z = norms(loss.gradient(y, z)), z
    worst = best.max()
    for step in range(6):
        # Climb the squared norm by its gradient, in steps of every size; where it is flat, jump at random.
        slope = autodiff(lambda x: ops.sum(ops.square(loss.gradient(y, x)), axis=-1), best_z)
        slope = np.nan_to_num(slope) / np.maximum(norms(np.nan_to_num(slope))[:, None], 1e-20)
        length = 10.0 ** rng.uniform(-6, 4, (SIZE, 1))
        jump = rng.normal(size=z.shape) * np.abs(best_z).max(axis=1, keepdims=True)
        z = (best_z + length * slope if step % 3 else best_z + jump).astype("float32")
        found = norms(loss.gradient(y, z))
        worst = max(worst, found.max())
        better = found > best
        best, best_z = np.where(better, found, best), np.where(better[:, None], z, best_z)
    exact = loss.exact_lipschitz(num_outputs)
    assert worst <= exact * (1 + 1e-6)
    assert worst >= 0.99 * exact
    assert loss.lipschitz(num_outputs) == exact


@pytest.mark.parametrize("make, kind, num_outputs", FEW)
def test_gradient_is_that_of_the_value(make, kind, num_outputs, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(1)
    y = draw_labels(kind, num_outputs, rng)
    # Smooth points only: no ties, no residual of exactly zero.
    z = (rng.normal(size=(SIZE, num_outputs)) * rng.choice([0.01, 1.0, 10.0], (SIZE, 1))).astype("float32")
    expected = autodiff(lambda x: loss.value(y, x), z)
    np.testing.assert_allclose(loss.gradient(y, z), expected, atol=3e-5 * loss.lipschitz(num_outputs))


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_call_has_the_value_and_the_gradient(make, kind, num_outputs, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(2)
    y = draw_labels(kind, num_outputs, rng)
    z = draw_logits(num_outputs, rng)
    values = np.asarray(loss.call(y, z))
    assert values.shape == (SIZE,)
    np.testing.assert_array_equal(values, loss.value(y, z))
    gradient = autodiff(lambda x: loss.call(y, x), z)
    np.testing.assert_allclose(gradient, loss.gradient(y, z), atol=1e-7, rtol=1e-5)
    assert norms(gradient).max() <= loss.lipschitz(num_outputs)


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
@pytest.mark.parametrize("clip", [1e-3, 0.2])
def test_clip_bounds_the_gradient_and_keeps_its_direction(make, kind, num_outputs, clip, autodiff):
    loss = make(num_outputs)
    clipped = type(loss).from_config({**loss.get_config(), "clip": clip})
    bound = clipped.lipschitz(num_outputs)
    assert bound == min(clip, loss.exact_lipschitz(num_outputs))
    rng = np.random.default_rng(3)
    y = draw_labels(kind, num_outputs, rng)
    z = draw_logits(num_outputs, rng)
    gradient = autodiff(lambda x: clipped.call(y, x), z)
    assert norms(gradient).max() <= bound
    free = np.asarray(loss.gradient(y, z), "float64")
    expected = free * np.minimum(1.0, bound / np.maximum(norms(free), 1e-30))[:, None]
    np.testing.assert_allclose(gradient, expected, atol=2e-5 * bound, rtol=2e-5)
    np.testing.assert_array_equal(clipped.call(y, z), loss.value(y, z))


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_rows_do_not_see_each_other(make, kind, num_outputs, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(4)
    y = draw_labels(kind, num_outputs, rng)
    z = draw_logits(num_outputs, rng)
    others_y, others_z = y.copy(), z.copy()
    others_y[1:] = y[0]  # the row's class fills the batch
    others_z[1:] = rng.normal(size=z[1:].shape)
    gradient = autodiff(lambda x: loss.call(y, x), z)
    changed = autodiff(lambda x: loss.call(others_y, x), others_z)
    np.testing.assert_array_equal(changed[0], gradient[0])
    np.testing.assert_array_equal(np.asarray(loss.call(others_y, others_z))[0], np.asarray(loss.call(y, z))[0])


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_padding_weighs_nothing(make, kind, num_outputs, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(5)
    y = draw_labels(kind, num_outputs, rng)
    z = rng.normal(size=(SIZE, num_outputs)).astype("float32")
    real = SIZE // 2
    weights = (np.arange(SIZE) < real).astype("float32")
    y[real:], z[real:] = 0, 0
    loss.reduction = "sum"
    values = np.asarray(loss.call(y, z))
    assert np.isfinite(values).all()
    np.testing.assert_allclose(loss(y, z, sample_weight=weights), values[:real].sum(), rtol=1e-4)
    gradient = autodiff(lambda x: loss(y, x, sample_weight=weights), z)
    expected = np.asarray(loss.bounded_gradient(y, z))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(gradient[:real], expected[:real], rtol=1e-6)
    np.testing.assert_array_equal(gradient[real:], 0.0)


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e30])
def test_bound_holds_for_invalid_labels_too(make, kind, num_outputs, bad, autodiff):
    loss = make(num_outputs)
    rng = np.random.default_rng(6)
    y = np.full_like(draw_labels(kind, num_outputs, rng), bad, dtype="float32")
    gradient = autodiff(lambda x: loss.call(y, x), draw_logits(num_outputs, rng))
    assert norms(gradient).max() <= loss.lipschitz(num_outputs)  # false for NaN


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_admissible_labels_pass_the_check(make, kind, num_outputs):
    loss = make(num_outputs)
    y = draw_labels(kind, num_outputs, np.random.default_rng(7))
    loss.check_labels(y, num_outputs)
    if kind == "ids":
        loss.check_labels(y[:, None].astype("float64"), num_outputs)


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_check_labels_refuses_what_is_not_finite_or_not_of_the_shape(make, kind, num_outputs):
    loss = make(num_outputs)
    y = draw_labels(kind, num_outputs, np.random.default_rng(8), size=64).astype("float32")
    for bad in (np.nan, np.inf):
        broken = y.copy()
        broken[5] = bad
        with pytest.raises(ValueError, match=r"finite, but 1 of 64 rows.*at row 5"):
            loss.check_labels(broken, num_outputs)
    with pytest.raises(ValueError, match=r"shape .*Received: shape \(64, 3, 3\)"):
        loss.check_labels(np.zeros((64, 3, 3)), num_outputs)
    with pytest.raises(ValueError, match="must be numbers"):
        loss.check_labels(np.array(["cat", "dog"]), num_outputs)


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_outputs_of_another_rank_are_refused(make, kind, num_outputs):
    loss = make(num_outputs)
    y = draw_labels(kind, num_outputs, np.random.default_rng(9), size=4)
    for shape in ((4,), (4, 2, num_outputs)):
        with pytest.raises(ValueError, match=r"needs outputs of shape \(batch, num_outputs\)"):
            loss(y, np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match="one label per example"):
        loss(y, np.zeros((3, num_outputs), "float32"))


@pytest.mark.parametrize("make, kind, num_outputs", THREE)
def test_configuration_round_trip(make, kind, num_outputs):
    loss = type(make(num_outputs)).from_config({**make(num_outputs).get_config(), "clip": 0.25, "name": "mine"})
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    for copy in (keras.saving.deserialize_keras_object(config), losses.get(config)):
        assert type(copy) is type(loss)
        assert copy.get_config() == loss.get_config()
    rng = np.random.default_rng(10)
    y, z = draw_labels(kind, num_outputs, rng), draw_logits(num_outputs, rng)
    np.testing.assert_array_equal(copy.call(y, z), loss.call(y, z))


@pytest.mark.parametrize("make, kind, num_outputs", TRAINED)
def test_compiled_model_trains_saves_and_loads(make, kind, num_outputs, tmp_path):
    rng = np.random.default_rng(11)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(num_outputs)])
    model.compile("sgd", loss=make(num_outputs))
    x, y = rng.normal(size=(32, 4)).astype("float32"), draw_labels(kind, num_outputs, rng, size=32)
    history = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config()
    np.testing.assert_allclose(loaded.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), rtol=1e-6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.floats(-30, 30),
    clip=st.one_of(st.none(), st.floats(1e-6, 10.0)),
)
def test_bound_holds_at_any_scale(name, seed, exponent, clip):
    make, kind, _ = CASES[name]
    loss = make(3)
    loss = type(loss).from_config({**loss.get_config(), "clip": clip})
    rng = np.random.default_rng(seed)
    y = draw_labels(kind, 3, rng)
    z = (10.0**exponent * rng.normal(size=(SIZE, 3))).astype("float32")
    assert norms(loss.bounded_gradient(y, z)).max() <= loss.lipschitz(3)
    assert norms(loss.gradient(y, z)).max() <= loss.exact_lipschitz(3) * (1 + 1e-6)
    assert np.isfinite(loss.call(y, z)).all()
