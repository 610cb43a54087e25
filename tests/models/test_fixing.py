"""`lipdp.fix`: copies that train privately, with the weights and the ledger of the original."""

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp
from lipdp import gradients

pytestmark = pytest.mark.backend_free

FIT = {"batch_size": 20, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}


def stack(*middle, shape=(8, 8, 3)):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input(shape), *middle, L.Flatten(), L.Dense(3)], name="stack")


def trained_norm(**arguments):
    """Batch normalization with weights that are not the initial ones."""
    rng = np.random.default_rng(0)
    layer = L.BatchNormalization(**arguments)

    def started(shape):
        layer.build(shape)
        layer.set_weights([rng.uniform(0.5, 2.0, w.shape) for w in layer.get_weights()])
        return layer

    return started


def data(*shape):
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, *shape)).astype("float32"), rng.integers(0, 3, 60)


def trains(model, *shape):
    private = lipdp.DP_Model.from_keras(model)
    private.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    private.fit(*data(*shape), **FIT)
    assert private.run.ledger.updates == 3
    return private


@pytest.mark.slow
def test_batch_normalization_gives_its_gamma_and_beta_to_groups(capsys):
    norm = trained_norm(name="norm", epsilon=0.01)((None, 8, 8, 16))
    model = stack(L.Conv2D(16, 3, padding="same"), norm, L.ReLU(), L.Dropout(0.1))
    fixed = lipdp.fix(model)
    assert capsys.readouterr().out == "Layer 'norm': BatchNormalization became GroupNormalization(groups=4).\n"
    new = fixed.get_layer("norm")
    assert type(fixed) is keras.Sequential and fixed.name == "stack" and type(new) is L.GroupNormalization
    assert (new.groups, new.axis, new.epsilon) == (4, -1, 0.01)
    for a, b in zip(new.get_weights(), norm.get_weights()[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    for old, copy in zip(model.layers, fixed.layers, strict=True):
        assert copy is not old
        if old is not norm:
            for a, b in zip(old.get_weights(), copy.get_weights(), strict=True):
                np.testing.assert_array_equal(a, b)
    trains(fixed, 8, 8, 3)
    np.testing.assert_array_equal(model.get_layer("norm").get_weights()[0], norm.get_weights()[0])


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (3, 1), (6, 1), (8, 2), (10, 2), (16, 4), (64, 16), (128, 32), (256, 32), (7, 1)]
)
def test_groups_have_at_least_four_channels(channels, groups, capsys):
    fixed = lipdp.fix(stack(L.Conv2D(channels, 1), L.BatchNormalization()))
    assert f"groups={groups})" in capsys.readouterr().out
    assert fixed.layers[1].groups == groups


@pytest.mark.parametrize("arguments", [{"axis": 1}, {"center": False}, {"scale": False}])
def test_axis_and_options_stay(arguments):
    fixed = lipdp.fix(stack(L.Conv2D(8, 1), L.BatchNormalization(**arguments)), verbose=False)
    new = fixed.layers[1]
    assert all(getattr(new, name) == value for name, value in arguments.items())
    gradients.supported(fixed)


@pytest.mark.slow
def test_without_positions_values_are_not_normalized_to_zero():
    model = stack(L.Dense(32), L.BatchNormalization(), shape=(6,))
    fixed = lipdp.fix(model, verbose=False)
    assert fixed.layers[1].groups == 1
    x, _ = data(6)
    assert np.std(fixed.predict(x, verbose=0), axis=0).min() > 1e-3
    trains(fixed, 6)


@pytest.mark.parametrize("units", [1, 2])
def test_few_units_are_frozen_and_not_normalized_away(units, capsys):
    norm = trained_norm(name="norm")((None, units))
    model = stack(L.Dense(units), norm, shape=(6,))
    fixed = lipdp.fix(model)
    line = "Layer 'norm': BatchNormalization was frozen, as too few numbers are there to be normalized.\n"
    assert capsys.readouterr().out == line
    x, _ = data(6)
    np.testing.assert_allclose(fixed.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-5)
    assert not fixed.layers[1].trainable and norm.trainable
    trains(fixed, 6)


def test_what_a_layer_was_given_needs_a_configuration():
    class Mine(keras.regularizers.Regularizer):
        def __call__(self, x):
            return 0.0

    with pytest.raises(ValueError, match="'mine' .Dense. cannot be copied.*Mine.*regularizer, a .get_con"):
        lipdp.fix(stack(L.Dense(4, activity_regularizer=Mine(), name="mine")))


