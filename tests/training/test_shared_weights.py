"""The ledger belongs to the weights: whichever model trains them, every model that holds them states it."""

import copy
import dataclasses
import math
import os
import threading

import jsonschema
import keras
import pytest

import lipdp
from lipdp import accounting, layers, losses, privacy
from lipdp.accounting.filter import conversion
from lipdp.privacy import provenance
from lipdp.training import Run
from tests.helpers.models import DELTA, blobs

X, Y = blobs(64, 6)
FIT = {"batch_size": 16, "epochs": 1, "delta": 1e-3, "verbose": 0}
NOISE = {"noise_multiplier": 1.0, **FIT}


def compiled(model):
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def trained(model, fits=1, **arguments):
    compiled(model)
    for _ in range(fits):
        model.fit(X, Y, **{**NOISE, **arguments})
    return model


def net(fits=1):
    return trained(
        lipdp.DP_Sequential([layers.BoundedInput((6,)), layers.SpectralDense(8), layers.SpectralDense(3)]), fits
    )


def around(inner):
    inputs = keras.Input((6,))
    return lipdp.DP_Model(inputs, inner(inputs))


def on_top(inner):
    """A head on the hidden layer of a model."""
    return lipdp.DP_Model(inner.inputs, layers.SpectralDense(3)(inner.layers[-2].output))


@pytest.fixture(scope="module")
def cost():
    """Epsilon of one model after so many fits."""
    model = lipdp.DP_Sequential([layers.BoundedInput((6,)), layers.SpectralDense(3)])
    values = [0.0]
    for _ in range(3):
        values.append(trained(model).privacy.epsilon())
    return values


@pytest.mark.slow
def test_each_model_made_of_one_plain_model_starts_with_what_the_others_spent(cost):
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    models = [trained(lipdp.DP_Model.from_keras(plain), strategy="dpsgd") for _ in range(3)]
    for model in [*models, lipdp.DP_Model.from_keras(plain)]:
        assert model.privacy.epsilon() == pytest.approx(cost[3])
        assert model.privacy.updates == 12
    assert "8 of the updates were made by other models" in models[2].privacy.statement()
    assert models[2].privacy.to_dict()["updates_of_other_models"] == 8


@pytest.mark.backend_free
def test_a_budget_counts_what_other_models_spent():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    first, second = (compiled(lipdp.DP_Model.from_keras(plain)) for _ in range(2))
    first.fit(X, Y, epsilon=1.0, strategy="dpsgd", **FIT)
    with pytest.raises(ValueError, match="budget is spent.*by other models"):
        second.fit(X, Y, epsilon=1.0, strategy="dpsgd", **FIT)
    second.fit(X, Y, epsilon=2.0, strategy="dpsgd", **FIT)
    assert 1.9 < second.privacy.epsilon() <= 2.0
    assert first.privacy.epsilon() == second.privacy.epsilon()


def test_a_plan_does_not_go_on_past_what_another_model_spent_meanwhile():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    first, second = (compiled(lipdp.DP_Model.from_keras(plain)) for _ in range(2))
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(first, "stop_training", True))
    arguments = {"epsilon": 2.0, "strategy": "dpsgd", **FIT, "epochs": 4}
    first.fit(X, Y, callbacks=[stop], **arguments)
    second.fit(X, Y, noise_multiplier=2.0, strategy="dpsgd", **FIT)
    first.fit(X, Y, **arguments)
    assert first.privacy.epsilon() <= 2.0


@pytest.mark.slow
def test_a_model_inside_a_model(cost):
    inner = net()
    outer = trained(around(inner))
    assert inner.privacy.epsilon() == outer.privacy.epsilon() == pytest.approx(cost[2])
    inner.fit(X, Y, **NOISE)
    assert inner.privacy.epsilon() == outer.privacy.epsilon() == pytest.approx(cost[3])


