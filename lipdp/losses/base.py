"""The base of all losses: a value, a closed-form gradient, and the largest norm that gradient can have."""

import collections
import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.losses import labels
from lipdp.norms import sums

# What no caller of a loss writes.
_NOT_SHOWN = ("self", "args", "kwargs", "unknown")
# How many calls of `fit` train with a loss now, by identity: a copy that is made meanwhile is not fixed.
_FIXED: collections.Counter[int] = collections.Counter()


@_keras.serializable
class Loss(keras.losses.Loss):
    """A per-example loss whose gradient with respect to the model's outputs has a known bound.

    A subclass implements `value`, `gradient` and `exact_lipschitz`; it may override `accepts`, or `targets` and
    `check_labels` (which labels it accepts), and `min_outputs`. What is differentiated in training is never
    `value` but the closed form `gradient`, limited to the L2 norm `lipschitz(num_outputs)` for each example.

    Args:
        clip: optional L2 norm above 0 to which the gradient of each example at the outputs is clipped. Lowers
            `lipschitz`, hence the noise; the value that is reported does not change.
        reduction: how Keras reduces the per-example values, as in `keras.losses.Loss`.
        name: optional name.
        dtype: float32 (default) or float64; lower precision is refused.

    Raises:
        ValueError: if `clip` is not a finite number above 0, or `dtype` is a 16-bit one.

    **Guarantee.** For every row of every batch, the gradient of that row of `call` with respect to `y_pred`
    has an L2 norm of at most `lipschitz(num_outputs)`, and depends on no other row. It holds for all labels
    and outputs, also invalid ones, because the limit is applied in the graph (a row whose gradient is not
    finite gets a zero one). Not covered: what the reduction divides by; NaN that reaches the gradient
    through the layers; second derivatives, which are zero; hyper-parameters that were chosen from the
    private data. What the constructor was given cannot be changed while `fit` trains with the loss.
    Proof: `call` is constant plus `<stop_gradient(g), y_pred>`, so its gradient is `g`. It stays within
    the bound in float32 too: the limit is scaled by 1 - (c + 16) 2^-24, which exceeds the rounding error of
    a norm of C terms (about (c/2 + 6) 2^-24); c = C up to 2^16 outputs, about 2 sqrt(C) above (`norms.sums`).
    """

    min_outputs = 1
    # What turns accepted labels into targets, and what refuses others; see `lipdp.losses.labels`.
    accepts = (labels.dense_targets, labels.check_dense)

    def __init__(
        self,
        clip: float | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: str | None = None,
        **unknown: Any,
    ):
        for argument in unknown:
            raise checks.unexpected(type(self).__name__, argument, _settings(type(self)))
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"Losses need dtype='float32' for their bounds to hold. Received: dtype={self.dtype!r}")
        self.clip = checks.positive("clip", clip, optional=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if _FIXED[id(self)] and name in _settings(type(self)):
            raise AttributeError(
                f"`{name}` of {type(self).__name__} is fixed while `fit` trains with it: its bound would change, and "
                f"the noise and compiled steps would not. Received: {type(self).__name__}.{name} = {value!r}. Change "
                "it before `fit`; to change it in the course of training, call `fit` once for each value."
            )
        super().__setattr__(name, value)

    def value(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each example, shape `(batch,)`, from outputs of shape `(batch, num_outputs)`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `value(y_true, y_pred)`.")

    def gradient(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the gradient of each example's `value` with respect to its outputs, shaped like `y_pred`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `gradient(y_true, y_pred)`.")

    def exact_lipschitz(self, num_outputs: int) -> float:
        """Returns the supremum of the L2 norm of `gradient` over all outputs and accepted labels."""
        raise NotImplementedError(f"{type(self).__name__} must implement `exact_lipschitz(num_outputs)`.")

    def targets(self, y_true: Any, num_outputs: int) -> Any:
        """Returns labels as a tensor of shape `(batch, num_outputs)`; override to accept other shapes."""
        return self.accepts[0](type(self).__name__, y_true, num_outputs)

    def check_labels(self, y_true: np.ndarray, num_outputs: int) -> None:
        """Checks all labels on the host, before training.

        Args:
            y_true: labels of the whole data set.
            num_outputs: number of outputs of the model.

        Raises:
            ValueError: if the loss does not accept them; says which rule, what was received and what to do.
        """
        self.accepts[1](type(self).__name__, y_true, self.check_outputs(num_outputs))

    def check_outputs(self, num_outputs: int) -> int:
        """Returns `num_outputs`, or raise `ValueError` if the loss is not defined for so few outputs."""
        num_outputs = checks.integer("num_outputs", num_outputs, minimum=1)
        if num_outputs < self.min_outputs:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.min_outputs} outputs, one per class. "
                f"Received: num_outputs={num_outputs}. For two classes on one output use BinaryCrossentropy."
            )
        return num_outputs

    def lipschitz(self, num_outputs: int) -> float:
        """Returns the bound on the norm of one example's gradient that the noise is calibrated to.

        Args:
            num_outputs: number of outputs of the model.

        Returns:
            `min(exact_lipschitz(num_outputs), clip)`.
        """
        exact = self.exact_lipschitz(self.check_outputs(num_outputs))
        return exact if self.clip is None else min(exact, self.clip)

    def standardize(self, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
        """Returns labels and outputs as two tensors of shape `(batch, num_outputs)` in the loss' precision.

        Raises:
            ValueError: if `y_pred` is not of rank 2 or the labels do not fit it.
        """
        y_pred = ops.convert_to_tensor(y_pred, dtype=self.dtype)
        shape = tuple(y_pred.shape)
        if len(shape) != 2 or shape[1] is None:
            raise ValueError(
                f"{type(self).__name__} needs outputs of shape (batch, num_outputs). "
                f"Received: y_pred of shape {shape}. End the model with a dense layer, or Flatten."
            )
        num_outputs = self.check_outputs(shape[1])
        y_true = self.targets(ops.convert_to_tensor(y_true, dtype=self.dtype), num_outputs)
        # Keras' own losses would broadcast a batch of one label over all outputs.
        if None not in (shape[0], y_true.shape[0]) and shape[0] != y_true.shape[0]:
            raise ValueError(
                f"{type(self).__name__} needs one label per example. "
                f"Received: {y_true.shape[0]} labels and {shape[0]} outputs."
            )
        return y_true, y_pred

    def bounded_gradient(self, y_true: Any, y_pred: Any) -> Any:
        """Returns `gradient` with each row limited to the L2 norm `lipschitz(num_outputs)`, as in training."""
        return self._limited_gradient(y_true, y_pred, None)[0]

    def _limited_gradient(self, y_true, y_pred, limit):
        gradient = self.gradient(y_true, y_pred)
        num_outputs = gradient.shape[-1]
        limit = self.lipschitz(num_outputs) if limit is None else ops.cast(limit, gradient.dtype)
        limit = limit * sums.margin(num_outputs, more=16, name=f"The gradient of {type(self).__name__}")
        norm = row_norm(gradient)
        scale = ops.where(norm > limit, limit / ops.maximum(norm, limit), ops.ones_like(norm))
        return ops.where(ops.isfinite(norm), gradient * scale, ops.zeros_like(gradient)), norm

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each example; its gradient with respect to `y_pred` is `bounded_gradient`.

        Args:
            y_true: labels.
            y_pred: outputs (logits) of the model, shape `(batch, num_outputs)`.

        Returns:
            Tensor of shape `(batch,)`.

        Raises:
            ValueError: if the shapes do not fit.
        """
        return self.limited(y_true, y_pred, None)[0]

    def limited(self, y_true: Any, y_pred: Any, limit: Any) -> Any:
        """Returns `call` with the scalar tensor `limit` in place of `lipschitz`, and the norms it is applied to."""
        y_pred = ops.convert_to_tensor(y_pred, dtype=self.dtype)
        value = ops.stop_gradient(self.value(y_true, y_pred))
        gradient, norm = self._limited_gradient(y_true, y_pred, limit)
        # The second term is exactly zero, so the value keeps its precision; only its gradient counts.
        linear = ops.sum(ops.stop_gradient(gradient) * (y_pred - ops.stop_gradient(y_pred)), axis=-1)
        return value + linear, ops.stop_gradient(norm[:, 0])


def _settings(cls: type) -> dict[str, None]:
    """Returns the names of the arguments that the constructors of a loss and of its parents take."""
    made = [vars(c)["__init__"] for c in cls.__mro__ if issubclass(c, Loss) and "__init__" in vars(c)]
    return dict.fromkeys(p for init in made for p in inspect.signature(init).parameters if p not in _NOT_SHOWN)


@contextlib.contextmanager
def fixed(losses: Iterable[Any]) -> Iterator[None]:
    """A context in which losses of lipdp refuse other settings, as while a model trains with them."""
    held = list(losses)
    _FIXED.update(map(id, held))
    try:
        yield
    finally:
        _FIXED.subtract(map(id, held))


def is_as_its_class(loss: Any) -> bool:
    """Whether a loss of lipdp or Keras computes what its class says: nobody has put other code into the object."""
    # By identity: what is named like a function of Keras may wrap another one.
    function = getattr(loss, "fn", loss)
    stock = function is loss or getattr(keras.losses, getattr(function, "__name__", ""), None) is function
    return stock and not checks.replaced(loss)


def row_norm(x: Any) -> Any:
    """Returns the L2 norm of each row, shape `(batch, 1)`, without overflow; NaN if a row is not finite."""
    # 1e-30 keeps the division away from zero and from numbers that XLA flushes to zero.
    largest = ops.maximum(ops.max(ops.abs(x), axis=-1, keepdims=True), 1e-30)
    return largest * ops.sqrt(sums.sum_of_squares(x / largest))
