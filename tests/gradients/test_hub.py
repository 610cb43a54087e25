"""Families of keras_hub and keras.applications: no layer without a rule, and plain per-example gradients."""

import functools
import importlib

import keras
import pytest
from keras import ops

from lipdp import isolation
from lipdp.gradients import rules, supported
from lipdp.gradients.leaves import leaves
from lipdp.isolation import hub as listed

pytest.importorskip("keras_hub")
from tests.gradients.test_lora import moved
from tests.helpers import hub
from tests.helpers.reference import compare

# On JAX the others are run by make test-all.
_BOTH = ("gemma",)


def _cases(makers):
    marks = {name: () if name in _BOTH else pytest.mark.backend_free for name in makers}
    return [pytest.param(make, id=name, marks=marks[name]) for name, make in makers.items()]


TEXT, IMAGES = _cases(hub.TEXT), _cases(hub.IMAGES)


def whole(make):
    keras.utils.set_random_seed(0)
    return moved(hub.frozen_batch_normalization(make()))


def check(model, **options):
    assert not isolation.foreign(model)
    assert rules.fallback not in [rule for _, rule in leaves(model)]
    compare(model, hub.rows_for(model), **options)


def vector(model):
    """The sequence that a text model returns, cut to few numbers: the loss of the reference is of all of them."""
    return keras.Model(model.input, keras.tree.flatten(model.output)[0])


@pytest.mark.slow
@pytest.mark.parametrize("make", TEXT)
def test_all_weights_of_a_text_model(make):
    check(whole(make), scaled=False, tolerance=2e-5)  # sums of qwen3 round by 1.1e-5 on some processors


@pytest.mark.slow
@pytest.mark.parametrize("make", IMAGES)
def test_all_weights_of_an_image_model(make):
    check(whole(make), scaled=False, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [case for case in TEXT if case.id not in ("roberta", "distil_bert", "opt")])
def test_low_rank_additions_of_a_text_model(make):
    model = make()
    model.enable_lora(2)
    names = {v.path.rsplit("/", 1)[-1] for v in model.trainable_variables}
    assert {"lora_kernel_a", "lora_kernel_b"} <= names and "embeddings" not in names
    check(moved(model), tolerance=1e-5)


@pytest.mark.slow
def test_a_model_with_low_rank_additions_is_supported():
    model = hub.TEXT["gemma"]()
    model.enable_lora(2)
    supported(model)


@pytest.mark.slow
def test_a_block_in_which_something_was_replaced_sees_one_row_at_a_time():
    model = hub.TEXT["bert"]()
    assert not isolation.foreign(model)
    block = next(layer for layer in model.layers if type(layer).__name__ == "TransformerEncoder")
    block._feedforward_layer_norm.call = lambda x: x - ops.mean(x, axis=0)
    assert [operation for operation, _ in isolation.foreign(model)] == [block]


def test_a_block_with_a_function_of_the_users_sees_one_row_at_a_time():
    import keras_hub

    inputs = keras.Input((4, 6))
    block = keras_hub.layers.TransformerEncoder(8, 2, activation=lambda x: x - ops.mean(x, axis=0))
    model = keras.Model(inputs, block(inputs))
    assert [operation for operation, _ in isolation.foreign(model)] == [block]


@pytest.mark.backend_free
def test_a_block_whose_class_was_changed_sees_one_row_at_a_time(monkeypatch):
    import keras_hub

    kind = keras_hub.layers.TransformerEncoder
    inputs, block, ordinary = keras.Input((4, 6)), kind(8, 2), kind.call
    model = keras.Model(inputs, block(inputs))
    assert not isolation.foreign(model)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "call", lambda self, x, **options: ordinary(self, x - ops.mean(x, axis=0), **options))
        assert [operation for operation, _ in isolation.foreign(model)] == [block]
    assert not isolation.foreign(model)


@pytest.mark.slow
def test_a_function_that_a_block_calls_itself_counts_too():
    model = hub.TEXT["llama"]()
    block = next(layer for layer in model.layers if type(layer).__name__ == "LlamaTransformerDecoder")
    block.activation = lambda x: x - ops.mean(x, axis=0)
    assert [operation for operation, _ in isolation.foreign(model)] == [block]


class Centers:
    def __call__(self, x, scale=1.0):
        return scale * (x - ops.mean(x, axis=0))


class CentersTensors(keras.Operation):
    def call(self, x):
        return Centers()(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def named_as_of_keras_hub():
    from keras_hub.src.utils.keras_utils import gelu_approximate

    return functools.wraps(gelu_approximate)(lambda x: Centers()(x))


FUNCTIONS = {
    "object": Centers,
    "partial": lambda: functools.partial(Centers().__call__, scale=2.0),
    "method": lambda: Centers().__call__,
    "operation": CentersTensors,
    "wrapped": named_as_of_keras_hub,
}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("block", ["llama.llama_decoder.Llama", "qwen.qwen_decoder.Qwen"])
def test_whatever_can_be_called_in_a_block_is_looked_at(name, block):
    module, _, name_of_block = f"keras_hub.src.models.{block}TransformerDecoder".rpartition(".")
    inputs = keras.Input((4, 6))
    decoder = getattr(importlib.import_module(module), name_of_block)(8, 2, 1, activation=FUNCTIONS[name]())
    model = keras.Model(inputs, decoder(inputs))
    assert [operation for operation, _ in isolation.foreign(model)] == [decoder]


@pytest.mark.backend_free
@pytest.mark.parametrize("axis", [0, -3, (0,)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_along_the_batch_is_not_known(axis, dropout):
    import keras_hub

    inputs = keras.Input((5, 4))
    layer = keras_hub.layers.CachedMultiHeadAttention(2, 4, dropout=dropout, attention_axes=axis)
    assert isolation.foreign(keras.Model(inputs, layer(inputs, inputs)))


@pytest.mark.backend_free
@pytest.mark.parametrize("axis", [0, -3])
def test_rotations_of_the_batch_are_not_known(axis):
    import keras_hub

    inputs = keras.Input((5, 4))
    assert isolation.foreign(keras.Model(inputs, keras_hub.layers.RotaryEmbedding(feature_axis=axis)(inputs)))
    assert not isolation.foreign(keras.Model(inputs, keras_hub.layers.RotaryEmbedding()(inputs)))


@pytest.mark.backend_free
def test_masks_that_are_read_by_block_are_not_known():
    from keras_hub.src.models.deit.deit_layers import DeiTEncoder

    inputs, masks = keras.Input((5, 4)), keras.Input((5, 5))
    assert not isolation.foreign(keras.Model(inputs, DeiTEncoder(1, 2, 4, 8)(inputs)[0]))
    assert isolation.foreign(keras.Model([inputs, masks], DeiTEncoder(1, 2, 4, 8)(inputs, attention_masks=masks)[0]))


def test_each_layer_that_is_listed_is_there():
    for module, names in listed._BY_MODULE.items():
        found = importlib.import_module(f"keras_hub.src.{module}")
        assert all(getattr(found, name).__module__ == found.__name__ for name in names), module


@pytest.mark.backend_free
def test_other_versions_were_not_read(monkeypatch):
    import keras_hub

    model = hub.TEXT["bert"]()
    assert not isolation.foreign(model)
    monkeypatch.setattr(keras_hub, "__version__", "0.33.0")
    assert len(isolation.foreign(model)) == 3