@pytest.mark.slow
def test_layers_of_a_trained_model_bring_its_cost(cost):
    inner = net()
    outer = on_top(inner)
    assert outer.privacy.epsilon() == inner.privacy.epsilon() == pytest.approx(cost[1])
    inner.trainable = False
    trained(outer)
    assert outer.privacy.epsilon() == pytest.approx(cost[2]), "frozen weights count too"
    assert inner.privacy.epsilon() == pytest.approx(cost[1]), "what was trained beside them does not"


@pytest.mark.slow
def test_frozen_weights_that_nobody_trained_cost_nothing():
    public = keras.layers.Dense(6)
    public.build((None, 6))
    public.trainable = False

    def head():
        inputs = keras.Input((6,))
        return trained(lipdp.DP_Model(inputs, keras.layers.Dense(3)(public(inputs))), strategy="dpsgd")

    first, second = head(), head()
    assert first.privacy.updates == second.privacy.updates == 4


@pytest.mark.backend_free
@pytest.mark.parametrize("fits", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("build", [around, pytest.param(on_top, marks=pytest.mark.slow)])
def test_a_file_keeps_what_other_models_spent(build, fits, tmp_path):
    outer = trained(build(net()), fits)
    outer.save(tmp_path / "outer.keras")
    loaded = keras.saving.load_model(tmp_path / "outer.keras")
    assert loaded.privacy.statement() == outer.privacy.statement()
    loaded.save(tmp_path / "again.keras")
    assert keras.saving.load_model(tmp_path / "again.keras").privacy.epsilon() == outer.privacy.epsilon()
    # Its layers bring everything along as well.
    inputs = keras.Input((6,))
    wrapped = lipdp.DP_Model(inputs, loaded(inputs))
    assert wrapped.privacy.epsilon() == outer.privacy.epsilon()


@pytest.mark.backend_free
@pytest.mark.parametrize("before", [0, 2])
def test_a_process_that_was_forked_makes_releases_of_its_own(before, monkeypatch):
    """Models of two workers that were forked from one process passed for one, with the cost of one, in an ensemble."""
    update = privacy.Release(
        sampling=accounting.Sampling().bind(64, 16), noise_multiplier=1.0, sensitivity=0.1, strategy="dpsgd",
        noise_allocation="global",
    )  # fmt: skip
    parent = Run()
    for _ in range(before):
        parent.charge(update)
    assert parent.privacy().updates == before
    workers = [copy.deepcopy(parent) for _ in range(2)]
    for number, worker in enumerate(workers):
        monkeypatch.setattr(os, "getpid", lambda number=number: 10**9 + number)
        worker.charge(update, 3)
    monkeypatch.undo()
    parent.charge(update, 3)
    ledgers = [run.ledger for run in (parent, *workers)]
    assert ledgers[0] == ledgers[1] == ledgers[2]
    assert len(provenance.distinct(ledgers[0], ledgers[1:])) == 3


@pytest.mark.slow
def test_an_export_brings_its_cost():
    model = net()
    again = lipdp.DP_Model.from_keras(lipdp.export(model))
    assert again.privacy.epsilon() == model.privacy.epsilon() > 0.0


def quantized(model):
    model.quantize("int8")


def one_layer_quantized(model):
    model.layers[0].quantize("int8")


def adapted_and_quantized(model):
    model.layers[0].enable_lora(2)
    model.quantize("int8")


def added_to(model):
    model.add(keras.layers.Dense(2))
    model.quantize("int8")


@pytest.mark.filterwarnings("ignore:Layer InputLayer")
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "change",
    [
        quantized,
        added_to,
        *(pytest.param(f, marks=pytest.mark.slow) for f in (one_layer_quantized, adapted_and_quantized)),
    ],
    ids=lambda f: f.__name__,
)
def test_layers_whose_variables_keras_replaces_keep_what_they_cost(change):
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, use_bias=False)])
    plain.add(keras.layers.Dense(3, use_bias=False))
    model = trained(lipdp.DP_Sequential.from_keras(plain), strategy="dpsgd")
    spent, before = model.privacy.epsilon(), model.layers[0].variables
    change(model)
    assert [id(v) for v in model.layers[0].variables] != [id(v) for v in before]
    assert model.privacy.epsilon() == spent > 0.0
    trunk = model.layers[0].output
    again = lipdp.DP_Model.from_keras(keras.Model(plain.inputs, keras.layers.Dense(2)(trunk)))
    assert again.privacy.epsilon() == spent
    for network in (model, keras.Model(plain.inputs, trunk)):
        with pytest.raises(ValueError, match="into one model with the head"):
            lipdp.features(network, X)


