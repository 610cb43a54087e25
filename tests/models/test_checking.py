"""What `check` says of a model is what `fit` says of it, and what its norms take."""

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp


def rows_of(model, **options):
    texts = []
    rows = lipdp.check(model, print_fn=texts.append, **options)
    return rows, texts[0]


class Scaled(L.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return x * self.scale


@pytest.mark.slow
def test_ways_and_costs_of_norms():
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            L.Dense(5, use_bias=False),
            L.Dense(40, use_bias=False),
            L.Flatten(),
            L.Dense(3, use_bias=False),
            L.Dense(2, use_bias=False, trainable=False),
        ]
    )
    rows, text = rows_of(model)
    found = [(row["rule"], row["trains"], row["memory"], row["products"], row["todo"]) for row in rows]
    assert found == [
        ("whole gradients", 20, 20, 6 * 20, ""),
        ("whole gradients", 200, 200, 6 * 200, ""),
        ("product of two norms", 720, 0, 243, ""),
        ("frozen", 0, 0, 0, ""),
    ]
    assert 'trains it by "dpsgd"' in text and "1 frozen layers are left out" in text


@pytest.mark.backend_free
def test_pairs_of_positions_where_they_are_cheaper():
    model = keras.Sequential([keras.Input((6, 50)), L.Dense(40, use_bias=False)])
    (row,), _ = rows_of(model)
    assert (row["rule"], row["memory"], row["products"]) == ("pairs of positions", 72, 36 * 90)


@pytest.mark.backend_free
def test_unknown_sizes_are_given():
    model = keras.Sequential([keras.Input((None,), dtype="int32"), L.Embedding(10_000, 8), L.GlobalAveragePooling1D()])
    (short,), (long,) = rows_of(model, length=4)[0], rows_of(model, length=16)[0]
    assert (short["memory"], long["memory"]) == (4 * 13, 16 * 13)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "stack",
    [
        [L.Dense(3), L.BatchNormalization()],
        [L.Dense(3, kernel_regularizer="orthogonal_regularizer")],
        [L.Dense(3, activity_regularizer="l2")],
        [L.SpectralNormalization(L.Dense(3))],
    ],
)
def test_refusals_are_those_of_fit(stack):
    model = lipdp.DP_Sequential([keras.Input((4,)), *stack, L.Dense(2)])
    rows, text = rows_of(model)
    todo = [row["todo"] for row in rows if row["todo"]]
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError) as refusal:
        model.fit(np.zeros((8, 4), "float32"), np.zeros(8), 4, strategy="dpsgd", noise_multiplier=1.0, verbose=0)
    assert str(refusal.value) in todo and str(refusal.value) in text and "to change" in text
    assert all(row["memory"] is None for row in rows)


@pytest.mark.backend_free
def test_all_that_has_to_change_is_told_at_once():
    model = keras.Sequential(
        [keras.Input((4,)), L.Dense(3, kernel_regularizer="orthogonal_regularizer"), L.BatchNormalization()]
    )
    assert sum(bool(row["todo"]) for row in rows_of(model)[0]) == 2


@pytest.mark.backend_free
def test_what_is_the_same_for_many_layers_is_told_once():
    model = keras.Sequential([keras.Input((4,)), *(L.BatchNormalization() for _ in range(5)), L.Dense(3)])
    rows, text = rows_of(model)
    assert sum(bool(row["todo"]) for row in rows) == 5
    assert text.count("mixes the examples") == 1 and "The same holds for 4 more" in text
    assert "can stay as they are: 1." in text


@pytest.mark.backend_free
def test_a_layer_of_the_users_is_told_apart():
    model = keras.Sequential([keras.Input((4,)), Scaled(), L.Dense(3)])
    rows, text = rows_of(model)
    assert rows[0]["rule"] == "one row at a time" and "lipdp.row_wise" in rows[0]["todo"] and not rows[1]["todo"]
    assert "lipdp.row_wise" in text


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_layer_of_keras_without_a_rule():
    model = keras.Sequential([keras.Input((4, 4, 2)), L.Conv2D(3, 2)])
    model.layers[0].enable_lora(1)
    rows, _ = rows_of(model)
    assert any(row["rule"] == "whole gradients" and "no rule of its own" in row["todo"] for row in rows)


@pytest.mark.backend_free
def test_what_is_wrong_with_the_model_as_a_whole():
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, trainable=False)])
    rows, _ = rows_of(model)
    assert rows[-1]["layer"] == model.name and "no trainable weights" in rows[-1]["todo"]


@pytest.mark.backend_free
def test_a_lipschitz_model_trains_without_clipping():
    layers = lipdp.layers
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
    assert 'trains it by "clipless"' in rows_of(model)[1]


@pytest.mark.backend_free
@pytest.mark.parametrize("model", [keras.Sequential([L.Dense(3)]), "model", L.Dense(3)])
def test_what_is_no_built_model(model):
    with pytest.raises(ValueError, match="built Keras model"):
        lipdp.check(model)


@pytest.mark.backend_free
def test_a_subclassed_model_has_no_graph():
    class Called(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = L.Dense(2)

        def call(self, x):
            return self.head(x)

    model = Called()
    model(np.zeros((1, 4), "float32"))
    with pytest.raises(ValueError, match="graph of layers"):
        lipdp.check(model)


@pytest.mark.backend_free
@pytest.mark.parametrize("length", [0, 1.5, "ten"])
def test_a_length_is_a_number_of_places(length):
    with pytest.raises(ValueError, match="`length` must be a positive integer"):
        lipdp.check(keras.Sequential([keras.Input((4,)), L.Dense(3)]), length=length)


class Short(keras.layers.Layer):
    """Takes five places, and says so as a framework does."""

    preprocessor = None

    def call(self, inputs):
        return inputs + keras.ops.zeros((5, 2))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def test_a_length_that_the_model_does_not_take_is_named():
    model = keras.Sequential([keras.Input((None, 2)), Short(), L.Dense(3)])
    with pytest.raises(ValueError, match="unknown sizes are 128.*Pass one that it takes"):
        lipdp.check(model)
    assert lipdp.check(model, length=5, print_fn=lambda text: None)
    model.preprocessor = type("Preprocessor", (), {"sequence_length": 5})()
    assert lipdp.check(model, print_fn=lambda text: None)
