"""Noise and budget inside the optimizer."""

import keras
import numpy as np
import pytest

from lipdp import _keras
from lipdp.norms import SpectralBall
from lipdp.optimizer import PrivateOptimizer, as_private, private
from tests.helpers.models import blobs, mlp


def armed(optimizer, shapes, std, updates):
    variables = [keras.Variable(np.zeros(shape, "float32")) for shape in shapes]
    optimizer = as_private(optimizer)
    optimizer.build(variables)
    optimizer.arm(std, updates, key=np.arange(8, dtype="uint32"))
    return optimizer, variables


def step(optimizer, variables, gradient=0.0):
    before = [v.numpy().copy() for v in variables]
    optimizer.apply([keras.ops.full(v.shape, gradient) for v in variables], variables)
    return [v.numpy() - b for v, b in zip(variables, before, strict=True)]


def test_noise_is_independent_between_variables_and_updates():
    optimizer, variables = armed(keras.optimizers.SGD(1.0), [(200, 200), (200, 200)], [1.0, 3.0], 2)
    first, second = step(optimizer, variables), step(optimizer, variables)
    samples = np.array([d.ravel() for d in (*first, *second)])
    np.testing.assert_allclose(samples.std(axis=1), [1.0, 3.0, 1.0, 3.0], rtol=0.02)
    correlation = np.corrcoef(samples) - np.eye(4)
    assert np.abs(correlation).max() < 0.025


@pytest.mark.parametrize("argument", [{"gradient_accumulation_steps": 2}, {"loss_scale_factor": 8.0}])
def test_what_changes_the_noise_is_refused_wherever_it_is_said(argument):
    ((name, value),) = argument.items()
    with pytest.raises(ValueError, match=name):
        private(keras.optimizers.SGD)(0.1, **argument)
    optimizer = private(keras.optimizers.SGD)(0.1)
    setattr(optimizer, name, value)
    with pytest.raises(ValueError, match=name):
        as_private(optimizer)


def test_the_budget_stops_in_the_graph():
    optimizer, variables = armed(keras.optimizers.SGD(1.0), [(50,)], [1.0], 2)
    assert step(optimizer, variables, 1.0)[0].any()
    assert step(optimizer, variables, 1.0)[0].any()
    assert not step(optimizer, variables, 1.0)[0].any()
    optimizer.arm([1.0], 1)
    optimizer.disarm()
    assert not step(optimizer, variables, 1.0)[0].any()


def test_an_optimizer_that_was_never_armed_does_not_train():
    variable = keras.Variable(np.ones(4, "float32"))
    for name in ("sgd", "adam"):
        optimizer = as_private(name)
        optimizer.build([variable])
        assert not step(optimizer, [variable], 1.0)[0].any()


def test_the_standard_deviation_is_never_rounded_down():
    optimizer, _ = armed("sgd", [(3,), (3,)], [0.1, 1e-7 / 3], 1)
    assert (optimizer.noise_std.numpy().astype("float64") >= [0.1, 1e-7 / 3]).all()


def test_noise_that_float32_would_lose_is_refused():
    armed("sgd", [(3,), (3,)], [0.1, 0.0], 1)  # a strategy may give a variable no noise that nothing reaches
    with pytest.raises(ValueError, match="would be lost in float32.*4e-37"):
        armed("sgd", [(3,), (3,)], [0.1, 4e-37], 1)


def test_every_keras_optimizer_has_a_registered_private_form():
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion", "Nadam"):
        cls = private(getattr(keras.optimizers, name))
        assert issubclass(cls, PrivateOptimizer)
        assert private(cls) is cls
        optimizer = cls(learning_rate=0.25)
        copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
        assert type(copy) is cls
        assert float(copy.learning_rate) == 0.25


