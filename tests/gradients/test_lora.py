"""What `enable_lora` adds, against plain per-example gradients: two products, no gradient of the size of the kernel."""

import keras
import numpy as np
import pytest
from keras import layers as L

from lipdp import _keras
from lipdp.gradients import rules
from lipdp.gradients.leaves import leaves
from tests.gradients.test_rules import EINSUM, images
from tests.helpers.reference import compare

# Where no product of matrices is behind the equation, or the last letter of the kernel is none of the output alone.
_WHOLE = {"abcd,dce->abe": False, "abc,cdb->ad": True, "abc,cd->ad": True, "abc,c->abc": True}


def moved(model, seed=1):
    """No zeros, which LoRA starts with, so that nothing cancels by chance."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.2 * rng.normal(size=variable.shape).astype("float32"))
    return model


def adapted(shape, layer, rank=2, alpha=3.0, dtype="float32"):
    model = keras.Sequential([keras.Input(shape, dtype=dtype), layer])
    layer.enable_lora(rank, lora_alpha=alpha)
    return moved(model)


def recorded(model) -> dict:
    return {layer.name: rule for layer, rule in leaves(model)}


@pytest.mark.backend_free
@pytest.mark.parametrize("shape", [(5,), (3, 9), (20, 3), (3, 4, 2)])
@pytest.mark.parametrize("options", [{"activation": "tanh"}, {"use_bias": False}])
def test_dense(shape, options):
    model = adapted(shape, L.Dense(8, **options))
    assert rules.fallback not in recorded(model).values()
    compare(model, images(*shape))


@pytest.mark.backend_free
@pytest.mark.parametrize("equation", EINSUM)
def test_einsum_dense(equation):
    shape, arguments = EINSUM[equation]
    model = adapted(shape, L.EinsumDense(equation, activation="tanh", **arguments))
    assert (rules.fallback in recorded(model).values()) == _WHOLE.get(equation, False)
    compare(model, images(*shape))


@pytest.mark.slow
def test_embedding():
    model = adapted((7,), L.Embedding(11, 6), dtype="int32")
    assert rules.fallback not in recorded(model).values()
    compare(model, np.random.default_rng(0).integers(0, 11, (4, 7)).astype("int32"))


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("low_rank", [True, False])
def test_one_table_that_reads_and_writes(tied, low_rank):
    table = L.ReversibleEmbedding(11, 6, tie_weights=tied, logit_soft_cap=3.0)
    inputs = keras.Input((7,), dtype="int32")
    model = keras.Model(inputs, table(L.Dense(6, "tanh")(table(inputs)), reverse=True))
    if low_rank:
        table.enable_lora(2)
    moved(model)
    assert rules.fallback not in recorded(model).values()
    compare(model, np.random.default_rng(0).integers(0, 11, (4, 7)).astype("int32"))


@pytest.mark.slow
def test_a_kernel_that_was_released_again_trains_beside_its_addition():
    layer = L.Dense(4)
    model = adapted((5,), layer)
    _keras.own_matrix(layer, "kernel").trainable = True
    assert len(model.trainable_variables) == 4
    compare(model, images(5))


@pytest.mark.backend_free
def test_a_trainable_layer_inside_a_frozen_one_is_found():
    attention = L.MultiHeadAttention(2, 4)
    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, attention(inputs, inputs))
    attention.trainable = False
    query = next(layer for layer in model._flatten_layers() if layer.name == "query")
    query.trainable = True
    query.enable_lora(2)
    moved(model)
    assert [layer for layer, _ in leaves(model)] == [query]
    compare(model, images(5, 6))


@pytest.mark.backend_free
def test_a_layer_used_twice():
    layer = L.Dense(5, "tanh")
    inputs = keras.Input((3, 5))
    model = keras.Model(inputs, layer(layer(inputs)))
    layer.enable_lora(2)
    compare(moved(model), images(3, 5))


@pytest.mark.slow
def test_several_rows_of_one_example():
    model = adapted((3, 5), L.EinsumDense("abc,cde->abde", output_shape=(3, 2, 4), bias_axes="de"))
    compare(model, images(3, 5, rows=6), views=2)


@pytest.mark.backend_free
@pytest.mark.parametrize("mode", ["graph", "compiled"])
def test_in_a_graph(mode):
    compare(adapted((3, 5), L.Dense(4, "tanh")), images(3, 5), mode=mode)
