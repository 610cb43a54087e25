"""Every private name of Keras that lipdp relies on, each behind a function that says why: no other file has one.

Beside them, how lipdp's classes enter Keras' files: `configured` and `serializable`.
`tests/test_keras_private.py` checks each of them on the installed Keras; `pyproject.toml` says what was tested.
"""

import contextlib
import copy
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import keras
from keras import tree

# A layer of ConvNeXt, what recurrent layers of convolutions hold, and whether shapes alone are asked for: not exported.
from keras.src.applications.convnext import LayerScale as LayerScale
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.symbolic_scope import in_symbolic_scope as in_symbolic_scope
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell as ConvLSTMCell
from keras.src.models.functional import Functional

# The operations behind `x + y`, `x - y`, `abs(x)` and `-x` on symbolic tensors, which have no public name.
from keras.src.ops.numpy import Absolute as Absolute
from keras.src.ops.numpy import Add as Add
from keras.src.ops.numpy import Negative as Negative
from keras.src.ops.numpy import Subtract as Subtract
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter as ArrayDataAdapter
from keras.src.utils.module_utils import tensorflow

from lipdp import checks

# What a training step is made of. Not every backend has all of them.
STEP_METHODS = ("train_step", "compute_loss", "_compute_loss", "stateless_compute_loss", "compute_loss_and_updates")
STEP_METHODS += ("make_train_function", "stateless_call")
# How gradients reach `apply` of an optimizer. Not every backend uses all of them.
OPTIMIZER_ENTRIES = ("scale_loss", "apply_gradients", "stateless_apply")

Configured = TypeVar("Configured", bound=type)


def configured(cls: Configured) -> Configured:
    """Adds to `get_config` the arguments that the constructor of a class names, from attributes of the same names.

    Nothing is added to what the config of the parent class holds already. A `get_config` of the class itself stays.
    """
    if "get_config" in vars(cls) or "__init__" not in vars(cls):
        return cls
    parameters = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]

    def get_config(self) -> dict[str, Any]:
        config = getattr(super(cls, self), "get_config", dict)()
        own = {name: getattr(self, name) for name in names if name not in config}
        return config | {name: _serialized(value) for name, value in own.items()}

    cls.get_config = get_config  # type: ignore[attr-defined]
    return cls


def _serialized(value: Any) -> Any:
    nested = callable(value) or hasattr(value, "get_config")
    return keras.saving.serialize_keras_object(value) if nested else value


def serializable(cls: Configured) -> Configured:
    """`configured`, and known to Keras' files as `lipdp>` and the name of the class."""
    return keras.saving.register_keras_serializable(package="lipdp")(configured(cls))


def walk(layer: keras.layers.Layer, include_self: bool = False, deep: bool = True) -> list:
    """Returns the layers inside of one, each once, itself first with `include_self`; one level only if not `deep`."""
    return layer._flatten_layers(include_self=include_self, recursive=deep)


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Returns the random states of a layer itself: no public attribute tells that a layer draws random numbers."""
    return [s for s in getattr(layer, "_seed_generators", ()) if isinstance(s, keras.random.SeedGenerator)]


@contextlib.contextmanager
def computing_in_float32(model: keras.Model) -> Iterator[None]:
    """A context in which all layers of a model compute in float32: the setter of a policy would lose a map of them."""
    found = walk(model, include_self=True)
    before = [layer._dtype_policy for layer in found]
    # Models convert what they are given to the type of their inputs, Sequential ones to that of their `InputLayer`.
    graphs = [inner for layer in found if isinstance(layer, keras.Model) and (inner := graph(layer)) is not None]
    inputs = [layer for layer in found if isinstance(layer, keras.layers.InputLayer)]
    inputs = [part for part in (*inputs, *(t for g in graphs for t in g.inputs)) if part.dtype == "bfloat16"]
    try:
        for layer in found:
            if layer.compute_dtype == "bfloat16":
                layer._dtype_policy = keras.dtype_policies.get("float32")
        for part in inputs:
            part._dtype = "float32"
        yield
    finally:
        for layer, policy in zip(found, before, strict=True):
            layer._dtype_policy = policy
        for part in inputs:
            part._dtype = "bfloat16"


@contextlib.contextmanager
def not_importing_tensorflow() -> Iterator[None]:
    """A context in which Keras does not import TensorFlow, which takes seconds, to tell whether values are its."""
    before = tensorflow._available
    if before is None and "tensorflow" not in sys.modules:
        tensorflow._available = False
    try:
        yield
    finally:
        tensorflow._available = before


def own_variables(layer: keras.layers.Layer) -> list:
    """Returns the trainable variables that a layer holds itself, those of layers inside it excluded."""
    return layer._trainable_variables


def all_own_variables(layer: keras.layers.Layer) -> list:
    """Returns the variables that a layer holds itself, frozen ones too, but no states of random numbers."""
    held = [*layer._trainable_variables, *layer._non_trainable_variables]
    return [v for v in held if not isinstance(v, keras.Variable) or v.dtype != "uint32"]


def own_matrix(layer: keras.layers.Layer, kind: str) -> keras.Variable:
    """Returns the variable behind `layer.kernel` or `layer.embeddings`, without low-rank additions (`enable_lora`)."""
    return layer._kernel if kind == "kernel" else layer._embeddings


def inside_fit(arguments: dict) -> bool:
    """Whether these are the keyword arguments with which Keras' `fit` calls `evaluate`."""
    return arguments.get("_use_cached_eval_dataset", False)


