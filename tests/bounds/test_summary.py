"""`summary_bounds`: what it prints, and measured gradients beside their bounds."""

import json
import pickle

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers
from lipdp.report import plot_tightness
from tests.helpers.models import DELTA, blobs, mlp


def measured_by_hand(model, x, y, names):
    """Largest gradient norm per layer through `Model.fit` on one example at a time: plain SGD with rate 1."""
    plain = lipdp.export(model)
    plain.compile(keras.optimizers.SGD(1.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    best = dict.fromkeys(names, 0.0)
    for i in range(len(y)):
        before = {name: plain.get_layer(name).get_weights()[0] for name in names}
        kept = plain.get_weights()
        plain.train_on_batch(x[i : i + 1], y[i : i + 1])
        for name in names:
            moved = np.linalg.norm(plain.get_layer(name).get_weights()[0] - before[name])
            best[name] = max(best[name], float(moved))
        plain.set_weights(kept)
    return best


@pytest.mark.slow
def test_measured_gradients_are_the_largest_of_single_examples():
    x, y = blobs(examples=12)
    keras.utils.set_random_seed(0)
    model = lipdp.DP_Sequential(
        [layers.BoundedInput((8,), 3.0), layers.SpectralDense(6), layers.Abs(), layers.SpectralDense(3)]
    )
    # Temperature 1 without a clip: the loss that Keras has as well.
    model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy(temperature=1.0))
    rows = model.summary_bounds(x, y, print_fn=lambda text: None)
    by_name = {row["layer"]: row for row in rows if row["gradient_bound"]}
    for name, expected in measured_by_hand(model, x, y, by_name).items():
        assert by_name[name]["measured"] == pytest.approx(expected, rel=1e-3)
        assert by_name[name]["tightness"] == pytest.approx(expected / by_name[name]["gradient_bound"], rel=1e-3)
        assert 0.0 < by_name[name]["tightness"] <= 1.0
    assert [row["measured"] for row in rows if not row["gradient_bound"]] == [None, None]


@pytest.mark.slow
def test_the_table_says_that_it_is_not_private():
    texts = []
    model = mlp()
    model.summary_bounds(*blobs(examples=5), print_fn=texts.append)
    assert "not private" in texts[0] and "measured / bound" in texts[0].replace("\n", " ")
    model.summary_bounds(print_fn=texts.append)
    assert "measured" not in texts[1]
    assert "measured" not in model.summary_bounds(print_fn=texts.append)[0]


def test_a_saturated_example_reaches_the_bound():
    """An example on the sphere, classified wrongly with certainty, by a kernel in the way of nothing."""
    model = lipdp.DP_Sequential([layers.BoundedInput((2,), 1.0), layers.SpectralDense(2, "identity")])
    model.compile("sgd", loss=lipdp.losses.SparseCategoricalCrossentropy(temperature=40.0))
    rows = model.summary_bounds(np.array([[1.0, 0.0]]), np.array([1]), print_fn=lambda text: None)
    (row,) = [r for r in rows if r["measured"]]
    assert row["tightness"] == pytest.approx(1.0, abs=1e-3)


def test_uses_of_one_layer_are_taken_together():
    inputs = keras.Input((4,))
    shared = layers.SpectralDense(4, name="shared")
    x = shared(layers.Abs()(shared(layers.BoundedInput(norm=1.0)(inputs))))
    model = lipdp.DP_Model(inputs, x)
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    rows = model.summary_bounds(rng.normal(size=(9, 4)), rng.integers(0, 4, 9), print_fn=lambda text: None)
    uses = [row for row in rows if row["layer"] == "shared"]
    assert len(uses) == 2 and uses[0]["tightness"] == uses[1]["tightness"] < 1.0
    assert uses[0]["tightness"] == pytest.approx(uses[0]["measured"] / sum(u["gradient_bound"] for u in uses), rel=1e-6)


def test_a_gradient_above_its_bound_is_an_error():
    model = mlp()
    model.layers[-1].kernel.assign(np.random.default_rng(0).normal(scale=100.0, size=(16, 3)))
    with pytest.raises(RuntimeError, match="more than its bound.*Were weights set by hand"):
        model.summary_bounds(*blobs(examples=20), print_fn=lambda text: None)


@pytest.mark.slow
@pytest.mark.backend_free
def test_bad_samples_are_refused_and_the_model_stays_as_it_was():
    model = mlp()
    x, y = blobs(examples=6)
    with pytest.raises(ValueError, match="same length"):
        model.summary_bounds(x, y[:3])
    with pytest.raises(ValueError, match="labels"):
        model.summary_bounds(x)
    kept = model.get_weights()
    model.summary_bounds(x, y, print_fn=lambda text: None)
    assert all(np.array_equal(a, b) for a, b in zip(kept, model.get_weights(), strict=True))
    assert model.privacy.epsilon() == 0.0
    model.fit(*blobs(), batch_size=40, epochs=1, noise_multiplier=1.0, delta=DELTA, verbose=0)


def test_the_plot_shows_every_trainable_layer(tmp_path):
    model = mlp()
    rows = model.summary_bounds(*blobs(examples=5), print_fn=lambda text: None)
    figure = plot_tightness(rows)
    (axes,) = figure.axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [row["layer"] for row in rows if row["tightness"] is not None] and len(shown) == 3
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [row["tightness"] for row in rows if row["tightness"] is not None]
    assert "not private" in axes.get_xlabel()
    figure.savefig(tmp_path / "tightness.png")
    with pytest.raises(ValueError, match="hold no measurement"):
        plot_tightness(model.summary_bounds(print_fn=lambda text: None))


def test_a_notebook_shows_the_rows_in_short():
    rows = mlp().summary_bounds(print_fn=lambda text: None)
    assert repr(rows) == f"<bounds of {len(rows)} layers: a list of dictionaries>"
    # For all else they are a list.
    assert isinstance(rows, list) and rows == [*rows] and json.loads(json.dumps(rows)) == rows
    assert pickle.loads(pickle.dumps(rows)) == rows and repr(rows[:1]) == repr([*rows][:1])
