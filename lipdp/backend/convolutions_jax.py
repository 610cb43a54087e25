"""Convolutions that stay fast inside a loop under JAX on a CPU.

XLA has a fast convolution for tensors with channels last. It brings others into that order at the top of a program
only: the gradient of a convolution inside a loop takes many times as long as outside of it.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core

_CONVOLUTION = jax.lax.conv_general_dilated_p
# What only calls a function. Loops and recomputation have a meaning of their own, and stay as they are.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def channels_last(function: Callable) -> Callable:
    """Returns a function of tensors that computes the same, with each convolution brought into XLA's order.

    Call it while a program is traced. Where XLA has no such order, as for groups, a convolution stays as it is.
    """

    def run(*arguments):
        traced, outputs = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(outputs), found)

    return run


def _evaluate(jaxpr: Any, constants: list, arguments: list) -> list:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def read(variable):
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        inputs, called = [read(v) for v in equation.invars], _called(equation)
        if equation.primitive is _CONVOLUTION:
            outputs = [_in_order(*inputs, **equation.params)]
        elif called is not None and _has_convolutions(called.jaxpr):
            outputs = _evaluate(called.jaxpr, called.consts, inputs)
        else:
            bound = equation.primitive.get_bind_params(equation.params)
            functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # older JAX: a pair
            outputs = equation.primitive.bind(*functions, *inputs, **parameters)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _called(equation: Any) -> Any:
    """Returns the function that an equation calls, or None."""
    if equation.primitive.name not in _CALLS:
        return None
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    called = next((equation.params[name] for name in names if name in equation.params), None)
    return called if isinstance(called, core.ClosedJaxpr) else None


def _has_convolutions(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        called = _called(equation)
        if equation.primitive is _CONVOLUTION or (called is not None and _has_convolutions(called.jaxpr)):
            return True
    return False


def _in_order(images, kernel, *, dimension_numbers, feature_group_count, batch_group_count, **options):
    groups = {"feature_group_count": feature_group_count, "batch_group_count": batch_group_count}
    if feature_group_count > 1 or batch_group_count > 1:
        return _CONVOLUTION.bind(images, kernel, dimension_numbers=dimension_numbers, **groups, **options)
    (row, channel, *sizes), (out, into, *window), (row_out, channel_out, *places) = dimension_numbers
    space = range(1, images.ndim - 1)
    order = jax.lax.ConvDimensionNumbers(
        (0, images.ndim - 1, *space), (images.ndim - 1, images.ndim - 2, *(k - 1 for k in space)),
        (0, images.ndim - 1, *space),
    )  # fmt: skip
    found = _CONVOLUTION.bind(
        jax.lax.transpose(images, (row, *sizes, channel)),
        jax.lax.transpose(kernel, (*window, into, out)),
        dimension_numbers=order,
        **groups,
        **options,
    )
    return jax.lax.transpose(found, np.argsort((row_out, *places, channel_out)).tolist())
