"""Metrics of training are computed on private rows, without noise: nothing that trains may read them."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras

_here = threading.local()


class MetricError(ValueError):
    """An error that names what is wrong already, wherever in a step it comes up."""


@contextlib.contextmanager
def _set(name: str, value: Any) -> Iterator[None]:
    before = getattr(_here, name, None)
    setattr(_here, name, value)
    try:
        yield
    finally:
        setattr(_here, name, before)


def step_of(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Notes whose training step is made, for `unread_metrics` and `writing_metrics`."""
    _watch()
    return _set("model", model)


def unread_metrics() -> contextlib.AbstractContextManager[None]:
    """Refuses that anything reads the metrics of the model whose step is made, or writes to them.

    For the parts of a step that weights follow from: the forward pass, the loss, its gradients, the optimizer. The
    tracker of the loss is among the metrics.

    **Guarantee.** Conditions: within this context and `step_of`, in its thread, while a step is traced or runs eagerly.
    Bound: no value of a variable of the model's metrics gets into what is computed. Not covered: what a metric keeps
    outside of Keras' variables, and metrics of other models.
    """
    return _set("unread", True)


def writing_metrics() -> contextlib.AbstractContextManager[None]:
    """Refuses that the metrics of the model whose step is made write to other variables of Keras, such as weights."""
    return _set("writing", True)


def unread(method: Any) -> Any:
    """Runs a method within `unread_metrics`."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with unread_metrics():
            return method(*args, **kwargs)

    return run


@functools.cache
def _watch() -> None:
    """Has Keras' variables ask here, from now on, before they are read or written; outside of steps they may be."""
    value, assign = keras.Variable.value, keras.Variable.assign

    def read(self: Any) -> Any:
        _check(self)
        return value.fget(self)

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(self, writes=True)
        return assign(self, *args, **kwargs)

    keras.Variable.value, keras.Variable.assign = property(read), written


def _check(variable: Any, writes: bool = False) -> None:
    model = getattr(_here, "model", None)
    unread, writing = (model is not None and getattr(_here, name, False) for name in ("unread", "writing"))
    if not (unread or (writes and writing)):
        return
    held = [v for metric in [*model.metrics, *model.given_metrics] for v in metric.variables]
    # A metric that was given a weight counts it among its own.
    known = any(variable is v for v in held) and not any(variable is v for v in model.weights)
    if unread and known:
        raise MetricError(
            "A metric holds what it has seen of private rows, without noise, and what trains must not follow from it. "
            f"Received: variable '{variable.path}' of a metric or of the loss that is logged, which the loss, a layer, "
            "the optimizer, its schedule or a constraint reads or changes. Compute what is needed from each example "
            "itself, or from the number of updates."
        )
    if writing and not (unread or known):
        raise MetricError(
            "A metric sees private rows, and what it writes has no noise. Received: a metric that changes "
            f"'{variable.path}', which is none of its own variables. Make that with `add_variable` of the metric."
        )
