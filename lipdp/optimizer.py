"""The place where noise is added and the budget stops."""

import functools

import keras
import numpy as np
from keras import ops

from lipdp import backend

# Float32 must not round the noise down.
_ROUND_UP = 1.0 + 1e-6


class PrivateOptimizer:
    """What `private` adds to a Keras optimizer.

    The gradient that arrives is a sum of per-example gradients over a public constant; one draw of
    Gaussian noise is added to it before the optimizer's own rule, so that everything after it (momentum,
    schedules, weight decay, gradient clipping, the projection of the weights) is post-processing.

    The noise standard deviations, the number of the last allowed update and the key of the generator are
    optimizer variables: they are saved with the model and are alive inside compiled steps on both
    backends. An optimizer that was not armed by `fit` does not train.

    Guarantee:
        An update is `gradient + N(0, diag(noise_std^2))` while `iterations < budget`; from then on the
        gradient and the noise are replaced by zero. The key is replaced at each update by a value
        derived from it, so a saved state does not hold the keys of earlier noise. Not covered: the
        generator (Threefry, 64-bit key) is not a cryptographic one, and Gaussians are sampled
        in float32.
    """

    def __init__(self, *args, **kwargs):
        for argument, reason in _REFUSED.items():
            if kwargs.get(argument):
                raise ValueError(f"{reason} Received: {argument}={kwargs[argument]!r}.")
        super().__init__(*args, **kwargs)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.noise_key = self.add_variable((2,), "zeros", dtype="uint32", name="noise_key")
        self.noise_std = self.add_variable((len(variables),), "zeros", dtype="float32", name="noise_std")
        self.budget = self.add_variable((), "zeros", dtype="int32", name="budget")

    def arm(self, noise_std, updates: int, key=None) -> None:
        """Allows `updates` more updates with the given standard deviation per variable."""
        self.noise_std.assign(np.asarray(noise_std, "float64") * _ROUND_UP)
        self.budget.assign(int(self.iterations.numpy()) + updates)
        if key is not None:
            self.noise_key.assign(np.asarray(key, "uint32"))

    def disarm(self) -> None:
        """Allows no further update."""
        self.budget.assign(0)

    def apply(self, grads, trainable_variables=None):
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        noise_key, next_key = backend.ratchet(ops.convert_to_tensor(self.noise_key.value))
        self.noise_key.assign(next_key)
        grads = list(grads)
        released = [i for i, gradient in enumerate(grads) if gradient is not None]
        # Reshaped: what TensorFlow gathers sparsely for an embedding has no static shape.
        gradients = [ops.reshape(ops.convert_to_tensor(grads[i]), variables[i].shape) for i in released]
        indices = [self._get_variable_index(variables[i]) for i in released]
        std = ops.convert_to_tensor(self.noise_std.value)
        noisy = ops.cond(
            self.iterations < ops.cast(self.budget, self.iterations.dtype),
            lambda: _add_noise(gradients, [std[i] for i in indices], noise_key),
            lambda: [ops.zeros_like(gradient) for gradient in gradients],
        )
        for i, gradient in zip(released, noisy, strict=True):
            grads[i] = gradient
        super().apply(grads, trainable_variables)


def _add_noise(gradients, deviations, key):
    """Adds one draw of noise, cut into pieces: the pieces of one draw cannot share bits."""
    sizes = [int(np.prod(gradient.shape)) for gradient in gradients]
    noise, start, noisy = backend.normal(sum(sizes), key), 0, []
    for gradient, deviation, size in zip(gradients, deviations, sizes, strict=True):
        noisy.append(gradient + deviation * ops.reshape(noise[start : start + size], gradient.shape))
        start += size
    return noisy


_REFUSED = {
    "gradient_accumulation_steps": (
        "Keras' gradient accumulation would add noise once per part of a batch instead of once per update. "
        "Use a larger `batch_size` with `fit(physical_batch_size=...)`."
    ),
    "use_ema": (
        "Keras' moving average of the weights reads them before they are projected, so the average breaks "
        "the norm bounds. Let the learning rate decay to zero instead."
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
        A subclass of it, registered for Keras serialisation, whose `apply` adds calibrated noise and
        enforces the budget. `DP_Model.compile` calls this; one needs it only for an optimizer class of
        one's own that is to be loaded from a file.

    Raises:
        ValueError: not an optimizer class, or one that skips updates depending on the gradients.

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
    name = f"Private{optimizer_class.__name__}"
    made = type(name, (PrivateOptimizer, optimizer_class), {"__doc__": PrivateOptimizer.__doc__})
    return keras.saving.register_keras_serializable(package="lipdp", name=name)(made)


def as_private(identifier) -> PrivateOptimizer:
    """A private optimizer from whatever `compile` accepts: a name, a config or an instance."""
    optimizer = keras.optimizers.get(identifier)
    if isinstance(optimizer, PrivateOptimizer):
        return optimizer
    cls = private(type(optimizer))
    config = optimizer.get_config()
    config.pop("name", None)
    if isinstance(config.get("learning_rate"), dict):
        config["learning_rate"] = optimizer._learning_rate
    return cls(**config)


# Files name these classes, so they have to exist before one is loaded.
for _class in list(vars(keras.optimizers).values()):
    if isinstance(_class, type) and issubclass(_class, keras.optimizers.Optimizer):
        if _class not in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
            private(_class)
