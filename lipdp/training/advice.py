"""Warnings of settings that cannot learn, from public numbers alone: bounds, rates, sizes, budget."""

import contextlib
import contextvars
import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, backend, checks, isolation
from lipdp.bounds.propagate import propagate
from lipdp.losses.base import Loss

# Shorter runs are trials.
_LEAST_UPDATES = 50
# Weights of a layer have norms of one to ten: a run that cannot move them that far ends near where it began.
_LEAST_WAY = 10.0
_USUAL_WAY = 500.0
# Of the recipes: this share of the longest gradient of the loss.
_USUAL_CLIP = 0.2
# Of a recipe, whose rate was chosen by experiment: features of norm 60 need weights of a sixtieth.
_CHOSEN = contextvars.ContextVar("rate_was_chosen", default=False)
# A schedule is looked at this often.
_LOOKS = 20
# Of certify.CertifiedAccuracy, for rounding.
_SLACK = 1.002
# Of the clip norm, which the noise follows: with shorter weights for all rows it hides their gradients.
_LEAST_WEIGHT = 0.2
# Noise that is this much longer than the sum of all gradients leaves nothing of it.
_MOST_NOISE = 3.0


def advise(
    model: keras.Model, sensitivity: float, noise_multiplier: float | None, updates: int, batch_size: int
) -> None:
    """Warns when a fit cannot learn, whatever the data.

    Args:
        model: The compiled model.
        sensitivity: L2 sensitivity of the averaged gradient.
        noise_multiplier: Noise of an update over its sensitivity; None when it follows later.
        updates: Number of updates of this fit.
        batch_size: Expected batch size.

    **Guarantee.** Nothing here has seen an example. An averaged gradient has norm `sensitivity * batch_size` at most,
    so that SGD of rate r and momentum m moves the weights by `updates * r / (1 - m)` times that at most, noise apart.
    """
    _advise_certificates(model)
    if updates < _LEAST_UPDATES:
        return
    _advise_clip(model)
    longest = sensitivity * batch_size
    rate = _mean_rate(model.optimizer, updates)
    most = _steps(model.optimizer, updates) * longest if rate else 0.0
    if rate and not _CHOSEN.get() and (way := rate * most) < _LEAST_WAY:  # who sets 0 wants no step
        warnings.warn(
            f"The learning rate is too small to learn with. Received: a rate of {rate:.3g} where the gradient of a "
            f"batch has norm {longest:.3g} at most, so that {updates} updates move the weights by {way:.2g} at most. "
            f"Try a rate of {_round(_USUAL_WAY / most):g}; docs/howto/learning-rate.md says how to choose one.",
            stacklevel=checks.users_line(),
        )
    if noise_multiplier is None:
        return
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    noise = noise_multiplier * sensitivity * math.sqrt(weights * updates)
    if noise > _MOST_NOISE * longest * updates:
        enough = batch_size * noise / (longest * updates)
        warnings.warn(
            f"Noise outweighs all that can be learned. Received: {updates} updates of batch_size={batch_size} with "
            f"noise multiplier {noise_multiplier:.3g} for {weights} weights: together their noise is "
            f"{noise / (longest * updates):.2g} times as long as the sum of all gradients can be. Try a batch size of "
            f"{_round(enough):g}, or as near to it as the data allow, a larger epsilon, or fewer weights.",
            stacklevel=checks.users_line(),
        )


def of_class_weight(model: keras.Model, strategy: Any, class_weight: dict[int, float]) -> None:
    """Warns where the weights of all classes are small beside the clip norm. No row is looked at."""
    classes = max(2, model.output_shape[-1] or 0) if len(model.outputs) == 1 else 0
    if (
        strategy.name != "dpsgd"
        or getattr(strategy, "quantile", None) is not None
        or not 0 < classes <= len(class_weight)
    ):
        return
    largest, clip_norm = max(class_weight.values()), strategy.total_clip_norm
    if largest < _LEAST_WEIGHT * clip_norm:
        warnings.warn(
            "The weights of all classes are small beside the clip norm: they make gradients short, and noise follows "
            f"the clip norm. Received: class_weight of at most {largest:.3g}, clip_norm={clip_norm:g}. Divide all of "
            "them by the largest, or choose a smaller clip_norm. See docs/howto/weights.md.",
            stacklevel=checks.users_line(),
        )


