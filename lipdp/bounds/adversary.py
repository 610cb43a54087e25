"""Exact measures and adversarial search for the norms, Jacobians and gradients of one layer."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from lipdp import backend
from lipdp.norms import L2Ball, RowBall, SpectralBall

# What float32 may add to a ratio of one layer.
TOLERANCE = 1e-5


class Probe:
    """A layer or model with its derivatives, numbers in and numbers out.

    Args:
        layer: The layer or model. A layer is put into a functional model of its own.
        shapes: Shape of one example, for each input; none for a model.
        dtype: Type of the inputs.
        xla: On TensorFlow, compile as `fit` does.
        training: Whether the layer is called as in training.
    """

    def __init__(
        self,
        layer: keras.layers.Layer,
        *shapes: tuple[int, ...],
        dtype: str = "float32",
        xla: bool = False,
        training: bool = False,
    ):
        self.layer = self.model = layer
        if shapes:
            inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
            inputs = inputs if len(inputs) > 1 else inputs[0]
            self.model = keras.Model(inputs, layer(inputs))
        self.shapes = [tuple(t.shape)[1:] for t in self.model.inputs]
        self.output_shape = tuple(self.model.output_shape)[1:]
        self.variables = list(self.model.trainable_variables)
        self._dtypes = [t.dtype for t in self.model.inputs]
        self._pull = backend.pullback(self.model, xla, training)

    def value(self, *xs: Any) -> Any:
        return self.pull(xs, np.zeros((len(xs[0]), *self.output_shape)))[0]

    def pull(self, xs: Any, cotangent: Any) -> Any:
        """Returns outputs, gradients of the inputs, gradients of the variables (summed over the batch)."""
        xs = [np.asarray(x, dtype) for x, dtype in zip(xs, self._dtypes, strict=True)]
        y, inputs, variables = self._pull(xs, np.asarray(cotangent, "float32"))
        # Tokens have no gradient.
        inputs = [np.zeros(x.shape) if g is None else _numpy(g) for x, g in zip(xs, inputs, strict=True)]
        return _numpy(y), inputs, [_numpy(v) for v in variables]

    def input_jacobians(self, *xs: Any) -> Any:
        """Returns one (outputs, inputs) matrix per input, at one example, repeated with one unit cotangent each."""
        size = int(np.prod(self.output_shape))
        rows = [np.repeat(np.asarray(x)[:1], size, axis=0) for x in xs]
        _, gradients, _ = self.pull(rows, np.eye(size).reshape(size, *self.output_shape))
        return [g.reshape(size, -1) for g in gradients]

    def parameter_jacobians(self, *xs: Any) -> Any:
        """Returns one (outputs, entries) matrix per variable, at one example."""
        size = int(np.prod(self.output_shape))
        units = np.eye(size).reshape(size, 1, *self.output_shape)
        rows = [self.pull([np.asarray(x)[:1] for x in xs], unit)[2] for unit in units]
        return [np.stack([row[k].reshape(-1) for row in rows]) for k in range(len(self.variables))]


def _numpy(value):
    return np.asarray(keras.ops.convert_to_numpy(value), "float64")


def norm(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, "float64").reshape(-1)))


def top(matrix: np.ndarray) -> float:
    """Returns the largest singular value; that of a matrix which is not finite is infinite."""
    if not np.isfinite(matrix).all():
        return float("inf")
    return float(np.linalg.svd(np.asarray(matrix, "float64"), compute_uv=False)[0])


def scaled(array: Any, size: float) -> Any:
    """Returns the array on the sphere of radius `size`; zero stays zero."""
    return np.asarray(array, "float64") * (size / max(norm(array), 1e-30))


def _within(array: Any, size: float) -> Any:
    """Returns the nearest array in the ball of radius `size`."""
    return scaled(array, size) if norm(array) > size else array


def starts(shape: tuple[int, ...], rng: np.random.Generator, size: float = 1.0) -> Any:
    """Returns examples of norm at most `size` where bounds tend to fail: one batch axis of length one in front."""
    shape = (1, *shape)
    one_hot, corner, channel = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    one_hot[(0, *(n // 2 for n in shape[1:]))] = 1.0
    corner.flat[0] = 1.0
    channel[..., 0] = 1.0
    sign = np.where(np.indices(shape).sum(0) % 2, -1.0, 1.0)
    few_values = rng.integers(-1, 2, shape).astype("float64")  # ties everywhere
    gaussian = rng.standard_normal(shape)
    starts = [np.ones(shape), -np.ones(shape), one_hot, corner, channel, sign, few_values, gaussian]
    starts = [scaled(x, size) for x in starts]
    return [np.zeros(shape), *starts, 1e-3 * starts[-1], scaled(np.abs(gaussian), size)]


def weight_settings(variable: keras.Variable, rng: np.random.Generator) -> Any:
    """Returns values at the border of what the variable's constraint allows, on which linear bounds are tight."""
    shape, ball = tuple(variable.shape), variable.constraint
    if isinstance(ball, (L2Ball, RowBall)):
        directions = [np.ones(shape), np.eye(1, shape[-1])[0] * np.ones(shape), rng.standard_normal(shape)]
        return [np.zeros(shape), *(projected(variable, 1e6 * d) for d in directions)]
    if not isinstance(ball, SpectralBall):
        # Free, or bounded by a constraint that can only be asked.
        return [projected(variable, size * rng.standard_normal(shape)) for size in (0.0, 0.3, 1.0, 3.0, 10.0)]
    groups, rows, columns = ball.matrices(np.zeros(shape)).shape
    settings = []
    u, _, v = np.linalg.svd(rng.standard_normal((groups, rows, columns)), full_matrices=False)
    rank = u.shape[-1]
    for spectrum in (np.ones(rank), np.eye(1, rank)[0], np.linspace(0.9, 1.0, rank)):
        settings.append((u * spectrum) @ v)
    settings += [np.eye(rows, columns), np.ones((rows, columns)) / np.sqrt(rows * columns)]
    if groups > 1:  # one group alone
        settings.append(settings[0] * np.eye(1, groups)[0][:, None, None])
    settings = [np.swapaxes(np.broadcast_to(w, (groups, rows, columns)), 0, 1).reshape(shape) for w in settings]
    return [*settings, projected(variable, rng.standard_normal(shape))]