def test_schedules_and_settings_survive_the_conversion():
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 10, end_learning_rate=0.0)
    optimizer = as_private(keras.optimizers.SGD(schedule, momentum=0.8, nesterov=True, weight_decay=0.01))
    assert optimizer.momentum == 0.8 and optimizer.nesterov and optimizer.weight_decay == 0.01
    assert float(optimizer.learning_rate) == 0.5


class Warm(keras.optimizers.schedules.LearningRateSchedule):
    """Without a `get_config`, as in many tutorials; Keras asks for it when it saves."""

    def __init__(self, peak):
        self.peak = peak

    def __call__(self, step):
        return self.peak / (keras.ops.cast(step, "float32") + 1.0)


@pytest.mark.slow
def test_a_schedule_without_a_configuration_trains_as_in_keras():
    schedule = Warm(0.5)
    given = keras.optimizers.SGD(schedule, momentum=0.8)
    optimizer = as_private(given)
    assert _keras.learning_rate(optimizer) is schedule is _keras.learning_rate(given) and optimizer.momentum == 0.8
    with pytest.raises(NotImplementedError):
        given.get_config()  # nothing was put in the place of it
    found = []
    for peak in (0.5, 0.5, 0.25):
        model = mlp(optimizer=keras.optimizers.SGD(Warm(peak)))
        model.fit(*blobs(), epochs=1, batch_size=100, noise_multiplier=1.0, delta=1e-4, seed=3, verbose=0)
        found.append((model.run.secret.basis, float(model.optimizer.learning_rate)))
    # A seed knows the schedule by its code and attributes.
    assert found[0] == found[1] == (found[0][0], pytest.approx(0.1)) and found[2][0] != found[0][0]


def test_a_function_of_the_rate_survives_the_conversion():
    assert float(as_private(keras.optimizers.SGD(lambda: 0.125)).learning_rate) == 0.125


def test_weights_without_decay_survive_the_conversion():
    given = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    given.exclude_from_weight_decay(var_names=["bias"])
    kernel, bias = (keras.Variable(np.ones(2), name=name) for name in ("kernel", "bias"))
    assert as_private(given).undecayed([kernel, bias]) == [1]
    given.exclude_from_weight_decay(var_list=[kernel])
    assert as_private(given).undecayed([kernel, bias]) == [0]
    assert as_private("adamw").undecayed([kernel, bias]) == []


