"""Every private name of Keras that lipdp relies on, each behind a function that says why: no other file has one.

`tests/test_keras_private.py` checks each of them on the installed Keras; `pyproject.toml` says which versions were tested.
"""

from typing import NamedTuple

import keras
from keras.src.models.functional import Functional

# The operations behind `x + y`, `x - y`, `abs(x)` and `-x` on symbolic tensors, which have no public name.
from keras.src.ops.numpy import Absolute as Absolute
from keras.src.ops.numpy import Add as Add
from keras.src.ops.numpy import Negative as Negative
from keras.src.ops.numpy import Subtract as Subtract

# What a training step is made of. Not every backend has all of them.
STEP_METHODS = (
    "train_step",
    "compute_loss",
    "_compute_loss",
    "stateless_compute_loss",
    "compute_loss_and_updates",
    "make_train_function",
)


def walk(layer, include_self: bool = False, deep: bool = True) -> list:
    """Returns the layers inside a layer or model, each once; `layers` of a model lists those of one level only.

    Args:
        layer: a layer or model.
        include_self: whether `layer` itself comes first.
        deep: whether to go on inside of them.
    """
    return layer._flatten_layers(include_self=include_self, recursive=deep)


def seed_generators(layer) -> list[keras.random.SeedGenerator]:
    """Returns the random states of a layer itself: no public attribute tells that a layer draws random numbers."""
    return [s for s in getattr(layer, "_seed_generators", ()) if isinstance(s, keras.random.SeedGenerator)]


def own_variables(layer) -> list:
    """Returns the trainable variables that a layer holds itself, those of layers inside it excluded."""
    return layer._trainable_variables


def takes(layer, argument: str) -> bool:
    """Whether `call` declares `argument`. Public, but undocumented: `call` is replaced while a model is captured."""
    return argument in layer.call_signature_parameters


def rematerialized(layer) -> bool:
    """Whether a layer was built in a `RematScope`: nothing outside the scope shows it afterwards."""
    return getattr(layer, "_remat_mode", None) is not None


class Use(NamedTuple):
    """The shapes of one call of a layer on symbolic tensors."""

    inputs: tuple[tuple, ...]
    outputs: tuple[tuple, ...]


def uses(layer) -> list[Use]:
    """Returns one `Use` per call of a layer or operation: `input_shape` knows the first call only."""
    return [
        Use(*(tuple(tuple(t.shape) for t in tensors) for tensors in (node.input_tensors, node.output_tensors)))
        for node in layer._inbound_nodes
    ]


def input_shapes(layer) -> list[tuple]:
    """Returns the shape of the first input, batch included, for each call of a layer."""
    return [use.inputs[0] for use in uses(layer)]


def graph(model):
    """Returns the functional graph of a Sequential or functional model, or None: the class has no public name."""
    found = model._functional if isinstance(model, keras.Sequential) else model
    return found if isinstance(found, Functional) else None


def has_own_call(model) -> bool:
    """Whether `call` was overridden, so that the graph does not say what a model computes."""
    return type(model).call not in (Functional.call, keras.Sequential.call, keras.Model.call)


def nodes(graph) -> list:
    """Returns the calls in a graph, from inputs to outputs, without the inputs: a model lists layers, not calls.

    Each has `operation`, `input_tensors`, `output_tensors` and `arguments` (`args`, `kwargs`).
    """
    depths = graph._nodes_by_depth
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]


def structures(graph) -> tuple:
    """Returns the nests in which a graph takes its inputs and returns its outputs; `inputs` is a flat list."""
    return graph._inputs_struct, graph._outputs_struct


def loss_tracker(model):
    """Returns the metric behind `logs["loss"]`, which steps other than Keras' own have to update."""
    return model._loss_tracker


def metrics_wait(model) -> bool:
    """Whether the metrics of `compile` are not built yet, when Keras cannot compute their results."""
    return model._compile_metrics is not None and not model._compile_metrics.built


def update_metrics(model, metrics, loss, x, y, y_pred, weight) -> list:
    """Returns the new values of `metrics_variables`, on JAX: Keras has no public stateless form of this."""
    return list(model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)[1])


def optimizer_variables(optimizer) -> list:
    """Returns the trainable variables an optimizer was built for, in its order."""
    return optimizer._trainable_variables


def variable_index(optimizer, variable) -> int:
    """Returns the place of a trainable variable in what an optimizer was built for."""
    return optimizer._get_variable_index(variable)


def forget(optimizer, variable) -> None:
    """Stops an optimizer from tracking a variable of its own: there is no public way to remove one."""
    optimizer._tracker.untrack(variable)


def learning_rate(optimizer):
    """Returns the schedule or number itself; `learning_rate` is its present value."""
    return optimizer._learning_rate


def recurrent_loop(step, inputs, states, **options):
    """Runs Keras' loop over time for all recurrent layers: `last, outputs, states`. It is in no public module."""
    return keras.src.backend.rnn(step, inputs, states, **options)
