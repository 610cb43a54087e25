"""How near one example comes to the joint bound of a network: search for the worst input, label and weights."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import backend, bounds, checks, losses
from lipdp.audit.networks import Canaries
from lipdp.bounds import adversary

# A step of the search grows after a success and shrinks after a failure, by the rule of one success in five.
_GROW, _SHRINK = 1.3, 1.3**-0.25


@dataclasses.dataclass(frozen=True, eq=False)
class WorstCase:
    """The example that comes nearest to the joint bound of a network; `worst_case` finds it.

    Args:
        joint: Norm of its whole gradient over the joint bound, to which the noise is calibrated.
        layers: For each layer with weights its name, its bound, its share of the gradient of this example over that
            bound, and the largest one of any example that was tried.
        x, y: The example, with a batch axis of length 1.
        weights: Values of all weights with which it was found.
    """

    joint: float
    layers: list[dict[str, Any]]
    x: np.ndarray
    y: np.ndarray
    weights: list[np.ndarray]

    def canaries(self, make: Callable[[Any], keras.Model]) -> Canaries:
        """Returns the example as a canary for `white_box`.

        Args:
            make: Returns the model, compiled with a given optimizer. An input of zeros must give it no gradient: it may
                have no `Bias`.
        """

        def made(optimizer):
            model = make(optimizer)
            model.set_weights(self.weights)
            return model

        return Canaries(made, self.x, self.y, np.zeros_like(self.x), self.y)


def worst_case(
    model: keras.Model, labels: Any, *, tries: int = 200, steps: int = 400, move_weights: bool = True, seed: int = 0
) -> WorstCase:
    """Searches for the example whose gradient comes nearest to the joint bound of a clipless network.

    Args:
        model: A compiled model of Lipschitz layers with one input; its weights are as before afterwards.
        labels: Labels to try, `(k, ...)`, that the loss allows.
        tries: How many settings of weights and extreme inputs to begin with.
        steps: Steps of the random search that goes on from the best of them.
        move_weights: Whether to look at weights on the border of what the constraints allow, beside the present ones.
        seed: Of the search.

    Returns:
        A `WorstCase`. A joint value of 1 would mean that noise could not be less; below, it is a lower bound on how
        tight the bound is: a better search may come nearer.

    Raises:
        ValueError: the model is not compiled, has several inputs or outputs, a loss without a Lipschitz constant or
            nothing to train; or labels that the loss does not allow.
        RuntimeError: an example exceeds the bound.

    Example:
        >>> import lipdp
        >>> from lipdp import layers, losses
        >>> model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(1)])
        >>> model.compile("sgd", loss=losses.MeanAbsoluteError())
        >>> round(worst_case(model, [[9.0], [-9.0]], tries=20, steps=20).joint, 3)
        1.0
    """
    tries, steps = checks.integer("tries", tries, minimum=1), checks.integer("steps", steps)
    variables, labels = _checked(model, labels)
    propagated = bounds.propagate(model, model.loss.lipschitz(model.output_shape[-1]))
    limits = np.array([propagated.gradient(v) for v in variables])
    total, shape = float(np.sqrt(np.sum(limits**2))), tuple(model.inputs[0].shape)[1:]
    # Longer inputs are clipped; none of the bounds needs more.
    size = max((use.input_bound for use in propagated.layers if math.isfinite(use.input_bound)), default=1.0)
    rng, gradient = np.random.default_rng(seed), backend.loss_gradient(model)
    kept, largest = model.get_weights(), np.zeros(len(variables))

    def norms(x, y):
        found = gradient(x.astype("float32"), y)
        sizes = np.array([np.linalg.norm(ops.convert_to_numpy(g).astype("float64")) for g in found])
        np.maximum(largest, sizes, out=largest)
        return sizes

    best: tuple[float, Any, Any, Any] = (-1.0, None, None, None)
    inputs = [x for x in adversary.starts(shape, rng, size) if x.any()]
    settings = [adversary.weight_settings(v, rng) for v in variables]
    try:
        with backend.full_precision():
            for attempt in range(tries):
                if move_weights and attempt % 4:
                    chosen = [s[rng.integers(len(s))] for s in settings]
                    adversary.assign(variables, chosen)
                else:
                    model.set_weights(kept)
                place, label = rng.integers(len(inputs)), rng.integers(len(labels))
                x, y = inputs[place], labels[label : label + 1]
                value = float(np.linalg.norm(norms(x, y)))
                if value > best[0]:
                    best = value, x, y, model.get_weights()
            value, x, y, weights = best
            model.set_weights(weights)
            step = 0.3
            for _ in range(steps):
                # One part at a time: the example, or one of the weights.
                moved = variables[rng.integers(len(variables))] if move_weights and rng.random() < 0.5 else None
                nearby = x if moved is not None else adversary.scaled(x + step * size * _direction(shape, rng), size)
                if moved is not None:
                    before = np.asarray(ops.convert_to_numpy(moved.value), "float64")
                    length = max(adversary.norm(before), 0.1)
                    adversary.assign([moved], [_shifted(moved, before, step * length, rng)])
                found = float(np.linalg.norm(norms(nearby, y)))
                if found > value:
                    value, x, step = found, nearby, min(1.0, step * _GROW)
                else:
                    step = max(1e-4, step * _SHRINK)
                    if moved is not None:
                        adversary.assign([moved], [before])
            weights = model.get_weights()
            at_worst = norms(x, y)
    finally:
        model.set_weights(kept)
    joint = value / total
    if joint > 1.0 + 1e-4:
        raise RuntimeError(
            f"One example moves the gradient by {joint:.6g} times its joint bound. Were weights set by hand? Otherwise "
            "the bound is wrong: please report it."
        )
    rows = [
        {"variable": v.path, "bound": limit, "at_worst": a / limit, "largest": m / limit}
        for v, limit, a, m in zip(variables, limits.tolist(), at_worst.tolist(), largest.tolist(), strict=True)
        if limit > 0.0
    ]
    return WorstCase(joint, rows, x.astype("float32"), y, weights)


def _checked(model, labels) -> tuple[list, np.ndarray]:
    """Returns the variables that are trained, and the labels; refuses what has no joint bound."""
    if getattr(model, "loss", None) is None or len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "`worst_case` takes a compiled model with one input and one output. Call `compile(optimizer, loss=...)` "
            "first."
        )
    if not model.trainable_variables:
        raise ValueError(f"There is no gradient to bound. Received: model '{model.name}', all of whose weights stay.")
    labels = np.asarray(labels)
    if not labels.shape or not len(labels):
        raise ValueError(f"`labels` must hold at least one label. Received: an array of shape {labels.shape}.")
    losses.get(model.loss).check_labels(labels, model.output_shape[-1])  # bounds hold for no others
    return list(model.trainable_variables), labels


def _direction(shape, rng):
    return adversary.scaled(rng.standard_normal((1, *shape)), 1.0)


def _shifted(variable, value, length, rng):
    """Returns the value a random step away, inside of what the constraint allows."""
    return adversary.projected(variable, value + adversary.scaled(rng.standard_normal(value.shape), length))