class Slowed(keras.optimizers.SGD):
    """Without a `get_config`, which Keras asks for when it saves."""

    def __init__(self, learning_rate=0.1, share=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.share = share


def test_settings_that_a_configuration_leaves_out_are_refused():
    with pytest.raises(ValueError, match="Slowed, whose `get_config` leaves out 'share'"):
        as_private(Slowed(share=0.5))
    assert as_private(Slowed(momentum=0.5)).momentum == 0.5


class Langevin(keras.optimizers.SGD):
    """Has an annealed noise of its own, whose name is that of the noise that is charged."""

    def build(self, variables):
        super().build(variables)
        self.noise_std = self.add_variable((), "ones", name="own")

    def finalize_variable_values(self, var_list):
        super().finalize_variable_values(var_list)
        self.noise_std.assign(0.2 * self.noise_std)


class Budgeted(keras.optimizers.SGD):
    budget = 3


class Held(keras.optimizers.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        setattr(self, "strategy", "slow")  # noqa: B010


class Filtered(keras.optimizers.SGD):
    """Hides variables: on JAX the key of the noise stayed as it was, and all updates had the same noise."""

    @property
    def variables(self):
        return [v for v in super().variables if "noise" not in v.path]


_TAKEN = [(Langevin, "noise_std"), (Budgeted, "budget"), (Held, "strategy"), (Filtered, "variables")]


@pytest.mark.parametrize(("own", "name"), _TAKEN)
def test_an_optimizer_that_has_a_name_of_the_private_state_is_refused(own, name):
    with pytest.raises(ValueError, match=f"Private{own.__name__} that has '{name}' itself"):
        as_private(own(0.1))


class Restarted(keras.optimizers.SGD):
    """Begins anew after each update."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        for state in self.variables[2:]:
            if len(state.shape):
                state.assign(keras.ops.zeros(state.shape, state.dtype))


def test_a_restart_of_all_variables_leaves_the_noise():
    """The second update had no noise, and the key of zeros that everybody knows."""
    optimizer, variables = armed(Restarted(1.0, momentum=0.9), [(1000,)], [2.0], 2)
    first, second = step(optimizer, variables)[0], step(optimizer, variables)[0]
    assert [first.std(), second.std()] == pytest.approx([2.0, 2.0], rel=0.1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert not optimizer.momentums[0].numpy().any()


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="not in this version of Keras")
def test_several_optimizers_are_refused():
    parts = keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {"head/.*": keras.optimizers.Adam()})
    with pytest.raises(ValueError, match="One optimizer adds the noise"):
        as_private(keras.optimizers.MultiOptimizer(parts))


@pytest.mark.parametrize("wrong", [int, keras.layers.Dense, "not a class"])
def test_private_takes_optimizer_classes(wrong):
    with pytest.raises(ValueError, match="optimizer class"):
        private(wrong)


def _own(base=keras.optimizers.SGD, **methods):
    return type("Own", (base,), methods)


@pytest.mark.parametrize("name", ["apply_gradients", "stateless_apply", "scale_loss"])
def test_a_class_that_sees_gradients_before_the_noise_is_refused(name):
    """With an `apply_gradients` that multiplies by ten, the noise was a tenth of what it must be."""
    own = _own(**{name: lambda self, *args: getattr(keras.optimizers.SGD, name)(self, *args)})
    with pytest.raises(ValueError, match=f"`{name}` of its own in front of the noise"):
        as_private(own(0.1))
    optimizer = as_private("sgd")
    setattr(optimizer, name, lambda *args: None)
    with pytest.raises(ValueError, match=f"`{name}` of its own in front of the noise"):
        optimizer.check()


def test_an_apply_in_front_of_the_private_one_is_refused():
    own = _own(private(keras.optimizers.SGD), apply=lambda self, grads, *args: None)
    with pytest.raises(ValueError, match="`apply` of its own in front of the noise"):
        as_private(own(0.1))
    optimizer = as_private("sgd")
    optimizer.apply = lambda *args: None
    with pytest.raises(ValueError, match="`apply` of its own in front of the noise"):
        optimizer.check()


def test_what_comes_after_the_noise_may_be_overridden():
    seen = []

    def apply(self, grads, trainable_variables=None):
        seen.append([np.asarray(g) for g in grads])
        keras.optimizers.SGD.apply(self, grads, trainable_variables)

    own = _own(apply=apply, update_step=lambda self, *args: keras.optimizers.SGD.update_step(self, *args))
    optimizer, variables = armed(own(1.0), [(1000,)], [2.0], 1)
    optimizer.check()
    step(optimizer, variables)
    assert np.std(seen[0][0]) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("own", ["without a projection", "after the projection"])
def test_bounds_of_weights_hold_behind_an_apply_of_a_users(own):
    """A kernel of norm 5 behind an `apply` that does not project made gradients five times as long as allowed."""

    def apply(self, grads, trainable_variables=None):
        if own == "after the projection":
            keras.optimizers.SGD.apply(self, grads, trainable_variables)
        for variable in trainable_variables:
            variable.assign(3.0 * variable)

    variable = keras.Variable(np.eye(3, dtype="float32"), trainable=True)
    variable.constraint = SpectralBall()
    optimizer = as_private(_own(apply=apply)(0.1))
    optimizer.build([variable])
    optimizer.arm([1e-3], 1, key=np.arange(8, dtype="uint32"))
    step(optimizer, [variable])
    assert np.linalg.norm(variable.numpy(), 2) <= 1.0 + 1e-6