@pytest.mark.slow
def test_ledgers_that_cannot_be_joined_are_refused():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    arguments = {"epsilon": 8.0, **FIT}
    first, second, third = (compiled(lipdp.DP_Model.from_keras(plain)) for _ in range(3))
    first.fit(X, Y, strategy="dpis", **arguments)
    assert second.privacy.epsilon() == first.privacy.epsilon() == 8.0
    for strategy in ("dpsgd", "dpis"):
        with pytest.raises(ValueError, match="DPIS"):
            second.fit(X, Y, strategy=strategy, **arguments | {"epsilon": 20.0})
    assert second.privacy.epsilon() == 8.0
    other = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
    trained(other, strategy="dpsgd")
    inputs = keras.Input((6,))
    both = lipdp.DP_Model(inputs, keras.layers.Add()([third(inputs), other(inputs)]))
    with pytest.raises(ValueError, match="cannot be added up"):
        both.privacy.epsilon()


@pytest.mark.slow
def test_a_filter_is_refused_on_weights_of_several_models():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    first, second = (compiled(lipdp.DP_Model.from_keras(plain)) for _ in range(2))
    arguments = {"strategy": "dpsgd", "accountant": "filter", "epsilon": 4.0, **FIT}
    first.fit(X, Y, **arguments)
    # With budget left for it: no other check is in the way.
    with pytest.raises(ValueError, match="charges everything itself"):
        second.fit(X, Y, **arguments | {"epsilon": 30.0})
    trained(second, strategy="dpsgd")
    with pytest.raises(ValueError, match="charges everything itself"):
        first.fit(X, Y, **arguments | {"epochs": 2})
    assert first.privacy.epsilon() == second.privacy.epsilon() > 4.0
    assert first.privacy.to_dict()["plans_fixed_in_advance"] == "assumed"


def filtered(model, budget=8.0):
    """A model after two fits under a filter, the second one as if chosen in view of the first."""
    compiled(model)
    for noise in (4.0, 3.0):
        model.fit(X, Y, noise_multiplier=noise, accountant="filter", epsilon=budget, **FIT)
    return model


def spectral():
    return lipdp.DP_Sequential([layers.BoundedInput((6,)), layers.SpectralDense(8), layers.SpectralDense(3)])


@pytest.mark.backend_free
def test_the_budget_of_a_filter_goes_with_the_layers(tmp_path):
    model = filtered(spectral())
    assert model.privacy.spent() < 4.0 and model.privacy.epsilon() == 8.0
    again = compiled(lipdp.DP_Model.from_keras(keras.Model(model.inputs, model.outputs)))
    again.save(tmp_path / "again.keras")
    others = [lipdp.DP_Sequential(model.layers), again, keras.saving.load_model(tmp_path / "again.keras")]
    for other in others:
        facts = other.privacy.to_dict()
        assert facts["epsilon"] == 8.0 and facts["epsilon_spent"] == model.privacy.spent()
        assert facts["plans_fixed_in_advance"] == "not needed" and facts["accountant"]["name"] == "filter"