@pytest.mark.slow
def test_nested_shared_and_several_outputs(capsys):
    keras.utils.set_random_seed(0)
    inner_input = keras.Input((6,))
    inner = keras.Model(inner_input, L.BatchNormalization(name="inside")(L.Dense(8)(inner_input)), name="inner")
    block = keras.Sequential([keras.Input((8,)), L.Dense(8), L.BatchNormalization(name="deep")], name="block")
    inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
    left, right = inner(inputs["a"], training=False), inner(inputs["b"])
    joined = block(left + 2.0 * right)
    norm = L.BatchNormalization(name="top")
    outputs = {"p": L.Dense(3)(norm(joined, training=False)), "q": norm(joined)}
    model = keras.Model(inputs, outputs, name="whole")
    fixed = lipdp.fix(model)
    assert [line.split("'")[1] for line in capsys.readouterr().out.splitlines()] == ["inside", "deep", "top"]
    assert type(fixed.get_layer("block")) is keras.Sequential
    assert len(fixed.trainable_variables) == len(model.trainable_variables)
    assert fixed.count_params() == model.count_params() - 2 * (8 + 8 + 8)
    x, y = data(6)
    assert set(fixed.predict({"a": x, "b": x}, verbose=0)) == {"p", "q"}
    private = lipdp.DP_Model.from_keras(fixed)
    private.compile("sgd", loss={"p": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "q": "mse"})
    private.fit({"a": x, "b": x}, {"p": y, "q": np.zeros((60, 8))}, **FIT)
    assert private.run.ledger.updates == 3


@pytest.mark.parametrize(
    "channels, groups", [((8,) * 4, "(groups=2)"), ((8, 16, 32, 64), ", with 2 to 16 groups"), ((8, 16, 32), None)]
)
def test_many_changes_of_a_kind_are_one_line(channels, groups, capsys):
    parts = [L.Dense(4, kernel_regularizer="orthogonal_regularizer", name="dense")]
    for number, size in enumerate(channels):
        parts += [L.Conv2D(size, 1), L.BatchNormalization(name=f"norm{number}")]
    lipdp.fix(keras.Sequential([keras.Input((4, 4, 1)), *parts]))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Layer 'dense': Dense lost its kernel_regularizer."
    if groups is None:
        assert len(lines) == 3 and all(line.startswith(f"Layer 'norm{i}': ") for i, line in enumerate(lines))
    else:
        expected = "4 layers, from 'norm0' to 'norm3': BatchNormalization became GroupNormalization"
        assert lines == [f"{expected}{groups}."]


@pytest.mark.slow
def test_frozen_layers_stay_as_they_are(capsys):
    norm = trained_norm(name="norm")((None, 8, 8, 8))
    model = stack(L.Conv2D(8, 1), norm)
    norm.trainable = model.layers[0].trainable = False
    fixed = lipdp.fix(model)
    assert capsys.readouterr().out == "Model 'stack': nothing had to be replaced.\n"
    assert [layer.trainable for layer in fixed.layers] == [False, False, True, True]
    x, _ = data(8, 8, 3)
    np.testing.assert_allclose(fixed.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)
    trains(fixed, 8, 8, 3)


OTHERS = {
    "spectral": (lambda: L.SpectralNormalization(L.Dense(4, name="dense")), "gave its place to 'dense'"),
    "activity": (lambda: L.ActivityRegularization(0.1), "became Identity, without the penalty"),
    "regularizers": (
        lambda: L.Dense(4, kernel_regularizer="orthogonal_regularizer", activity_regularizer="l1"),
        "lost its activity_regularizer, lost its kernel_regularizer",
    ),
    "penalty": (lambda: L.Dense(4, activity_regularizer="l2"), "lost its activity_regularizer"),
    "half": (lambda: L.Dense(4, dtype="mixed_float16"), "left mixed_float16 for float32"),
    "inside": (lambda: L.TimeDistributed(L.BatchNormalization()), r"became GroupNormalization\(groups=1\)"),
    "a model inside": (
        lambda: L.TimeDistributed(stack(L.Conv1D(4, 1), L.BatchNormalization(), shape=(3, 1))),
        r"became GroupNormalization\(groups=1\)",
    ),
    "wrapped": (
        lambda: L.Bidirectional(L.LSTM(4, recurrent_regularizer="orthogonal_regularizer")),
        "lost its recurrent_regularizer",
    ),
}


