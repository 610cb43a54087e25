"""Exported models: same outputs, stock layers only, and no trace of how they were trained."""

import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers
from lipdp.diffusion.unet import SinusoidalEmbedding
from tests.helpers.layer_cases import MERGES, OWN, STOCK
from tests.helpers.models import DELTA, blobs, mlp


def difference(model, plain, *shapes, size=5):
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal((size, *shape)).astype("float32") for shape in shapes]
    xs = xs[0] if len(xs) == 1 else xs
    a, b = (keras.ops.convert_to_numpy(m(xs)) for m in (model, plain))
    assert a.shape == b.shape
    return np.abs(a - b).max()


_ALL = [*OWN, *STOCK, *MERGES]
_TYPES = {type(c.make()).__name__ + c.name[:3]: c for c in _ALL}.values()
_CASES = [c if c in _TYPES else pytest.param(c, marks=pytest.mark.slow) for c in _ALL]


@pytest.mark.backend_free
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_every_layer_type_keeps_its_outputs(case, tmp_path):
    inputs = [keras.Input(shape) for shape in case.shapes]
    inputs = inputs if len(inputs) > 1 else inputs[0]
    model = keras.Model(inputs, case.make()(inputs))
    for weight in model.weights:
        weight.assign(np.random.default_rng(2).standard_normal(weight.shape))
    plain = lipdp.export(model)
    assert difference(model, plain, *case.shapes) <= 1e-6
    assert not [layer for layer in plain.layers if not type(layer).__module__.startswith("keras.")]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow copies what is assigned")
@pytest.mark.parametrize(
    "make",
    [*(pytest.param(case, id=case.name) for case in _TYPES), pytest.param(None, id="encoder", marks=pytest.mark.slow)],
)
def test_an_export_shares_no_array(make):
    """`predict` hands over its arrays and gets new ones back: what shares one is left without."""
    inputs = [keras.Input((24, 24, 3))] if make is None else [keras.Input(shape) for shape in make.shapes]
    layer = layers.EncoderFeatures2D() if make is None else make.make()
    model = keras.Model(inputs, layer(inputs if len(inputs) > 1 else inputs[0]))
    held = {id(variable.value) for variable in model.variables}
    assert held.isdisjoint(id(variable.value) for variable in lipdp.export(model).variables)


def test_tokens_out_of_range_and_two_lengths():
    embed = layers.BoundedEmbedding(5, 3)
    inputs = keras.Input((6,), dtype="int32")
    model = keras.Model(inputs, [embed(inputs), embed(inputs[:, :2])])
    tokens = np.array([[-3, 0, 1, 2, 4, 9]], "int32")
    for a, b in zip(model(tokens), lipdp.export(model)(tokens), strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (a, b)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer, shape",
    [(layers.SpectralConv2D(3, 3, strides=(1, 2)), (5, 2, 1)), (layers.SpectralConv1D(3, 3, strides=4), (4, 1))],
    ids=["image", "sequence"],
)
def test_one_channel_and_one_column(layer, shape):
    """Where TensorFlow's own convolution returns foreign memory: the export must not call it like that."""
    model = keras.Sequential([keras.Input(shape), layer])
    plain = lipdp.export(model)
    (copy,) = [la for la in plain.layers if la.name == layer.name]
    assert copy.kernel.shape[-2] == 2 and not np.any(copy.get_weights()[0][..., 1, :])
    assert max(difference(model, plain, shape, size=64) for _ in range(5)) <= 1e-6


def convolutional():
    inputs = keras.Input((8, 8, 1))
    x = layers.BoundedInput(norm=2.0)(inputs)
    block = layers.SpectralConv2D(4, 3)
    x = layers.Bias()(layers.SpectralConv2D(4, 3)(x))
    x = layers.Abs()(block(x)) + block(x)  # shared, and a raw sum
    pools = [layers.MaxPooling2D(2), layers.L2NormPooling2D(2), layers.ScaledAveragePooling2D(2)]
    x = layers.LayerCentering()(layers.Concatenate()([pool(x) for pool in pools]))
    x = layers.GroupSort()(layers.Flatten()(x))
    return lipdp.DP_Model(inputs, layers.Bias()(layers.SpectralDense(3)(x)))


