"""Objects in which a method was replaced: their class, by which bounds go, does not say what they compute."""

import copy
import functools

import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import _keras, bounds, certify, checks, layers, losses

X, Y = np.random.default_rng(0).normal(size=(40, 4)).astype("float32"), np.arange(40) % 3
FIT = {"batch_size": 20, "epsilon": 2.0, "delta": 1e-3, "verbose": 0}


def model_of(middle):
    stack = [layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(4), middle(), layers.SpectralDense(3)]
    model = lipdp.DP_Sequential(stack)
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def steeper(thing):
    """Gives an object a `call` that returns fifty times as much."""
    call = thing.call
    thing.call = lambda *args, **kwargs: 50.0 * call(*args, **kwargs)


@pytest.mark.parametrize("place, middle", [(0, layers.Abs), (1, layers.Abs), (2, layers.Abs), (2, keras.layers.ReLU)])
def test_a_layer_with_a_call_of_its_own_has_no_bounds(place, middle):
    """One example moved the sum by 50 times what was charged, and radii were 50 times too large."""
    model = model_of(middle)
    certify.radii(model, X)
    steeper(model.layers[place])
    for refused in (lambda: certify.radii(model, X), lambda: model.fit(X, Y, strategy="clipless", **FIT)):
        with pytest.raises(ValueError, match=f"'{model.layers[place].name}' are those of .* with a `call` of its own"):
            refused()
    assert model.privacy.updates == 0


@pytest.mark.backend_free
def test_so_has_a_layer_with_replaced_bounds():
    layer = layers.SpectralDense(3)
    layer.build((None, 4))
    layer.parameter_bounds = lambda inputs, cotangent: (0.0,)
    with pytest.raises(ValueError, match="with a `parameter_bounds` of its own"):
        bounds.rules(layer)


@pytest.mark.backend_free
def test_what_watches_trainings_is_no_layer(monkeypatch):
    """MLflow wraps `fit` in the class, and some wrap that of one model."""
    model = model_of(layers.Abs)
    ordinary = keras.Model.fit
    monkeypatch.setattr(keras.Model, "fit", lambda self, *args, **kwargs: ordinary(self, *args, **kwargs))
    model.evaluate = functools.partial(model.evaluate, verbose=0)
    model.fit(X, Y, strategy="clipless", **FIT)
    assert model.privacy.updates > 0 and certify.radii(model, X).max() > 0.0


@pytest.mark.parametrize("kind, name", [(layers.Abs, "call"), (keras.layers.ReLU, "call"), (keras.Layer, "__call__")])
def test_so_has_a_layer_whose_class_was_changed(kind, name, monkeypatch):
    """One example moved the sum by 50 times what was charged."""
    model = model_of(keras.layers.ReLU if kind is keras.layers.ReLU else layers.Abs)
    certify.radii(model, X)
    before = getattr(kind, name)

    @functools.wraps(before)  # which says that it is a method of Keras
    def changed(self, *args, **kwargs):
        return 50.0 * before(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, changed)
        for refused in (lambda: certify.radii(model, X), lambda: model.fit(X, Y, strategy="clipless", **FIT)):
            with pytest.raises(ValueError, match=f"Received: a class with a `{name}` of its own"):
                refused()
    certify.radii(model, X)
    assert model.privacy.updates == 0


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["Functional", "Sequential"])
def test_a_model_whose_class_was_changed_has_no_bounds(name, monkeypatch):
    model = model_of(layers.Abs)
    kind = {"Functional": _keras.Functional, "Sequential": keras.Sequential}[name]
    ordinary = kind.call
    with monkeypatch.context() as patch:
        patch.setattr(kind, "call", lambda self, *args, **options: 50.0 * ordinary(self, *args, **options))
        for refused in (lambda: certify.radii(model, X), lambda: model.fit(X, Y, strategy="clipless", **FIT)):
            with pytest.raises(ValueError, match="has a `call` of its own"):
                refused()
    assert model.privacy.updates == 0


@pytest.mark.backend_free
def test_a_build_of_its_own_gives_weights_that_no_bound_covers():
    """A kernel of norm 50 without a constraint counted as one of norm 1."""
    layer = layers.SpectralDense(4)

    def build(shape):
        layer.kernel = layer.add_weight((4, 4), keras.initializers.Identity(50.0), name="kernel")

    layer.build = build
    model = model_of(lambda: layer)
    with pytest.raises(ValueError, match=f"'{layer.name}' are those of .* an object with a `build` of its own"):
        model.fit(X, Y, strategy="clipless", **FIT)
    assert model.privacy.updates == 0


@pytest.mark.backend_free
def test_weights_cannot_be_replaced_by_something_else():
    """A tensor in the place of a kernel was not projected: one example moved the sum by 40 times what was charged."""
    layer = model_of(layers.Abs).layers[1]
    before = layer.kernel
    with pytest.raises(AttributeError, match=r"`kernel` of layer .* is a weight.*Set its values with `kernel.assign`"):
        layer.kernel = 50.0 * ops.convert_to_tensor(layer.kernel)
    layer.kernel = before
    assert layer.kernel is before