@pytest.mark.backend_free
def test_another_model_adds_to_the_whole_budget_of_a_filter(tmp_path):
    model = filtered(spectral())
    order = model.run.plan.accountant.order
    other = compiled(lipdp.DP_Sequential(model.layers))
    with pytest.raises(ValueError, match="budget is spent.*epsilon=8.*whole budget of a filter"):
        other.fit(X, Y, epsilon=3.0, **FIT)
    with pytest.raises(ValueError, match="already costs more"):
        other.fit(X, Y, epsilon=8.2, noise_multiplier=0.5, **FIT)
    assert other.run.ledger.releases == 0 and other.privacy.epsilon() == model.privacy.epsilon() == 8.0
    other.fit(X, Y, noise_multiplier=4.0, steps_per_epoch=1, **FIT)
    expected = 8.0 + accounting.compose([other.run.ledger.mechanisms()[0]], 1e-3, f"rdp_order:{order!r}")
    expected -= conversion(order, 1e-3)
    other.save(tmp_path / "other.keras")
    for one in (model, other, keras.saving.load_model(tmp_path / "other.keras")):
        assert one.privacy.epsilon() == one.privacy.spent() == pytest.approx(expected)
        text = " ".join(one.privacy.statement().split())
        assert "the whole budget of a filter" in text and "fixed in advance, not chosen" not in text
        assert "only the plans of these must not have followed from results" in text
        assert "that the plan, its length included" not in text and one.privacy.to_dict()["groups"] == []
        jsonschema.validate(one.privacy.to_dict(), privacy.schema())
    other.fit(X, Y, epsilon=12.0, **FIT)
    assert 11.8 < other.privacy.epsilon() == model.privacy.epsilon() <= 12.0
    with pytest.raises(ValueError, match="budget is spent"):
        other.fit(X, Y, epsilon=12.0, **FIT)


@pytest.mark.backend_free
def test_a_budget_of_risk_counts_the_whole_filter():
    model = filtered(spectral(), 1.0)
    other, wanted = compiled(lipdp.DP_Sequential(model.layers)), {"advantage": 0.7}
    other.fit(X, Y, risk=wanted, **FIT)
    assert 0.6 < other.privacy.risk().advantage <= 0.7
    assert other.privacy.epsilon() > 1.0
    with pytest.raises(ValueError, match="used up"):
        other.fit(X, Y, risk=wanted, **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": "random_allocation"}, "at the order of the filter nothing is known.*'random_allocation'"),
        ({"examples_per_person": 2, "sampling": "shuffle"}, "one unit.*examples_per_person=2.*fixed: 1"),
    ],
)
def test_what_cannot_be_added_to_a_filter_is_not_trained(change, message):
    model = filtered(spectral())
    other = compiled(lipdp.DP_Sequential(model.layers))
    with pytest.raises(ValueError, match=message):
        other.fit(X, Y, noise_multiplier=9.0, **FIT, **change)
    assert other.run.ledger.releases == 0 and other.privacy.epsilon() == 8.0


def both_of(first, second):
    inputs = keras.Input((6,))
    return lipdp.DP_Model(inputs, keras.layers.Add()([first(inputs), second(inputs)]))


@pytest.mark.slow
@pytest.mark.backend_free
def test_two_filters_add_up_at_the_lower_order():
    first, second = filtered(spectral()), filtered(spectral(), 2.0)
    low, high = (model.run.plan.accountant for model in (first, second))
    assert low.order < high.order
    both = both_of(first, second)
    assert both.privacy.epsilon() == pytest.approx(8.0 + high.rdp_budget)
    assert both_of(second, first).privacy.epsilon() == both.privacy.epsilon()


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_exceeded_filter_is_exceeded_beside_others():
    first, second = filtered(spectral()), trained(spectral())
    first.run.charge(dataclasses.replace(first.run.ledger.entries[-1], noise_multiplier=0.5, count=0), 50)
    both = both_of(first, second)
    assert both.privacy.epsilon() == math.inf
    assert "the filter's budget was exceeded" in " ".join(both.privacy.statement().split())