def with_front():
    front = keras.Sequential([keras.Input((8, 8, 1)), layers.Scattering2D("robust")])
    head = lipdp.DP_Sequential([layers.BoundedInput((2, 2, 81)), layers.Flatten(), layers.SpectralDense(3)])
    return keras.Sequential([front, head])


def every_other_layer():
    """Weights in all places, and one layer read at two sizes."""
    inputs = keras.Input((8, 8, 1))
    x = layers.ClipGradient(1.0)(layers.OrthogonalPatchConv2D(4, 2)(inputs))
    x = layers.OrthogonalConv2D(4, (2, 3), padding="circular")(layers.OrthogonalConv2D(4, 3)(x))
    x = layers.Householder()(layers.SpectralConv2D(6, 3, groups=2)(x))
    x = layers.GroupSort()(layers.SpectralDepthwiseConv2D(3, strides=2)(x))
    x = layers.SpectralConv2DTranspose(2, 3, strides=2)(x)
    row = layers.Reshape((16, 2))(layers.ResidualAverage()([x, layers.Abs()(x)]))
    row = layers.SpectralConv1DTranspose(4, 3, strides=2)(layers.SpectralDepthwiseConv1D(3)(row))
    row = layers.TokenMixing(5)(layers.SpectralConv1D(4, 3)(row))
    embed = layers.BoundedEmbedding(5, 4)
    tokens = layers.Reshape((64,))(inputs)
    tokens = [layers.Flatten()(embed(part)) for part in (tokens, tokens[:, :7])]
    model = keras.Model(inputs, layers.Concatenate()([layers.Flatten()(row), *tokens]))
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(0.5 * rng.standard_normal(weight.shape))
    return model


_LOAD = """
import sys
sys.modules["lipdp"] = None  # any import of it fails
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1] + "/plain.keras")
assert getattr(model, "optimizer", None) is None
np.save(sys.argv[1] + "/y.npy", model.predict(np.load(sys.argv[1] + "/x.npy"), verbose=0))
assert not [name for name in sys.modules if name.startswith("lipdp.")]
"""


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_fresh_process_without_lipdp_loads_it(tmp_path):
    x = np.random.default_rng(0).standard_normal((6, 8, 8, 1)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    keras.utils.set_random_seed(0)
    parts = [convolutional(), with_front(), every_other_layer()]
    inputs = keras.Input((8, 8, 1))
    both = keras.Model(inputs, keras.layers.Concatenate()([part(inputs) for part in parts]))
    lipdp.export(both).save(tmp_path / "plain.keras")
    # Started elsewhere, so that not even the sources are on the path.
    run = [sys.executable, "-W", "ignore", "-c", _LOAD, str(tmp_path)]
    subprocess.run(run, check=True, timeout=300, cwd=tmp_path, env=_environment())
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), both.predict(x, verbose=0), atol=1e-6)


def _environment():
    import os

    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


@pytest.mark.slow
@pytest.mark.backend_free
def test_nothing_of_the_training_is_in_the_file(tmp_path):
    model = mlp()
    x, y = blobs()
    model.fit(x, y, batch_size=40, epochs=1, epsilon=2.0, delta=DELTA, verbose=0)
    plain = lipdp.export(model)
    assert difference(model, plain, (8,)) <= 1e-6
    plain.save(tmp_path / "plain.keras")
    with zipfile.ZipFile(tmp_path / "plain.keras") as file:
        content = b"".join(file.read(name) for name in file.namelist())
    for word in (b"noise_key", b"lipdp", b"ledger", b"noise_std", b"SpectralBall", b"optimizer_vars"):
        assert word not in content, word
    kept = [v.path for v in plain.variables]
    assert len(kept) == 2 and not plain.compiled
    # The original is as it was, and goes on.
    model.summary_bounds(print_fn=lambda text: None)
    model.fit(x, y, batch_size=40, epochs=1, epsilon=3.0, delta=DELTA, verbose=0)


