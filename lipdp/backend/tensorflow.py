"""The functions of `lipdp.backend` for TensorFlow."""

import atexit
import contextlib
import functools
import gc
import math
import os
import threading

import tensorflow as tf

from lipdp import _keras
from lipdp.backend import noise, switches
from lipdp.backend.unread import MetricError, unread_metrics

# Variables that switch the rewriting of whole programs on, and those that have oneDNN compute in other types.
_REWRITING = ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE")
_FAST_MATH = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE")
# Rows of a product that a processor may take at once.
_TILE = 48
# The switch is one for all threads: whoever leaves last sets it back.
_PRECISE = threading.Lock()
_precise = {"users": 0, "before": False}
# Compiled on its own, whatever surrounds it: fused by XLA the noise costs half of what graph operations do,
# and eager, graph and XLA training add the same values.
_normal = tf.function(noise.normal, jit_compile=True, autograph=False)
_ratchet = tf.function(noise.ratchet, jit_compile=True, autograph=False)
_subkey = tf.function(noise.subkey, jit_compile=True, autograph=False)


def normal(size, key, generator="chacha20"):
    """Draws independent standard normals: see `noise.normal`."""
    return _normal(int(size), key, generator)


normal_at = noise.normal_at


def ratchet(key):
    """Derives `noise_key` and `next_key`: see `noise.ratchet`."""
    return _ratchet(key)


def subkey(key, index):
    """Derives the key of a part of an update: see `noise.subkey`."""
    return _subkey(key, tf.cast(index, "int32"))


class Forward:
    """The forward pass of a training step, with the present values of the model's variables.

    Args:
        model: The model.
    """

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        """Returns the outputs, the losses that layers added, and None: variables are updated in place."""
        return self.model(x, training=True), self.model.losses, None

    def gradient(self, x, total):
        """Differentiates `total(y_pred, added_losses)`, a scalar and anything else, by the trainable variables.

        Returns:
            The gradients, the scalar, what came with it, the outputs, and None.
        """
        variables = self.model.trainable_weights
        with tf.GradientTape() as tape:
            y_pred, added, _ = self(x)
            value, results = total(y_pred, added)
        gradients = tape.gradient(value, variables, unconnected_gradients="zero")
        return [tf.convert_to_tensor(g) for g in gradients], value, results, y_pred, None