def takes(layer: keras.layers.Layer, argument: str) -> bool:
    """Whether `call` declares `argument`. Public, but undocumented: `call` is replaced while a model is captured."""
    return argument in layer.call_signature_parameters


class _Told(keras.layers.Layer):
    def call(self, inputs, run=None, training=None):
        return run(training)


def told_training() -> tuple[bool, str | None]:
    """What layers inside of a call find around it: whether it is in training, and the type that weights are read in."""
    told, scope = [], keras.src.backend.get_autocast_scope()
    _Told(name="told")(keras.ops.zeros(()), run=told.append)
    return bool(told[0]), scope and scope.dtype


def telling_training(run: Callable[[], Any], told: tuple[bool, str | None]) -> Any:
    """Returns `run()`, in which layers find what `told_training` returned elsewhere."""

    def inside(_):
        with keras.src.backend.AutocastScope(told[1]):
            return run()

    return _Told(name="told")(keras.ops.zeros(()), run=inside, training=told[0])


def rematerialized(layer: keras.layers.Layer) -> bool:
    """Whether a layer was built in a `RematScope`: nothing outside the scope shows it afterwards."""
    return getattr(layer, "_remat_mode", None) is not None


class Use(NamedTuple):
    """The shapes of one call of a layer on symbolic tensors."""

    inputs: tuple[tuple, ...]
    outputs: tuple[tuple, ...]


def uses(layer: keras.layers.Layer) -> list[Use]:
    """Returns one `Use` per call of a layer or operation: `input_shape` knows the first call only."""
    return [
        Use(*(tuple(tuple(t.shape) for t in tensors) for tensors in (node.input_tensors, node.output_tensors)))
        for node in layer._inbound_nodes
    ]


def passed(layer: keras.layers.Layer, name: str) -> list[Any]:
    """Returns what each call of a layer on symbolic tensors got for an argument, by place or by name; None is left out.

    Masks that tensors carry are among them where Keras passes them on.
    """
    signature = inspect.signature(layer.call)
    calls = [signature.bind_partial(*n.arguments.args, **n.arguments.kwargs).arguments for n in layer._inbound_nodes]
    return [found[name] for found in calls if found.get(name) is not None]


def is_masked(layer: keras.layers.Layer) -> bool:
    """Returns whether an input of any call of a layer carries a mask."""
    return any(get_keras_mask(tensor) is not None for node in layer._inbound_nodes for tensor in node.input_tensors)


def input_shapes(layer: keras.layers.Layer) -> list[tuple]:
    """Returns the shape of the first input, batch included, for each call of a layer."""
    return [use.inputs[0] for use in uses(layer)]


def graph(model: keras.Model) -> Any:
    """Returns the functional graph of a Sequential or functional model, or None: the class has no public name."""
    found = model._functional if isinstance(model, keras.Sequential) else model
    return found if isinstance(found, Functional) else None


