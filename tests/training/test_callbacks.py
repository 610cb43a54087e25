"""Callbacks that may not decide: what they follow, however they are given, and names that would hide it."""

import functools
import re
import sys
import warnings

import keras
import pytest

import lipdp
from lipdp.callbacks import Checkpoint
from lipdp.training.callbacks import names_of_own
from tests.helpers.models import DELTA, blobs, mlp

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0, "epsilon": 1.0}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping(monitor="loss"),
        keras.callbacks.ReduceLROnPlateau(monitor="accuracy"),
        keras.callbacks.ModelCheckpoint("unused.keras", monitor="loss", save_best_only=True),
        keras.callbacks.TerminateOnNaN(),
        type("Mine", (keras.callbacks.TerminateOnNaN,), {})(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_follow_private_metrics_are_refused(callback):
    model = mlp()
    with pytest.raises(ValueError, match="Monitor.*`fit` ends by itself.*allow_private_monitor"):
        model.fit(*blobs(), epsilon=1.0, batch_size=40, delta=DELTA, callbacks=callback)
    assert not model.run.ledger.updates


@pytest.mark.slow
def test_an_accepted_monitor_is_stated(tmp_path):
    model = mlp()
    arguments = {"epsilon": 1.0, "batch_size": 40, "delta": DELTA, "verbose": 0, "epochs": 2}
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=9)
    public = [
        keras.callbacks.EarlyStopping(monitor="val_loss"),
        keras.callbacks.EarlyStopping(monitor="epsilon", mode="max", patience=9),
        keras.callbacks.ModelCheckpoint(tmp_path / "each.keras", monitor="loss"),
    ]
    model.fit(*blobs(), callbacks=public, validation_data=blobs(seed=1), **arguments)
    assert "FOLLOWED" not in model.privacy.statement()
    model.fit(*blobs(), callbacks=[stop], allow_private_monitor=True, **arguments | {"epsilon": 2.0})
    assert "FOLLOWED" in model.privacy.statement()
    assert model.privacy.to_dict()["steered_by_training_metrics"] == ["EarlyStopping (loss)"]
    model.save(tmp_path / "m.keras")
    assert keras.saving.load_model(tmp_path / "m.keras").privacy.statement() == model.privacy.statement()


class Own(keras.callbacks.Callback):
    """It might act on anything."""


@pytest.mark.slow
def test_callbacks_of_the_users_own_that_saw_private_metrics_are_stated(tmp_path):
    model = mlp()
    silent = {"training_metrics": False, **FIT}
    keras_own = [keras.callbacks.CSVLogger(tmp_path / "log.csv"), Checkpoint(tmp_path / "run.weights.h5")]
    model.fit(*blobs(), callbacks=keras_own, **FIT)
    model.fit(*blobs(), callbacks=[Own()], **silent | {"epsilon": 2.0})
    assert "nobody has checked" not in model.privacy.statement()
    assert "callbacks_that_saw_training_metrics" not in model.privacy.to_dict()
    own = [Own(), Own(), keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)]
    model.fit(*blobs(), callbacks=own, **FIT | {"epsilon": 3.0})
    assert "nobody has checked what they did with them: Own, LambdaCallback." in " ".join(
        model.privacy.statement().split()
    )
    model.save(tmp_path / "m.keras")
    facts = keras.saving.load_model(tmp_path / "m.keras").privacy.to_dict()
    assert facts["callbacks_that_saw_training_metrics"] == ["Own", "LambdaCallback"]


@pytest.mark.backend_free
def test_a_function_that_sets_the_rate_and_could_see_private_metrics_is_stated():
    """It is shown no logs, but the history of the model holds the training loss."""
    model, seen = mlp(), []

    def rate(epoch, present):
        seen.extend(model.history.history.get("loss", ()))
        return present

    class Rates:
        def __call__(self, epoch, present):
            return present

    stock = keras.callbacks.LearningRateScheduler(keras.optimizers.schedules.ExponentialDecay(0.3, 1, 0.5))
    assert names_of_own([stock]) == ()
    for schedule in (lambda epoch: 0.1, functools.partial(rate), Rates()):
        assert names_of_own([keras.callbacks.LearningRateScheduler(schedule)]) == ("LearningRateScheduler",)
    fit = {**FIT, "batch_size": 200, "epochs": 2, "callbacks": [keras.callbacks.LearningRateScheduler(rate)]}
    model.fit(*blobs(), **fit, training_metrics=False)
    assert "nobody has checked" not in model.privacy.statement()
    model.fit(*blobs(), **fit | {"epsilon": 2.0})
    assert "nobody has checked what they did with them: LearningRateScheduler." in " ".join(
        model.privacy.statement().split()
    )
    assert seen


