"""What lipdp relies on in Keras without a promise of Keras: fails first, and by name, when Keras moves."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import lipdp
from lipdp import _keras
from lipdp.sampling import pipelines

ROOT = Path(__file__).resolve().parents[1]
# Private names of Keras, and public ones that lipdp reaches through `_keras` only.
NAMES = {
    "_available",
    "_call_has_mask_arg",
    "_call_has_training_arg",
    "_compile_loss",
    "_compile_metrics",
    "_compute_loss",
    "_dtype_policy",
    "_embeddings",
    "_flatten_layers",
    "_fn_kwargs",
    "_functional",
    "_get_variable_index",
    "_inbound_nodes",
    "_inputs",
    "_inputs_struct",
    "_kernel",
    "_layers",
    "_learning_rate",
    "_loss_tracker",
    "_maybe_config_dropout_masks",
    "_maybe_reset_dropout_masks",
    "_nodes_by_depth",
    "_outputs_struct",
    "_remat_mode",
    "_seed_generators",
    "_symbolic_build",
    "_tracker",
    "_trainable_variables",
    "_untrack_variable",
    "_update_metrics_variables",
    "_use_weight_decay",
    "call_signature_parameters",
}


class Noisy(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)
        self.inside = layers.Dense(2)

    def call(self, inputs, training=False):
        return self.inside(inputs)


@pytest.fixture(scope="module")
def nested():
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="first"), Noisy()], name="inner")
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    shared = layers.Dense(4, name="shared")
    x = inner(abs(shared(inputs["a"]) + shared(-inputs["b"])) - inputs["a"])
    model = keras.Model(inputs, {"out": x})
    model.compile("sgd", {"out": "mse"}, weighted_metrics={"out": ["mae"]})
    return model


def test_computing_in_float32():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2, dtype="mixed_bfloat16"), layers.Dense(1)])
    with pytest.raises(KeyError), _keras.computing_in_float32(model):
        assert {layer.compute_dtype for layer in model.layers} == {"float32"}
        raise KeyError
    assert [layer.dtype_policy.name for layer in model.layers] == ["mixed_bfloat16", "float32"]


def test_models_inside_compute_in_float32_as_well():
    inner = keras.Sequential([layers.Dense(3, dtype="mixed_bfloat16")])
    inner.build((None, 2))
    graph = keras.Input((2,), dtype="bfloat16")
    graph = keras.Model(graph, layers.Dense(3, dtype="mixed_bfloat16")(graph), dtype="mixed_bfloat16")
    x = np.array([[1.001, 2.003]], "float32")  # which bfloat16 has not
    for model in (inner, graph):
        exact = x @ ops.convert_to_numpy(model.weights[0])
        with _keras.computing_in_float32(model):
            np.testing.assert_allclose(ops.convert_to_numpy(model(x)), exact, rtol=1e-5)
        assert keras.backend.standardize_dtype(model(x).dtype) == "bfloat16" == model.inputs[0].dtype


@pytest.mark.parametrize("outer", ["float32", "mixed_bfloat16"])
def test_what_is_told_of_the_training_keeps_the_precision(outer):
    found = []

    class Outer(layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, inputs):
            found.append(_keras.told_training())
            read = _keras.telling_training(lambda: ops.convert_to_tensor(self.scale), found[-1])
            assert keras.backend.standardize_dtype(read.dtype) == self.compute_dtype
            return inputs

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if outer == "float32" else "float32")
    try:
        Outer(dtype=outer)(np.ones((2, 2), "float32"))
    finally:
        keras.config.set_dtype_policy(before)
    assert found


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow is there anyway")
def test_fit_on_jax_does_not_import_tensorflow():
    code = """
