"""Layers of keras_hub with weights of their own, read in 0.32, and LayerScale. keras_hub is never imported here."""

from keras import ops

from lipdp import _keras
from lipdp.gradients.factors import Whole
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import adapted, replaced
from lipdp.gradients.rules.normalization import affine
from lipdp.gradients.tables import Lookup, Slice

_LAYERS, _MODELS = "keras_hub.src.layers.modeling.", "keras_hub.src.models."
# What multiplies the normalized input is the scale, or 1 + scale.
_BY_SCALE = [_LAYERS + "rms_normalization.RMSNormalization"]
_BY_SCALE += [
    f"{_MODELS}{path}"
    for path in (
        "llama.llama_layernorm.LlamaLayerNorm",
        "mistral.mistral_layer_norm.MistralLayerNormalization",
        "qwen.qwen_layernorm.QwenLayerNorm",
        "qwen3.qwen3_layernorm.Qwen3LayerNorm",
        "phi3.phi3_layernorm.Phi3LayerNorm",
    )
]
_BY_ONE_PLUS = [_MODELS + "gemma.rms_normalization.RMSNormalization", _MODELS + "gemma3.gemma3_layers.RMSNormalization"]


@rule(*_BY_SCALE)
def rms_normalization(layer, call, tape, x):
    with replaced(layer, scale=1.0):
        normalized = call(x)
    return affine(tape, normalized, layer.scale, None, tuple(layer.scale.shape))


@rule(*_BY_ONE_PLUS)
def shifted_rms_normalization(layer, call, tape, x):
    with replaced(layer, scale=0.0):
        normalized = call(x)
    return affine(tape, normalized, layer.scale, None, tuple(layer.scale.shape), offset=1.0)


@rule(_keras.LayerScale)
def layer_scale(layer, call, tape, x):
    return affine(tape, x, layer.gamma, None, tuple(layer.gamma.shape))


@rule(_LAYERS + "position_embedding.PositionEmbedding")
def position_embedding(layer, call, tape, inputs, start_index=0, positions=None):
    outputs = call(inputs, start_index=start_index, positions=positions)
    table = layer.position_embeddings

    def gradients(rows, g, positions):
        if positions is not None:
            places = ops.broadcast_to(positions, ops.shape(g)[:-1])
            yield table, Lookup(rows.positions(places, 0), rows.positions(g), table.shape)
        elif isinstance(start_index, int) and g.shape[-2] is not None:
            yield table, Slice(rows.summed(g, tuple(g.shape[-2:])), start_index, table.shape)
        else:
            places = start_index + ops.zeros(ops.shape(g)[:-1], "int32") + ops.arange(ops.shape(g)[-2], dtype="int32")
            yield table, Lookup(rows.positions(places, 0), rows.positions(g), table.shape)

    return tape.tap(outputs, (None if positions is None else ops.cast(positions, "int32"),), gradients)


def _tokens(rows, g, variables):
    """Factors of vectors `(1, 1, width)` that stand before the patches."""
    for place, variable in enumerate(variables):
        yield variable, Whole(rows.summed(g[:, place : place + 1], (1, variable.shape[-1]))[:, None])


def _table(layer):
    return (layer.position_embedding,)


def _not_adapted(layer) -> bool:
    return not adapted(layer.position_embedding)


@rule(_MODELS + "vit.vit_layers.ViTPatchingAndEmbedding", applies=_not_adapted, owns=_table)
def vit_embedding(layer, call, tape, inputs):
    def gradients(rows, g):
        yield from _tokens(rows, g, [layer.class_token] if layer.use_class_token else [])
        table = _keras.own_matrix(layer.position_embedding, "embeddings")
        yield table, Whole(rows.summed(g, tuple(table.shape)))

    return tape.tap(call(inputs), (), gradients)


def _without_mask_or_dropout(layer) -> bool:
    return not layer.use_mask_token and layer.dropout_rate == 0


@rule(_MODELS + "deit.deit_layers.DeiTEmbeddings", applies=_without_mask_or_dropout)
def deit_embedding(layer, call, tape, inputs, **kwargs):
    def gradients(rows, g):
        yield from _tokens(rows, g, [layer.class_token, layer.distillation_token])
        table = layer.position_embedding
        yield table, Whole(rows.summed(g, tuple(table.shape[1:]))[:, None])

    return tape.tap(call(inputs, **kwargs), (), gradients)