def test_a_function_that_sets_the_rate_logs_nothing_that_others_may_follow():
    stop = keras.callbacks.EarlyStopping(monitor="val_nothing")
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    with pytest.raises(ValueError, match="follows what nothing computes"):
        mlp().fit(*blobs(), callbacks=[stop, rate], validation_data=blobs(seed=1), **FIT)


@pytest.mark.backend_free
def test_one_row_does_not_decide_how_many_updates_are_made():
    """TerminateOnNaN looks at the loss of the private rows, to which no noise was added."""
    x, y = blobs()
    x = x.copy()
    x[0] = 3e38
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]))
    model.compile("sgd", loss=LOSS)
    stop = keras.callbacks.TerminateOnNaN()
    with pytest.raises(ValueError, match="TerminateOnNaN .loss."):
        model.fit(x, y, callbacks=stop, strategy="dpsgd", **FIT)
    # Without metrics on these rows it sees no loss.
    model.fit(x, y, callbacks=stop, strategy="dpsgd", training_metrics=False, **FIT)
    assert model.privacy.updates == 10 and "FOLLOWED" not in model.privacy.statement()


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_accepted_end_at_a_loss_is_stated():
    model = mlp()
    model.fit(*blobs(), callbacks=keras.callbacks.TerminateOnNaN(), allow_private_monitor=True, **FIT)
    assert model.privacy.to_dict()["steered_by_training_metrics"] == ["TerminateOnNaN (loss)"]


def nested(callback):
    return {
        "list": [[callback]],
        "tuple": ([callback],),
        "callback list": keras.callbacks.CallbackList([callback]),
        "list of it": [keras.callbacks.CallbackList([callback])],
        "twice": [keras.callbacks.CallbackList([keras.callbacks.CallbackList([callback])])],
    }


REFUSED = {
    "monitor": (lambda: keras.callbacks.EarlyStopping("loss"), "EarlyStopping .loss."),
    "terminate": (keras.callbacks.TerminateOnNaN, "TerminateOnNaN"),
    "backup": (lambda: keras.callbacks.BackupAndRestore("never"), "BackupAndRestore"),
    "orbax": (type("OrbaxCheckpoint", (keras.callbacks.Callback,), {}), "OrbaxCheckpoint"),
    "none": (lambda: 3, "keras.callbacks.Callback objects"),
}


@pytest.mark.backend_free
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_inside_of_other_lists(kind):
    make, message = REFUSED[kind]
    model = mlp()
    for given in nested(make()).values():
        with pytest.raises(ValueError, match=message):
            model.fit(*blobs(), callbacks=given, **FIT)
    assert not model.run.ledger.releases