def projected(variable: keras.Variable, value: Any) -> Any:
    """Returns the nearest value that the variable's constraint allows, in float64."""
    ball = variable.constraint
    if isinstance(ball, L2Ball):
        return scaled(value, min(norm(value), ball.max_norm))
    if isinstance(ball, RowBall):
        return np.stack([scaled(row, min(norm(row), ball.max_norm)) for row in value])
    if not isinstance(ball, SpectralBall):
        return np.asarray(value) if ball is None else _numpy(ball(np.asarray(value, "float32")))
    u, s, v = np.linalg.svd(ball.matrices(value), full_matrices=False)
    return np.swapaxes((u * np.minimum(s, 1.0)[:, None]) @ v, 0, 1).reshape(value.shape)


def assign(variables: list, values: list) -> Any:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value, "float32"))


def largest_output(probe: Probe, sizes: Sequence[float], rng: np.random.Generator, steps: int = 8) -> float:
    """Returns the largest output norm that is reached on inputs of these norms: power iteration, then random steps."""
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


def largest_input_jacobians(
    probe: Probe, sizes: Sequence[float], rng: np.random.Generator, steps: int = 10
) -> list[float]:
    """Returns the largest norm of the Jacobian that is reached, as the backward pass applies it, for each input."""
    best = [0.0] * len(sizes)
    candidates = list(zip(*(starts(s, rng, n) for s, n in zip(probe.shapes, sizes, strict=True)), strict=True))
    candidates += [
        tuple(
            _within(x + 0.1 * rng.standard_normal(x.shape), n)
            for x, n in zip(candidates[k % len(candidates)], sizes, strict=True)
        )
        for k in range(steps)
    ]
    for xs in candidates:
        norms = [top(j) for j in probe.input_jacobians(*xs)]
        best = [max(pair) for pair in zip(best, norms, strict=True)]
    return best


def largest_cotangent_ratio(
    probe: Probe, sizes: Sequence[float], bounds: Callable, rng: np.random.Generator, lengths: Sequence[float]
) -> float:
    """Returns the largest norm that the backward pass sends to an input, over what `bounds` says, for each length.

    Only a backward pass that is not the derivative of the forward pass answers otherwise than by its Jacobian.
    """
    best = 0.0
    for xs in zip(*(starts(s, rng, n) for s, n in zip(probe.shapes, sizes, strict=True)), strict=True):
        for k, jacobian in enumerate(probe.input_jacobians(*xs)):
            if not np.isfinite(jacobian).all():
                return float("inf")
            direction = np.linalg.svd(jacobian)[0][:, 0].reshape(1, *probe.output_shape)
            for length in lengths:
                sent = norm(probe.pull(xs, length * direction)[1][k])
                best = max(best, ratio(sent, bounds(tuple(sizes), length)[k]))
    return best


def ratio(measured: float, bound: float) -> float:
    """Returns what was measured over its bound; NaN, and more than nothing over a bound of 0, are infinite."""
    if measured == 0.0:
        return 0.0
    return measured / bound if bound and not np.isnan(measured) else float("inf")


def largest_parameter_gradients(
    probe: Probe, sizes: Sequence[float], rng: np.random.Generator, steps: int = 12
) -> list[float]:
    """Returns the largest gradient norm that is reached for each variable, for a unit cotangent."""
    if not probe.variables:
        return []
    if len(probe.variables) == 1 and len(probe.shapes) == 1 and _linear(probe, rng):
        return [largest_parameter_gradient(probe, sizes[0], rng, steps)]
    best = [0.0] * len(probe.variables)
    settings = [weight_settings(v, rng) for v in probe.variables]
    candidates = list(zip(*(starts(s, rng, n) for s, n in zip(probe.shapes, sizes, strict=True)), strict=True))
    for step in range(max(len(candidates), steps)):
        assign(probe.variables, [s[rng.integers(len(s))] for s in settings])
        # The best cotangent, exactly.
        norms = [top(j) for j in probe.parameter_jacobians(*candidates[step % len(candidates)])]
        best = [max(pair) for pair in zip(best, norms, strict=True)]
    return best


def _linear(probe, rng) -> bool:
    """Whether the gradient of the one variable does not depend on the variable."""
    (variable,) = probe.variables
    x, g = rng.standard_normal((1, *probe.shapes[0])), rng.standard_normal((1, *probe.output_shape))
    gradients = []
    for setting in weight_settings(variable, rng)[-2:]:
        assign([variable], [setting])
        gradients.append(probe.pull([x], g)[2][0])
    return np.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-5 * norm(g))


def largest_parameter_gradient(probe: Probe, size: float, rng: np.random.Generator, steps: int = 12) -> float:
    """Returns the largest gradient norm of the one variable of a layer linear in it, for a unit cotangent.

    The form <g, f_W(x)> is maximized over x, g and W in turn, each step in closed form.
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