import sys
import keras
import numpy as np
import lipdp
from lipdp import layers, losses
x, y = np.random.default_rng(0).normal(size=(60, 4)).astype("float32"), np.arange(60) % 3
for seed in (None, 3):
    model = lipdp.DP_Sequential([layers.BoundedInput((4,)), layers.SpectralDense(3)])
    model.compile("sgd", losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
    model.fit(x, y, batch_size=20, noise_multiplier=1.0, delta=1e-3, verbose=0, seed=seed, validation_data=(x, y))
inputs = keras.Input((6, 4))
attended = keras.layers.MultiHeadAttention(2, 2)(inputs, inputs)
model = lipdp.DP_Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(attended)))
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, options = np.repeat(x[:, None], 6, axis=1), {"strategy": "dpsgd", "noise_multiplier": 1.0, "delta": 1e-3}
model.fit(x, y, batch_size=20, verbose=0, **options)
assert model.privacy.updates == 3 and "tensorflow" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_walk(nested):
    names = [layer.name for layer in _keras.walk(nested)]
    assert {"inner", "first", "shared"} <= set(names) and len(names) == len(set(names))
    assert any(isinstance(layer, Noisy) for layer in _keras.walk(nested))
    assert _keras.walk(nested, include_self=True)[0] is nested
    assert "first" not in [layer.name for layer in _keras.walk(nested, deep=False)]
    noisy = next(layer for layer in _keras.walk(nested) if isinstance(layer, Noisy))
    assert _keras.walk(noisy, deep=False) == [noisy.inside] and _keras.walk(noisy.inside) == []
    # An input counts: `DP_Sequential` asks before it adds one.
    assert len(_keras.walk(keras.Sequential([keras.Input((4,))]), deep=False)) == 1
    assert not _keras.walk(keras.Sequential(), deep=False)


def test_what_a_layer_holds(nested):
    noisy = next(layer for layer in _keras.walk(nested) if isinstance(layer, Noisy))
    assert _keras.seed_generators(noisy) == [noisy.seeds]
    assert len(_keras.seed_generators(layers.Dropout(0.5))) == 1 and _keras.seed_generators(layers.Dense(1)) == []
    assert _keras.own_variables(noisy) == [] and len(_keras.own_variables(noisy.inside)) == 2
    noisy.inside.trainable = False
    assert len(_keras.own_variables(noisy.inside)) == 2 and not any(v.trainable for v in noisy.inside.weights)
    noisy.inside.trainable = True
    assert _keras.takes(noisy, "training") and not _keras.takes(noisy.inside, "mask")
    assert _keras.takes(nested, "training") and _keras.takes(nested, "mask")
    assert _keras.takes(layers.LSTM(1), "mask")
    assert not _keras.rematerialized(noisy)
    with keras.RematScope(mode="full"):
        assert _keras.rematerialized(layers.Dense(1))


def test_kernels_are_the_stored_variables():
    for layer, shape in (
        (layers.Dense(2), (None, 4)),
        (layers.EinsumDense("ab,bc->ac", 2), (None, 4)),
        (layers.Conv1D(2, 3), (None, 4, 4)),
    ):
        layer.build(shape)
        assert any(layer.kernel is v for v in layer.trainable_variables)
    for layer in (layers.Embedding(3, 2), layers.ReversibleEmbedding(3, 2)):
        layer.build((None, 4))
        assert layer.embeddings is layer.trainable_variables[0]


def test_arguments_of_losses():
    for loss in (keras.losses.CosineSimilarity(axis=-2), keras.losses.SparseCategoricalCrossentropy(axis=-2)):
        assert _keras.loss_arguments(loss)["axis"] == -2
    assert _keras.loss_arguments(keras.losses.mean_squared_error) == {}


def test_uses(nested):
    shared = nested.get_layer("shared")
    assert _keras.uses(shared) == [_keras.Use(((None, 4),), ((None, 4),))] * 2
    assert _keras.input_shapes(shared) == [(None, 4)] * 2
    assert _keras.uses(layers.Dense(1)) == []


def test_graph(nested):
    graph = _keras.graph(nested)
    assert graph is nested
    kinds = [type(node.operation) for node in _keras.nodes(graph)]
    assert sorted(k.__name__ for k in kinds) == sorted(
        ["Dense", "Dense", "Negative", "Add", "Absolute", "Subtract", "Sequential"]
    )
    assert {_keras.Add, _keras.Subtract, _keras.Absolute, _keras.Negative} <= set(kinds)
    known = {id(t) for t in graph.inputs}
    for node in _keras.nodes(graph):
        assert all(id(t) in known for t in node.input_tensors)
        known.update(id(t) for t in node.output_tensors)
        assert isinstance(node.arguments.args, tuple) and isinstance(node.arguments.kwargs, dict)
    assert id(graph.outputs[0]) in known
    inputs, outputs = _keras.structures(graph)
    assert list(inputs) == ["a", "b"] and list(outputs) == ["out"]
    inner = nested.get_layer("inner")
    assert [type(node.operation) for node in _keras.nodes(_keras.graph(inner))] == [layers.Dense, Noisy]
    assert _keras.graph(keras.Sequential()) is None