@pytest.mark.backend_free
def test_what_keras_wraps_by_itself_is_not_replaced():
    class Own(layers.SpectralDense):
        def build(self, input_shape):
            super().build(input_shape)

    for layer in (layers.SpectralDense(4), keras.layers.ReLU(), Own(4), copy.deepcopy(layers.Abs())):
        assert "build" in vars(layer) and checks.replaced(layer) == []


@pytest.mark.parametrize("parent", [layers.SpectralDense, layers.Abs])
def test_a_class_with_a_call_of_its_own_does_not_inherit_bounds(parent):
    """One row moved the sum by 50 times what was charged, and radii were 50 times too large."""

    class Steeper(parent):
        def call(self, inputs):
            return 50.0 * super().call(inputs)

    class Half(Steeper):
        def input_lipschitz(self, input_bounds):
            return (50.0,)

    class Stated(Half):
        def parameter_bounds(self, input_bounds, cotangent_bound):
            return (50.0 * cotangent_bound * input_bounds[0],)

        def trained_lipschitz(self, input_bounds):
            return self.input_lipschitz(input_bounds)

        def gradient_terms(self, input_shapes, output_shape):
            return 4

        def output_terms(self, input_shapes, output_shape):
            return 4

    given = (4,) if parent is layers.SpectralDense else ()
    model = model_of(lambda: Steeper(*given))
    for refused in (lambda: certify.radii(model, X), lambda: model.fit(X, Y, strategy="clipless", **FIT)):
        with pytest.raises(ValueError, match=f"The bounds of {parent.__name__} do not follow .* type Steeper"):
            refused()
    assert model.privacy.updates == 0
    if parent is layers.SpectralDense:  # those of the kernel would be the parent's
        with pytest.raises(ValueError, match="Override `parameter_bounds`, `trained_lipschitz`, .*or put what it does"):
            bounds.rules(Half(*given))
    assert bounds.rules(Stated(*given)).input_lipschitz((1.0,)) == (50.0,)


def test_a_kernel_of_a_build_of_ones_own_is_projected():
    """Nothing held its norm, which layers in front of it were charged as at most 1."""

    class Free(layers.SpectralDense):
        def build(self, input_shape):
            self.kernel = self.add_weight((input_shape[-1], self.units), name="kernel")

    model = model_of(lambda: Free(4))
    with pytest.raises(ValueError, match="a Free whose kernel has the constraint none, by a `build` of its own"):
        model.fit(X, Y, strategy="clipless", **FIT)
    assert model.privacy.updates == 0


@pytest.mark.parametrize("nested", [False, True])
def test_a_model_with_a_call_of_its_own_has_no_graph_of_bounds(nested):
    model = model_of(layers.Abs)
    steeper(model)
    if nested:
        inputs = keras.Input((4,))
        model = keras.Model(inputs, model(inputs))
    with pytest.raises(ValueError, match="has a `call` of its own, which its graph does not show"):
        certify.radii(model, X)
    if not nested:
        with pytest.raises(ValueError, match="has a `call` of its own, which its graph does not show"):
            model.fit(X, Y, strategy="clipless", **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "method", ["call", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gradient", "exact_lipschitz"))]
)
def test_a_loss_with_a_method_of_its_own_has_no_bound(method):
    """One example moved the sum by 43 times what was charged."""
    model = model_of(layers.Abs)
    before = getattr(model.loss, method)
    setattr(model.loss, method, lambda *args: 50.0 * before(*args))
    with pytest.raises(ValueError, match=f"with a `{method}` of its own. Write a subclass"):
        model.fit(X, Y, strategy="clipless", **FIT)
    assert model.privacy.updates == 0
    model.fit(X, Y, strategy="dpsgd", **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["fn", "call"])
def test_code_in_an_object_of_a_loss_sees_one_row(name):
    """That of lipdp's own losses saw whole batches, also where gradients are clipped."""

    def mixing(y_true, y_pred):
        return ops.mean(y_pred, axis=-1) * ops.sign(ops.sum(y_pred))

    loss = lipdp.models.TokenCrossentropy() if name == "fn" else losses.Huber()
    few = np.ones((12, 3), "float32")
    many, labels = few.copy(), np.ones((12, 3), "float32")
    many[0] = -1e8
    if name == "fn":
        loss.fn = lambda y_true, y_pred, **_: mixing(y_true, y_pred)
        few, many, labels = few[:, None], many[:, None], labels[:, :1].astype("int32")
    else:
        loss.call = mixing
    found = [ops.convert_to_numpy(losses.example_values(loss, labels, outputs)) for outputs in (few, many)]
    np.testing.assert_array_equal(found[0][1:], found[1][1:])


def longer(model):
    model.layers[2].bias.constraint.max_norm = 100.0


def grouped(model):
    model.layers[1].kernel.constraint.groups = 2


@pytest.mark.backend_free
@pytest.mark.parametrize("change, words", [(longer, "max_norm=100.0"), (grouped, "groups=2")])
def test_constraints_that_were_set_to_something_else_are_refused(change, words):
    """Bounds went by the layer, weights by the constraint: one example moved the sum by 44 times what was charged."""
    model = model_of(layers.Bias)
    change(model)
    with pytest.raises(ValueError, match=rf"with \w+\(.*{words}.*\) in the place of"):
        model.fit(X, Y, strategy="clipless", **FIT)
    assert model.privacy.updates == 0
    model.fit(X, Y, strategy="dpsgd", **FIT)
