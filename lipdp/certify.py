"""Robustness certificates from the certified norms of the trained weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops, tree
from numpy.typing import ArrayLike

from lipdp import _keras, backend, bounds, checks, isolation
from lipdp.bounds.propagate import functional, refuse_rounded
from lipdp.bounds.rounding import LOGIT_SLACK, rounded, scales_of
from lipdp.bounds.settings import settings
from lipdp.bounds.stock import values_between
from lipdp.layers import Bias, SpectralDense

__all__ = ["CertifiedAccuracy", "certified_accuracy", "lipschitz", "radii"]

# Margin by which the metric, which sees neither the model nor its inputs, stays below `certified_accuracy`.
_METRIC_SLACK = 2e-3
# Where a model keeps which program predicts, and under which settings of its layers that was compiled.
_COMPILED = "_lipdp_certified"
# These do nothing outside of training.
_IN_TRAINING = (
    *(keras.layers.Dropout, keras.layers.SpatialDropout1D, keras.layers.SpatialDropout2D),
    *(keras.layers.SpatialDropout3D, keras.layers.AlphaDropout, keras.layers.GaussianDropout),
    keras.layers.GaussianNoise,
    # A crop crops predictions, too.
    *(layer for name, layer in vars(keras.layers).items() if name.startswith("Random") and name != "RandomCrop"),
)
# Activations, or layers, behind which no number is negative.
_NEVER_NEGATIVE = ("sigmoid", "hard_sigmoid", "softplus", "relu", "relu6", "abs", "absolute")


def lipschitz(model: keras.Model) -> float:
    """Returns a Lipschitz constant of the model from its input to its outputs, for the present weights, in L2 norm.

    Args:
        model: A Sequential or functional model of layers with bounds.

    Raises:
        ValueError: a layer without bounds or without a Lipschitz constant, or inputs in another type than float32, in
            which numbers are rounded before the first layer.

    **Guarantee.** The product (or sum, at branches) of certified upper bounds on each layer's norm, computed in
    float64; never an estimate from below.

    Example:
        >>> import keras
        >>> from lipdp import certify, layers
        >>> model = keras.Sequential([keras.Input((4,)), layers.SpectralDense(3)])
        >>> round(certify.lipschitz(model), 3)
        1.0
    """
    try:
        bounded = bounds.propagate(model, 1.0, trained=True)
    except ValueError as error:
        _name_training_only(model, error)
        raise
    constant = bounded.lipschitz * bounded.slack
    if not constant < math.inf:
        raise ValueError(
            f"Model '{model.name}' holds a layer without a Lipschitz constant, such as "
            "BoundedInput(mode='normalize') or an embedding of tokens. Certificates need BoundedInput(mode='clip')."
        )
    refuse_rounded(functional(model))
    return constant


def _name_training_only(model, error: ValueError) -> None:
    """Says of a layer that predictions leave out that they would be certified without it."""
    layers = _keras.walk(model) if isinstance(model, keras.Model) else ()
    found = {layer.name: type(layer).__name__ for layer in layers if type(layer) in _IN_TRAINING}
    # The rules of other layers speak of training.
    if any(f"Layer '{name}'" in str(error) for name in found):
        named = ", ".join(f"'{name}', a {kind}" for name, kind in found.items())
        raise ValueError(
            f"Certificates know no layer that acts in training only. Received: {named}, in model '{model.name}'. "
            "Rebuild the model of its other layers, which bring weights and ledger along: if it is Sequential, "
            "keras.Sequential([keras.Input(shape), *(each for each in model.layers if each.name not in "
            f"{list(found)})]). Predictions are the same."
        ) from error


def radii(model: keras.Model, x: ArrayLike, batch_size: int = 1024) -> np.ndarray:
    """Returns the L2 radius around each example inside which the predicted class cannot change.

    Args:
        model: A Sequential or functional model of layers with bounds; its outputs are logits of shape
            `(batch, classes)`, or `(batch, 1)` for two classes split at zero.
        x: Array of examples, or one array per input. Radii are in the norm of these inputs.
        batch_size: Examples per forward pass.

    Returns:
        Array of shape `(len(x),)`, float64, >= 0; 0 where the logits are not finite.

    Raises:
        ValueError: see `lipschitz`; the outputs are not of shape `(batch, classes)`; there is one, behind an activation
            that is never negative, such as a sigmoid; or Keras' floatx, to which it rounds `x`, is below float32.

    **Guarantee.** Between classes i and j the difference of logits is K_ij-Lipschitz: `K_ij = ||w_i - w_j|| L'` when
    the model ends in a dense kernel w behind an L'-Lipschitz body, else `sqrt(2) L`. The radius is `min_j (f_i - f_j)
    / K_ij` for the predicted i (Tsuzuku et al. 2018), with the margin reduced by the float32 error of the logits. That
    is taken to be 1e-5 of the largest norm that any layer adds up, times the Lipschitz constant from there to the
    logits: that of the point itself where a layer computes in front of the first `BoundedInput`, or there is none. A
    layer whose outputs add up n terms one after the other (the places of an average, a quarter of the inputs of a dense
    layer) is charged n 2^-24 instead, and many layers the sum of these, where that is more. Not covered: inputs changed
    before they reach the model (cropping, quantization); points so far away, 1e18 and beyond on the way through the
    layers, that float32 overflows.

    Example:
        >>> import keras, numpy as np
        >>> from lipdp import certify, layers
        >>> model = keras.Sequential([keras.Input((4,)), layers.SpectralDense(3)])
        >>> certify.radii(model, np.zeros((2, 4), "float32")).tolist()
        [0.0, 0.0]
    """
    x = _inputs(model, x)
    return _radii(model, x, _logits(model, x, batch_size))


def certified_accuracy(
    model: keras.Model,
    x: ArrayLike,
    y: ArrayLike,
    at: float | Sequence[float] = (0.1, 0.5, 1.0),
    batch_size: int = 1024,
) -> dict[float, float]:
    """Returns the fraction of examples that are classified correctly at every point within each radius.

    Args:
        model, x, batch_size: As in `radii`.
        y: Class indices `(N,)`, one-hot rows `(N, classes)`, or 0/1 for a model with one output.
        at: Radii, or one of them, >= 0, in the input's L2 norm. Radius 0 is plain accuracy.

    Returns:
        A dictionary from radius to fraction. Of private examples it is a release, which nothing charges.

    Example:
        >>> import keras, numpy as np
        >>> from lipdp import certify, layers
        >>> model = keras.Sequential([keras.Input((2,)), layers.SpectralDense(2, "identity")])
        >>> certify.certified_accuracy(model, np.eye(2, dtype="float32"), [0, 1], at=(0.1, 9.0))
        {0.1: 1.0, 9.0: 0.0}
    """
    radii_asked = [checks.not_negative("at", r) for r in np.ravel(at).tolist()]
    x = _inputs(model, x)
    logits = _logits(model, x, batch_size)
    radii = _radii(model, x, logits)
    y = _labels(y, logits.shape[1])
    if len(y) != len(logits):
        raise ValueError(f"Inputs and labels must have the same length. Received: {len(logits)} and {len(y)}.")
    if logits.shape[1] == 1:
        correct = (logits[:, 0] > 0) == (y.reshape(len(y)) > 0.5)
    else:
        correct = logits.argmax(1) == (y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(len(y)))
    return {float(r): float(np.mean(correct & ((radii > r) | (r == 0)))) for r in radii_asked}


def _inputs(model, x) -> Any:
    """Returns examples as arrays, in the nest that the model takes; refuses what it cannot take."""
    functional(model)
    expected = [tuple(t.shape) for t in tree.flatten(model.inputs)]
    if len(expected) == 1 and isinstance(x, (list, tuple)) and not any(hasattr(part, "shape") for part in x):
        x = np.asarray(x)  # rows as lists of numbers
    x = tree.map_structure(np.asarray, x)
    received = [part.shape for part in tree.flatten(x)]
    fits = len(received) == len(expected) and all(
        len(e) == len(r) and all(a in (None, b) for a, b in zip(e[1:], r[1:], strict=True))
        for e, r in zip(expected, received, strict=True)
    )
    if not fits or any(part.dtype.kind not in "biuf" for part in tree.flatten(x)):
        raise ValueError(
            f"The examples do not fit the inputs of model '{model.name}'. Expected: numbers of shapes {expected}. "
            f"Received: shapes {received}, {', '.join(str(part.dtype) for part in tree.flatten(x))}. Pass "
            "one array per input, with one row per example."
        )
    if not received[0][0]:
        raise ValueError("There is no example to certify. Received: arrays of length 0. Pass at least one row.")
    # JAX would take large integers modulo 2^32.
    large = [part.dtype.kind in "iu" and part.dtype.itemsize > 2 for part in tree.flatten(x)]
    return tree.map_structure(lambda part: part.astype("float32"), x) if any(large) else x


def _labels(y, outputs: int) -> np.ndarray:
    """Returns labels as an array of numbers; refuses what is neither class ids nor one-hot rows."""
    y = np.asarray(y)
    if y.dtype.kind not in "biuf" or y.shape[1:] not in ((), (1,), (outputs,)) or not y.ndim:
        raise ValueError(
            f"Labels must be class ids, or one-hot rows of {outputs}. Received: shape {y.shape}, dtype {y.dtype}. "
            "Encode classes as the integers from 0."
        )
    return y


def _logits(model, x, batch_size: int) -> np.ndarray:
    if len(model.outputs) != 1:
        raise ValueError(
            f"Certificates are for one output. Received: model '{model.name}' with {len(model.outputs)}. Pass "
            "keras.Model(model.inputs, the output of the classes), which shares the layers."
        )
    if len(model.output_shape) != 2:
        raise ValueError(
            f"Certificates need one vector of logits per example. Received: model '{model.name}' with outputs of shape "
            f"{model.output_shape}. End it with Flatten or a dense layer."
        )
    batch_size = checks.integer("batch_size", batch_size, minimum=1)
    if keras.config.floatx() not in ("float32", "float64"):
        raise ValueError(
            f"`predict` of Keras rounds examples to its floatx first, which no certificate covers. Received: floatx "
            f"{keras.config.floatx()!r}, and model '{model.name}'. Call keras.config.set_floatx('float32')."
        )
    _refuse_own_prediction(model)
    # TF32 would add errors that the slack below does not cover.
    with backend.full_precision(), backend.untuned():
        present = settings(model)
        # What was compiled under other settings computes something else than what the bounds are about; those of a
        # layer of the user's need not be in its configuration.
        own = any(isolation.root(type(layer)) not in ("keras", "lipdp") for layer in _keras.walk(model))
        if own or vars(model).get(_COMPILED) != (model.predict_function, present):
            model.predict_function = None
        (found,) = tree.flatten(model.predict(x, batch_size=batch_size, verbose=0))
        object.__setattr__(model, _COMPILED, (model.predict_function, present))
        return np.asarray(found, "float64")


def _refuse_own_prediction(model) -> None:
    """Refuses a model whose predictions are not what its layers compute of the rows that it gets."""
    if getattr(model, "preprocessor", None) is not None:  # of keras_hub
        raise ValueError(
            "Certificates are about the rows that the layers of a model take. Received: model "
            f"'{model.name}', whose preprocessor changes rows first. Certify keras.Model(model.inputs, model.outputs), "
            "on rows that went through the preprocessor."
        )
    for name in ("predict", "predict_step", "make_predict_function"):
        source = next((c for c in type(model).__mro__ if name in vars(c)), keras.Model)
        if name in vars(model) or isolation.root(source) not in ("keras", "keras_hub", "lipdp"):
            raise ValueError(
                f"Certificates are about what the layers of a model compute. Received: model '{model.name}' of "
                f"{type(model).__name__}, with a `{name}` of its own. Put what it does into layers, or pass "
                "keras.Model(model.inputs, model.outputs), which predicts without it."
            )


def _radii(model, x, logits) -> np.ndarray:
    constants = _pair_constants(model)
    scale, growth = _scale(model, x)
    constants = constants + 2.0 * LOGIT_SLACK * growth
    finite = np.isfinite(logits).all(axis=1)
    for part in tree.flatten(x):
        finite &= np.isfinite(np.asarray(part)).reshape(len(logits), -1).all(axis=1)
    logits = np.where(finite[:, None], logits, 0.0)
    # Rounding errors scale with what enters the last layer, not with what cancels to the logits.
    slack = 2.0 * LOGIT_SLACK * np.maximum(np.abs(logits).max(axis=1), scale)
    if logits.shape[1] == 1:
        return np.where(finite, np.maximum(np.abs(logits[:, 0]) - slack, 0.0) / constants[0, 0], 0.0)
    winner = logits.argmax(axis=1)
    rows = np.arange(len(logits))
    margins = np.maximum(logits[rows, winner][:, None] - logits - slack[:, None], 0.0)
    margins[rows, winner] = np.inf
    # Two classes with equal kernels have margin 0 and constant 0: no radius.
    return np.where(finite, (margins / np.maximum(constants[winner], 1e-300)).min(axis=1), 0.0)


def _scale(model, x) -> tuple[float, float]:
    """Largest norm of what is added up on the way to the logits, times the Lipschitz constant from there to them.

    And by how much more it may grow per unit of distance from the examples.
    """
    always = bounds.propagate(model, 1.0, trained=True)
    for use in always.layers:
        if use.terms is None:
            raise ValueError(
                f"How much rounding adds in layer '{use.name}' follows from the size of its input. Received: a "
                f"{use.kind} whose input shape is not known. Give the input of the model a full shape."
            )
    scales = scales_of(always)
    if max(scales) < math.inf:
        return rounded(always.layers, scales), 0.0
    # Something adds in front of the first BoundedInput, whose bound on the logits does not show what cancels there.
    arrays = [np.asarray(part, "float64") for part in tree.flatten(x)]
    norms = np.stack([np.linalg.norm(part.reshape(len(part), -1), axis=1) for part in arrays])
    norm = norms[np.isfinite(norms)].max(initial=0.0)
    known = scales_of(bounds.propagate(model, 1.0, trained=True, input_bound=norm))
    scales = [a if a < math.inf else b for a, b in zip(scales, known, strict=True)]
    return rounded(always.layers, scales), always.lipschitz * rounded(always.layers, [1.0] * len(scales))


def _refuse_one_sign(model, uses) -> None:
    """Refuses one output that is never negative, or never positive: split at zero, it is the same class everywhere."""
    # The last one that leads to the output makes it, and what works entry by entry has one input.
    low, high, name = values_between([use.layer for use in uses if use.cotangent_bound > 0.0])
    if low >= 0.0 or high <= 0.0:
        raise _one_sign(model.name, name, "negative" if low >= 0.0 else "positive")


def refuse_end(model: str, name: str) -> None:
    """Refuses a model with one output whose last activation has this name, if it is never negative."""
    if name in _NEVER_NEGATIVE:
        raise _one_sign(model, name, "negative")


def _one_sign(model: str, name: str, sign: str) -> ValueError:
    return ValueError(
        "One output must be a logit, of either sign: certificates split its two classes at zero. Received: "
        f"model '{model}', which ends in {name} and is never {sign}. Leave the activation out, and train with "
        "from_logits=True or a loss of lipdp.losses."
    )


def _pair_constants(model) -> np.ndarray:
    """Lipschitz constants of all differences of two logits; of the logit itself where there is one."""
    total, outputs = lipschitz(model), model.output_shape[-1]
    uses = bounds.propagate(model, 1.0, trained=True).layers
    if outputs == 1:
        _refuse_one_sign(model, uses)
        return np.full((1, 1), max(total, 1e-300))
    index = len(uses) - 1
    # A subclass, here and below, may compute something else.
    while index > 0 and type(uses[index].layer) is Bias:
        index -= 1
    last = uses[index]
    shared = sum(use.layer is last.layer for use in uses) > 1
    # The last in order need not be on the path to the output.
    leads = last.cotangent_bound > 0.0
    if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:
        return np.full((outputs, outputs), math.sqrt(2.0) * total)
    rows = np.asarray(ops.convert_to_numpy(last.layer.kernel), "float64").T
    return np.stack([np.linalg.norm(rows - row, axis=1) for row in rows]) * (total / last.lipschitz)


@_keras.serializable
class CertifiedAccuracy(keras.metrics.Metric):
    """Certified accuracy at one radius, as a Keras metric for `compile(metrics=[...])`.

    Args:
        radius: L2 radius in the input's norm, >= 0.
        lipschitz: A Lipschitz constant that holds for every weight the constraints allow: 1 for a chain of 1-Lipschitz
            layers, else `bounds.propagate(model, 1.0).lipschitz`, which `summary_bounds` shows. Too small, it counts
            too many.
        name: Default: `certified_accuracy_<radius>`.

    **Guarantee.** Counts an example when its margin exceeds `sqrt(2) * lipschitz * radius` (one output: `lipschitz *
    radius`) by 0.2 %: never more than are certified. `certify.certified_accuracy` is tighter, because it uses the
    norms of the trained weights. Not covered: one output that is no logit, such as a probability, which `radii` and
    `certified_accuracy` can tell; rounding where the model's output bound exceeds 100 radii, or of a hundred layers and
    more. On training data it is outside of epsilon.

    Example:
        >>> from lipdp import certify
        >>> metric = certify.CertifiedAccuracy(0.1)
        >>> metric.update_state([0], [[1.0, 0.0]])
        >>> float(metric.result())
        1.0
    """

    def __init__(self, radius: float, lipschitz: float = 1.0, name: str | None = None, **kwargs: Any):
        radius = checks.not_negative("radius", radius)
        super().__init__(name=name or f"certified_accuracy_{radius:g}", **kwargs)
        self.radius = radius
        self.lipschitz = checks.positive("lipschitz", lipschitz)
        self._certified = self.add_variable((), "zeros", name="certified")
        self._total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        logits = ops.cast(y_pred, "float32")
        y_true = ops.cast(y_true, "float32")
        slack = 2.0 * LOGIT_SLACK * ops.max(ops.abs(logits), axis=-1)
        classes = logits.shape[-1]
        if classes == 1:
            sign = ops.where(ops.reshape(y_true, (-1,)) > 0.5, 1.0, -1.0)
            margin, constant = logits[:, 0] * sign, self.lipschitz
        else:
            hot = len(y_true.shape) == 2 and y_true.shape[1] == classes
            labels = ops.argmax(y_true, axis=-1) if hot else ops.reshape(y_true, (-1,))
            mask = ops.one_hot(ops.cast(labels, "int32"), classes)
            # A label out of range has no logit: not certified.
            own = ops.max(ops.where(mask > 0, logits, -math.inf), axis=-1)
            margin = own - ops.max(ops.where(mask > 0, -math.inf, logits), axis=-1)
            constant = math.sqrt(2.0) * self.lipschitz
        needed = (1.0 + _METRIC_SLACK) * constant * self.radius
        certified = ops.cast(margin - slack > needed, "float32")
        weight = ops.ones_like(certified)
        if sample_weight is not None:
            weight = ops.cast(ops.reshape(sample_weight, (-1,)), "float32")
        self._certified.assign_add(ops.sum(certified * weight))
        self._total.assign_add(ops.sum(weight))

    def result(self) -> Any:
        return self._certified / ops.maximum(self._total, 1e-12)
