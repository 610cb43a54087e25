"""What `compile` makes of losses and metrics, for one output and for several."""

import contextlib
import difflib
import inspect
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops, tree

from lipdp import _keras, certify, checks, gradients, losses
from lipdp.bounds import registry
from lipdp.training.callbacks import as_list, refuse_public_names

_PROBABILITIES = ("softmax", "sigmoid")
_OF_LOGITS = (losses.BinaryCrossentropy, losses.CategoricalCrossentropy, losses.SparseCategoricalCrossentropy)
_CROSSENTROPIES = {
    kind.__name__.lower(): kind
    for kind in (
        keras.metrics.BinaryCrossentropy,
        keras.metrics.CategoricalCrossentropy,
        keras.metrics.SparseCategoricalCrossentropy,
    )
}
_SHORT = ("acc", "accuracy", "ce", "crossentropy")  # of metrics, which Keras chooses by the shapes


def compiled_loss(model: keras.Model, loss: Any, loss_weights: Any) -> Any:
    """Returns the loss that a model trains with: one, or `losses.OutputLosses` where it has several outputs.

    Args:
        model: The model.
        loss: As in Keras: one loss for all outputs, or a list, tuple or dictionary of one for each.
        loss_weights: Their factors, in the same form; None for 1.

    Raises:
        ValueError: an unknown loss, no output with one, weights that none reaches, `loss_weights` for one output.
    """
    if loss is None:
        return None
    names, activations = output_names(model), losses.endings(model)
    ready = isinstance(loss, losses.OutputLosses)  # from a file
    if len(names) == 1 and not ready:
        if loss_weights is not None:
            raise ValueError(
                "`loss_weights` are for models with several outputs, and this model has one. Received: "
                f"loss_weights={loss_weights!r}. Leave it out; what scales one loss is its temperature, or the "
                "learning rate."
            )
        given = _per_output("loss", loss, names) if _by_name(loss) or isinstance(loss, (list, tuple)) else [loss]
    elif ready and loss.names == names and loss_weights is None:
        return loss
    elif ready:  # of a file that calls the outputs otherwise
        given, loss_weights = _per_output("loss", loss.losses, names), loss_weights or loss.weights
    else:
        given = _per_output("loss", loss, names, optional=True)
        _refuse_unreached(model, given, names)
    graph, found = _keras.graph(model), []
    for i, one in enumerate(given):
        if one is None or isinstance(one, losses.Untrained):
            found.append(losses.Untrained())
            continue
        probabilities = bool(activations) and activations[i] in _PROBABILITIES
        if graph is not None and len(graph.outputs[i].shape) > 2:
            one = losses.of_places(one, probabilities)
        elif one in ("cosine_similarity", "CosineSimilarity") and not registry.lipschitz_by_construction(model):
            one = keras.losses.CosineSimilarity()  # lipdp's is another function where outputs are short
        found.append(losses.resolve(one, probabilities))
    if len(names) == 1 and not ready:
        return found[0]
    weights = None
    if loss_weights is not None:
        weights = _per_output("loss_weights", loss_weights, names, optional=True)
        for i, one in enumerate(found):  # what trains nothing has no weight
            weights[i] = 1.0 if weights[i] is None and isinstance(one, losses.Untrained) else weights[i]
        weights = _per_output("loss_weights", weights, names)
    return losses.OutputLosses(found, weights, names)


def _refuse_unreached(model, given, names) -> None:
    """Refuses weights that no loss reaches: Keras would leave them as they are, and noise would move them."""
    trained = [tensor for tensor, one in zip(model.outputs, given, strict=True) if one is not None]
    if not trained:
        raise ValueError(
            f"Some output needs a loss. Received: None for each of {names}. Pass one for what is to train."
        )
    if len(trained) == len(given):
        return
    reached = {id(v) for v in keras.Model(model.inputs, trained).variables}
    beyond = [v.path for v in model.trainable_variables if id(v) not in reached]
    if beyond:
        raise ValueError(
            "Weights that no loss reaches would get noise and nothing else. Received: no loss for "
            f"{[name for name, one in zip(names, given, strict=True) if one is None]}, and {', '.join(beyond)}. Freeze "
            "these layers (`trainable = False`), or leave the output out: keras.Model(inputs, outputs) shares layers."
        )


