"""What the recipes of classifiers share: how a run is made of settings."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import keras
import numpy as np

from lipdp import checks, gradients, losses, sampling, strategies
from lipdp.accounting import Mechanism, Sampling
from lipdp.accounting.held_out import held_out_persons
from lipdp.model import DP_Model, DP_Sequential
from lipdp.sampling import schemes
from lipdp.sampling.arrays import refuse_none
from lipdp.sampling.columns import by_name, columns_of, read
from lipdp.sampling.persons import checked_ids
from lipdp.sampling.pipelines import refuse_shuffled
from lipdp.sampling.source import is_source
from lipdp.sampling.weighted import with_weights_last
from lipdp.training.advice import chosen_rate
from lipdp.training.validation import computed_from

# Expected updates at epsilon 1, and the largest batch, of the recipes that normalize.
_UPDATES = 150.0
LARGEST_BATCH = 8192
# Strategies that clip, for networks of any layers.
METHODS = ("dpsgd", "adaclip", "dpis")
_ROUNDING = 1e-3  # of pixels


class TrainingRecipe:
    """Base of the recipes of classifiers, frozen dataclasses with at least these fields.

    A recipe whose first layers are fixed trains the rest on their outputs, which `prepare` computes once: `trained`
    builds that part, and `whole` puts the fixed layers in front of it again; `part` takes them off.
    """

    # Whether each layer that trains bounds its gradient, as clipless training needs it.
    bounded = True
    # Whether "dpsgd" clips automatically: its learning rate then does not hang on the clip norm.
    automatic = False
    # Rows in memory at once, unless `fit` is told; None for what it takes by default.
    microbatch_size: int | None = None

    input_shape: tuple[int, ...]
    batch_size: int
    epochs: int
    learning_rate: float
    method: str
    clip_norm: float

    def updates(self, num_examples: int) -> int:
        """Returns the number of updates on `num_examples` examples or persons, as `fit` counts them."""
        return self.epochs * math.ceil(num_examples / self.batch_size)

    def strategy(self) -> strategies.Strategy:
        """Returns the strategy for `fit`."""
        if self.method == "dpsgd" and self.automatic:
            return strategies.DPSGD(clip_norm=self.clip_norm, clipping="automatic")
        named: dict[str, Any] = {"dpsgd": strategies.DPSGD, "adaclip": strategies.AdaCliP, "dpis": strategies.DPIS}
        return named[self.method](clip_norm=self.clip_norm)

    def build(self, num_examples: int) -> DP_Model | DP_Sequential:
        """Returns the compiled model."""
        raise NotImplementedError

    def trained(self, num_examples: int) -> DP_Model | DP_Sequential:
        """Returns the compiled model that `fit` trains: all of it, or what comes behind the fixed layers."""
        return self.build(num_examples)

    def prepare(self, x: Any, verbose: str | int = "auto") -> Any:
        """Returns what `trained` takes in place of rows, with a progress bar where that takes long."""
        return x

    def whole(self, model: Any) -> DP_Model | DP_Sequential:
        """Returns the model that takes rows, with the weights and the ledger of what was trained."""
        return model

    def part(self, model: Any, num_examples: int) -> DP_Model | DP_Sequential:
        """Returns the part of a model that `fit` trains, compiled anew, with the model's weights and ledger."""
        fresh = self.build(num_examples)
        if not isinstance(model, DP_Model | DP_Sequential) or not self._is_alike(model, fresh):
            raise ValueError(
                "A recipe goes on with a model of its own. Received: `model` with other layers than this recipe makes. "
                "Pass the model that `fit` of these settings has returned, loaded or not; `model.fit` trains others."
            )
        model.compile_from_config(fresh.get_compile_config())
        return model

    def _is_alike(self, model: Any, fresh: Any) -> bool:
        return list(map(_kind, model.layers)) == list(map(_kind, fresh.layers))

    def first_releases(self, sampling: Sampling) -> tuple[Mechanism, ...]:
        """Returns the cost of what `fit` releases before the first update, for data that are sampled like this."""
        return ()

    def rate(self, num_examples: int) -> keras.optimizers.schedules.LearningRateSchedule:
        """Returns the schedule of the learning rate, which falls linearly to zero."""
        return keras.optimizers.schedules.PolynomialDecay(
            self.learning_rate, self.updates(num_examples), end_learning_rate=0.0
        )

    def fit(
        self, x: Any, y: Any = None, *, epsilon: float | None = None, model: Any = None, **kwargs: Any
    ) -> DP_Model | DP_Sequential:
        """Builds a model, or takes one, and trains it with the settings of this recipe.

        Callbacks see the model that `trained` builds, and files that they write hold that one. With `person_ids` the
        schedule of the learning rate counts persons: how many rows they have is in no file.

        Args:
            x: training examples, `(N, *input_shape)`: images in [0, 1], rows of a table, or tokens of texts; or
                whatever else `DP_Model.fit` takes. Where the first layers are fixed, their outputs for all rows are
                held in memory.
            y: their class ids, `(N,)`; None where x yields both.
            epsilon: the privacy budget; with `model`, in total.
            model: what an earlier `fit` of these settings has returned, or a file of it loaded, to go on with: weights
                and ledger are kept, the schedule of the learning rate begins again. It is trained in place. Default:
                a new model.
            **kwargs: everything else that `DP_Model.fit` takes, such as `delta` and `validation_data`.

        Returns:
            The trained model, which takes examples like `x`; its history is `model.history`.

        Raises:
            TypeError: an argument that the recipe sets.
            ValueError: a model that is not of this recipe, fewer examples than its batch size, or see `DP_Model.fit`.
        """
        own = {"batch_size": self.batch_size, "epochs": self.epochs, "strategy": self.strategy()}
        checks.not_twice(own, kwargs)
        verbose, known = 0 if kwargs.get("verbose", "auto") == 0 else "auto", {}

        def prepare(rows: Any) -> Any:
            # What is both, training and validation data, is computed once.
            if id(rows) not in known:
                known[id(rows)] = rows, self.prepare(rows, verbose)
            return known[id(rows)][1]

        held_out = kwargs.get("validation_data")
        given = x, held_out
        if isinstance(held_out, tuple | list):
            kwargs["validation_data"] = (prepare(held_out[0]), *held_out[1:])
        elif held_out is not None and self.fixes_layers:
            held_out, labels = self._rows(held_out, None)
            kwargs["validation_data"] = with_weights_last((prepare(held_out), labels))
        by_place = any(kwargs.get(name) is not None for name in ("person_ids", "sample_weight"))
        if by_place or schemes.get(kwargs.get("sampling", "poisson")).by_epoch:
            refuse_shuffled(x)
        x, y = self._rows(x, y)
        weight, y = sampling.weight_and_labels(y)
        if weight is not None:
            checks.not_twice({"sample_weight": weight}, kwargs)
            kwargs["sample_weight"] = weight
        self._warn_of_range(x)
        count = _count(x, kwargs)
        if self.batch_size > count:
            raise ValueError(
                f"The recipe was made for more examples. Received: batch_size={self.batch_size} of the recipe, for "
                f"{count} examples or persons. Pass num_examples={count} to lipdp.recipe."
            )
        part = self.trained(count) if model is None else self.part(model, count)
        if kwargs.get("microbatch_size") is None:
            kwargs["microbatch_size"] = self.microbatch(part)
        try:
            with computed_from(*given), chosen_rate():
                history = part.fit(prepare(x), y, epsilon=epsilon, **own, **kwargs)
        finally:
            if model is not None and part is not model:
                share_run(part, model)
        whole = self.whole(part) if model is None or part is model else model
        whole.history = history
        return whole

    def microbatch(self, model: Any) -> int | None:
        """Returns `microbatch_size` for `fit` of a model of this recipe; None where a CPU is faster with fewer."""
        return gradients.at_most(model, self.microbatch_size, self.strategy().augmentation_multiplicity)

    def _warn_of_range(self, x: Any) -> None:
        """Says that images are in another unit than the settings were chosen in."""
        dtype = str(getattr(x, "dtype", ""))
        if len(self.input_shape) != 3:
            return
        whole = dtype.startswith(("int", "uint"))
        # A file that is larger than memory is not read for this.
        beyond = type(x) is np.ndarray and x.size and (x.min() < -_ROUNDING or x.max() > 1.0 + _ROUNDING)
        if whole or beyond:
            received = f"x of dtype {dtype}" if whole else "entries beyond"
            warnings.warn(
                f"The settings of this recipe are for images in [0, 1]. Received: {received}. Divide images of "
                "8 bits by 255, here and wherever the model is used.",
                stacklevel=checks.users_line(),
            )

    @property
    def fixes_layers(self) -> bool:
        """Returns whether the first layers are fixed, so that `prepare` computes their outputs for all rows."""
        return type(self).prepare is not TrainingRecipe.prepare

    def _rows(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Returns rows whose `len` is their number, and their labels.

        Datasets are read into memory, as `fit` of a model does. Sources are read there row by row, but fixed layers
        need all rows at once, and the labels apart from them.
        """
        refuse_none(x)
        dataset = isinstance(x, keras.utils.PyDataset) or hasattr(x, "as_numpy_iterator")
        apart = y is not None and not isinstance(y, str) and not is_source(y)
        x, y = by_name(x, y)
        if not dataset and (apart or not self.fixes_layers):
            return x, y
        x, y = sampling.as_rows(x, y, 1 + len(self.input_shape))
        return read((x, y), np.arange(len(y))) if columns_of((x, y)) else (x, y)


def share_run(of: Any, model: Any) -> None:
    """Gives `model` what another one that holds its weights has released, and will: as if loaded from its file."""
    model.run.restore(of.run.to_array())
    model.run.ledger = of.run.ledger


def _kind(layer: keras.Layer) -> tuple:
    return type(layer), [tuple(weight.shape) for weight in layer.weights]


def _count(x: Any, options: dict[str, Any]) -> int:
    """Returns how many examples, or persons, `fit` draws from; with persons the number of rows is private."""
    if options.get("person_ids") is None:
        return x.shape[0] if hasattr(x, "shape") else len(x)  # arrays of zarr have no length
    ids = checked_ids(options["person_ids"])
    fraction = options.get("validation_split") or 0.0
    if options.get("validation_data") is None and 0.0 < fraction < 1.0:
        ids = ids[~held_out_persons(ids, fraction)]
    return max(len(np.unique(ids)), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalizedRecipe(TrainingRecipe):
    """Base of the recipes of plain networks behind `layers.PrivateNormalization`, with the settings that they share."""

    bounded = False

    input_shape: tuple[int, ...]
    num_classes: int
    batch_size: int
    epochs: int
    moments_noise: float = 8.0
    learning_rate: float = 1.0
    momentum: float = 0.9
    method: str = "dpsgd"
    clip_norm: float = 1.0

    @staticmethod
    def by_budget(
        num_examples: int, epsilon: float | None, batch_size: int, longer: float = 1.0
    ) -> tuple[float, dict[str, Any]]:
        """Returns the budget that settings go by, within bounds, and the settings that all of these recipes share.

        Args:
            num_examples: number of training examples.
            epsilon: the budget, or None.
            batch_size: expected batch size.
            longer: factor of the usual number of updates.
        """
        epsilon = checks.positive("epsilon", epsilon, optional=True) or 1.0
        budget = min(max(epsilon, 0.25), 8.0)
        return budget, {
            "batch_size": batch_size,
            "epochs": max(2, round(longer * _UPDATES * budget**0.4 / math.ceil(num_examples / batch_size))),
            # Two releases take as large a part of a small budget as of a large one.
            "moments_noise": max(8.0, 24.0 / epsilon),
        }

    @property
    def num_releases(self) -> int:
        """How many queries come before the first update."""
        return 2

    def first_releases(self, sampling: Sampling) -> tuple[Mechanism, ...]:
        whole = Sampling("poisson", relation=sampling.relation).bind(sampling.num_examples, sampling.num_examples)
        group = whole.for_group(sampling.group_size)
        return (Mechanism.of_updates(None, self.moments_noise, self.num_releases, group),)

    def _compiled(self, model: Any, num_examples: int) -> Any:
        model.compile(
            keras.optimizers.SGD(self.rate(num_examples), momentum=self.momentum),
            loss=self._loss(model),
            metrics=self._metrics(),
        )
        return model

    def _metrics(self) -> list[str]:
        return ["accuracy"]

    def _loss(self, model: Any) -> losses.Loss:
        return losses.SparseCategoricalCrossentropy()
