"""Tables of vectors: Embedding, ReversibleEmbedding."""

import keras
from keras import ops

from lipdp import _keras, backend
from lipdp.gradients.factors import MatrixLayout, Outer
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import additions, not_quantized, without
from lipdp.gradients.tables import Lookup, known_rows

_HUB = "keras_hub.src.layers.modeling."


def _looked_up(layer, tape, outputs, inputs):
    """Records rows of the table of a layer."""
    table = _keras.own_matrix(layer, "embeddings")
    scale, low_rank = additions(layer, "embeddings")

    def gradients(rows, g, indices, low_rank):
        indices, g = rows.positions(indices, 0), rows.positions(g)
        yield table, Lookup(indices, g, table.shape)
        if low_rank is not None:
            a, b = low_rank
            back = backend.made_once(scale * ops.matmul(g, ops.transpose(b)))
            yield layer.lora_embeddings_a, Lookup(indices, back, a.shape)
            indices, known = known_rows(indices, table.shape[0])
            down = ops.take(a, indices, axis=0)
            g = scale * ops.where(known[..., None], g, ops.zeros_like(g))
            yield layer.lora_embeddings_b, Outer(down, g, MatrixLayout(b.shape))

    return tape.tap(outputs, (ops.cast(inputs, "int32"), low_rank), gradients)


@rule(keras.layers.Embedding, applies=not_quantized)
def embedding(layer, call, tape, inputs):
    return _looked_up(layer, tape, call(inputs), inputs)


@rule(keras.layers.ReversibleEmbedding, _HUB + "reversible_embedding.ReversibleEmbedding", applies=not_quantized)
def reversible_embedding(layer, call, tape, inputs, reverse=False):
    if not reverse:
        return _looked_up(layer, tape, call(inputs), inputs)
    cap = layer.logit_soft_cap
    with without(layer, "logit_soft_cap"):
        logits = call(inputs, reverse=True)
    scale, low_rank = additions(layer, "embeddings") if layer.tie_weights else (1.0, None)

    def gradients(rows, g, inputs, low_rank):
        a, g = rows.positions(inputs), rows.positions(g)
        if not layer.tie_weights:
            yield layer.reverse_embeddings, Outer(a, g, MatrixLayout(layer.reverse_embeddings.shape))
            return
        table = _keras.own_matrix(layer, "embeddings")
        yield table, Outer(g, a, MatrixLayout(table.shape))
        if low_rank is not None:
            first, second = low_rank
            back, down = ops.matmul(a, ops.transpose(second)), ops.matmul(g, first)
            back, down = backend.made_once((scale * back, scale * down))
            yield layer.lora_embeddings_a, Outer(g, back, MatrixLayout(first.shape))
            yield layer.lora_embeddings_b, Outer(down, a, MatrixLayout(second.shape))

    logits = tape.tap(logits, (inputs, low_rank), gradients)
    return logits if cap is None else ops.tanh(logits / cap) * cap