def test_masks_and_operations(nested):
    x = ops.ones((2, 3))
    assert _keras.mask(x) is None
    mask = layers.Masking(0.0)(ops.ones((2, 3, 1)))
    assert _keras.mask(mask).shape == (2, 3)
    _keras.set_mask(x, x)
    assert layers.Activation("relu")(x) is not None and _keras.mask(x) is x
    names = {_keras.operation_name(node.operation) for node in _keras.nodes(nested)}
    assert names == {None, "Negative", "Add", "Absolute", "Subtract"}
    inputs = keras.Input((4, 3))
    x = ops.reshape(ops.concatenate([inputs[:, 1:], ops.softmax(inputs, axis=-1)], axis=1), (-1, 21))
    found = {_keras.operation_name(n.operation): n for n in _keras.nodes(keras.Model(inputs, ops.sum(x, axis=1)))}
    assert set(found) == {"GetItem", "Softmax", "Concatenate", "Reshape", "Sum"}
    assert all(found[name].operation.axis in (-1, 1, [1], (1,)) for name in ("Softmax", "Concatenate", "Sum"))
    assert found["GetItem"].arguments.args[1] == (slice(None), slice(1, None))


def test_calls_that_a_graph_does_not_show(nested):
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    class Plain(keras.Model):
        pass

    assert _keras.has_own_call(Own()) and _keras.graph(Own()) is None
    inputs = keras.Input((2,))
    assert not _keras.has_own_call(Plain(inputs, inputs + 1)) and _keras.graph(Plain(inputs, inputs + 1)) is not None
    assert not _keras.has_own_call(nested) and not _keras.has_own_call(nested.get_layer("inner"))


def test_training_step(nested):
    # Names that are gone would go unnoticed where a model overrides them.
    missing = {"stateless_compute_loss", "compute_loss_and_updates"}
    assert all(hasattr(keras.Model, name) for name in set(_keras.STEP_METHODS) - missing)
    x = {name: np.ones((2, 4), "float32") for name in "ab"}
    y = {"out": np.ones((2, 2), "float32")}
    assert _keras.metrics_wait(nested)
    nested.evaluate(x, y, verbose=0)
    assert not _keras.metrics_wait(nested)
    assert _keras.given_metrics(nested) == [None, "mae"]
    nested.reset_metrics()
    _keras.add_to_metrics(nested, False, y, {"out": ops.zeros((2, 2))}, ops.ones(2))
    assert float(nested.get_metrics_result()["mae"]) == 0.0
    off = {"out": ops.array([[3.0, 1.0], [1.0, 1.0]])}
    _keras.add_to_metrics(nested, True, y, off, ops.array([3.0, 1.0]))
    assert float(nested.get_metrics_result()["mae"]) == pytest.approx(0.75)
    tracker = _keras.loss_tracker(nested)
    nested.reset_metrics()
    tracker.update_state(3.0)
    assert float(nested.get_metrics_result()["loss"]) == 3.0
    if keras.backend.backend() == "jax":
        assert all(hasattr(keras.Model, name) for name in missing)
        nested.reset_metrics()
        before = [v.value for v in nested.metrics_variables]
        out = {"out": ops.zeros((2, 2))}
        after = _keras.update_metrics(nested, before, ops.convert_to_tensor(2.0), x, y, out, None)
        assert len(after) == len(before)
        index = [v is tracker.variables[0] for v in nested.metrics_variables].index(True)
        assert float(after[index]) == 4.0 and float(before[index]) == 0.0  # weighted by its two rows


