"""From the arguments of `fit` to what carries it out."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import checks, gradients, losses, sampling, strategies
from lipdp.accounting import schemes
from lipdp.bounds.propagate import disproportionate
from lipdp.callbacks import Checkpoint
from lipdp.sampling import persons
from lipdp.sampling.columns import sampled
from lipdp.sampling.datasets import batch_size_of
from lipdp.sampling.doubled import refuse_overlapping
from lipdp.sampling.pipelines import refuse_shuffled
from lipdp.sampling.weighted import with_weights_last
from lipdp.strategies.clipless import naming_both_ways
from lipdp.training import advice, inputs, model_checks, moments, validation
from lipdp.training.driver import Driver
from lipdp.training.importance import ImportanceDriver
from lipdp.training.preprocessing import preprocessed
from lipdp.training.request import FitRequest
from lipdp.training.resuming import AtItsEnd, Finished, resumed


def expected_batch_size(model: keras.Model, x: Any, person_ids: Any = None) -> int:
    """Returns the expected batch size where the user gives none: that of the batches of a dataset, else 256."""
    if person_ids is not None or not getattr(model, "inputs", None):
        return schemes.BATCH_SIZE
    return batch_size_of(x, inputs.rank_of_batch(model, x)) or schemes.BATCH_SIZE


def prepare(
    model: keras.Model,
    x: Any,
    y: Any,
    validation_split: float,
    validation_data: Any,
    request: FitRequest,
    checkpoint: Checkpoint | None = None,
    person_ids: Any = None,
    sample_weight: Any = None,
) -> Driver | Finished:
    """Returns what carries out a call of `fit`: everything is checked and planned, nothing is changed.

    Args:
        model: A compiled `DP_Model` or `DP_Sequential`.
        x, y, validation_split, validation_data: As in `DP_Model.fit`.
        request: The other arguments.
        checkpoint: What the call goes on from, if it does; what was lost after it is charged.
        person_ids, sample_weight: As in `DP_Model.fit`.
    """
    measured = validation.are_training_rows(x, validation_data)
    model_checks.check_model(model)
    model_checks.warn_of_adapted(model, x)
    model_checks.warn_of_frozen_additions(model)
    model_checks.warn_of_uncharged_moments(model)
    strategy = request.strategy
    if not strategy.per_example:
        model_checks.refuse_several_outputs(model)
    model_checks.refuse_averages(model, strategy)
    if person_ids is not None or sample_weight is not None or request.sampling.by_epoch:
        refuse_shuffled(x)
    if person_ids is None and request.sampling.group_size == 1:
        refuse_overlapping(validation.given(x, y))
    if isinstance(person_ids, str):
        persons.checked_ids(person_ids)  # before its column is found among the inputs
    x, y = preprocessed(model, x, y)
    if isinstance(validation_data, tuple) and model.preprocessor is not None:
        validation_data = (*preprocessed(model, *validation_data[:2]), *validation_data[2:])
    x, y = inputs.as_rows(model, x, y)
    inputs.build_within(model, x)
    num_rows = len(tree.flatten(y)[0])
    ids = None if person_ids is None else persons.checked_ids(person_ids, num_rows)
    y = _weighted(strategy, request, y, sample_weight)
    if not strategy.per_example:
        with naming_both_ways(model):
            losses.get(model.loss)  # the others have no Lipschitz constant; this says what to use instead
    labels = sampled(sampling.weight_and_labels(y)[1])
    losses.check_per_example(model.loss, labels, model_checks.output_shapes(model))
    if validation_split and validation_data is None and ids is not None:
        (x, y), validation_data, ids = persons.split(x, y, ids, validation_split)
    elif validation_split and validation_data is None:
        (x, y), validation_data = sampling.split(x, y, validation_split)
    else:
        validation_data = validation.check_data(model, validation_data)
    validation_data = with_weights_last(validation_data)
    if request.class_weight is not None:
        model_checks.check_class_weight(model, strategy, labels)
        advice.of_class_weight(model, strategy, dict(request.class_weight))
    strategy.check_fit(request, model.steps_per_execution)
    drawn = None if ids is None else _persons(model, ids, request)
    count = len(tree.flatten(y)[0]) if drawn is None else drawn.count
    request = request.bind(strategy.declared_examples(count), None if ids is None else persons.digest(ids))
    request, finished = resumed(model, request, x, y, checkpoint)
    if finished and checkpoint is not None:
        warnings.warn(
            "The checkpoint holds a finished run of this plan: nothing was trained. Received: "
            f"path={str(checkpoint.path)!r}, whose weights the model has now, whatever data, labels and learning rate "
            "`fit` was given. Pass another path to train anew.",
            stacklevel=checks.users_line(),
        )
    if finished:
        return Finished(model)
    model_checks.check_weights(model)
    calibration = strategy.calibrate(model, model.loss, request.sampling.batch_size)
    driver = ImportanceDriver if isinstance(strategy, strategies.DPIS) else Driver
    first = moments.pending(model, request, drawn)
    with first.planned(model.run):
        try:
            made = driver(model, request, calibration, x, y, validation_data, drawn, first, checkpoint)
        except AtItsEnd as end:
            if checkpoint is None or checkpoint.reserved is None:
                raise
            warnings.warn(str(end), stacklevel=checks.users_line())
            return Finished(model)
    made.measures_training_rows = measured
    return made


def _weighted(strategy: strategies.Strategy, request: FitRequest, y: Any, sample_weight: Any) -> Any:
    """Returns labels with the weights of their examples, where a dataset or the user gives some."""
    read, labels = sampling.weight_and_labels(y)
    if read is not None and sample_weight is not None:
        raise ValueError(
            "The dataset yields weights of its examples. Received: `sample_weight` as well. Leave one of them out."
        )
    if read is None and sample_weight is None:
        return y
    model_checks.check_sample_weight(strategy, request.class_weight)
    return y if sample_weight is None else sampling.with_weights(labels, sample_weight)


def _persons(model: keras.Model, ids: np.ndarray, request: FitRequest) -> persons.Persons:
    """Returns the persons of a request, and refuses what cannot draw them."""
    strategy = request.strategy
    # Where the number of rows decides about their rounding, that must not follow who has most of them.
    fixed = bool(gradients.of_one_size(model, strategy.full_precision))
    found = persons.Persons(ids, request.sampling.rows_per_person or 1, fixed)
    if not strategy.averages_persons:
        raise ValueError(
            f"The strategy {strategy.name!r} does not say that it averages the rows of a person before it clips. "
            "Received: person_ids. Use 'clipless', 'dpsgd', 'adaclip' or 'dpis', or set `averages_persons` where it "
            "does."
        )
    if request.sampling.batch_size > found.count:
        raise ValueError(
            "With `person_ids`, `batch_size` is the expected number of PERSONS in an update, so it must not be larger "
            f"than their number. Received: batch_size={request.sampling.batch_size}, {found.count} persons. Pass a "
            "smaller batch_size, or make the recipe with num_examples= the number of persons."
        )
    if not strategy.per_example and found.width > 1:
        _refuse_shares(model, found.width)
    return found


def _refuse_shares(model: keras.Model, rows: int) -> None:
    """Each row of a person counts a share, and what each may do must shrink by as much, or together they do more."""
    with naming_both_ways(model):
        variable = disproportionate(model, model.loss.lipschitz(model.output_shape[-1]), 1.0 / rows)
        if variable is not None:
            raise ValueError(
                f"The gradient bound of '{variable.path}' is not in proportion to the gradient at the logits, so the "
                "rows of a person, which count a share each, could move it further than one row. Received: person_ids "
                f"with up to {rows} rows a person. Remove ClipGradient, or pass rows_per_person=1."
            )
