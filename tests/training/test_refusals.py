"""Every refused call says why and leaves model and ledger as they were."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers, losses, strategies
from tests.helpers.models import DELTA, blobs, mlp, same, state

pytestmark = pytest.mark.backend_free

X, Y = blobs()
NAN = X.copy()
NAN[3, 2] = np.nan

CALLS = {
    "no budget": ({}, ValueError, "No privacy budget"),
    "epsilon zero": ({"epsilon": 0.0}, ValueError, "epsilon"),
    "epsilon negative": ({"epsilon": -1.0}, ValueError, "epsilon"),
    "epsilon NaN": ({"epsilon": float("nan")}, ValueError, "epsilon"),
    "delta zero": ({"epsilon": 1.0, "delta": 0.0}, ValueError, "delta"),
    "delta one": ({"epsilon": 1.0, "delta": 1.0}, ValueError, "delta"),
    "noise zero": ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier"),
    "batch larger than data": ({"epsilon": 1.0, "batch_size": 401}, ValueError, "larger than the data"),
    "batch zero": ({"epsilon": 1.0, "batch_size": 0}, ValueError, "batch_size"),
    "batch float": ({"epsilon": 1.0, "batch_size": 10.5}, ValueError, "batch_size"),
    "epochs": ({"epsilon": 1.0, "epochs": 0}, ValueError, "epochs"),
    "initial epoch": ({"epsilon": 1.0, "initial_epoch": 3}, ValueError, "initial_epoch"),
    "sample weight": ({"epsilon": 1.0, "sample_weight": np.ones(400)}, ValueError, "sample_weight"),
    "class weight": ({"epsilon": 1.0, "class_weight": {0: 2.0}}, ValueError, "class_weight"),
    "shuffle": ({"epsilon": 1.0, "shuffle": False}, ValueError, "Poisson"),
    "misspelt": ({"epsillon": 1.0}, TypeError, "Did you mean `epsilon`"),
    "strategy": ({"epsilon": 1.0, "strategy": "clip"}, ValueError, "strategy"),
    "accountant": ({"epsilon": 1.0, "accountant": "pdl"}, ValueError, "accountant"),
    "seed": ({"epsilon": 1.0, "seed": -1}, ValueError, "seed"),
    "physical batch": ({"epsilon": 1.0, "microbatch_size": 0}, ValueError, "microbatch_size"),
    "split": ({"epsilon": 1.0, "validation_split": 1.5}, ValueError, "validation_split"),
    "NaN": ({"x": NAN, "epsilon": 1.0}, ValueError, "NaN or infinity in 1 of 400 examples, first in row 3,"),
    "infinity": ({"x": NAN * np.inf, "epsilon": 1.0}, ValueError, "NaN or infinity"),
    "NaN label": ({"y": Y + np.nan, "epsilon": 1.0}, ValueError, "NaN"),
    "label above": ({"y": Y + 1, "epsilon": 1.0}, ValueError, "(?i)label|class"),
    "label below": ({"y": Y - 1, "epsilon": 1.0}, ValueError, "(?i)label|class"),
    "no labels": ({"y": None, "epsilon": 1.0}, ValueError, "labels"),
    "lengths": ({"y": Y[:-1], "epsilon": 1.0}, ValueError, "same length"),
    "ragged": ({"x": [X[0, :n] for n in range(12)], "epsilon": 1.0}, ValueError, r"5, 6, 7, \.\.\.\].*pad_sequences"),
    "shape": ({"x": X[:, :-1], "epsilon": 1.0}, ValueError, "do not fit"),
    "empty": ({"x": X[:0], "y": Y[:0], "epsilon": 1.0}, ValueError, "no example"),
    "strings": ({"x": X.astype(str), "epsilon": 1.0}, ValueError, "numbers"),
}


@pytest.fixture(scope="module")
def model():
    model = mlp()
    model.fit(X, Y, epochs=1, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0)
    return model


@pytest.mark.parametrize("more", [{}, {"sample_weight": np.ones(400, "float32")}])
def test_the_fit_of_keras_makes_no_update(model, more):
    before = state(model)
    with pytest.raises(ValueError, match="Training goes through `fit`"):
        keras.Model.fit(model, X, Y, verbose=0, **more)
    assert same(before, state(model))


@pytest.mark.parametrize("name", CALLS)
def test_fit_refuses(model, name):
    arguments, error, message = CALLS[name]
    before = state(model)
    with pytest.raises(error, match=message):
        model.fit(**{"x": X, "y": Y, "batch_size": 40, "epochs": 2, "delta": DELTA, "verbose": 0, **arguments})
    assert same(before, state(model))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_delta_of_one_over_n_warns():
    with pytest.warns(UserWarning, match="delta"):
        mlp().fit(X, Y, steps_per_epoch=1, noise_multiplier=4.0, batch_size=40, delta=0.01, verbose=0)


def test_weights_in_a_dataset_are_refused_by_clipless_training(model):
    class Weighted(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, i):
            return X, Y, np.ones(len(X))

    with pytest.raises(ValueError, match="sample_weight with strategy='clipless'"):
        model.fit(Weighted(), epsilon=1.0, verbose=0)


def test_endless_dataset_is_refused(model):
    import tensorflow as tf

    with pytest.raises(ValueError, match="known, finite size"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).repeat(), epsilon=1.0, verbose=0)


def test_a_dataset_of_unknown_size_is_told_how_to_declare_it(model):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True)
    with pytest.raises(ValueError, match=r"dataset\.apply\(tf\.data\.experimental\.assert_cardinality\(number\)\)"):
        model.fit(rows, epsilon=1.0, verbose=0)


@pytest.mark.parametrize(
    "loss", ["mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True), lambda a, b: a - b]
)
def test_a_loss_without_bound_is_refused(loss):
    model = mlp()
    model.compile("sgd", loss=loss)
    with pytest.raises(ValueError, match="lipdp.losses"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)
    assert model.run.ledger.updates == 0


def test_fit_before_compile():
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(3)])
    with pytest.raises(ValueError, match="compile"):
        model.fit(X, Y, epsilon=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.layers.Dense(3), "SpectralDense"),
        (lambda: keras.layers.BatchNormalization(), "LayerCentering"),
        (lambda: keras.layers.LayerNormalization(), "LayerCentering"),
    ],
)
def test_an_unknown_layer_is_refused_with_a_replacement(make, message):
    layer = make()
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(8), layer, layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=message) as error:
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)
    assert layer.name in str(error.value)
    assert model.run.ledger.updates == 0


def test_missing_bounded_input():
    model = lipdp.DP_Sequential([keras.Input((8,)), layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="BoundedInput"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


def test_float16_is_refused():
    with pytest.raises(ValueError, match="float32"):
        inputs = keras.Input((8,))
        x = layers.BoundedInput(dtype="mixed_float16")(inputs)
        model = lipdp.DP_Model(inputs, layers.SpectralDense(3, dtype="mixed_float16")(x))
        model.compile("sgd", loss="sparse_categorical_crossentropy")
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
    ],
)
def test_optimizers_that_change_the_noise_are_refused(optimizer):
    with pytest.raises(ValueError):
        mlp().compile(optimizer, loss="sparse_categorical_crossentropy")


def test_regularisers_are_refused():
    model = lipdp.DP_Sequential(
        [layers.BoundedInput((8,)), layers.SpectralDense(3, activity_regularizer=keras.regularizers.L2(100.0))]
    )
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="regular|Additional losses"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)
    assert model.run.ledger.updates == 0


def test_ragged_and_sparse_data_are_refused():
    sequences = [[1] * (i % 3 + 1) for i in range(400)]
    received = [sequences, np.array(sequences, dtype=object)]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        ragged = tf.ragged.constant(sequences)
        received += [ragged, tf.data.Dataset.from_tensor_slices((ragged, Y)), tf.sparse.from_dense(X)]
    for x in received:
        with pytest.raises(ValueError, match="pad_sequences"):
            mlp().fit(x, None if hasattr(x, "cardinality") else Y, epsilon=1.0, batch_size=40, verbose=0)


@pytest.mark.parametrize("strategy", ["clipless", strategies.Clipless(quantile=0.5), "dpsgd", "adaclip", "dpis"])
def test_a_model_without_trainable_weights_is_refused(strategy):
    model = mlp()
    model.trainable = False
    model.compile("sgd", loss=model.loss)
    before = state(model)
    with pytest.raises(ValueError, match="no trainable weights"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, strategy=strategy, verbose=0)
    assert same(before, state(model))


class Penalised(layers.LipschitzLayer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs))
        return inputs


@pytest.mark.parametrize(
    "strategy",
    [
        strategies.Clipless(),
        strategies.Clipless(quantile=0.5),
        strategies.DPSGD(),
        strategies.AdaCliP(),
        strategies.DPIS(),
    ],
    ids=["clipless", "clipless with a quantile", "dpsgd", "adaclip", "dpis"],
)
def test_losses_that_a_layer_adds_are_refused(strategy):
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), Penalised(), layers.SpectralDense(3)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy(clip=0.5))
    with pytest.raises(ValueError, match="Additional losses"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, strategy=strategy, verbose=0)
    # Clipless finds them when the step is traced. JAX holds the weights by then, so nobody can tell that nothing
    # was released, and the charge stays.
    if strategy.per_example or keras.backend.backend() == "tensorflow":
        assert model.run.ledger.releases == 0


def test_weights_that_are_not_finite_are_refused():
    model = mlp()
    model.layers[1].kernel.assign(np.full((8, 16), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


def test_loss_weights_are_refused():
    with pytest.raises(ValueError, match="loss_weights"):
        mlp().compile("sgd", loss="sparse_categorical_crossentropy", loss_weights=[2.0])


def test_several_replicas_are_refused(monkeypatch):
    from lipdp import backend

    monkeypatch.setattr(backend, "replicas", lambda model: 2)
    with pytest.raises(ValueError, match="once per replica.*KERAS_BACKEND=jax.*DataParallel"):
        mlp().fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


def test_weights_on_other_devices_are_refused(monkeypatch):
    from lipdp import backend

    monkeypatch.setattr(backend, "misplaced", lambda model: "dense/kernel")
    with pytest.raises(ValueError, match="'dense/kernel' on other devices.*before the model is built"):
        mlp().fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


def test_weights_that_no_process_has_whole_are_refused(monkeypatch):
    from lipdp import backend

    monkeypatch.setattr(backend, "scattered", lambda model: "dense/kernel")
    with pytest.raises(ValueError, match="'dense/kernel', of which no process has all parts"):
        mlp().fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)


def test_processes_that_feed_different_numbers_of_rows_are_refused(monkeypatch):
    from lipdp import backend

    monkeypatch.setattr(backend, "uneven", lambda: True)
    model = mlp()
    with pytest.raises(ValueError, match="feed as many rows each. Received: a distribution with more devices of some"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)
    assert not model.run.ledger.releases


@pytest.mark.slow
def test_devices_that_stay_idle_are_mentioned(monkeypatch, capsys):
    from lipdp import backend

    monkeypatch.setattr(backend, "idle_devices", lambda: 3)
    mlp().fit(X, Y, noise_multiplier=1.0, delta=1e-3, batch_size=40, steps_per_epoch=1, verbose=2)
    assert "3 more visible devices stay unused" in capsys.readouterr().out


class Scaling(keras.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs):
        return inputs * self.scale


@pytest.mark.parametrize("apart", [False, True])
def test_layers_that_run_one_row_at_a_time_are_mentioned(apart, capsys):
    network = keras.Sequential([keras.Input((3,)), Scaling(name="own"), keras.layers.Dense(2)])
    network = lipdp.to_functional(network, verbose=False) if apart else network
    model = lipdp.DP_Model.from_keras(network)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((20, 3), "float32"), np.zeros(20, "int32")
    model.fit(x, y, batch_size=4, epochs=1, noise_multiplier=1.0, verbose=1)
    said = capsys.readouterr().out
    assert ("longer: 'own' (Scaling). lipdp.to_functional(model)" in said) == (not apart), said


@pytest.mark.slow
def test_unfreezing_without_compiling_again():
    model = mlp()
    model.layers[1].trainable = False
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    model.fit(X, Y, steps_per_epoch=1, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0)
    model.layers[1].trainable = True
    with pytest.raises(ValueError, match="compile"):
        model.fit(X, Y, steps_per_epoch=1, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0)
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    model.fit(X, Y, steps_per_epoch=1, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0)
    assert model.run.ledger.updates == 2


def test_a_frozen_layer_that_overflows_reveals_nothing():
    inputs = keras.Input((4,))
    hidden = layers.BoundedInput(norm=1.0)(keras.layers.Rescaling(10.0)(inputs))
    model = lipdp.DP_Model(inputs, layers.SpectralDense(3)(hidden))
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    x = np.ones((40, 4), "float32")
    x[0] = 3e38
    y = np.zeros(40, "int32")
    model.fit(x, y, steps_per_epoch=3, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())


_STEPS = ["compute_loss", "train_step", "make_train_function", "compute_metrics"]


@pytest.mark.parametrize("name", [*_STEPS, "stateless_call"])
def test_a_training_step_of_its_own_is_refused(name):
    class Own(lipdp.DP_Sequential):
        pass

    setattr(Own, name, lambda self, *args, **kwargs: getattr(lipdp.DP_Sequential, name)(self, *args, **kwargs))
    model = Own([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    x, y = np.ones((40, 4), "float32"), np.zeros(40, "int32")
    for strategy in ("clipless", "dpsgd"):
        with pytest.raises(ValueError, match=name):
            model.fit(x, y, noise_multiplier=4.0, batch_size=40, delta=DELTA, verbose=0, strategy=strategy)


@pytest.mark.parametrize("name", _STEPS)
def test_from_keras_says_what_it_would_not_call(name):
    class Own(keras.Model):
        pass

    setattr(Own, name, lambda self, *args, **kwargs: getattr(keras.Model, name)(self, *args, **kwargs))
    inputs = keras.Input((4,))
    own = Own(inputs, keras.layers.Dense(3)(inputs))
    with pytest.raises(ValueError, match=rf"has a `{name}` of its own.*keras.Model\(model.inputs, model.outputs\)"):
        lipdp.DP_Model.from_keras(own)
    assert lipdp.DP_Model.from_keras(keras.Model(own.inputs, own.outputs)).trainable_variables


@pytest.mark.parametrize(("name", "value"), [("loss_scale_factor", 1000.0), ("use_ema", True)])
def test_what_is_set_on_the_optimizer_afterwards_is_refused(name, value):
    model = mlp()
    setattr(model.optimizer, name, value)
    with pytest.raises(ValueError, match=name):
        model.fit(X, Y, epsilon=1.0, batch_size=40, delta=DELTA, verbose=0)


@pytest.mark.slow
def test_a_fit_inside_a_fit_of_the_same_model_is_refused(model):
    arguments = {"batch_size": 40, "noise_multiplier": 4.0, "delta": DELTA, "verbose": 0}
    before, errors = model.run.ledger.updates, []

    def again(epoch, logs=None):
        with pytest.raises(ValueError, match="`fit` is running") as error:
            model.fit(X, Y, **arguments)
        errors.append(error)

    model.fit(X, Y, callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=again)], **arguments)
    assert len(errors) == 1 and model.run.ledger.updates == 2 * before


def test_an_optimizer_put_in_place_of_the_private_one_is_refused():
    model = mlp()
    model.optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="`compile` made private. Received: a SGD"):
        model.fit(X, Y, epsilon=1.0, batch_size=40, verbose=0)
    assert model.run.ledger.releases == 0


def test_inputs_of_other_names_are_listed():
    inputs = {name: keras.Input((4,), name=name) for name in ("image", "row")}
    model = lipdp.DP_Model(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()(list(inputs.values()))))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="under the keys 'image', 'row'. Received: .* under the keys 'image'. Pass"):
        model.fit({"image": X[:, :4]}, Y, epsilon=1.0, strategy="dpsgd")


@pytest.mark.parametrize("steps", ["auto", 0, 2.0])
def test_steps_per_execution_is_a_number(steps):
    with pytest.raises(ValueError, match="`steps_per_execution` must be a positive integer. Received: .*Leave it out"):
        mlp().compile("sgd", losses.SparseCategoricalCrossentropy(), steps_per_execution=steps)


@pytest.mark.slow
def test_a_subclassed_model_trains_within_a_graph():
    """As its refusal says."""

    @keras.saving.register_keras_serializable(package="refusals")
    class Own(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inside = keras.layers.Dense(3)

        def call(self, inputs):
            return self.inside(inputs)

    own = Own()
    with pytest.raises(ValueError, match=r"or pass lipdp.to_functional\(keras.Model\(inputs, model\(inputs\)\)\)"):
        lipdp.DP_Model.from_keras(own)
    inputs = keras.Input(X.shape[1:])
    model = lipdp.DP_Model.from_keras(keras.Model(inputs, own(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, noise_multiplier=1.0, batch_size=40, delta=DELTA, verbose=0, strategy="dpsgd")
    assert model.privacy.updates == 10


@pytest.mark.parametrize(("compiled", "received"), [(True, "is compiled without"), (False, "is not compiled")])
def test_a_loss_that_is_missing_is_told_from_a_compile_that_is(compiled, received):
    model = lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(3)])
    if compiled:
        model.compile("sgd")
    with pytest.raises(ValueError, match=f"needs a loss. Received: one that {received}.*`add_loss`.*as an output"):
        model.fit(X, Y, batch_size=40, epsilon=1.0)