@pytest.mark.backend_free
def test_a_filter_under_which_nothing_was_released_covers_nothing():
    model = spectral()
    compiled(model)
    stop = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, Y, noise_multiplier=4.0, accountant="filter", epsilon=8.0, callbacks=[stop], **FIT)
    assert model.run.ledger.releases == 0 and model.run.plan is not None
    other = trained(lipdp.DP_Sequential(model.layers))
    assert model.privacy.epsilon() == other.privacy.epsilon() < 8.0
    assert model.privacy.to_dict()["plans_fixed_in_advance"] == "assumed"


@pytest.mark.slow
def test_open_epochs_of_two_models_are_both_charged():
    plain = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    half = {"strategy": "dpsgd", "sampling": "shuffle", "steps_per_epoch": 2}
    first = trained(lipdp.DP_Model.from_keras(plain), **half)
    alone = first.privacy.epsilon()
    second = trained(lipdp.DP_Model.from_keras(plain), **half)
    whole = trained(lipdp.DP_Model.from_keras(keras.models.clone_model(plain)), **half, epochs=2)
    assert whole.privacy.epsilon() == alone, "two halves of one epoch"
    assert second.privacy.epsilon() > 1.2 * alone, "but not those of two"


def test_weights_that_come_in_by_value_are_named():
    fresh = compiled(net(0))
    fresh.set_weights(net().get_weights())
    assert "set_weights" in fresh.privacy.statement()


@pytest.mark.slow
def test_one_fit_at_a_time_in_threads():
    plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    first, second = (compiled(lipdp.DP_Model.from_keras(plain)) for _ in range(2))
    x, y = blobs()
    arguments = {"batch_size": 40, "noise_multiplier": 4.0, "delta": DELTA, "verbose": 0, "strategy": "dpsgd"}
    started, go_on, errors = threading.Event(), threading.Event(), []

    def wait(batch, logs=None):
        started.set()
        go_on.wait(30)

    def train(model, **more):
        try:
            model.fit(x, y, **arguments, **more)
        except ValueError as error:
            errors.append(str(error))

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=wait)
    thread = threading.Thread(target=train, args=(first,), kwargs={"callbacks": [callback]})
    thread.start()
    started.wait(60)
    train(first)
    train(second)
    go_on.set()
    thread.join()
    assert len(errors) == 2 and all("`fit` is running" in error for error in errors)
    assert first.run.ledger.updates == 10 and second.run.ledger.updates == 0
    train(second)
    assert second.privacy.updates == 20


class Own(keras.layers.Layer):
    """Without weights, and not known to keep rows apart."""

    def call(self, inputs):
        return 1.0 * inputs


@pytest.mark.backend_free
@pytest.mark.parametrize("share", ["layer", *(pytest.param(s, marks=pytest.mark.slow) for s in ("operation", "input"))])
def test_one_fit_at_a_time_on_layers_without_weights(share):
    inputs, own = keras.Input((8,)), Own()
    rolled = keras.ops.roll(inputs, 1, -1)
    stem = {"layer": lambda: own(inputs), "operation": lambda: rolled, "input": lambda: Own()(inputs)}[share]
    first, second = (compiled(lipdp.DP_Model(inputs, keras.layers.Dense(3)(stem()))) for _ in range(2))
    x, y = blobs()
    arguments = {"batch_size": 40, "noise_multiplier": 4.0, "delta": DELTA, "verbose": 0, "strategy": "dpsgd"}
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: second.fit(x, y, **arguments))
    if share == "input":
        first.fit(x, y, callbacks=[callback], **arguments)
        return
    with pytest.raises(ValueError, match="shares neither weights nor layers"):
        first.fit(x, y, callbacks=[callback], **arguments)
    assert first.run.ledger.updates == second.run.ledger.updates == 0
    second.fit(x, y, **arguments)