@pytest.mark.backend_free
def test_a_missing_package_costs_no_epoch(monkeypatch):
    """Keras finds out at the end of the first epoch, when that is charged."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    model = mlp()
    with pytest.raises(ValueError, match="TensorBoard, and no such package. Run pip install tensorboard"):
        model.fit(*blobs(), callbacks=[keras.callbacks.TensorBoard("never")], **FIT)
    assert not model.run.ledger.releases


@pytest.mark.slow
@pytest.mark.backend_free
def test_what_stands_in_lists_is_called_once_and_finds_epsilon(tmp_path):
    seen = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["epsilon"]))
    for given in nested(look).values():
        model = mlp()
        history = model.fit(*blobs(), callbacks=given, **FIT).history
        assert seen == history["epsilon"]
        seen.clear()
    # One that `fit` itself has to find.
    model, path = mlp(), tmp_path / "c.weights.h5"
    model.fit(*blobs(), callbacks=[keras.callbacks.CallbackList([Checkpoint(path)])], **FIT)
    assert path.exists()


@pytest.mark.backend_free
def test_callbacks_find_epsilon_in_the_logs_of_the_end_too():
    seen, model = {}, mlp()
    look = keras.callbacks.LambdaCallback(on_train_end=seen.update)
    history = model.fit(*blobs(), callbacks=[look], **FIT).history
    assert seen["epsilon"] == history["epsilon"][-1] == model.privacy.epsilon()
    assert seen["loss"] == history["loss"][-1]


@lipdp.row_wise
class Watched(keras.layers.Layer):
    """A layer that brings a metric along."""

    def __init__(self):
        super().__init__()
        self.own = keras.metrics.Mean(name="val_own")

    def call(self, inputs):
        return 2.0 * inputs


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["val_acc", "epsilon", "learning_rate", "lr"])
def test_metrics_with_names_of_public_numbers_are_refused(name):
    """`EarlyStopping("val_acc")` would follow one that is computed on the private rows."""
    metric = keras.metrics.SparseCategoricalAccuracy(name=name)
    for metrics in ([metric], ["accuracy", metric]):
        with pytest.raises(ValueError, match=f"public.*'{name}'.*another name"):
            mlp(metrics=metrics)

    def function(y_true, y_pred):
        return y_pred[:, 0]

    function.__name__ = name
    with pytest.raises(ValueError, match=f"public.*'{name}'.*another name"):
        mlp(metrics=[function])
    mlp(metrics=[keras.metrics.SparseCategoricalAccuracy(name=f"my_{name}")])


@pytest.mark.slow
def test_names_that_outputs_and_layers_bring_are_refused_by_fit():
    inputs, (x, y) = keras.Input((8,)), blobs()
    outputs = [keras.layers.Dense(3, name=name)(inputs) for name in ("val", "other")]
    several = lipdp.DP_Model(inputs, outputs)
    layer = lipdp.DP_Model(inputs, keras.layers.Dense(3)(Watched()(inputs)))
    for model, labels, name in ((several, [y, y], "val_loss"), (layer, y, "val_own")):
        model.compile("sgd", loss=LOSS)
        with pytest.raises(ValueError, match=f"public.*'{name}'.*another name"):
            model.fit(x, labels, strategy="dpsgd", **FIT)
        assert not model.run.ledger.releases
    # With one output its name is in no log.
    one = lipdp.DP_Model(inputs, outputs[0])
    one.compile("sgd", loss=LOSS, metrics=["accuracy"])
    one.fit(x, y, strategy="dpsgd", **FIT)


def test_a_callback_that_nothing_will_reach_is_named_before_the_budget_is_spent():
    """Keras says so at the end of the first epoch, when most of a budget may be gone."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mlp().fit(*blobs(), epochs=1, callbacks=[keras.callbacks.EarlyStopping()], **FIT)
    texts = [str(one.message) for one in caught]
    first, later = (next(i for i, text in enumerate(texts) if words in text) for words in ("followed", "conditioned"))
    assert "EarlyStopping (val_loss), and no validation data. Pass validation_data=" in texts[first]
    assert first < later
    assert caught[first].filename == __file__  # the line of `fit`, not one of contextlib


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (lambda: keras.callbacks.EarlyStopping("val_acc"), "EarlyStopping (val_acc)"),
        (lambda: keras.callbacks.EarlyStopping("val_acuracy", mode="max"), "EarlyStopping (val_acuracy)"),
        (lambda: keras.callbacks.ReduceLROnPlateau("val_acc"), "ReduceLROnPlateau (val_acc)"),
        (
            lambda: keras.callbacks.ModelCheckpoint("m.keras", monitor="val_acc", save_best_only=True),
            "ModelCheckpoint (val_acc)",
        ),
        (
            lambda: keras.callbacks.ModelCheckpoint("{epoch:02d}-{val_acc:.2f}.keras"),
            "ModelCheckpoint (val_acc)",
        ),
    ],
    ids=["auto", "mode", "rate", "best", "name of a file"],
)
def test_a_misspelt_monitor_is_refused_before_anything_is_spent(callback, named):
    x, y = blobs()
    model = mlp()
    model.compile(keras.optimizers.SGD(0.1), loss=model.loss, metrics=["accuracy"])
    with pytest.raises(ValueError, match="follows what nothing computes") as refusal:
        model.fit(x, y, epochs=2, callbacks=[callback()], validation_data=(x.copy(), y), **FIT)
    # In which order, Keras says; not all versions the same.
    said = re.fullmatch(r".* Received: (.*)\. Computed are (.*)\. Name one of .*", str(refusal.value))
    assert said and said[1] == named
    names = {"loss", "accuracy"}
    assert set(said[2].split(", ")) == {*names, "epsilon", "learning_rate", "lr", *(f"val_{name}" for name in names)}
    assert not model.run.ledger.releases
    # Without metrics on the training data those are not named.
    with pytest.raises(ValueError, match=r"Computed are epsilon, learning_rate, lr, val_\w+, val_\w+\."):
        model.fit(x, y, callbacks=[callback()], validation_data=(x.copy(), y), training_metrics=False, **FIT)