def origin(tensor: Any) -> tuple[Any, list, int]:
    """Returns the operation that a tensor of a graph comes from, that one's inputs, and which of its outputs it is."""
    made = tensor._keras_history
    return made.operation, made.operation._inbound_nodes[made.node_index].input_tensors, made.tensor_index


def output_names(model: keras.Model) -> list[str]:
    """Returns what Keras calls each output in dictionaries and logs: keys where outputs are a dictionary.

    In nested outputs these are paths, as "head/logits". Where a layer makes several outputs, numbers tell them apart.
    """
    _, outputs = structures(graph(model))

    def named(part, path):
        if isinstance(part, dict):
            return type(part)((key, named(value, (*path, key))) for key, value in part.items())
        if isinstance(part, (list, tuple)):
            return [named(value, (*path, i)) for i, value in enumerate(part)]
        # In a list a layer has its own name.
        return "/".join(map(str, path if path and isinstance(path[-1], str) else (*path[:-1], part)))

    names: list[str] = []
    # In the order of `model.outputs`.
    for name in tree.flatten(named(tree.pack_sequence_as(outputs, graph(model).output_names), ())):
        others = (f"{name}_{k}" for k in itertools.count(1))
        names.append(next(other for other in others if other not in names) if name in names else name)
    return names


def has_own_call(model: keras.Model) -> bool:
    """Whether `call` was overridden or replaced, so that the graph does not say what a model computes."""
    own = type(model).call not in (Functional.call, keras.Sequential.call, keras.Model.call)
    return own or "call" in (*checks.replaced(model), *checks.replaced_in(Functional))  # a Sequential model holds one


def nodes(graph: keras.Function) -> list:
    """Returns the calls in a graph, from inputs to outputs, without the inputs: a model lists layers, not calls."""
    depths = graph._nodes_by_depth
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth] if not node.is_input]


def operation_name(operation: keras.Operation) -> str | None:
    """Returns the class name of one of Keras' own operations on tensors, such as `x + y` makes; None for all else."""
    return type(operation).__name__ if type(operation).__module__.startswith("keras.src.ops.") else None


def mask(tensor: Any) -> Any:
    """Returns the mask that a tensor carries from layer to layer, or None: it is an attribute without a public name."""
    return get_keras_mask(tensor)


set_mask = set_keras_mask


def structures(graph: keras.Function) -> tuple:
    """Returns the nests in which a graph takes its inputs and returns its outputs; `inputs` is a flat list."""
    return graph._inputs_struct, graph._outputs_struct


def packed_as_outputs(model: keras.Model, flat: list) -> Any:
    """Returns what belongs to each output in the nest of the outputs, with tuples for lists, as data pipelines want."""
    return tree.pack_sequence_as(tree.lists_to_tuples(structures(graph(model))[1]), flat)


def loss_arguments(loss: Any) -> dict[str, Any]:
    """Returns what a loss of Keras hands to its function; the configurations of some leave out `axis`."""
    return dict(getattr(loss, "_fn_kwargs", {}))


def loss_tracker(model: keras.Model) -> Any:
    """Returns the metric behind `logs["loss"]`, which steps other than Keras' own have to update."""
    return model._loss_tracker


def build_metrics(model: keras.Model, batch: tuple) -> None:
    """Builds the metrics of `compile` for batches `(x, y, weight)`, which `fit` would do from its first batch on JAX.

    On TensorFlow it would do so while it traces the step, and then trace it again.
    """
    model._symbolic_build(data_batch=batch)
    if model._compile_loss is not None:
        model._compile_loss.built = True  # not used: lipdp's models compute their loss themselves


def is_empty(model: keras.Sequential) -> bool:
    """Whether a Sequential model has no layer yet, not even the input that `layers` leaves out."""
    return not model._layers


def given_metrics(model: keras.Model) -> list:
    """Returns the metrics of `compile` as they were given."""
    kinds = ("_user_metrics", "_user_weighted_metrics")
    return tree.flatten([getattr(model._compile_metrics, kind, None) for kind in kinds])


