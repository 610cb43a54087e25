"""Convolutions brought into XLA's order: the same numbers, wherever in a program they are."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    pytest.skip("Of the JAX backend.", allow_module_level=True)

import jax
import jax.numpy as jnp
from keras import ops

from lipdp.backend.convolutions_jax import channels_last

RNG = np.random.default_rng(0)


def tensors(*shapes):
    return [jnp.asarray(RNG.normal(size=shape).astype("float32")) for shape in shapes]


CASES = {
    "strides": (lambda x, k: jax.nn.relu(ops.conv(x, k, 2, "same")), tensors((3, 9, 8, 4), (3, 3, 4, 5))),
    "one axis": (lambda x, k: ops.conv(x, k, 1, "valid"), tensors((3, 9, 4), (3, 4, 5))),
    "three axes": (
        lambda x, k: ops.conv(x, k, 1, "same", dilation_rate=2), tensors((2, 7, 8, 6, 4), (3, 2, 3, 4, 5))
    ),
    "transposed": (lambda x, k: ops.conv_transpose(x, k, 2, "same"), tensors((3, 9, 8, 4), (3, 3, 5, 4))),
    "depthwise": (lambda x, k: ops.depthwise_conv(x, k, 1, "same"), tensors((3, 9, 8, 4), (3, 3, 4, 2))),
    "groups": (lambda x, k: ops.conv(x, k, 1, "same"), tensors((3, 9, 8, 4), (3, 3, 2, 6))),
    "channels first": (
        lambda x, k: ops.conv(x, k, 1, "same", data_format="channels_first"), tensors((3, 4, 9, 8), (3, 3, 4, 5))
    ),
    "bfloat16": (
        lambda *a: ops.conv(*(ops.cast(t, "bfloat16") for t in a)), tensors((3, 9, 8, 4), (3, 3, 4, 5))
    ),
    "called": (lambda x, k: jax.jit(lambda x: ops.conv(x, k))(x) + jnp.sum(k), tensors((3, 9, 8, 4), (3, 3, 4, 5))),
    "recomputed": (jax.checkpoint(lambda x, k: jnp.sin(ops.conv(x, k))), tensors((3, 9, 8, 4), (3, 3, 4, 5))),
    "none": (lambda x, k: {"sum": x @ k, "nothing": None}, tensors((3, 9), (9, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_the_same(name):
    function, arguments = CASES[name]

    def gradients(*arguments):
        def total(*arguments):
            return sum(jnp.sum(jnp.sin(leaf.astype("float32"))) for leaf in jax.tree.leaves(function(*arguments)))

        return jax.grad(total, (0, 1))(*arguments)

    for each in (function, gradients, lambda *a: jax.vmap(gradients)(*[t[None] for t in a])):
        expected, found = jax.jit(each)(*arguments), jax.jit(channels_last(each))(*arguments)
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            # XLA may keep more digits of bfloat16 than it says.
            relative, absolute = (2**-7, 0.1) if name == "bfloat16" else (1e-5, 1e-6)
            np.testing.assert_allclose(a.astype("float32"), b.astype("float32"), relative, absolute)


@pytest.mark.parametrize("name", ["strides", "one axis", "three axes", "transposed", "channels first", "called"])
def test_each_convolution_is_in_order(name):
    function, arguments = CASES[name]

    def gradients(*arguments):
        return jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1))(*arguments)

    traced = jax.make_jaxpr(channels_last(gradients))(*arguments)
    found = [e.params["dimension_numbers"] for e in traced.jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert len(found) == 3
    for images, kernel, outputs in found:
        n = len(images) - 1
        assert images == outputs == (0, n, *range(1, n))
        assert kernel == (n, n - 1, *range(n - 1))


def test_variables_of_an_outer_trace_are_found():
    """As in the loop over microbatches: weights and data are not arguments of its body."""
    x, k = tensors((4, 9, 8, 3), (3, 3, 3, 2))

    def total(k, turn):
        def body(i, carry):
            return carry + jnp.sum(turn(lambda k: ops.conv(jax.lax.dynamic_slice_in_dim(x, i, 1), k))(k))

        return jax.lax.fori_loop(0, len(x), body, 0.0)

    assert jax.jit(lambda k: total(k, channels_last))(k) == pytest.approx(float(total(k, lambda f: f)), rel=1e-5)