@contextlib.contextmanager
def chosen_rate() -> Iterator[None]:
    """Inside, `advise` takes the learning rate as it is."""
    token = _CHOSEN.set(True)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def _advise_certificates(model: keras.Model) -> None:
    """Warns of metrics of certificates that count too many: weights may reach a larger constant than they take."""
    metrics = [m for m in _keras.given_metrics(model) if hasattr(m, "radius") and hasattr(m, "lipschitz")]
    if not metrics:
        return
    try:
        constant = propagate(model, 1.0, input_bound=1.0).lipschitz
    except ValueError:
        constant = math.inf
    small = [metric for metric in metrics if constant > _SLACK * metric.lipschitz]
    if small:
        named = ", ".join(f"{metric.name}, of lipschitz={metric.lipschitz:g}" for metric in small)
        found, way = "without a bound for all weights", "Leave it out, and call lipdp.certify.certified_accuracy later."
        if math.isfinite(constant):
            found = f"whose constant training may bring to {constant:.5g}"
            way = "Pass that as lipschitz=; it is lipdp.bounds.propagate(model, 1.0).lipschitz."
        warnings.warn(
            f"A metric counts more rows as certified than are. Received: {named}, and a model {found}. {way}",
            stacklevel=checks.users_line(),
        )


def _advise_clip(model: keras.Model) -> None:
    """Warns when the clip of the loss is above all gradients."""
    clip = model.loss.clip if isinstance(model.loss, Loss) else None
    if clip is None:
        return
    exact = model.loss.exact_lipschitz(model.output_shape[-1])
    if clip > exact:
        warnings.warn(
            f"The clip of the loss does nothing. Received: clip={clip:g}, and no gradient of "
            f"{type(model.loss).__name__} with {model.output_shape[-1]} outputs is longer than {exact:.3g}. Leave it "
            f"out, or try {_round(_USUAL_CLIP * exact):g}: the noise falls with it.",
            stacklevel=checks.users_line(),
        )


def _mean_rate(optimizer: Any, updates: int) -> float | None:
    """Returns the mean learning rate of SGD; None for optimizers that scale gradients themselves."""
    if not isinstance(optimizer, keras.optimizers.SGD):
        return None
    looks = np.linspace(0, updates - 1, min(updates, _LOOKS)).astype(int)
    return float(np.mean([_rate(optimizer, step) for step in looks]))


def _steps(optimizer: Any, updates: int) -> float:
    """Returns how often, at most, SGD adds a gradient times its rate to the weights."""
    return updates / (1.0 - optimizer.momentum)


def _rate(optimizer: Any, step: int) -> float:
    """The learning rate after `step` more updates."""
    rate = _keras.learning_rate(optimizer)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(float(ops.convert_to_numpy(optimizer.iterations)) + float(step))
    return float(ops.convert_to_numpy(rate() if callable(rate) else rate))


def _round(value: float) -> float:
    """One significant digit."""
    return float(f"{value:.1g}")


def of_speed(model: keras.Model, strategy: Any) -> list[str]:
    """Returns what `fit` says where it leaves devices unused, or trains layers of the user's own one row at a time."""
    found = [_of_idle_devices(count)] if (count := backend.idle_devices()) else []
    own = [layer for layer, _ in isolation.foreign(model) if isinstance(layer, keras.Layer)]
    slow = [f"'{layer.name}' ({type(layer).__name__})" for layer in own if layer.trainable_variables]
    if strategy.per_example and slow:
        found.append(
            f"Layers of your own run one row at a time, which can take many times longer: {', '.join(slow)}. "
            "lipdp.to_functional(model) returns a model in which those that can be read are taken apart."
        )
    return found


def _of_idle_devices(count: int) -> str:
    way = "The JAX backend trains on several: see keras.distribution."
    if keras.backend.backend() == "jax":
        way = (
            "To train on all of them, call keras.distribution.set_distribution(keras.distribution.DataParallel()) "
            "before the model is built."
        )
    return f"{count} more visible device{'s stay' if count > 1 else ' stays'} unused. {way}"