def private_train_step(model, data, *, strategy, calibration, batch_size: int, microbatch: int | None):
    """One update: the sums of a strategy over all microbatches, applied once.

    Called inside the compiled step in place of Keras' own `train_step`.
    """
    forward, optimizer = Forward(model), model.optimizer
    state = [tf.convert_to_tensor(v.value) for v in optimizer.strategy_state]
    secret = tf.convert_to_tensor(optimizer.noise_key.value)

    def part(i, rows):
        with unread_metrics():
            totals, seen, _ = strategy.microbatch(calibration, forward, state, i, secret, rows, batch_size)
        model.compute_metrics(*seen)
        return totals

    number = 1
    if microbatch is None:
        sums, counts, loss = part(0, data)
    else:
        number = -(-tf.shape(data[2])[0] // microbatch)  # the last may be shorter

        def body(i, totals):
            rows = tf.nest.map_structure(lambda t: t[i * microbatch : (i + 1) * microbatch], data)
            return i + 1, tf.nest.map_structure(tf.add, totals, part(i, rows))

        counts = [] if calibration.count_noise_std is None else [tf.zeros(())]
        zeros = ([tf.zeros(v.shape) for v in model.trainable_variables], counts, tf.zeros(()))
        _, (sums, counts, loss) = tf.while_loop(lambda i, _: i < number, body, (0, zeros), parallel_iterations=1)
    # In an epoch's log larger updates weigh more where Keras' own step would weigh them so.
    if model.run.driver.request.training_metrics:
        _keras.loss_tracker(model).update_state(loss, sample_weight=None if strategy.uses_own_step else number)
    optimizer.apply([*strategy.average(sums, state, batch_size), *counts], model.trainable_variables)
    return model.get_metrics_result()


def untracked(model, state, result):
    """Returns what Keras' own training step has returned, and leaves no trace of the loss in its tracker."""
    _keras.loss_tracker(model).reset_state()
    return result


@contextlib.contextmanager
def metrics_written(model):
    """Refuses metrics that write to a `tf.Variable`, which a loss could read; where the step is a graph."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    made = graph.get_operations()[before:]
    values = [v.value for v in model.metrics_variables] if made else []
    own = {id(graph.capture(v.handle)) for v in values if isinstance(v, tf.Variable)}  # but for a step that is tried
    for op in made:
        foreign = [t.name for t in op.inputs if t.dtype == tf.resource and id(t) not in own]
        if "Assign" in op.type and foreign:
            raise MetricError(
                "A metric sees private rows, and what it writes has no noise. Received: a metric that changes a "
                f"tf.Variable ({foreign[0]}). Make that with `add_variable` of the metric."
            )


def loss_gradient(model):
    """Returns a function of a batch `(x, y)` of one example: its gradient for each trainable variable."""
    variables = model.trainable_weights

    @tf.function(reduce_retracing=True)
    def gradient(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.loss.call(y, *tf.nest.flatten(model(x, training=True))))
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return [tf.convert_to_tensor(g) for g in gradients]

    return gradient


def gradient_norms(model):
    """Returns a function of a batch `(x, y)` of one example: the gradient norm for each trainable variable."""
    gradient = loss_gradient(model)

    @tf.function(reduce_retracing=True)
    def norms(x, y):
        return tf.stack([tf.norm(tf.reshape(g, [-1])) for g in gradient(x, y)])

    return norms


def compiles(model) -> bool:
    """Returns whether a new batch shape costs a compilation."""
    return bool(model.jit_compile)


def release_programs():
    """Gives back the programs of models that are gone, before they are too many: TensorFlow does so by itself."""


def microbatch_bytes(model, clips: bool = True) -> int | None:
    """Returns the bytes of activations that one microbatch should have, or None for no limit.

    Measured on CPUs, where it is a matter of the cache. A step that does not clip is fastest with all of it where there
    are several threads. Each operation is a call of its own, which has to be worth it, for several threads more so:
    networks of many layers take more rows. Compiled steps pad to whole microbatches.

    Args:
        clips: Whether the gradients of examples are clipped.
    """
    if model.jit_compile or (threads := cpu_threads()) is None:
        return None
    layers = sum(len(_keras.uses(layer)) for layer in _keras.walk(model))
    if threads == 1:
        # Each microbatch adds gradients of the size of the weights.
        weights = 4 * sum(math.prod(v.shape) for v in model.trainable_variables)
        return max(8 * 2**20, layers * 2**19, min(16 * weights, 64 * 2**20))
    return max(20 * 2**20, layers * 2**21) if clips else None


def cpu_threads() -> int | None:
    """Returns how many threads an operation may use where it runs on a CPU; None where it does not."""
    if tf.config.list_logical_devices("GPU"):
        return None
    asked = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return asked or available or 1


def feed(batches, example):
    """Returns endless batches in the form in which `fit` takes them.

    As Keras makes it, but without tuning at run time: its thread sleeps for up to a minute, and whoever lets go of the
    iterator waits until it wakes up.

    Args:
        batches: Iterator of tuples of arrays.
        example: Tuple of arrays of the same types and, but for the first axis, shapes.
    """

    def spec(leaf):
        return tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype)

    signature = tf.nest.map_structure(spec, example)
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    _collect_at_exit()
    return dataset.prefetch(2).with_options(_untuned_options())


def _untuned_options():
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


# What Keras makes of the arrays that `evaluate` and `predict` are given.
_dataset_of_arrays = _keras.ArrayDataAdapter.get_tf_dataset


@contextlib.contextmanager
def untuned():
    """Inside, `evaluate` and `predict` of Keras read arrays without tuning at run time, as `feed` does.

    Else they may wait at their end for half as long as they have computed.
    """
    before = _keras.ArrayDataAdapter.get_tf_dataset
    _keras.ArrayDataAdapter.get_tf_dataset = lambda self: _dataset_of_arrays(self).with_options(_untuned_options())
    try:
        yield
    finally:
        _keras.ArrayDataAdapter.get_tf_dataset = before


@functools.cache
def _collect_at_exit():
    """Keras leaves the iterator of a `fit` in a cycle, and TensorFlow warns when it outlives Python."""
    atexit.register(gc.collect)


def value_of(variable):
    """Returns what a variable holds, as a NumPy array, sooner than `numpy()`."""
    inner = variable.value
    return tf.raw_ops.ReadVariableOp(resource=inner.handle, dtype=inner.dtype).numpy()


def mixed_products() -> bool:
    """Returns whether products of one step may differ in precision: TensorFlow has one switch for all."""
    return False


@contextlib.contextmanager
def full_precision():
    """Returns a context in which float32 products are computed in float32: TF32 exceeds the slack of the bounds."""
    _refuse_rewriting()
    switches.refuse_fast_math()
    with _PRECISE:
        if not _precise["users"]:
            _precise["before"] = tf.config.experimental.tensor_float_32_execution_enabled()
        _precise["users"] += 1
        tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        with _PRECISE:
            _precise["users"] -= 1
            if not _precise["users"]:
                tf.config.experimental.enable_tensor_float_32_execution(_precise["before"])


def _refuse_rewriting():
    """Refuses switches that have TensorFlow compute products in low precision, the engine's own as well."""
    asked = tf.config.optimizer.get_experimental_options()
    on = [name for name, value in asked.items() if name.startswith("auto_mixed_precision") and value]
    on += [name for name in _REWRITING if os.environ.get(name, "").lower() in ("1", "true")]
    on += [name for name in _FAST_MATH if os.environ.get(name, "").lower() not in ("", "strict")]
    if on:
        raise ValueError(
            "Norms, bounds and noise need float32, and this switch of TensorFlow has products computed in less, "
            f"whatever their type is. Received: {', '.join(on)} is on. Leave it off, variables of the environment "
            "before TensorFlow is imported; with a strategy that clips, "
            "keras.config.set_dtype_policy('mixed_bfloat16') makes layers compute in bfloat16."
        )


def concrete():
    """Returns a context in which operations on numbers give numbers, also while a step is traced around it."""
    return tf.init_scope()


def large_products() -> bool:
    """Returns whether one large product beats many small ones; not measured here on a GPU."""
    return False


def rows_alike() -> int:
    """Returns of what numbers of rows have to be multiples so that products round all rows alike: see `in_tiles`."""
    return 1 if cpu_threads() is None else _TILE


def in_tiles(function, rows, size: int = _TILE):
    """Returns what a function makes of rows, filled up with zeros to a multiple of `size`.

    A CPU without AVX-512 takes six rows at once into a product, and rounds the last ones in another way if there are
    one or two; other processors take up to 48.
    """
    count = tf.shape(rows)[0]
    padding = [[0, -count % size], *[[0, 0]] * (rows.shape.rank - 1)]
    return function(tf.pad(rows, padding))[:count]


def pullback(model, xla: bool = False, training: bool = False):
    """Returns the function from inputs and a cotangent to outputs and the gradients of inputs and trainable variables.

    Integer inputs have no gradient; None stands in its place. `xla`: compile as `fit` may do. `training`: what the
    model is called with.
    """

    @tf.function(jit_compile=xla)
    def pull(xs, cotangent):
        variables = [v.value for v in model.trainable_variables]
        floats = [x for x in xs if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            y = model(xs if len(xs) > 1 else xs[0], training=training)
        inputs, variables = tape.gradient(y, [floats, variables], cotangent, unconnected_gradients="zero")
        inputs = iter(inputs)
        return (
            y,
            [next(inputs) if x.dtype.is_floating else None for x in xs],
            [tf.convert_to_tensor(v) for v in variables],
        )

    return lambda xs, cotangent: pull([tf.constant(x) for x in xs], tf.constant(cotangent))


def compiled(function, variables):
    """Returns `function`, whose arguments are tensors, compiled.

    Args:
        function: reads `variables` and changes none.
        variables: the Keras variables that it reads.
    """
    # TensorFlow warns of functions of one code that are traced again and again. Here each is of another model, and
    # a partial has no code.
    return tf.function(functools.partial(function), autograph=False)


def train_function(model, function):
    """Returns the train function that Keras has made, as it is."""
    return function


def weights_kept(model):
    """Returns a context in which a model has its weights, whatever fails: here always."""
    return contextlib.nullcontext()
