"""What every strategy answers: the noise one update needs, and how its gradient is made."""

from dataclasses import dataclass

import keras
from keras import ops

from lipdp import gradients, losses
from lipdp.bounds import Bounds
from lipdp.strategies import augmentation as views_
from lipdp.strategies.arguments import positive

# Clipping leaves room for the rounding of norms and coefficients: contributions stay below the clip norm.
MARGIN = 1.0 - 1e-4


@dataclass(frozen=True)
class Calibration:
    """Noise of one update for noise multiplier 1.

    Attributes:
        noise_std: Standard deviation for each trainable variable, in the order of the model, for the state
            that the strategy starts from.
        sensitivity: L2 sensitivity of the averaged gradient, all variables together, for that state.
        bounds: The propagated bounds it comes from; None where gradients are clipped.
        query: Noise multiplier of a number that each update releases beside the gradient, or None.
    """

    noise_std: tuple[float, ...]
    sensitivity: float
    bounds: Bounds | None = None
    query: float | None = None

    def deviations(self, noise_multiplier: float) -> list[float]:
        """Standard deviation per variable of one update of `noise_multiplier`, its query included.

        Gradient and query are one Gaussian vector: `1 / z^2 = 1 / z_gradient^2 + 1 / z_query^2`
        (Andrew et al. 2021, theorem 1).
        """
        if self.query is not None:
            if self.query <= noise_multiplier:
                raise ValueError(
                    "The private quantile alone costs more than the update may. Received: a count noise of "
                    f"{self.query / 2:.4g} with a noise multiplier of {noise_multiplier:.4g}. `quantile_noise` must "
                    "exceed half of the noise multiplier: raise it, or leave `quantile` out."
                )
            noise_multiplier = (noise_multiplier**-2 - self.query**-2) ** -0.5
        return [noise_multiplier * s for s in self.noise_std]


class Strategy:
    """Turns a batch into a gradient of bounded sensitivity. The optimizer alone adds the noise.

    Attributes:
        name: Name in the ledger.
        noise: How the noise is spread, in the words of the statement.
        per_example: Whether it clips per-example gradients, so that any Keras model will do.
        own_step: Whether it has a training step of its own, `chunk`, in the place of Keras'.
        adaptive: Whether noise and sampling follow from what was released, so that a conductor on the host has
            to carry out the updates.
    """

    name = ""
    noise = ""
    per_example = False
    own_step = False
    adaptive = False

    def calibrate(self, model, loss, batch_size: int) -> Calibration:
        """Noise of one update of `model` at noise multiplier 1, for an expected batch of `batch_size`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `calibrate`.")

    def check_fit(self, *, sampling: str, examples_per_person: int, steps_per_epoch, steps_per_execution: int) -> None:
        """Refuses what was asked of `fit` and `compile` and this strategy cannot do."""

    def declared_examples(self, num_examples: int) -> int:
        """The number of examples that plan and request name: the true one, which is public."""
        return num_examples

    def query_noise(self, batch_size: int) -> float | None:
        """Standard deviation of the noise on the released number, or None when there is none."""
        return None

    def initial_state(self, variables) -> list:
        """Arrays that the optimizer keeps for the strategy, as float32."""
        return []

    def scales(self, state):
        """Factors on the noise of each variable, all 1 for the initial state; None when they never change."""
        return None

    def advance(self, state, released, deviations, query, batch_size: int) -> list:
        """The next state, from what one update has released: post-processing."""
        return state

    def chunk(self, model, state, index, secret, data, trainable=None, non_trainable=None):
        """What one chunk of an update contributes. Called inside the compiled step when `own_step` is set.

        Args:
            model: The model.
            state: Tensors, as in `initial_state`.
            index: Number of the chunk.
            secret: Two uint32 words that the noise of this update comes from.
            data: `(x, y, weight)`.
            trainable, non_trainable: Values of the model's variables (JAX).

        Returns:
            `(sums, query, loss)`, to be added up over the chunks; `(x, y, y_pred, weight)` for metrics;
            the model's new non-trainable values (JAX).
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `chunk`.")

    def average(self, sums, state, batch_size: int) -> list:
        """The gradient that the optimizer adds noise to."""
        return [s / batch_size for s in sums]

    def get_config(self) -> dict:
        raise NotImplementedError(f"{type(self).__name__} must implement `get_config`.")

    @classmethod
    def from_config(cls, config: dict):
        return cls(**config)


