"""The ready-made networks: each is 1-Lipschitz, trains under a budget, survives a file and certifies."""

import keras
import numpy as np
import pytest

from lipdp import bounds, certify, losses, models
from tests.helpers.adversary import Probe, top

NETWORKS = {
    "lenet": lambda **k: models.lenet((12, 12, 1), 2, input_norm=3.0, filters=(4, 8), hidden=(16,), **k),
    "vgg": lambda **k: models.vgg((12, 12, 1), 2, input_norm=3.0, blocks=((4, 4), (8,)), hidden=(16,), **k),
    "resnet": lambda **k: models.resnet(
        (12, 12, 1), 2, input_norm=3.0, filters=(8,), stem_size=3, residual_weight=0.3, **k
    ),
    "mlp_mixer": lambda **k: models.mlp_mixer((12, 12, 1), 2, input_norm=3.0, width=16, blocks=1, **k),
}


def halves(examples=600, seed=0):
    """A pattern in the left half against one in the right half, with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, examples)
    x = 0.2 * rng.normal(size=(examples, 12, 12))
    pattern = np.where(np.indices((12, 6)).sum(0) % 2, -1.0, 1.0)
    x[y == 0, :, :6] += pattern
    x[y == 1, :, 6:] += pattern
    return 0.3 * x[..., None].astype("float32"), y.astype("int32")


SOME = [pytest.param(n, marks=pytest.mark.slow if n in ("vgg", "mlp_mixer") else []) for n in NETWORKS]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", SOME)
def test_each_network_trains_saves_and_certifies(name, tmp_path):
    x, y = halves()
    model = NETWORKS[name]()
    rate = keras.optimizers.schedules.PolynomialDecay(0.5, 48, end_learning_rate=0.0)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9), losses.SparseCategoricalCrossentropy(temperature=20.0, clip=0.3)
    )
    model.fit(x, y, batch_size=300, epochs=24, epsilon=40.0, delta=1e-4, seed=0, verbose=0, training_metrics=False)
    assert model.privacy.epsilon() == pytest.approx(40.0, rel=0.02)
    certified = certify.certified_accuracy(model, x, y, at=(0.0, 0.02))
    assert certified[0.0] >= 0.8, certified
    assert certified[0.02] > 0.3, certified
    assert certify.lipschitz(model) <= 1.001
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x[:4], verbose=0), model.predict(x[:4], verbose=0))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_norm": 0.0}, "`input_norm` must be"),
        ({"classes": True}, "`classes` must be a positive integer"),
        ({"bias": 1}, "`bias` must be True or False"),
        ({"inner_norm": -1.0}, "`inner_norm` must be"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.lenet((12, 12, 1), **arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_the_old_spelling_warns_and_works():
    with pytest.warns(DeprecationWarning, match="`centred=`"):
        model = models.lenet((12, 12, 1), centred=False)
    assert not any("centering" in layer.name for layer in model.layers)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", SOME)
def test_options_keep_the_network_lipschitz_and_its_gradients_bounded(name):
    model = NETWORKS[name](inner_norm=1.0, bias=True, centered=False)
    propagated = bounds.propagate(model, 0.5)
    assert propagated.lipschitz == pytest.approx(0.5)
    probe = Probe(model)
    for x in np.random.default_rng(0).standard_normal((2, 1, 12, 12, 1)):
        assert top(probe.input_jacobians(x)[0]) <= 1.0 + 1e-4
        for variable, jacobian in zip(probe.variables, probe.parameter_jacobians(x), strict=True):
            assert 0.5 * top(jacobian) <= propagated.gradient(variable)
