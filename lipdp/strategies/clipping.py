"""Strategies that clip the gradient of each example: what they share, and what they refuse."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops, tree

from lipdp import _keras, checks, gradients, losses, sampling
from lipdp._deprecated import renamed_keys, renamed_property
from lipdp.strategies import augmentation as augmentations
from lipdp.strategies.base import Calibration, Strategy

# Clipping leaves room for the rounding of norms and coefficients: contributions stay below the clip norm.
MARGIN = 1.0 - 1e-4
# Shorter gradients are on the way to the smallest float32: what else is computed of them would be flushed to zero.
LEAST_CLIP = 1e-12


class PerExample(Strategy):
    """Base of the strategies that clip. A subclass implements `contributions`.

    Its fields are those of `DPSGD` of the same name: `clip_norm`, `augmentation_multiplicity`, `augmentation`.

    **Guarantee.** One example's rows see nothing of other examples: layers, losses and augmentations that mix
    examples are refused. The K copies, and all rows of a person (`fit(person_ids=)`), are averaged before the gradient
    is clipped, so they cost compute and no privacy (De et al. 2022). Padding rows count for nothing. Contributions are
    summed over all microbatches and divided by the constant B.
    """

    per_example = True
    averages_persons = True
    weighs_losses = True
    if TYPE_CHECKING:
        clip_norm: Any
        augmentation: Any
        augmentation_multiplicity: int
    noise = renamed_property("noise", "noise_allocation")
    views = renamed_property("views", "augmentation_multiplicity")

    @property
    def total_clip_norm(self) -> float:
        """Returns the L2 norm of one example's contribution, all layers together."""
        return self.clip_norm

    def calibrate(self, model: keras.Model, loss: Any, batch_size: int) -> Calibration:
        check_clipping(model, loss)
        if self.augmentation is not None:
            augmentations.check(self.augmentation, model.input_shape)
        std = self.total_clip_norm / batch_size
        return Calibration((std,) * len(model.trainable_variables), std)

    def contributions(self, calibration: Calibration, record: Any, weight: Any, state: list) -> tuple[list, list]:
        """Returns the sums of the clipped gradients, one per trainable variable, and the counts to release beside them.

        Args:
            calibration: What `calibrate` returned for this model.
            record: `gradients.Record` of a microbatch.
            weight: `(rows,)`, 1 for drawn rows and 0 for padding.
            state: Tensors, as in `initial_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `contributions`.")

    def microbatch(
        self, calibration: Any, forward: Any, state: Any, index: Any, secret: Any, data: Any, batch_size: Any
    ) -> Any:
        check_traced(forward.model)
        x, y, shares = data
        rows, copies = calibration.rows, self.augmentation_multiplicity
        weight = shares if rows == 1 else present(ops.reshape(shares, (-1, rows)))
        if rows > 1:
            x, y = own_rows((x, y), ops.reshape(shares, (-1, rows)))
        if copies > 1 or self.augmentation is not None:
            x, y, shares = augmentations.repeat((x, y, shares / copies), copies)
            if self.augmentation is not None:
                x = augmentations.apply(self.augmentation, x, augmentations.key(secret, index))
        together = {"copies": copies} if rows == 1 else {"copies": rows * copies, "shares": shares}
        record = gradients.capture(forward, x, y, weight, loss_values=example_losses(forward.model), **together)
        sums, counts = self.contributions(calibration, record, weight, state)
        values = ops.where(shares > 0, ops.stop_gradient(record.values) * shares, 0.0)
        return (sums, counts, ops.sum(values) / batch_size), (x, y, record.y_pred, shares), record.non_trainable

    def get_config(self) -> dict:
        return {**super().get_config(), "augmentation": augmentations.serialize(self.augmentation)}

    @classmethod
    def from_config(cls, config: dict) -> Strategy:
        return cls(**renamed_keys(config, views="augmentation_multiplicity"))

    def _check_copies(self) -> None:
        self._assign(
            augmentation_multiplicity=checks.integer(
                "augmentation_multiplicity", self.augmentation_multiplicity, minimum=1
            ),
            augmentation=augmentations.get(self.augmentation),
        )


def present(shares: Any) -> Any:
    """Returns 1 for each person with a row that counts, and 0 for the others, from shares `(persons, rows)`."""
    return ops.cast(ops.any(shares > 0, axis=1), shares.dtype)


def own_rows(data: Any, shares: Any) -> Any:
    """Returns rows of persons, with the first row of a person that counts in the place of each that does not.

    Of zeros a model may make NaN, as the mean of a sequence that is masked throughout is: times a share of 0 that is
    NaN, and the whole person would be left out.

    Args:
        data: Nest of tensors `(persons * rows, ...)`.
        shares: `(persons, rows)`, 0 for rows that do not count.

    **Guarantee.** What stands in a place of a person follows from the rows of this person alone.
    """
    there = shares > 0
    first = ops.logical_and(there, ops.equal(ops.cumsum(ops.cast(there, "int32"), axis=1), 1))

    def filled(leaf):
        rows = ops.reshape(leaf, (*ops.shape(shares), *ops.shape(leaf)[1:]))
        counts, chosen = (ops.reshape(t, (*ops.shape(t), *(1 for _ in rows.shape[2:]))) for t in (there, first))
        # All terms but one are zero: no gather, for which devices would exchange rows.
        own = ops.cast(ops.sum(ops.where(chosen, rows, ops.zeros_like(rows)), axis=1, keepdims=True), rows.dtype)
        return ops.reshape(ops.where(counts, rows, own), ops.shape(leaf))

    return tree.map_structure(filled, data)


def example_losses(model: keras.Model) -> Any:
    """Returns the function of targets and outputs that gives the loss of each row, times what the row weighs."""

    def values(y_true, y_pred):
        weight, y_true = row_weights(model, y_true)
        found = losses.example_values(model.loss, y_true, y_pred)
        return found if weight is None else found * ops.cast(weight, found.dtype)

    return values


def row_weights(model: keras.Model, y: Any) -> tuple[Any, Any]:
    """Returns what rows weigh by `fit(class_weight=)` or `fit(sample_weight=)`, None for 1, and their labels."""
    driver = getattr(getattr(model, "run", None), "driver", None)
    weights = None if driver is None else driver.request.class_weight
    weight, y = sampling.weight_and_labels(y)
    return (weight, y) if weights is None else (losses.class_factors(weights, y), y)


def check_clipping(model: keras.Model, loss: Any) -> None:
    """Refuses models and losses whose per-example gradients cannot be clipped soundly."""
    refuse_probabilities(model, loss)
    gradients.supported(model)


def check_traced(model: keras.Model) -> None:
    """Refuses, while a step is traced, layers that callbacks have made mix examples since the model was checked."""
    gradients.supported(model, probe=False)


def checked_clip_norm(value: Any, name: str = "clip_norm") -> float:
    """Returns a clip norm as a float; refuses one below 1e-12."""
    value = checks.positive(name, value)
    if value < LEAST_CLIP:
        raise ValueError(
            f"`{name}` must be at least {LEAST_CLIP:g}: squares of entries of so short gradients are zero in float32. "
            f"Received: {name}={value!r}. Multiply the loss by a constant and raise the clip norm by the same factor."
        )
    return value


def total_norm(squared: list) -> Any:
    """Returns the norms `(batch,)` of whole gradients from squared norms per variable."""
    return ops.sqrt(ops.maximum(sum(squared[1:], squared[0]), 0.0))


def clip_factors(norms: Sequence[float], clip_norm: Any, weight: Any) -> Any:
    """Returns `weight * min(1, clip_norm / norm)`, with a margin; 0 for padding and where a gradient is not finite."""
    return masked(MARGIN * clip_norm / ops.maximum(norms, MARGIN * clip_norm), norms, weight)


def masked(factors: Any, norms: Sequence[float], weight: Any) -> Any:
    """Returns `weight * factors`, and 0 where a row is padding or its norm is not finite."""
    return ops.where(ops.logical_and(weight > 0, ops.isfinite(norms)), factors * weight, 0.0)


def layer_groups(model: keras.Model) -> tuple[tuple[int, ...], ...]:
    """Returns the indices of the trainable variables that belong to one layer, for each layer that has some."""
    variables = model.trainable_variables
    index = {id(v): i for i, v in enumerate(variables)}
    groups, seen = [], set()
    for layer in _keras.walk(model, include_self=True):
        own = _keras.own_variables(layer)
        group = tuple(index[id(v)] for v in own if id(v) in index and id(v) not in seen)
        seen.update(id(v) for v in own)
        if group:
            groups.append(group)
    return (*groups, *((i,) for i, v in enumerate(variables) if id(v) not in seen))


def refuse_probabilities(model: keras.Model, loss: Any) -> None:
    """Refuses logits where a loss takes probabilities, and the reverse: it would train badly without a word."""
    for one, activation in zip(losses.parts(loss), losses.endings(model), strict=False):
        _refuse_probabilities(model, one, activation)


def _refuse_probabilities(model, loss, activation: str) -> None:
    named = isinstance(loss, losses.Loss) and "Crossentropy" in type(loss).__name__
    if named and activation in ("softmax", "sigmoid", "log_softmax"):
        raise ValueError(
            f"lipdp.losses.{type(loss).__name__} takes logits. Received: model '{model.name}', which ends in "
            f"{activation}. Remove it, or give the loss by name or as an object of keras.losses."
        )
    logits = _takes_logits(loss)
    if logits and activation in ("softmax", "sigmoid", "log_softmax"):
        raise ValueError(
            f"With from_logits=True a loss takes logits. Received: model '{model.name}', which ends in {activation}. "
            "Remove that, or set from_logits=False."
        )
    if logits is False and activation == "linear":
        raise ValueError(
            "With from_logits=False, the default of Keras, a loss takes probabilities. Received: model "
            f"'{model.name}', which ends without softmax or sigmoid. Set from_logits=True, as in "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True), or end the model in one."
        )


def _takes_logits(loss) -> bool | None:
    """Returns what a loss of Keras says of `from_logits`; None for all others."""
    if not (getattr(loss, "__module__", None) or type(loss).__module__).startswith("keras."):
        return None
    if isinstance(loss, keras.losses.Loss):
        return loss.get_config().get("from_logits")
    parameter = inspect.signature(loss).parameters.get("from_logits")
    return None if parameter is None else parameter.default
