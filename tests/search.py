"""Exact measures and adversarial search for norms, Jacobians and gradients, on the backend in use."""

import keras
import numpy as np
from keras import tree

from lipdp.norms import L2Ball, SpectralBall

# What float32 may add to a ratio of one layer.
TOLERANCE = 1e-5


class Probe:
    """A layer or model with its derivatives, numbers in and numbers out.

    Args:
        layer: The layer or model. A layer is put into a functional model of its own.
        shapes: Shape of one example, for each input; none for a model.
        xla: On TensorFlow, compile as `fit` does.
    """

    def __init__(self, layer, *shapes, xla=False):
        self.layer = self.model = layer
        if shapes:
            inputs = [keras.Input(shape) for shape in shapes]
            inputs = inputs if len(inputs) > 1 else inputs[0]
            self.model = keras.Model(inputs, layer(inputs))
        self.shapes = [tuple(t.shape)[1:] for t in self.model.inputs]
        self.output_shape = tuple(self.model.output_shape)[1:]
        self.variables = list(self.model.trainable_variables)
        jax = keras.backend.backend() == "jax"
        self._pull = _jax_pull(self.model) if jax else _tensorflow_pull(self.model, xla)
        self._ascent = (_jax_ascent if jax else _tensorflow_ascent)(self.model)

    def value(self, *xs):
        return self.pull(xs, np.zeros((len(xs[0]), *self.output_shape)))[0]

    def pull(self, xs, cotangent):
        """Outputs, gradients of the inputs, gradients of the variables (summed over the batch)."""
        xs = [np.asarray(x, "float32") for x in xs]
        return tree.map_structure(_numpy, self._pull(xs, np.asarray(cotangent, "float32")))

    def input_jacobians(self, *xs):
        """One (outputs, inputs) matrix per input, at one example, repeated with one unit cotangent each."""
        size = int(np.prod(self.output_shape))
        rows = [np.repeat(np.asarray(x)[:1], size, axis=0) for x in xs]
        _, gradients, _ = self.pull(rows, np.eye(size).reshape(size, *self.output_shape))
        return [g.reshape(size, -1) for g in gradients]

    def parameter_jacobians(self, *xs):
        """One (outputs, entries) matrix per variable, at one example."""
        size = int(np.prod(self.output_shape))
        units = np.eye(size).reshape(size, 1, *self.output_shape)
        rows = [self.pull([np.asarray(x)[:1] for x in xs], unit)[2] for unit in units]
        return [np.stack([row[k].reshape(-1) for row in rows]) for k in range(len(self.variables))]

    def ascent(self, weights, xs, cotangent):
        """Gradients of `sum_k weights_k ||d<cotangent, f> / d theta_k||^2 / 2`, which comes first."""
        xs = [np.asarray(x, "float32") for x in xs]
        arguments = (np.asarray(weights, "float32"), xs, np.asarray(cotangent, "float32"))
        return tree.map_structure(_numpy, self._ascent(*arguments))


def _packed(xs):
    return xs if len(xs) > 1 else xs[0]


def _numpy(value):
    return np.asarray(keras.ops.convert_to_numpy(value), "float64")


def _jax_pull(model):
    import jax

    @jax.jit
    def pull(trainable, other, xs, cotangent):
        def outputs(trainable, xs):
            return model.stateless_call(trainable, other, _packed(xs))[0]

        y, back = jax.vjp(outputs, trainable, xs)
        variables, inputs = back(cotangent)
        return y, inputs, variables

    return lambda xs, cotangent: pull(*_state(model), xs, cotangent)


def _jax_ascent(model):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def ascent(trainable, other, weights, xs, cotangent):
        def squared(trainable, xs, cotangent):
            def inner(trainable):
                return jnp.sum(cotangent * model.stateless_call(trainable, other, _packed(xs))[0])

            gradients = jax.grad(inner)(trainable)
            return 0.5 * sum(w * jnp.sum(g * g) for w, g in zip(weights, gradients, strict=True))

        value, (variables, inputs, cotangents) = jax.value_and_grad(squared, (0, 1, 2))(trainable, xs, cotangent)
        return value, inputs, variables, cotangents

    return lambda weights, xs, cotangent: ascent(*_state(model), weights, xs, cotangent)