def compiled_metrics(model: keras.Model, argument: str, given: Any, loss: Any) -> Any:
    """Returns metrics as one list, or for several outputs one for each, in a form that Keras takes."""
    names = output_names(model)
    if len(names) == 1:
        return _for_logits(_of_one(argument, given, names), loss, model, 0)
    found = [as_list(some) for some in _per_output(argument, given, names, optional=True)] if given else []
    if not any(found):
        return []
    if isinstance(loss, losses.OutputLosses):
        found = [_for_logits(some, one, model, i) for i, (some, one) in enumerate(zip(found, loss.losses, strict=True))]
    outputs = _keras.structures(_keras.graph(model))[1]
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    if any(isinstance(part, (dict, list, tuple)) for part in parts):
        return _keras.packed_as_outputs(model, found)
    return dict(zip(names, found, strict=True)) if isinstance(outputs, dict) else found


def _for_logits(metrics: list, loss: Any, model: keras.Model, output: int) -> list:
    """Returns metrics that are given by name as those of logits, where the loss takes these.

    The accuracy of one logit splits the classes at 0, where Keras' splits them at 0.5; cross-entropies, and `AUC` of
    one logit, would take logits for probabilities.

    Raises:
        ValueError: a certified accuracy, which splits them at 0 too, of one output that is never negative, or of a
            model that computes in less than float32.
    """
    certified = any(isinstance(metric, certify.CertifiedAccuracy) for metric in metrics)
    if certified and getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            "A radius is in units of the rows that the layers of a model take. Received: CertifiedAccuracy for model "
            f"'{model.name}', whose preprocessor changes rows first. Leave that out, and certify "
            "keras.Model(model.inputs, model.outputs) on rows that went through the preprocessor."
        )
    if certified and gradients.of_one_size(model, full_precision=True):
        raise ValueError(
            "Certificates are about float32: rounding to less moves outputs further than a radius lets them. Received: "
            f"CertifiedAccuracy for model '{model.name}', which computes in bfloat16 or float16. Leave the metric out, "
            "or build all layers in float32."
        )
    if certified and _keras.graph(model) is not None and model.outputs[output].shape[-1] == 1:
        certify.refuse_end(model.name, losses.endings(model)[output])
    logits = isinstance(loss, _OF_LOGITS) or getattr(loss, "from_logits", False)
    if _keras.graph(model) is None or not logits:
        return metrics
    single = model.outputs[output].shape[-1] == 1
    return [_of_logits(metric, single) if isinstance(metric, str) else metric for metric in metrics]


def _of_logits(name: str, single: bool) -> Any:
    """Returns the metric of this name for logits, or the name where it is the same."""
    if single and name in ("acc", "accuracy", "binary_accuracy"):
        return keras.metrics.BinaryAccuracy(name=name, threshold=0.0)
    kind = _CROSSENTROPIES.get(name.replace("_", "").lower())
    if single and name == "AUC":
        kind = keras.metrics.AUC
    return name if kind is None else kind(name=name, from_logits=True)


def _names_metric(name: str) -> bool:
    try:
        return name in _SHORT or callable(keras.metrics.get(name))
    except (TypeError, ValueError):  # of classes that need arguments, and of what is none
        return False


