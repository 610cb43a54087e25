"""Tables of vectors: Embedding, ReversibleEmbedding."""

import keras
from keras import ops

from lipdp.gradients.factors import Lookup, MatrixLayout, Outer
from lipdp.gradients.leaves import rule
from lipdp.gradients.rules.common import plain, without


def _lookup(table):
    def gradients(rows, g, indices):
        yield table, Lookup(rows.positions(indices, 0), rows.positions(g), table.shape)

    return gradients


@rule(keras.layers.Embedding, applies=plain)
def embedding(layer, call, tape, inputs):
    return tape.tap(call(inputs), (ops.cast(inputs, "int32"),), _lookup(layer.embeddings))


@rule(keras.layers.ReversibleEmbedding, applies=plain)
def reversible_embedding(layer, call, tape, inputs, reverse=False):
    if not reverse:
        return tape.tap(call(inputs), (ops.cast(inputs, "int32"),), _lookup(layer.embeddings))
    cap = layer.logit_soft_cap
    with without(layer, "logit_soft_cap"):
        logits = call(inputs, reverse=True)

    def gradients(rows, g, inputs):
        a, g = rows.positions(inputs), rows.positions(g)
        if layer.tie_weights:
            yield layer.embeddings, Outer(g, a, MatrixLayout(layer.embeddings.shape))
        else:
            yield layer.reverse_embeddings, Outer(a, g, MatrixLayout(layer.reverse_embeddings.shape))

    logits = tape.tap(logits, (inputs,), gradients)
    return logits if cap is None else ops.tanh(logits / cap) * cap
