"""Bounds that the user has declared: nothing checks them, so statements name them."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import bounds, layers, losses

X, Y = np.ones((40, 4), "float32"), np.arange(40) % 3
FIT = {"batch_size": 20, "epsilon": 2.0, "delta": 1e-3, "verbose": 0}


class Own(layers.LipschitzLayer):
    def call(self, inputs):
        return inputs

    def output_bound(self, input_bounds):
        return input_bounds[0]

    def input_lipschitz(self, input_bounds):
        return (1.0,)


class Plain(keras.layers.Layer):
    def call(self, inputs):
        return 0.5 * inputs


class Three(Plain):
    pass


class OwnLoss(losses.SparseCategoricalCrossentropy):
    pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(bounds.registry, "_ENTRIES", dict(bounds.registry._ENTRIES))
    bounds.register(Plain, lambda layer: 0.5)
    bounds.register(
        Three,
        output_bound=lambda layer, inputs: 0.5 * inputs[0],
        input_lipschitz=lambda layer, inputs: (0.5,),
    )


def model_of(*more, loss=losses.SparseCategoricalCrossentropy):
    stack = [layers.BoundedInput((4,), norm=1.0), layers.Bias(), keras.layers.ReLU(), *more, layers.SpectralDense(3)]
    model = lipdp.DP_Sequential(stack)
    model.compile("sgd", loss=loss())
    return model


def facts(model):
    return model.privacy.to_dict().get("declared_bounds", [])


@pytest.mark.slow
def test_each_way_to_declare_a_bound_is_stated(tmp_path):
    model = model_of(Own(), Plain(), Three(), loss=OwnLoss)
    model.fit(X, Y, **FIT)
    assert facts(model) == ["Own", "OwnLoss", "Plain", "Three"]
    text = " ".join(model.privacy.statement().split())
    assert "nothing checked them, for: Own, OwnLoss, Plain, Three." in text
    custom = {"Own": Own, "Plain": Plain, "Three": Three, "OwnLoss": OwnLoss}
    model.save(tmp_path / "model.keras")
    assert facts(keras.saving.load_model(tmp_path / "model.keras", custom)) == facts(model)


def test_those_of_another_layer_of_keras_are_the_users_too():
    bounds.register(keras.layers.ReLU, lambda layer: 1.0)
    model = model_of()
    model.fit(X, Y, **FIT)
    assert facts(model) == ["ReLU"]


@pytest.mark.slow
def test_bounds_of_this_library_are_not_declared():
    model = model_of()
    model.fit(X, Y, **FIT)
    assert facts(model) == [] and "Bounds were declared" not in model.privacy.statement()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dpsgd", "adaclip"])
def test_where_gradients_are_clipped_no_bound_counts(strategy):
    model = model_of(Own(), Plain(), loss=OwnLoss)
    model.fit(X, Y, strategy=strategy, **FIT)
    assert facts(model) == []


@pytest.mark.parametrize("constant", [-0.5, float("nan")])
def test_a_constant_below_zero_is_refused(constant):
    """In a residual it made the sum of two constants, and the noise, too small."""
    bounds.register(Plain, lambda layer: constant)
    for call in (
        lambda: bounds.check(Plain(), (4,), print_fn=lambda text: None),
        lambda: model_of(Plain()).fit(X, Y, **FIT),
    ):
        with pytest.raises(ValueError, match="A bound is a number that is at least 0.*'plain.*of type Plain"):
            call()
    bounds.register(
        Three, output_bound=lambda layer, inputs: inputs[0], input_lipschitz=lambda layer, inputs: (constant,)
    )
    with pytest.raises(ValueError, match="A bound is a number that is at least 0"):
        model_of(Three()).fit(X, Y, **FIT)


@pytest.mark.parametrize("constant", [None, "half", (0.5,)])
def test_what_is_no_number_is_named(constant):
    bounds.register(Plain, lambda layer: constant)
    with pytest.raises(ValueError, match="returns a number or a BoundRules. Received: .*of type Plain"):
        bounds.check(Plain(), (4,), print_fn=lambda text: None)


@pytest.mark.parametrize("output, lipschitz", [(None, (0.5,)), ((1.0,), (0.5,)), (1.0, 0.5), (1.0, ()), (1.0, (None,))])
def test_bounds_of_another_form_are_named(output, lipschitz):
    bounds.register(Three, output_bound=lambda layer, norms: output, input_lipschitz=lambda layer, norms: lipschitz)
    for call in (
        lambda: bounds.check(Three(), (4,), print_fn=lambda text: None),
        lambda: model_of(Three()).fit(X, Y, **FIT),
    ):
        with pytest.raises(ValueError, match="`(output_bound|input_lipschitz)` returns a .*Received: .*of type Three"):
            call()