def _state(model):
    return [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def _tensorflow_pull(model, xla):
    import tensorflow as tf

    @tf.function(jit_compile=xla)
    def pull(xs, cotangent):
        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = model(_packed(xs))
        inputs, variables = tape.gradient(y, [xs, variables], cotangent, unconnected_gradients="zero")
        return y, inputs, variables

    return lambda xs, cotangent: pull([tf.constant(x) for x in xs], tf.constant(cotangent))


def _tensorflow_ascent(model):
    import tensorflow as tf

    @tf.function
    def ascent(weights, xs, cotangent):
        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as outer:
            outer.watch([xs, cotangent])
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(cotangent * model(_packed(xs)))
            gradients = inner.gradient(value, variables, unconnected_gradients="zero")
            squares = [tf.reduce_sum(tf.square(g)) for g in gradients]
            value = 0.5 * tf.tensordot(weights, tf.stack(squares), 1)
        sources = [xs, variables, cotangent]
        return value, *outer.gradient(value, sources, unconnected_gradients="zero")

    return lambda weights, xs, cotangent: ascent(
        tf.constant(weights), [tf.constant(x) for x in xs], tf.constant(cotangent)
    )


def norm(array) -> float:
    return float(np.linalg.norm(np.asarray(array, "float64").reshape(-1)))


def top(matrix) -> float:
    """Largest singular value."""
    return float(np.linalg.svd(np.asarray(matrix, "float64"), compute_uv=False)[0])


def scaled(array, size: float):
    """The array on the sphere of radius `size`; zero stays zero."""
    return np.asarray(array, "float64") * (size / max(norm(array), 1e-30))


def starts(shape, rng, size: float = 1.0):
    """Examples of norm at most `size` where bounds tend to fail: one batch axis of length one in front."""
    shape = (1, *shape)
    one_hot, corner, channel = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    one_hot[(0, *(n // 2 for n in shape[1:]))] = 1.0
    corner.flat[0] = 1.0
    channel[..., 0] = 1.0
    sign = np.where(np.indices(shape).sum(0) % 2, -1.0, 1.0)
    few_values = rng.integers(-1, 2, shape).astype("float64")  # ties everywhere
    gaussian = rng.standard_normal(shape)
    found = [np.ones(shape), -np.ones(shape), one_hot, corner, channel, sign, few_values, gaussian]
    found = [scaled(x, size) for x in found]
    return [np.zeros(shape), *found, 1e-3 * found[-1], scaled(np.abs(gaussian), size)]


def weight_settings(variable, rng):
    """Values at the border of what the variable's constraint allows, on which linear bounds are tight."""
    shape = tuple(variable.shape)
    if isinstance(variable.constraint, L2Ball):
        radius = variable.constraint.max_norm
        directions = [np.ones(shape), np.eye(1, shape[0])[0], rng.standard_normal(shape)]
        return [np.zeros(shape), *(scaled(d, radius) for d in directions)]
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    u, _, v = np.linalg.svd(rng.standard_normal((rows, columns)), full_matrices=False)
    rank = u.shape[1]
    spectra = [np.ones(rank), np.eye(1, rank)[0], np.linspace(0.9, 1.0, rank)]
    found = [(u * s) @ v for s in spectra]
    found += [np.eye(rows, columns), np.ones((rows, columns)) / np.sqrt(rows * columns)]
    found = [w.reshape(shape) for w in found]
    return [*found, projected(variable, rng.standard_normal(shape))]


def projected(variable, value):
    """The nearest value that the variable's constraint allows, in float64."""
    if isinstance(variable.constraint, L2Ball):
        return scaled(value, min(norm(value), variable.constraint.max_norm))
    assert isinstance(variable.constraint, SpectralBall)
    u, s, v = np.linalg.svd(value.reshape(-1, value.shape[-1]), full_matrices=False)
    return ((u * np.minimum(s, 1.0)) @ v).reshape(value.shape)


def assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value, "float32"))


def largest_output(probe, sizes, rng, steps=8) -> float:
    """Largest output norm found for inputs of the given norms: power iteration, then random climbing."""
    best, best_xs = 0.0, None
    for xs in zip(*(starts(s, rng, n) for s, n in zip(probe.shapes, sizes, strict=True)), strict=True):
        for _ in range(steps):
            y, gradients, _ = probe.pull(xs, probe.value(*xs))
            if norm(y) > best:
                best, best_xs = norm(y), xs
            new = [scaled(g, n) if norm(g) else x for x, g, n in zip(xs, gradients, sizes, strict=True)]
            if all(np.allclose(a, b, atol=1e-6) for a, b in zip(xs, new, strict=True)):
                break
            xs = new
    for _ in range(2 * steps):
        xs = [
            scaled(x + 0.3 * scaled(rng.standard_normal(x.shape), n), n)
            for x, n in zip(best_xs or xs, sizes, strict=True)
        ]
        if norm(probe.value(*xs)) > best:
            best, best_xs = norm(probe.value(*xs)), xs
    return best


def largest_input_jacobians(probe, sizes, rng, steps=10) -> list[float]:
    """Largest norm found of the Jacobian as the backward pass applies it, for each input."""
    best = [0.0] * len(sizes)
    candidates = list(zip(*(starts(s, rng, n) for s, n in zip(probe.shapes, sizes, strict=True)), strict=True))
    candidates += [
        [x + 0.1 * rng.standard_normal(x.shape) for x in candidates[k % len(candidates)]] for k in range(steps)
    ]
    for xs in candidates:
        found = [top(j) for j in probe.input_jacobians(*xs)]
        best = [max(pair) for pair in zip(best, found, strict=True)]
    return best


def largest_parameter_gradient(probe, size, rng, steps=12) -> float:
    """Largest gradient norm of the one variable of a layer linear in it, for a unit cotangent.

    The form <g, f_W(x)> is maximised over x, g and W in turn, each step in closed form.
    """
    (variable,) = probe.variables
    kept = _numpy(variable.value)
    # A bias is linear in its variable only: f_b(x) - f_0(x) does not depend on x.
    bias = len(variable.shape) == 1
    best = 0.0
    for x in starts(probe.shapes[0], rng, size):
        g, before = scaled(rng.standard_normal((1, *probe.output_shape)), 1.0), 0.0
        for _ in range(steps):
            assign([variable], [kept])
            _, _, (gradient,) = probe.pull([x], g)
            best = max(best, norm(gradient))
            if norm(gradient) <= before * (1.0 + 1e-6):
                break
            before = norm(gradient)
            assign([variable], [scaled(gradient, 1.0)])
            g = scaled(probe.value(x) - (x if bias else 0.0), 1.0)
            if not bias:
                x = scaled(probe.pull([x], g)[1][0], size)
    assign([variable], [kept])
    return best


def largest_gradient(probe, index, cotangent, rng, input_size, restarts=3, steps=25):
    """Largest gradient norm of variable `index` for one example, over inputs, allowed weights and cotangents.

    Gradient ascent with projection from structured starts.

    Returns:
        The norm, and the inputs at which it was found; the weights are left there.
    """
    weights = np.eye(len(probe.variables))[index]
    best, best_state = 0.0, None
    for restart in range(restarts):
        settings = [weight_settings(v, rng) for v in probe.variables]
        # The first start has every kernel orthonormal, where nothing is lost.
        assign(probe.variables, [s[0 if restart == 0 else rng.integers(len(s))] for s in settings])
        pick = 1 if restart == 0 else -1
        xs = [starts(s, rng, input_size)[pick] for s in probe.shapes]
        g = scaled(rng.standard_normal((1, *probe.output_shape)), cotangent)
        for step in range(steps):
            value, dxs, dvs, dg = probe.ascent(weights, xs, g)
            size = float(np.sqrt(2.0 * value))
            if size > best:
                best = size
                best_state = (xs, [_numpy(v.value) for v in probe.variables])
            rate = 1.0 if step < steps // 2 else 0.3
            xs = [scaled(x + rate * scaled(d, input_size), input_size) for x, d in zip(xs, dxs, strict=True)]
            g = scaled(g + rate * scaled(dg, cotangent), cotangent)
            for variable, d in zip(probe.variables, dvs, strict=True):
                moved = projected(variable, _numpy(variable.value) + rate * scaled(d, 1.0))
                variable.assign(moved.astype("float32"))
    if best_state:
        assign(probe.variables, best_state[1])
    return best, best_state and best_state[0]
