"""The place where noise is added and the budget stops."""

import contextlib
import difflib
import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend, checks
from lipdp.backend.kept import kept
from lipdp.backend.unread import unread
from lipdp.losses import penalties

# Float32 must not round the noise down.
_ROUND_UP = 1.0 + 1e-6
_LEAST_STD = 1e-30
_SEVERAL = "MultiOptimizer"  # not in every version of Keras
# What `PrivateOptimizer` keeps and does under names that an optimizer of the user's may have, too.
_OWN = "strategy calibration expected_batch strategy_state repeatable noise_key noise_std budget generator armed check"
_OWN += " attach hold arm set_noise disarm not_finite undecayed noise_energy variables"
# Numbers of entries are uint32 where devices make the noise of their own parts.
_PLACES = 2**32


class PrivateOptimizer:
    """What `private` adds to a Keras optimizer.

    The gradient that arrives is a sum of per-example gradients over a public constant; one draw of
    Gaussian noise is added to it before the optimizer's own rule, so that everything after it (penalties on weights,
    momentum, schedules, weight decay, gradient clipping, the projection of the weights) is post-processing.

    The noise standard deviations, the number of the last allowed update and the key of the generator are
    optimizer variables, alive inside compiled steps on both backends. They are saved with the model, the key
    only after a `fit` with a fixed seed. An optimizer that was not armed by `fit` does not train.

    **Guarantee.**
        An update is `gradient + N(0, diag(noise_std^2))` while `iterations < budget`; from then on the
        gradient and the noise are replaced by zero. The key is replaced at each update by a value
        derived from it with ChaCha20 (256 bits), so a saved state does not hold the keys of earlier noise, and
        noise does not give the keys of other updates. The noise of one update comes from the generator that
        `arm` names, see `backend.normal`. Not covered: Gaussians are sampled in float32.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        for argument, reason in _REFUSED.items():
            if kwargs.get(argument):
                raise ValueError(f"{reason} Received: {argument}={kwargs[argument]!r}.")
        super().__init__(*args, **kwargs)
        checks.refuse_names(self, _OWN)
        self.strategy, self.calibration, self.expected_batch, self.strategy_state = None, None, None, ()
        self.repeatable, self.noise_key, self.generator, self.armed = False, None, "threefry", False

    def check(self) -> None:
        """Refuses what would change the noise or the gradients before it, also where it was set on the object."""
        for name in ("apply", *_keras.OPTIMIZER_ENTRIES):
            source = next((c for c in type(self).__mro__ if name in vars(c)), keras.optimizers.Optimizer)
            if name in vars(self) or source.__module__.split(".")[0] not in ("lipdp", "keras"):
                raise ValueError(
                    "What an optimizer does to gradients before the noise is added changes their sensitivity. "
                    f"Received: an optimizer of {type(self).__name__}, with a `{name}` of its own in front of the "
                    "noise. Override `update_step`, or `apply` of the class that is given to `compile`: both come "
                    "after the noise."
                )
        for argument, reason in _REFUSED.items():
            if getattr(self, argument, None):
                raise ValueError(f"{reason} Received: an optimizer with {argument}={getattr(self, argument)!r}.")

    def build(self, variables: list) -> None:
        if self.built:
            return
        super().build(variables)
        self.noise_key = self.add_variable((8,), "zeros", dtype="uint32", name="noise_key")
        self.noise_std = self.add_variable((len(variables),), "zeros", dtype="float32", name="noise_std")
        self.budget = self.add_variable((), "zeros", dtype="int32", name="budget")

    def attach(self, strategy: Any, calibration: Any, batch_size: int, keep: bool) -> None:
        """Takes over the strategy of the next updates, and the variables it needs.

        Args:
            strategy: Object of `lipdp.strategies`.
            calibration: What it returned for this model.
            batch_size: Expected batch size, the divisor of the gradient.
            keep: Whether to go on from a state that is there, if it has the same shapes.
        """
        self.strategy, self.calibration, self.expected_batch = strategy, calibration, batch_size
        initial = strategy.initial_state(_keras.optimizer_variables(self))
        if not (keep and [tuple(v.shape) for v in self.strategy_state] == [a.shape for a in initial]):
            self.hold(initial)

    def hold(self, arrays: list) -> None:
        """Replaces the strategy's state by variables of these values."""
        arrays = [np.asarray(a, "float32") for a in arrays]
        if [tuple(v.shape) for v in self.strategy_state] != [a.shape for a in arrays]:
            for variable in self.strategy_state:
                _keras.forget(self, variable)
            self.strategy_state = tuple(
                self.add_variable(a.shape, "zeros", dtype="float32", name=f"strategy_{i}") for i, a in enumerate(arrays)
            )
        for variable, array in zip(self.strategy_state, arrays, strict=True):
            variable.assign(array)

    def arm(
        self, noise_std: list, updates: int, key: Any = None, repeatable: bool = False, generator: str = "threefry"
    ) -> None:
        """Allows `updates` more updates with the given standard deviation per variable.

        Args:
            noise_std: One standard deviation per trainable variable.
            updates: How many.
            key: Eight secret words that the noise comes from; None goes on with the present ones.
            repeatable: Whether files keep the key of the next update, for a run with a fixed seed.
            generator: What makes the noise: see `backend.normal`. A step that was traced keeps its own.
        """
        self.repeatable, self.generator, self.armed = repeatable, generator, True
        self.set_noise(noise_std)
        self.budget.assign(int(self.iterations.numpy()) + updates)
        if key is not None:
            self.noise_key.assign(np.asarray(key, "uint32"))

    def set_noise(self, noise_std: list[float]) -> None:
        """Sets the standard deviation per variable.

        Raises:
            ValueError: one that float32 takes for zero where it meets small numbers, while it stands for a bound.
        """
        lost = [std for std in noise_std if not (std == 0.0 or std >= _LEAST_STD)]
        if lost:
            raise ValueError(
                "The noise would be lost in float32, whose smallest normal number is about 1e-38. Received: a standard "
                f"deviation of {lost[0]:.3g}, from bounds that are as small. Scale the loss, or what limits it (such "
                "as `clip`), up."
            )
        self.noise_std.assign(np.asarray(noise_std, "float64") * _ROUND_UP)

    def disarm(self) -> None:
        """Allows no further update."""
        self.armed = False
        backend.set_here(self.budget, 0)

    def not_finite(self) -> str | None:
        """Returns the path of a trained weight, or of a variable of its own, that is not finite; or None.

        A weight whose squares overflow counts: no layer computes with it. All of them follow from noisy gradients, so
        what this says is post-processing.
        """
        if not self.built:
            return None
        weights = list(_keras.optimizer_variables(self))
        own = [v for v in self.variables if keras.backend.is_float_dtype(v.dtype)]
        found = [ops.isfinite(ops.sum(ops.square(v.value))) for v in weights]
        found += [ops.all(ops.isfinite(v.value)) for v in own]
        known = zip([*weights, *own], ops.convert_to_numpy(ops.stack(found)), strict=True)
        return next((variable.path for variable, finite in known if not finite), None)

    def undecayed(self, variables: list) -> list[int]:
        """Returns the places of the variables that `exclude_from_weight_decay` has named."""
        return [i for i, variable in enumerate(variables) if not _keras.has_weight_decay(self, variable)]

    def noise_energy(self) -> float:
        """Expected squared norm of the noise on the averaged gradient, in the present state of the strategy."""
        std = np.asarray(ops.convert_to_numpy(self.noise_std.value), "float64")
        scales = None if self.strategy is None else self.strategy.noise_scales([v.value for v in self.strategy_state])
        scales = scales if isinstance(scales, list) else [1.0 if scales is None else scales] * len(std)
        shapes = [tuple(v.shape) for v in _keras.optimizer_variables(self)]
        squares = (np.square(np.asarray(ops.convert_to_numpy(s), "float64")) for s in scales)
        return float(
            sum(v * np.sum(np.broadcast_to(q, shape)) for v, q, shape in zip(std**2, squares, shapes, strict=True))
        )

    @unread
    def apply(self, grads: list, trainable_variables: list | None = None) -> None:
        variables = list(_keras.optimizer_variables(self) if trainable_variables is None else trainable_variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        noise_key, next_key = backend.ratchet(ops.convert_to_tensor(self.noise_key.value))
        self.noise_key.assign(next_key)
        grads = list(grads)
        # Strategies that release a count beside the gradient put it behind the gradients.
        count_noise = None if self.calibration is None else self.calibration.count_noise_std
        counts = [] if count_noise is None else [grads.pop()]
        present = [i for i, gradient in enumerate(grads) if gradient is not None]
        # Reshaped: what TensorFlow gathers sparsely for an embedding has no static shape.
        gradients = [ops.reshape(ops.convert_to_tensor(grads[i]), variables[i].shape) for i in present]
        indices = [_keras.variable_index(self, variables[i]) for i in present]
        std = ops.unstack(ops.convert_to_tensor(self.noise_std.value))
        noise_stddevs = [std[i] for i in indices]
        state = [ops.convert_to_tensor(v.value) for v in self.strategy_state]
        scales = None if self.strategy is None else self.strategy.noise_scales(state)
        if scales is not None:
            scales = scales if isinstance(scales, list) else [scales] * len(variables)
            noise_stddevs = [std[i] * scales[i] for i in indices]

        def release():
            stddevs = [*noise_stddevs, *(count_noise * _ROUND_UP for _ in counts)]
            parts = [*(variables[i] for i in present), *(None for _ in counts)]
            noisy = _add_noise([*gradients, *counts], stddevs, noise_key, self.generator, parts)
            released, count = noisy[: len(gradients)], noisy[-1] if counts else None
            if self.strategy is not None:
                released = self.strategy.after_noise(released, state)
            advance = (self.calibration, state, released, noise_stddevs, count, self.expected_batch)
            advanced = self.strategy.advance(*advance) if state else []
            return [*penalties.add(released, [variables[i] for i in present]), *advanced]

        noisy = ops.cond(
            self.iterations < ops.cast(self.budget, self.iterations.dtype),
            release,
            lambda: [*(ops.zeros_like(gradient) for gradient in gradients), *state],
        )
        for i, gradient in zip(present, noisy[: len(present)], strict=True):
            grads[i] = gradient
        for variable, value in zip(self.strategy_state, noisy[len(present) :], strict=True):
            variable.assign(value)
        given = type(self).__mro__[type(self).__mro__.index(PrivateOptimizer) + 1]
        # A class of the user's may have all variables begin anew, as for a restart: those of the noise stay.
        of_noise = [*self.strategy_state, self.noise_key, self.noise_std, self.budget]
        with kept(of_noise if given.__module__.split(".")[0] != "keras" else ()):
            super().apply(grads, trainable_variables)
        source = next(c for c in type(self).__mro__ if "apply" in vars(c) and c is not PrivateOptimizer)
        own = source.__module__.split(".")[0] != "keras"
        # An `apply` of the user's need not project, as Keras' does at its end, and bounds rest on that.
        for variable in variables if own else ():
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    def finalize_variable_values(self, var_list: list) -> None:
        super().finalize_variable_values(var_list)
        if self.use_ema and keras.backend.backend() == "jax":
            # Else a weight is the very array of its average, which the next compiled call takes and deletes.
            for variable in var_list:
                variable.assign(ops.copy(variable.value))

    def save_own_variables(self, store: dict[str, Any]) -> None:
        if not self.built:  # before the first `fit`: there is no state yet
            return
        held = {id(v) for v in self.strategy_state}
        for i, variable in enumerate(v for v in self.variables if id(v) not in held):
            value = variable.numpy()
            # A checkpoint may be published while training goes on: with the key all later noise could be removed.
            store[str(i)] = value if self.repeatable or variable is not self.noise_key else np.zeros_like(value)
        for i, variable in enumerate(self.strategy_state):
            store[f"strategy_{i}"] = variable.numpy()

    def load_own_variables(self, store: dict[str, Any]) -> None:
        if not list(store.keys()):
            return
        if self.armed:
            raise ValueError(
                "An earlier state of the optimizer, or one without the key of its noise, would have noise drawn again "
                "or known to everybody. Received: load_own_variables while `fit` runs, by a callback. Go back to "
                "earlier weights with `set_weights`, or load a file before `fit`."
            )
        names = sorted((k for k in store.keys() if k.startswith("strategy_")), key=lambda k: int(k.split("_")[1]))
        self.hold([])  # without them Keras' own rules apply: variables by position
        values = {k: store[k] for k in store.keys() if k not in names}
        own = {str(i): variable for i, variable in enumerate(self.variables)} if self.built else {}
        for place in {p for p in own.keys() & values.keys() if tuple(values[p].shape) != tuple(own[p].shape)}:
            if own[place] is self.noise_key:
                values[place] = _renewed(values[place])
            elif own[place] is self.noise_std:  # of weights that `enable_lora` has replaced since; each `fit` sets it
                values[place] = np.zeros(own[place].shape)
        super().load_own_variables(values)
        self.repeatable = self.built and bool(self.noise_key.numpy().any())
        self.hold([np.asarray(store[k]) for k in names])


def _renewed(key):
    """Returns no key in the place of one of 0.1.0, of 64 bits: a `fit` with a seed then begins a stream of its own."""
    return np.zeros(8, "uint32")


def _add_noise(gradients, noise_stddevs, key, generator, variables):
    """Adds one draw of noise, cut into pieces: the pieces of one draw cannot share bits.

    A variable that is parted among devices gets the same values, each of them made where it is needed.
    """
    sizes = [int(np.prod(gradient.shape)) for gradient in gradients]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    if generator == "threefry" and sum(sizes) <= _PLACES and any(map(backend.parted, variables)):
        places = map(backend.places, variables, [gradient.shape for gradient in gradients], starts)
        pieces = [backend.normal_at(place, key) for place in places]
    else:
        noise = backend.normal(sum(sizes), key, generator)
        cut = ops.split(noise, starts[1:]) if len(starts) > 1 else [noise]
        pieces = [ops.reshape(piece, gradient.shape) for gradient, piece in zip(gradients, cut, strict=False)]
    return [gradient + stddev * piece for gradient, stddev, piece in zip(gradients, noise_stddevs, pieces, strict=True)]


_REFUSED = {
    "gradient_accumulation_steps": (
        "Keras' gradient accumulation would add noise once per part of a batch instead of once per update. "
        "Use a larger `batch_size` with `fit(microbatch_size=...)`."
    ),
    "loss_scale_factor": (
        "Loss scaling changes the gradient that the noise was calibrated for. Train in float32 without it."
    ),
}


@functools.cache
def private(optimizer_class: type) -> type:
    """A private version of a Keras optimizer class.

    Args:
        optimizer_class: A subclass of `keras.optimizers.Optimizer`.

    Returns:
        A subclass of it, registered for Keras serialization, whose `apply` adds calibrated noise and
        enforces the budget. `DP_Model.compile` calls this; one needs it only for an optimizer class of
        one's own that is to be loaded from a file.

    Raises:
        ValueError: not an optimizer class, or one that skips updates depending on the gradients.

    **Guarantee.** `apply` and `update_step` of `optimizer_class` see the noisy gradient. Its `apply_gradients`,
    `stateless_apply` and `scale_loss`, which would see what comes before, are refused when the optimizer is used.

    Example:
        >>> import keras
        >>> from lipdp.optimizer import private
        >>> private(keras.optimizers.SGD)(learning_rate=0.5).get_config()["learning_rate"]
        0.5
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, keras.optimizers.Optimizer)):
        raise ValueError(f"`private` takes a Keras optimizer class. Received: {optimizer_class!r}.")
    if issubclass(optimizer_class, PrivateOptimizer):
        return optimizer_class
    if issubclass(optimizer_class, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "LossScaleOptimizer skips updates depending on the private gradients. Train in float32 with the "
            "optimizer inside it."
        )
    if optimizer_class.__name__ == _SEVERAL:
        raise ValueError(
            "One optimizer adds the noise to all weights. Received: a MultiOptimizer. Use one for all layers, or "
            "freeze some and train the others in a `fit` of their own, with another `compile`: the ledger goes on."
        )
    name = f"Private{optimizer_class.__name__}"
    private_class = type(name, (PrivateOptimizer, optimizer_class), {"__doc__": PrivateOptimizer.__doc__})
    return keras.saving.register_keras_serializable(package="lipdp", name=name)(private_class)


def as_private(identifier: Any) -> PrivateOptimizer:
    """A private optimizer from whatever `compile` accepts: a name, a config or an instance."""
    optimizer = None
    with contextlib.suppress(ValueError):
        optimizer = keras.optimizers.get(identifier)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        classes = [one for one in vars(keras.optimizers).values() if isinstance(one, type)]
        known = {one.__name__.lower(): one.__name__ for one in classes if issubclass(one, keras.optimizers.Optimizer)}
        close = difflib.get_close_matches(str(identifier), known, 1)
        hint = f"Did you mean {close[0]!r}?" if close else "Pass for example keras.optimizers.SGD(0.1)."
        if close and close[0] == identifier:  # an optimizer without a name as a string
            hint = f"Pass keras.optimizers.{known[identifier]}(learning_rate)."
        if isinstance(identifier, type):
            hint = "Make an object of it: its name followed by its arguments in ()."
        raise ValueError(
            f"`optimizer` must be a Keras optimizer, its name or its configuration. Received: {identifier!r}. {hint}"
        )
    if isinstance(optimizer, PrivateOptimizer):
        optimizer.check()
        return optimizer
    cls = private(type(optimizer))  # type: ignore[arg-type]
    config = _keras.optimizer_config(optimizer)
    config.pop("name", None)
    made = cls(**config)
    # What `exclude_from_weight_decay` keeps is in no configuration.
    for name, value in vars(optimizer).items():
        if "exclude_from_weight_decay" in name:
            setattr(made, name, value)
    _refuse_lost(optimizer, made)
    made.check()
    return made


def _refuse_lost(optimizer: keras.optimizers.Optimizer, made: PrivateOptimizer) -> None:
    """Refuses an optimizer of the user's whose configuration leaves out settings: they would go back to defaults."""
    if type(optimizer).__module__.split(".")[0] == "keras":
        return
    simple = {name: v for name, v in vars(optimizer).items() if isinstance(v, (bool, int, float, str, type(None)))}
    lost = [name for name, v in simple.items() if name not in ("name", "built") and vars(made).get(name) != v]
    if lost:
        raise ValueError(
            "The private optimizer is made from the configuration of the one given. Received: "
            f"{type(optimizer).__name__}, whose `get_config` leaves out {', '.join(map(repr, lost))}. Add this to what "
            "`get_config` returns, as for saving."
        )


# Files name these classes, so they have to exist before one is loaded.
for _class in list(vars(keras.optimizers).values()):
    if isinstance(_class, type) and issubclass(_class, keras.optimizers.Optimizer):
        if _class.__name__ not in ("Optimizer", "LossScaleOptimizer", _SEVERAL):
            private(_class)