@pytest.mark.backend_free
def test_a_monitor_without_a_direction_is_refused_before_anything_is_spent():
    """Keras does not know that the loss of one of several outputs should fall, and says so after an epoch."""
    inputs, (x, y) = keras.Input((8,)), blobs()
    model = lipdp.DP_Model(inputs, [keras.layers.Dense(3, name=name)(inputs) for name in "ab"])
    model.compile("sgd", loss=LOSS)
    held_out = {"validation_data": (x.copy(), [y, y]), "training_metrics": False, "strategy": "dpsgd"}
    for kind in (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau):
        with pytest.raises(ValueError, match="val_a_loss.*mode='min'"):
            model.fit(x, [y, y], callbacks=[kind("val_a_loss")], **held_out, **FIT)
        assert not model.run.ledger.releases
    early = keras.callbacks.EarlyStopping("val_a_loss", mode="min")
    model.fit(x, [y, y], callbacks=[early], **held_out, **FIT)
    assert early.best is not None and early.monitor_op is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("error:A metric that nothing computes")
def test_callbacks_that_may_be_reached_are_not_warned_of(tmp_path):
    x, y = blobs()

    class Mine(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_mine"] = 0.0

    given = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_mine=0.0))
    for mine in (Mine(), given):
        early = keras.callbacks.EarlyStopping("val_mine", mode="min")
        mlp().fit(x, y, epochs=1, callbacks=[mine, early], **FIT)
    mlp().fit(x, y, epochs=1, callbacks=[keras.callbacks.EarlyStopping()], validation_data=(x.copy(), y), **FIT)
    always = keras.callbacks.ModelCheckpoint(str(tmp_path / "always.keras"))
    mlp().fit(x, y, epochs=1, callbacks=[always], **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "callback",
    [keras.callbacks.ReduceLROnPlateau("val_loss"), keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)],
    ids=lambda callback: type(callback).__name__,
)
def test_a_rate_that_no_callback_can_set_is_refused_before_anything_is_spent(callback):
    """Keras says so where the callback sets the rate, when the first epoch has been paid for."""
    x, y = blobs()
    model = mlp()
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)), loss=model.loss)
    held_out = (x.copy(), y)
    with pytest.raises(ValueError, match=f"schedule .* cannot set. Received: {type(callback).__name__}. Leave it out"):
        model.fit(x, y, callbacks=[callback], validation_data=held_out, **FIT)
    assert not model.run.ledger.releases
    model.compile(keras.optimizers.SGD(0.1), loss=model.loss)
    model.fit(x, y, callbacks=[callback], validation_data=held_out, **FIT)


@pytest.mark.backend_free
def test_a_callback_of_the_users_own_may_do_without_the_rate():
    """What it does nobody knows."""
    own = type("Own", (keras.callbacks.ReduceLROnPlateau,), {"on_epoch_end": lambda self, epoch, logs=None: None})
    x, y = blobs()
    model = mlp()
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10)), loss=model.loss)
    model.fit(x, y, callbacks=[own("val_loss")], validation_data=(x.copy(), y), **FIT)