def test_optimizer():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = keras.optimizers.SGD(schedule)
    variables = [keras.Variable(1.0), keras.Variable(2.0)]
    assert _keras.has_weight_decay(optimizer, variables[0])
    optimizer.exclude_from_weight_decay([variables[0]])
    optimizer.build(variables)
    assert [id(v) for v in _keras.optimizer_variables(optimizer)] == [id(v) for v in variables]
    assert [_keras.variable_index(optimizer, v) for v in variables] == [0, 1]
    assert _keras.learning_rate(optimizer) is schedule
    assert _keras.optimizer_config(optimizer) == optimizer.get_config() | {"learning_rate": schedule}
    assert [_keras.has_weight_decay(optimizer, v) for v in variables] == [False, True]
    own = optimizer.add_variable((2,), "zeros", name="own")
    assert any(v is own for v in optimizer.variables)
    _keras.forget(optimizer, own)
    assert all(v is not own for v in optimizer.variables)


def test_recurrent_loop():
    inputs = np.arange(6, dtype="float32").reshape((1, 3, 2))

    def step(x, states):
        return states[0] + x, [states[0] + x]

    last, outputs, states = _keras.recurrent_loop(
        step, ops.convert_to_tensor(inputs), [ops.zeros((1, 2))], input_length=3, return_all_outputs=True
    )
    assert np.array_equal(outputs, np.cumsum(inputs, axis=1))
    assert np.array_equal(last, inputs.sum(1)) and np.array_equal(states[0], inputs.sum(1))


@pytest.mark.backend_free
def test_no_other_file_has_private_names():
    offenders = {}
    for path in sorted((ROOT / "lipdp").rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value.__hash__}
        found = (found & NAMES) - own | ({"keras.src"} if "keras.src" in text else set())
        if found and path.name != "_keras.py":
            offenders[path.relative_to(ROOT / "lipdp").as_posix()] = sorted(found)
    assert not offenders, f"Private names of Keras outside of lipdp/_keras.py: {offenders}"


@pytest.mark.backend_free
def test_keras_is_within_the_tested_versions():
    declared = re.search(r"keras>=(\d+)\.(\d+),<(\d+)\.(\d+)", (ROOT / "pyproject.toml").read_text())
    low, high = tuple(map(int, declared.groups()[:2])), tuple(map(int, declared.groups()[2:]))
    assert low <= tuple(map(int, keras.__version__.split(".")[:2])) < high, declared.group()


def test_what_a_callback_follows_has_a_direction():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    early = keras.callbacks.EarlyStopping("val_other")
    with pytest.raises(ValueError, match="val_other"):
        _keras.check_direction(early, model)
    for known in (keras.callbacks.EarlyStopping("val_loss"), keras.callbacks.EarlyStopping("val_other", mode="max")):
        _keras.check_direction(known, model)
        assert known.monitor_op is None  # what it does itself is left to it


def test_dataset_sources():
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices([1, 2])
    assert _keras.dataset_sources(rows.repeat(2).batch(2))[0].__class__.__name__ == "_RepeatDataset"
    assert _keras.dataset_sources(rows) == () == _keras.dataset_sources(object())


def test_dataset_functions_and_variants():
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices([1, 2])
    (function,) = pipelines._functions(rows.flat_map(lambda i: tf.data.Dataset.range(2).shuffle(2)))
    assert "ShuffleDatasetV3" in {node.op for node in function.graph.as_graph_def().node}
    kept = rows.group_by_window(lambda i: tf.constant(0, tf.int64), lambda key, w: w.batch(2), window_size=2)
    assert len(pipelines._functions(kept)) == 3
    assert pipelines._functions(rows.batch(2)) == []
    assert _keras.dataset_variant(rows).dtype == tf.variant


def test_a_functional_model_comes_back_from_a_file(tmp_path):
    """Before 3.15 the constructor has to look like that of Keras."""
    inputs = keras.Input((2,))
    model = lipdp.DP_Model(inputs, layers.Dense(3)(inputs))
    model.save(tmp_path / "model.keras")
    found = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(found.get_weights()[0], model.get_weights()[0])
    assert type(found) is type(keras.models.clone_model(model)) is lipdp.DP_Model
    with pytest.raises(ValueError, match="Received: no inputs"):
        lipdp.DP_Model()