class PerExample(Strategy):
    """Base of the strategies that clip. A subclass implements `contributions`.

    Args:
        clip_norm: L2 norm, above 0, that one example's gradient is clipped to.
        views: Copies K >= 1 of each example; its gradient is that of their mean loss.
        augmentation: Called as `augmentation(x, key)` on the copies, in training only; see `RandomShift`.

    Guarantee:
        One example's rows see nothing of other examples: layers, losses and augmentations that mix
        examples are refused. The K views are averaged before the gradient is clipped, so they cost
        compute and no privacy (De et al. 2022). Padding rows count for nothing. Contributions are
        summed over all chunks and divided by the constant B.
    """

    per_example = True
    own_step = True

    def __init__(self, clip_norm, views: int, augmentation):
        self.clip_norm = positive("clip_norm", clip_norm)
        if not isinstance(views, int) or isinstance(views, bool) or views < 1:
            raise ValueError(f"`views` must be a positive integer. Received: views={views!r}.")
        self.views = views
        self.augmentation = views_.get(augmentation)

    def calibrate(self, model, loss, batch_size: int) -> Calibration:
        gradients.supported(model)
        refuse_random(model)
        refuse_probabilities(model, loss)
        if self.augmentation is not None:
            views_.check(self.augmentation, model.input_shape)
        std = self.clip_norm / batch_size
        query = self.query_noise(batch_size)
        # One example moves a centred count by 1/2.
        return Calibration((std,) * len(model.trainable_variables), std, None, None if query is None else 2.0 * query)

    def contributions(self, record, weight, state) -> tuple[list, list]:
        """Sums of the clipped gradients, one per trainable variable, and the numbers to release beside them.

        Args:
            record: `gradients.Record` of a chunk.
            weight: `(rows,)`, 1 for drawn rows and 0 for padding.
            state: Tensors, as in `initial_state`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement `contributions`.")

    def chunk(self, model, state, index, secret, data, trainable=None, non_trainable=None):
        x, y, weight = data
        shares = weight
        if self.views > 1 or self.augmentation is not None:
            x, y, shares = views_.repeat((x, y, weight / self.views), self.views)
            if self.augmentation is not None:
                x = self.augmentation(x, views_.key(secret, index))
        record = gradients.capture(
            model,
            x,
            y,
            weight,
            loss_values=lambda y_true, y_pred: losses.example_values(model.loss, y_true, y_pred),
            views=self.views,
            trainable=trainable,
            non_trainable=non_trainable,
        )
        sums, query = self.contributions(record, weight, state)
        values = ops.where(shares > 0, ops.stop_gradient(record.values) * shares, 0.0)
        loss = ops.sum(values) / model.run.settings.batch_size
        return (sums, query, loss), (x, y, record.y_pred, shares), record.non_trainable

    def get_config(self) -> dict:
        return {
            "clip_norm": self.clip_norm,
            "views": self.views,
            "augmentation": views_.serialize(self.augmentation),
        }


def total_norm(squared) -> object:
    """Norms `(batch,)` of whole gradients from squared norms per variable."""
    return ops.sqrt(ops.maximum(sum(squared[1:], squared[0]), 0.0))


def clip_factors(norms, clip_norm, weight):
    """`weight * min(1, clip_norm / norm)`, with a margin; 0 for padding and for gradients that are not finite."""
    return masked(MARGIN * clip_norm / ops.maximum(norms, MARGIN * clip_norm), norms, weight)


def masked(factors, norms, weight):
    """`weight * factors`, and 0 where a row is padding or its norm is not finite."""
    return ops.where(ops.logical_and(weight > 0, ops.isfinite(norms)), factors * weight, 0.0)


def layer_groups(model) -> list[list[int]]:
    """Indices of the trainable variables that belong to one layer, for each layer that has some."""
    variables = model.trainable_variables
    index = {id(v): i for i, v in enumerate(variables)}
    groups, seen = [], set()
    for layer in model._flatten_layers(include_self=True):
        group = [index[id(v)] for v in layer._trainable_variables if id(v) in index and id(v) not in seen]
        seen.update(id(v) for v in layer._trainable_variables)
        if group:
            groups.append(group)
    groups += [[i] for i, v in enumerate(variables) if id(v) not in seen]
    return groups


def refuse_random(model) -> None:
    """Dropout and its like draw by the place of a row, from a seed that Keras writes into every model file.

    One example more moves the rows behind it; with masks that are known, the sum would then move by more than
    one contribution.
    """
    for layer in model._flatten_layers():
        if not any(isinstance(s, keras.random.SeedGenerator) for s in getattr(layer, "_seed_generators", ())):
            continue
        if getattr(layer, "secret_seeds", False):
            continue
        rates = [getattr(layer, name, None) for name in ("rate", "dropout", "recurrent_dropout", "stddev")]
        rates = [rate for rate in rates if isinstance(rate, (int, float))]
        if not rates or any(rates):
            raise ValueError(
                f"Layer '{layer.name}' of type {type(layer).__name__} draws random numbers for each row from a seed "
                "that model files hold. Whoever knows the masks sees more than epsilon says. Set its rate to 0 or "
                "remove it; the noise regularises too. Random copies of examples: `views` with `augmentation`."
            )


def refuse_probabilities(model, loss) -> None:
    """lipdp's cross-entropies take logits; on probabilities they would train badly without a word."""
    last = model.layers[-1] if model.layers else None
    activation = getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())
    named = isinstance(loss, losses.Loss) and "Crossentropy" in type(loss).__name__
    if named and activation in ("softmax", "sigmoid", "log_softmax"):
        raise ValueError(
            f"lipdp.losses.{type(loss).__name__} takes logits. Received: model '{model.name}', which ends in "
            f"{activation}. Remove it, or give the loss as an object of keras.losses."
        )