@pytest.mark.parametrize("kind", ["l1", "l2", keras.regularizers.L1L2(0.1, 0.2)])
def test_penalties_with_a_known_gradient_stay(kind, capsys):
    fixed = lipdp.fix(stack(L.LSTM(4, recurrent_regularizer=kind, return_sequences=True), shape=(3, 2)))
    assert "regularizer" not in capsys.readouterr().out
    kinds = [type(v.regularizer) for v in fixed.trainable_weights if v.regularizer is not None]
    assert kinds == [type(keras.regularizers.get(kind))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer.*mixed")
@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_replaced(name, capsys):
    make, line = OTHERS[name]
    shape = (5, 3, 1) if name == "a model inside" else (5, 3)
    model = stack(make(), shape=shape)
    with pytest.raises(ValueError):
        gradients.supported(model)
    fixed = lipdp.fix(model)
    assert __import__("re").search(line, capsys.readouterr().out)
    gradients.supported(fixed)
    x, _ = data(*shape)
    assert np.isfinite(fixed.predict(x, verbose=0)).all()


def test_states_are_not_carried_over(capsys):
    inputs = keras.Input(batch_shape=(20, 5, 3))
    model = keras.Model(inputs, L.Dense(3)(L.LSTM(4, stateful=True, name="memory")(inputs)))
    fixed = lipdp.fix(model)
    assert capsys.readouterr().out == "Layer 'memory': LSTM became stateless.\n"
    x, _ = data(5, 3)
    model.layers[1].reset_state()
    np.testing.assert_allclose(fixed(x[:20]), model(x[:20]), rtol=1e-5)


def test_a_layer_outside_of_its_scope(capsys):
    with keras.RematScope("full"):
        model = stack(L.Dense(4, name="inside"), shape=(6,))
    fixed = lipdp.fix(model)
    assert "Layer 'inside': Dense left its RematScope." in capsys.readouterr().out
    gradients.supported(fixed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lipdp.DP_Model, pytest.param(lipdp.DP_Sequential, marks=pytest.mark.slow)])
def test_the_ledger_follows_the_weights(kind):
    model = stack(L.Conv2D(4, 3), L.GroupNormalization(2))
    private = kind.from_keras(model)
    private.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    private.fit(*data(8, 8, 3), **FIT)
    spent = private.privacy.epsilon()
    assert spent > 0
    copy = lipdp.fix(private, verbose=False)
    assert type(copy) is kind and copy.privacy.epsilon() == spent
    again = lipdp.DP_Model.from_keras(lipdp.fix(model, verbose=False))
    assert again.privacy.epsilon() == spent
    again.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    again.fit(*data(8, 8, 3), **FIT)
    assert again.privacy.epsilon() > spent == private.privacy.epsilon()


def test_lambda_layers_and_layers_of_ones_own_are_copied():
    model = stack(L.Lambda(lambda x: 2.0 * x), Own(4), L.BatchNormalization(), shape=(6,))
    fixed = lipdp.fix(model, verbose=False)
    assert fixed.layers[1] is not model.layers[1]
    np.testing.assert_array_equal(fixed.layers[1].get_weights()[0], model.layers[1].get_weights()[0])


class Own(L.Dense):
    pass


class NoConfig(L.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = L.Dense(units)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


class Hiding(L.Layer):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.norm = L.BatchNormalization(name="hidden")

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x)


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "model.keras", "str.*keras.saving.load_model"),
        (lambda: Subclassed(name="own"), "'own' of Subclassed.*keras.Model"),
        (lambda: stack(Subclassed(name="own")), "'own' of Subclassed, a subclass.*keras.Model"),
        (lambda: keras.Sequential([L.Dense(3)]), "not built.*keras.Input"),
        (lambda: stack(NoConfig(3)), "NoConfig.*cannot be copied.*get_config"),
        (lambda: stack(Hiding()), "Hiding.*'hidden' .BatchNormalization. inside.*functional"),
    ],
    ids=["path", "subclassed", "nested", "unbuilt", "no config", "hidden"],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        lipdp.fix(make())


def test_the_refusal_names_it():
    with pytest.raises(ValueError, match=r"lipdp\.fix\(model\)"):
        gradients.supported(stack(L.BatchNormalization()))