def check_compile(metrics: Any, others: dict) -> None:
    """Refuses what `compile` was given and Keras would refuse late or without a cure."""
    known = [name for name in inspect.signature(keras.Model.compile).parameters if name not in ("self", "loss_weights")]
    for name in others:
        if name not in known:
            raise checks.unexpected("compile", name, known)
    hint = "Leave it out, or pass a number that divides the updates of an epoch."
    checks.integer("steps_per_execution", others.get("steps_per_execution", 1), 1, hint=hint)
    for metric in tree.flatten(metrics):
        refused = not (metric is None or callable(metric) or isinstance(metric, (str, dict, list, tuple)))
        if refused or isinstance(metric, str) and not _names_metric(metric):
            names = [name for name in (*_SHORT, *vars(keras.metrics)) if _names_metric(name)]
            close = difflib.get_close_matches(str(metric), names, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            known = vars(keras.metrics).get(str(metric))
            if callable(known):  # such as huber, a function, and PrecisionAtRecall, which needs arguments
                hint = (
                    f" Keras does not find it by name: pass keras.metrics.{metric}{'(...)' * isinstance(known, type)}."
                )
            raise ValueError(
                f"`metrics` must be metrics of Keras, as objects or by name. Received: {metric!r}.{hint} Pass for "
                "example metrics=['accuracy']."
            )
        # What outputs and results add to these `fit` looks at.
        refuse_public_names([str(getattr(metric, "name", getattr(metric, "__name__", "")))])


def loss_trackers(loss: Any) -> tuple[keras.metrics.Mean, ...]:
    """Returns what keeps the mean loss of each output, named as Keras names it; nothing for one output."""
    several = zip(loss.names, loss.losses, strict=True) if isinstance(loss, losses.OutputLosses) else ()
    return tuple(keras.metrics.Mean(name=f"{n}_loss") for n, one in several if not isinstance(one, losses.Untrained))


def track(
    trackers: tuple[keras.metrics.Mean, ...], loss: Any, y: Any, y_pred: Any, sample_weight: Any, shares: Any = None
) -> None:
    """Adds the losses of a batch to their means, as in Keras without `loss_weights`.

    Args:
        trackers: what `loss_trackers` has returned.
        loss, y, y_pred: of a batch.
        sample_weight: factors of the losses of its rows; None for 1.
        shares: how much of each row is there; default: all, but for those behind the data.
    """
    if trackers:
        trained = [not isinstance(one, losses.Untrained) for one in losses.parts(loss)]
        kept = (itertools.compress(each, trained) for each in _values(loss, y, y_pred, sample_weight))
        for tracker, values, weight in zip(trackers, *kept, strict=True):
            weighted, there = _weighted(values, weight)
            tracker.update_state(weighted, there if shares is None else shares)


@contextlib.contextmanager
def whole_weights() -> Iterator[None]:
    """Inside, Keras does not warn that a metric of whole numbers, such as IoU, rounds weights: they are 0 or 1."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are passing weight as `float`")
        yield


def own_metrics(model: keras.Model) -> bool:
    """Whether some metric of `compile` is a function, or of a class, that is not of Keras."""
    given = _keras.given_metrics(model)
    kinds = [type(m) if isinstance(m, keras.metrics.Metric) else m for m in given if callable(m)]
    return any(not getattr(kind, "__module__", "").startswith("keras.") for kind in kinds)


def in_data(sample_weight: Any) -> Any:
    """Returns 1 for each row, or part of a nest of rows, but those of weight -0, which stand behind the data."""
    return None if sample_weight is None else tree.map_structure(_there, sample_weight)


def add_to_metrics(model: keras.Model, y: Any, y_pred: Any, there: Any, weights: Any) -> None:
    """Adds a batch to the metrics of `compile`.

    Args:
        model, y, y_pred: of a batch.
        there: how much of each row is there, for `metrics`; None for all of them.
        weights: that times the user's weights, for `weighted_metrics`.
    """
    if not any(metric is not None for metric in _keras.given_metrics(model)):
        return
    if any(isinstance(one, losses.Untrained) for one in losses.parts(model.loss)):
        nests = [
            nest if nest is None or ops.is_tensor(nest) else model.loss.labels(nest) for nest in (y, there, weights)
        ]
        y, there, weights = (_keras.packed_as_outputs(model, n) if isinstance(n, list) else n for n in nests)
    labels, there = by_place(y, y_pred, there, model)
    with whole_weights():
        _keras.add_to_metrics(model, False, labels, y_pred, there)
    labels, weights = by_place(y, y_pred, weights, model)
    _keras.add_to_metrics(model, True, labels, y_pred, weights)


def by_place(y: Any, y_pred: Any, sample_weight: Any, model: keras.Model) -> tuple[Any, Any]:
    """Returns labels and weights of rows as metrics of Keras take them, for outputs of several places.

    Keras multiplies weights of an output with a mask as they are, which only goes where they have the same axes, and
    its metrics that count places, such as IoU, take no others; AUC and its like need all axes of the output in the
    labels, too. Metrics of the user's own get weights of rows.
    """
    outputs = tree.flatten(y_pred)
    masks = [_keras.mask(output) for output in outputs]
    counted = any(len(output.shape) > 2 for output in outputs) and not own_metrics(model)
    if sample_weight is None or not counted and all(mask is None for mask in masks):
        return y, sample_weight
    weights = tree.flatten(sample_weight)
    if len(weights) != len(outputs):
        weights = weights[:1] * len(outputs)
    elif len(weights) > 1:
        tree.assert_same_structure(sample_weight, y_pred)

    def of_places(weight, mask, output):
        weight = ops.convert_to_tensor(weight)
        if mask is None and (not counted or len(output.shape) < 3):
            return weight
        shape = (*ops.shape(output)[:-1], 1) if mask is None else ops.shape(mask)
        added = [1] * (len(shape) - len(weight.shape))
        return ops.broadcast_to(ops.reshape(weight, (*ops.shape(weight), *added)), shape) if added else weight

    def whole(label, mask, output):
        short = counted and mask is None and len(output.shape) > 2 and output.shape[-1] == 1
        return ops.expand_dims(label, -1) if short and len(ops.shape(label)) == len(output.shape) - 1 else label

    labels = tree.flatten(y)
    if len(labels) == len(outputs):
        y = tree.pack_sequence_as(y, [whole(*each) for each in zip(labels, masks, outputs, strict=True)])
    found = [of_places(*each) for each in zip(weights, masks, outputs, strict=True)]
    return y, tree.pack_sequence_as(y_pred, found)


def weighted_mean(loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Returns the loss of a batch outside of training: as in Keras, weights are factors, and do not divide.

    Keras has weights of examples for each output.
    """
    factors = loss.weights if isinstance(loss, losses.OutputLosses) else [1.0]
    total = 0.0
    for factor, values, weight in zip(factors, *_values(loss, y, y_pred, sample_weight), strict=True):
        weighted, there = _weighted(values, weight)
        total = total + factor * ops.sum(weighted) / ops.maximum(ops.sum(there), 1.0)
    return total


def _weighted(values, weight) -> tuple[Any, Any]:
    """Returns losses times their weights, and 1 for each row but those of weight -0, which stand behind the data."""
    if weight is None:
        return values, ops.ones_like(values)
    weight = ops.cast(ops.reshape(weight, ops.shape(values)), values.dtype)
    return values * weight, _there(weight)


def _there(weight) -> Any:
    """Returns 1 where a row is, and 0 for weight -0."""
    weight = ops.convert_to_tensor(weight)
    weight = ops.cast(weight, keras.backend.result_type(weight.dtype, float))
    return ops.cast(ops.logical_not(ops.equal(1.0 / weight, -math.inf)), weight.dtype)


def _values(loss, y, y_pred, sample_weight) -> tuple[list, list]:
    """Returns the losses of the examples, and their weights, for each output."""
    if not isinstance(loss, losses.OutputLosses):
        return [losses.example_values(loss, y, y_pred)], [sample_weight]
    several = isinstance(sample_weight, (dict, list, tuple))
    weights = loss.labels(sample_weight) if several else [sample_weight] * len(loss.names)
    return loss.values(y, y_pred), weights


def output_names(model: keras.Model) -> list[str]:
    """Returns the names of a model's outputs; one that is not built yet has one."""
    return [model.name] if _keras.graph(model) is None else _keras.output_names(model)


def _by_name(given: Any) -> bool:
    return isinstance(given, dict) and not {"class_name", "config"} <= set(given)


def _of_one(argument: str, metrics: Any, names: list[str]) -> list:
    """Returns the metrics of a model's one output; Keras takes them by its name, and as a list in a list, too."""
    if _by_name(metrics):
        metrics = _per_output(argument, metrics, names, optional=True)
    found = as_list(metrics)
    return as_list(found[0]) if len(found) == 1 and isinstance(found[0], (list, tuple)) else found


def _per_output(argument: str, given: Any, names: list[str], optional: bool = False) -> list:
    """Returns what was given for each output, from one for all, a list in their order or a dictionary by name."""
    if _by_name(given):
        given = _by_path(given)
        unknown, missing = set(given) - set(names), set(names) - set(given)
        if unknown or (missing and not optional):
            raise ValueError(_wrong(argument, given, names))
        found = [given.get(name) for name in names]
    elif isinstance(given, (list, tuple)):
        if len(given) != len(names):
            raise ValueError(_wrong(argument, given, names))
        found = list(given)
    elif argument == "loss":
        found = [given] * len(names)
    else:
        raise ValueError(_wrong(argument, given, names))
    if not optional and any(one is None for one in found):
        raise ValueError(_wrong(argument, given, names))
    return found


def _by_path(given: dict, path: tuple = ()) -> dict:
    """Returns a dictionary of dictionaries as one, with paths as keys."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        inside = _by_path(value, (*path, key)) if _by_name(value) else {"/".join(map(str, (*path, key))): value}
        found |= inside
    return found


def _wrong(argument: str, given: Any, names: list[str]) -> str:
    received = f"a {type(given).__name__}"
    if isinstance(given, dict):
        received = f"a dict of {sorted(map(str, given))}"
    elif isinstance(given, (list, tuple)):
        received += f" of {len(given)}{', with None' if None in given else ''}"
    todo = "Pass a list in this order, or a dictionary with these keys"
    if len(names) == 1:
        todo = "The model has one output: pass what it has alone"
    elif argument == "loss":
        todo += "; None for an output that is not to be trained"
    return f"`{argument}` must have one for each output: {', '.join(map(repr, names))}. Received: {received}. {todo}."