@pytest.mark.backend_free
def test_constraints_are_left_out(tmp_path):
    """Of layers inside of layers too: a file that names a constraint of lipdp would not load without lipdp."""
    held = {"kernel_constraint": lipdp.norms.SpectralBall()}
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            keras.layers.TimeDistributed(keras.layers.Dense(3, **held)),
            keras.layers.Bidirectional(keras.layers.LSTM(2, recurrent_constraint="max_norm", **held)),
        ]
    )
    plain = lipdp.export(model)
    assert difference(model, plain, (6, 4)) <= 1e-6
    assert all(variable.constraint is None for variable in plain.variables)
    assert "lipdp>" in model.to_json() and "lipdp>" not in plain.to_json()
    assert model.trainable_variables[0].constraint is not None


@pytest.mark.backend_free
def test_the_original_graph_is_left_alone():
    model = convolutional()
    before = [len(layer._inbound_nodes) for layer in model.layers], lipdp.bounds.propagate(model, 1.0).lipschitz
    lipdp.export(model)
    assert before == ([len(la._inbound_nodes) for la in model.layers], lipdp.bounds.propagate(model, 1.0).lipschitz)


@pytest.mark.slow
def test_names_of_the_model_are_not_taken_by_new_operations():
    """A model from a file has names that this process would give to operations of the export."""
    inputs = keras.Input((4,))
    x = layers.Householder()(inputs)
    next_name = f"concatenate_{keras.backend.get_uid('concatenate')}"
    model = keras.Model(inputs, keras.layers.Concatenate(name=next_name)([x, inputs]))
    assert difference(model, lipdp.export(model), (4,)) <= 1e-6


@pytest.mark.slow
def test_frozen_stock_layers_keep_their_weights():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.BatchNormalization()])
    model.layers[1].set_weights([np.full(6, v) for v in (2.0, 0.5, 0.1, 3.0)])
    assert difference(model, lipdp.export(model), (4,)) <= 1e-6


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_random_images_are_at_rest_without_being_told(tmp_path, nested):
    """A SavedModel, and a model that is called, have no `training`: Keras' own ones then change images at random."""
    stack = [keras.layers.RandomTranslation(0.4, 0.4), keras.layers.Pipeline([keras.layers.RandomFlip()])]
    if nested:
        stack = [keras.Sequential([keras.Input((8, 8, 1)), *stack])]
    model = keras.Sequential([keras.Input((8, 8, 1)), *stack, keras.layers.Flatten(), keras.layers.Dense(3)])
    x = np.random.default_rng(0).normal(size=(6, 8, 8, 1)).astype("float32")
    expected = model.predict(x, verbose=0)
    plain = lipdp.export(model)
    plain.save(tmp_path / "plain.keras")
    for found in (plain, keras.saving.load_model(tmp_path / "plain.keras")):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(found(x)), expected, atol=1e-5)


class Weighted(layers.LipschitzLayer):
    """A user's layer with a weight."""

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(1,))

    def call(self, inputs):
        return inputs * self.scale


class Unwritten(layers.LipschitzLayer):
    """A user's layer with a custom gradient, which takes no symbolic tensors."""

    def call(self, inputs):
        return keras.ops.custom_gradient(lambda x: (x, lambda *args, upstream=None: upstream))(inputs)


class Foreign(keras.layers.Layer):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize(
    "layer, message",
    [
        (Weighted(name="mine"), "'mine' of type Weighted has weights but no export.*`stock_layer`"),
        (Unwritten(name="other"), "'other' of type Unwritten cannot be exported: its `call`"),
        (SinusoidalEmbedding(8, name="time"), "'time' of type SinusoidalEmbedding is lipdp's own and cannot"),
        (Foreign(name="theirs"), "'theirs' of type Foreign is neither lipdp's nor one of Keras' own"),
    ],
    ids=["weighted", "unwritten", "own", "foreign"],
)
def test_what_cannot_be_exported_is_named(layer, message):
    with pytest.raises(ValueError, match=message):
        lipdp.export(keras.Sequential([keras.Input((4,)), layer]))


def test_a_wrong_counterpart_is_noticed(monkeypatch):
    original = layers.SpectralDense.stock_layer

    def wrong(layer):
        stock, (kernel,) = original(layer)
        return stock, [kernel * 1.01]

    monkeypatch.setattr(layers.SpectralDense, "stock_layer", wrong)
    with pytest.raises(RuntimeError, match="they differ by"):
        lipdp.export(mlp())
