"""Plain per-example gradients, one example at a time: what the engine is compared with."""

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend, gradients


def squared_error(y, y_pred):
    """A per-example loss for outputs of any shape: not symmetric, so that no gradient vanishes by chance."""
    total = 0.0
    for out in tree.flatten(y_pred):
        flat = ops.reshape(out, (ops.shape(out)[0], -1))
        ramp = ops.cast(ops.arange(1, flat.shape[1] + 1), "float32") / flat.shape[1]
        total = total + ops.mean(ops.square(flat - ramp) + ops.sin(3.0 * flat), axis=1)
    return total * (1.0 + ops.cast(y, "float32"))


def state(model):
    """What JAX needs instead of variables."""
    if keras.backend.backend() != "jax":
        return {}
    return {
        "trainable": [v.value for v in model.trainable_variables],
        "non_trainable": [v.value for v in model.non_trainable_variables],
    }


def plain_gradients(model, x, y, weight, views=1, loss=squared_error):
    """Gradients of each example, float64 copies of `(batch, *shape)` per trainable variable."""
    result = [[] for _ in model.trainable_variables]
    one = _gradient(model, loss)
    for i, w in enumerate(weight):
        rows = slice(i * views, (i + 1) * views)
        xs, ys = tree.map_structure(lambda t, rows=rows: ops.convert_to_tensor(t[rows]), (x, y))
        for values, gradient in zip(result, one(xs, ys, np.float32(w)), strict=True):
            values.append(np.asarray(gradient, "float64"))
    return [np.stack(values) for values in result]


def _gradient(model, loss):
    """A function of one example: x, y, weight."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def run(x, y, weight):
            with tf.GradientTape() as tape:
                total = weight * tf.reduce_mean(loss(y, model(x, training=True)))
            values = [v.value for v in model.trainable_variables]
            found = tape.gradient(total, values, unconnected_gradients="zero")
            return [tf.convert_to_tensor(g) for g in found]  # tables come as sparse slices

        return run
    import jax

    non_trainable = [v.value for v in model.non_trainable_variables]

    training = {"training": True} if model._call_has_training_arg else {}

    def total(trainable, x, y, weight):
        return weight * ops.mean(loss(y, model.stateless_call(trainable, non_trainable, x, **training)[0]))

    return _quickly(jax.grad(total), [v.value for v in model.trainable_variables])


def _quickly(function, *first):
    """Compiled by JAX in as little time as possible."""
    import jax

    compiled = []

    def run(*arguments):
        if not compiled:
            lowered = jax.jit(function).lower(*first, *arguments)
            compiled.append(lowered.compile(compiler_options={"xla_backend_optimization_level": "0"}))
        return compiled[0](*first, *arguments)

    return run


def engine(model, x, y, weight, views=1, mode="eager", loss=squared_error, center=None, inverse_scale=None):
    """Squared norms, scaled squared norms and weighted sums of the engine, as `fit` would run it.

    Args:
        mode: "eager", "graph" or "compiled" (XLA on TensorFlow; both are `jax.jit` on JAX).

    Returns:
        A dict of numpy arrays: `norms`, `scaled` (None without `center`), `sums` and `split`, sums with coefficients
        of their own for each variable, `values`.
    """
    coefficients = np.linspace(0.5, 1.5, len(weight)).astype("float32")
    several = [coefficients * (k + 1) for k in range(len(model.trainable_variables))]

    def run(x, y, weight, coefficients, several, state):
        record = gradients.capture(backend.Forward(model, **state), x, y, weight, loss_values=loss, copies=views)
        scaled = None if center is None else record.squared_norms(center, inverse_scale)
        return {
            "norms": record.squared_norms(),
            "scaled": scaled,
            "sums": record.weighted_sum(coefficients),
            "split": record.weighted_sum(several),
            "values": record.values,
        }

    arguments = tree.map_structure(ops.convert_to_tensor, (x, y, weight, coefficients, several, state(model)))
    if mode != "eager" and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(run, jit_compile=mode == "compiled", reduce_retracing=False, autograph=False)
    elif mode != "eager":
        run = _quickly(run)
    result = run(*arguments)
    return {
        key: None if value is None else tree.map_structure(lambda t: np.asarray(t, "float64"), value)
        for key, value in result.items()
    }


def compare(model, x, y=None, weight=None, views=1, mode="eager", tolerance=1e-5, loss=squared_error, scaled=True):
    """Asserts that the engine agrees with plain gradients: norms, scaled norms, sums."""
    rows = tree.flatten(x)[0].shape[0]
    y = np.linspace(0, 1, rows).astype("float32") if y is None else y
    weight = np.ones(rows // views, "float32") if weight is None else weight
    expected = plain_gradients(model, x, y, weight, views, loss)
    rng = np.random.default_rng(0)
    center = [rng.normal(size=v.shape).astype("float32") * 0.1 for v in model.trainable_variables]
    inverse = [rng.uniform(0.5, 2.0, size=v.shape).astype("float32") for v in model.trainable_variables]
    found = engine(model, x, y, weight, views, mode, loss, *((center, inverse) if scaled else (None, None)))
    coefficients = np.linspace(0.5, 1.5, len(weight)).astype("float32")
    largest = max(np.sqrt(np.sum(g**2, axis=tuple(range(1, g.ndim)))).max() for g in expected)
    assert largest > 0
    for k, (variable, g) in enumerate(zip(model.trainable_variables, expected, strict=True)):
        axes = tuple(range(1, g.ndim))
        norm = np.sqrt(np.sum(g**2, axis=axes))
        got = np.sqrt(found["norms"][k])
        assert np.all(found["norms"][k] >= 0), variable.path
        # Relative to the norm, or to that of all variables where a gradient vanishes.
        _assert_norms(got, norm, tolerance, 0.1 * tolerance * largest, variable.path)
        exact = np.tensordot(coefficients.astype("float64"), g, axes=1)
        # The sum may cancel: relative to the largest entry of its terms.
        size = max(np.abs(exact).max(), np.abs(g).max(), 0.05 * largest)
        for name, factor in (("sums", 1), ("split", k + 1)):
            error = np.abs(found[name][k] / factor - exact).max()
            assert error <= tolerance * size, (variable.path, name, error, size)
        if scaled:
            value = np.sqrt(np.sum((inverse[k] * (g - center[k].astype("float64"))) ** 2, axis=axes))
            _assert_norms(np.sqrt(found["scaled"][k]), value, tolerance, 0.0, variable.path)
    return found


def _assert_norms(found, exact, tolerance, least, path):
    """Norms may err upwards by what rounding could have taken from them: more than downwards."""
    assert (found >= exact * (1.0 - tolerance) - least).all(), (path, found, exact)
    assert (found <= exact * (1.0 + max(tolerance, 1e-4)) + 10.0 * least).all(), (path, found, exact)