def add_to_metrics(model: keras.Model, weighted: bool, y: Any, y_pred: Any, weights: Any) -> None:
    """Adds a batch to the metrics of `compile`, weighted ones or the others: to these Keras passes no weights."""
    compiled = model._compile_metrics
    if metrics_wait(model):
        compiled.build(y, y_pred)
    found = compiled._flat_weighted_metrics if weighted else compiled._flat_metrics
    labels, outputs, each = map(compiled._flatten_y, (y, y_pred, weights))
    for metrics, *batch in zip(found, labels, outputs, each if len(each) > 1 else each * len(found), strict=False):
        if metrics is not None:
            metrics.update_state(*batch)


def metrics_wait(model: keras.Model) -> bool:
    """Whether the metrics of `compile` are not built yet, when Keras cannot compute their results."""
    return model._compile_metrics is not None and not model._compile_metrics.built


def variables_are_current(model: keras.Model) -> bool:
    """Returns whether the variables of a model hold its state between two steps: with JAX only if asked for it."""
    return bool(getattr(model, "_jax_state_synced", True))


def update_metrics(model: keras.Model, metrics: Any, loss: Any, x: Any, y: Any, y_pred: Any, weight: Any) -> list:
    """Returns the new values of `metrics_variables`, on JAX: Keras has no public stateless form of this."""
    return list(model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)[1])


def optimizer_variables(optimizer: Any) -> list:
    """Returns the trainable variables an optimizer was built for, in its order."""
    return optimizer._trainable_variables


def variable_index(optimizer: Any, variable: keras.Variable) -> int:
    """Returns the place of a trainable variable in what an optimizer was built for."""
    return optimizer._get_variable_index(variable)


def forget(optimizer: Any, variable: keras.Variable) -> None:
    """Stops an optimizer from tracking a variable of its own: there is no public way to remove one."""
    optimizer._tracker.untrack(variable)


def has_weight_decay(optimizer: Any, variable: keras.Variable) -> bool:
    """Returns whether an optimizer lets a variable decay, where it has a decay: what is left out is in no config."""
    return optimizer._use_weight_decay(variable)


def learning_rate(optimizer: Any) -> Any:
    """Returns the schedule or number itself; `learning_rate` is its present value."""
    return optimizer._learning_rate


def optimizer_config(optimizer: Any) -> dict[str, Any]:
    """Returns the configuration of an optimizer with the schedule itself: many lack one, and Keras trains with them."""
    rate = learning_rate(optimizer)
    if isinstance(rate, keras.Variable) or not callable(rate):
        return optimizer.get_config()
    constant = object.__new__(type(optimizer))  # `copy.copy` would write the configuration
    vars(constant).update(vars(optimizer) | {"_learning_rate": 0.0})
    return constant.get_config() | {"learning_rate": rate}


def may_replace(path: Any) -> bool:
    """Asks, as Keras does, whether a file that exists may be replaced."""
    return not os.path.exists(path) or keras.src.utils.io_utils.ask_to_proceed_with_overwrite(str(path))


def recurrent_loop(step: Callable, inputs: Any, states: Any, **options: Any) -> Any:
    """Runs Keras' loop over time for all recurrent layers: `last, outputs, states`. It is in no public module."""
    return keras.src.backend.rnn(step, inputs, states, **options)


def dataset_sources(dataset: Any) -> tuple:
    """Returns the `tf.data` data sets that one is made of; there is no public way to see a `repeat`."""
    return tuple(getattr(dataset, "_inputs", tuple)())


def dataset_windows(dataset: Any) -> tuple[int, int, int]:
    """Returns size, shift and stride of the windows of a `tf.data` data set."""
    return int(dataset._size), int(dataset._shift), int(dataset._stride)


def dataset_variant(dataset: Any) -> Any:
    """Returns the tensor that stands for a `tf.data` data set."""
    return dataset._variant_tensor


def check_direction(callback: keras.callbacks.Callback, model: keras.Model) -> None:
    """Has a callback that follows a metric say now, and not after an epoch, that it does not know which way is up."""
    if getattr(callback, "monitor_op", callback) is None and hasattr(callback, "_set_monitor_op"):
        rehearsed = copy.copy(callback)
        rehearsed.set_model(model)
        rehearsed._set_monitor_op()
