"""Every rule and every option of its layer against plain per-example gradients."""

import keras
import numpy as np
import pytest
from keras import layers as L

import lipdp
from lipdp import backend
from tests.helpers.reference import compare


def images(*shape, rows=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, *shape)).astype("float32")


def network(shape, *stack, dtype="float32"):
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *stack])
    rng = np.random.default_rng(1)
    for v in model.trainable_variables:  # no zeros and no ones, so that nothing cancels by chance
        v.assign(v + rng.normal(size=v.shape).astype("float32") * 0.2)
    return model


DENSE = {
    "plain": ((5,), L.Dense(4)),
    "activation": ((5,), L.Dense(4, activation="tanh")),
    "no bias": ((5,), L.Dense(4, use_bias=False, activation="gelu")),
    "softmax": ((5,), L.Dense(4, activation="softmax")),
    "sequence, pairs": ((3, 9), L.Dense(8, "tanh")),
    "sequence, instantiated": ((20, 3), L.Dense(4, "tanh")),
    "two axes": ((3, 4, 2), L.Dense(4, "tanh")),
    "spectral": ((5,), lipdp.layers.SpectralDense(4)),
    "spectral, sequence": ((6, 5), lipdp.layers.SpectralDense(4)),
    "bias": ((3, 3, 2), lipdp.layers.Bias()),
    "weight": ((5, 2), lipdp.layers.Weight((3, 2))),
    "weight, one number": ((5,), lipdp.layers.Weight(())),
}
EINSUM = {
    "ab,bc->ac": ((5,), {"output_shape": 4, "bias_axes": "c"}),
    "abc,cd->abd": ((3, 5), {"output_shape": (None, 4), "bias_axes": "d"}),
    "abc,cde->abde": ((3, 5), {"output_shape": (3, 2, 4), "bias_axes": "de"}),
    "abcd,cde->abe": ((3, 2, 4), {"output_shape": (3, 5), "bias_axes": "e"}),
    "abc,bcd->abd": ((3, 5), {"output_shape": (3, 4), "bias_axes": "bd"}),
    "abcd,bde->abce": ((2, 6, 3), {"output_shape": (2, 6, 4), "bias_axes": None}),
    "abc,bd->adc": ((3, 5), {"output_shape": (4, 5), "bias_axes": "d"}),
    "...x,xy->...y": ((3, 5), {"output_shape": 4, "bias_axes": "y"}),
    "abcd,dce->abe": ((3, 2, 4), {"output_shape": (3, 5), "bias_axes": None}),
    "abc,cd->adb": ((3, 5), {"output_shape": (4, 3), "bias_axes": "d"}),
    "abc,cdb->ad": ((3, 5), {"output_shape": (4,), "bias_axes": "d"}),
    "abc,cd->ad": ((3, 5), {"output_shape": (4,), "bias_axes": "d"}),
    "abc,c->abc": ((3, 5), {"output_shape": (3, 5), "bias_axes": None}),
}
CONVOLUTIONS = {
    "conv1d same": ((9, 3), L.Conv1D(4, 3, padding="same", activation="relu")),
    "conv1d valid strided": ((10, 3), L.Conv1D(4, 4, strides=3)),
    "conv1d causal dilated": ((9, 3), L.Conv1D(4, 3, padding="causal", dilation_rate=2)),
    "conv1d causal strided": ((9, 3), L.Conv1D(4, 3, padding="causal", strides=2)),
    "conv2d same": ((6, 5, 3), L.Conv2D(4, 3, padding="same", activation="tanh")),
    "conv2d one channel": ((8, 8, 1), L.Conv2D(4, 3, padding="same", activation="relu")),
    "conv2d two channels": ((8, 8, 2), L.Conv2D(4, 3, strides=2, padding="same")),
    "conv2d strided same": ((7, 6, 3), L.Conv2D(4, (3, 2), strides=(2, 3), padding="same")),
    "conv2d strided valid": ((7, 6, 3), L.Conv2D(4, (3, 2), strides=2)),
    "conv2d even kernel": ((5, 6, 4), L.Conv2D(4, (2, 4), padding="same", use_bias=False)),
    "conv2d dilated": ((9, 8, 4), L.Conv2D(4, 3, dilation_rate=(2, 3), padding="same")),
    "conv2d dilated valid": ((9, 8, 4), L.Conv2D(4, 3, dilation_rate=2)),
    "conv2d groups": ((6, 5, 4), L.Conv2D(6, 3, groups=2, padding="same")),
    "conv2d 1x1": ((6, 5, 4), L.Conv2D(6, 1)),
    "conv2d 1x1 strided": ((6, 5, 4), L.Conv2D(6, 1, strides=2)),
    "conv2d strides above kernel": ((7, 7, 3), L.Conv2D(4, 2, strides=3, padding="same")),
    "conv2d whole image": ((4, 4, 6), L.Conv2D(8, 4)),
    "conv2d few places": ((4, 4, 12), L.Conv2D(16, 3, padding="same")),
    "conv3d": ((4, 5, 3, 2), L.Conv3D(3, 2, strides=(1, 2, 1), padding="same")),
    "conv3d valid": ((4, 5, 3, 5), L.Conv3D(3, 2)),
    "standardized": ((6, 5, 3), lipdp.layers.StandardizedConv2D(4, 3, padding="same", activation="tanh")),
    "standardized one channel": ((8, 8, 1), lipdp.layers.StandardizedConv2D(4, 3, activation="relu")),
    "standardized groups": ((6, 5, 4), lipdp.layers.StandardizedConv2D(6, (3, 2), strides=2, groups=2)),
    "standardized dilated": ((9, 8, 4), lipdp.layers.StandardizedConv2D(4, 3, dilation_rate=2, use_bias=False)),
    "standardized 1x1": ((6, 5, 4), lipdp.layers.StandardizedConv2D(6, 1, strides=2)),
    "standardized few places": ((4, 4, 12), lipdp.layers.StandardizedConv2D(16, 3, padding="same")),
    "spectral same": ((6, 5, 3), lipdp.layers.SpectralConv2D(4, 3)),
    "spectral strided": ((8, 8, 3), lipdp.layers.SpectralConv2D(4, 3, strides=2)),
    "orthogonal same": ((6, 5, 3), lipdp.layers.OrthogonalConv2D(4, 3)),
    "orthogonal valid": ((5, 6, 3), lipdp.layers.OrthogonalConv2D(2, (2, 4), padding="valid")),
    "orthogonal circular": ((4, 5, 2), lipdp.layers.OrthogonalConv2D(5, (4, 3), padding="circular")),
    "orthogonal one channel": ((7, 7, 1), lipdp.layers.OrthogonalConv2D(4, 3)),
    "orthogonal few places": ((3, 3, 8), lipdp.layers.OrthogonalConv2D(8, 3)),
    "orthogonal 1x1": ((4, 4, 3), lipdp.layers.OrthogonalConv2D(4, 1)),
    "depthwise1d": ((9, 3), L.DepthwiseConv1D(3, depth_multiplier=2, padding="same", activation="tanh")),
    "depthwise2d": ((6, 7, 3), L.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="tanh")),
    "depthwise2d strided": ((6, 6, 3), L.DepthwiseConv2D(3, strides=2, use_bias=False)),
    "depthwise2d dilated": ((7, 8, 3), L.DepthwiseConv2D(2, dilation_rate=2, padding="same")),
    "separable1d": ((9, 3), L.SeparableConv1D(4, 3, padding="same", activation="tanh")),
    "separable2d": ((6, 7, 3), L.SeparableConv2D(4, 3, strides=2, depth_multiplier=2, padding="same")),
    "separable2d no bias": ((6, 7, 3), L.SeparableConv2D(4, 3, use_bias=False, activation="relu")),
    "transposed1d": ((5, 3), L.Conv1DTranspose(4, 3, strides=2, padding="same")),
    "transposed1d valid": ((5, 3), L.Conv1DTranspose(4, 2, strides=3)),
    "transposed2d same": ((4, 3, 3), L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="tanh")),
    "transposed2d valid": ((4, 3, 3), L.Conv2DTranspose(4, (3, 4), strides=(2, 1))),
    "transposed2d stride 1": ((4, 3, 3), L.Conv2DTranspose(4, 4, padding="same", use_bias=False)),
    "transposed2d extra": ((4, 3, 3), L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=0)),
    "transposed2d extra valid": ((4, 3, 3), L.Conv2DTranspose(4, 3, strides=2, output_padding=1)),
    "transposed2d wide strides": ((4, 3, 3), L.Conv2DTranspose(2, 2, strides=3, padding="same")),
    "transposed3d": ((3, 2, 3, 2), L.Conv3DTranspose(3, 3, strides=2, padding="same")),
}
NORMALIZATIONS = {
    "layer": ((4, 6), L.LayerNormalization()),
    "layer, two axes": ((4, 3, 2), L.LayerNormalization(axis=(1, 3))),
    "layer, first axis": ((4, 3), L.LayerNormalization(axis=1)),
    "layer, no scale": ((4, 6), L.LayerNormalization(scale=False)),
    "layer, no shift": ((6,), L.LayerNormalization(center=False)),
    "rms": ((4, 6), L.RMSNormalization()),
    "group": ((4, 3, 6), L.GroupNormalization(3)),
    "group, instance": ((4, 3, 6), L.GroupNormalization(-1)),
    "group, one": ((4, 3, 6), L.GroupNormalization(1, epsilon=0.1)),
    "group, vector": ((6,), L.GroupNormalization(3)),
    "group, series": ((5, 6), L.GroupNormalization(2)),
    "group, first axis": ((6, 4), L.GroupNormalization(2, axis=1)),
    "group, no scale": ((4, 3, 6), L.GroupNormalization(2, scale=False)),
    "prelu": ((4, 3, 2), L.PReLU()),
    "prelu, shared": ((4, 3, 2), L.PReLU(shared_axes=[1, 2])),
}
RECURRENT = {
    "simple": ((5, 3), L.SimpleRNN(4)),
    "simple, sequences": ((5, 3), L.SimpleRNN(4, return_sequences=True, activation=None, use_bias=False)),
    "simple, dropout": ((5, 3), L.SimpleRNN(4, go_backwards=True)),
    "lstm": ((5, 3), L.LSTM(4)),
    "lstm, sequences": ((5, 3), L.LSTM(4, return_sequences=True)),
    "lstm, backwards": ((5, 3), L.LSTM(4, go_backwards=True, return_sequences=True)),
    "lstm, unrolled": ((4, 3), L.LSTM(4, unroll=True, use_bias=False)),
    "lstm, implementation 1": ((4, 3), L.LSTM(4, implementation=1)),
    "gru": ((5, 3), L.GRU(4)),
    "gru, reset before": ((5, 3), L.GRU(4, reset_after=False, return_sequences=True)),
    "gru, backwards": ((5, 3), L.GRU(4, go_backwards=True)),
    "gru, no bias": ((5, 3), L.GRU(4, use_bias=False, implementation=1)),
    "gru, reset before, backwards": ((5, 3), L.GRU(4, reset_after=False, go_backwards=True, use_bias=False)),
    "bidirectional": ((5, 3), L.Bidirectional(L.LSTM(3, return_sequences=True))),
    "bidirectional, summed": ((5, 3), L.Bidirectional(L.GRU(3), merge_mode="sum")),
    "long": ((30, 3), L.LSTM(4)),
    "time distributed": ((5, 4, 3), L.TimeDistributed(L.Conv1D(4, 2, activation="tanh"))),
    "time distributed, model": ((5, 4), L.TimeDistributed(keras.Sequential([L.Dense(3, "tanh"), L.Dense(2)]))),
}
FALLBACK = {
    "cell in a loop": ((5, 3), L.RNN(L.LSTMCell(4))),
    "stacked cells": ((4, 3), L.RNN([L.GRUCell(3), L.SimpleRNNCell(2)])),
    "convolutional lstm": ((3, 4, 4, 2), L.ConvLSTM2D(2, 2)),
    "low rank": ((5,), L.Dense(4, lora_rank=2)),
}


# Compiling these takes JAX long, and others show the same.
SLOW = {"convolutional lstm", "stacked cells", "bidirectional", "conv3d valid", "transposed2d extra", "gru, no bias"}


# The same, less long: on one backend.
LONG = {
    "gru",
    "bidirectional, summed",
    "time distributed, model",
    "long",
    "lstm, unrolled",
    "time distributed",
    "cell in a loop",
}


def _ids(cases):
    slow, one = pytest.mark.slow, pytest.mark.backend_free
    marks = {name: [slow] if name in SLOW else [one] if name in LONG else [] for name in cases}
    return {"argvalues": [pytest.param(case, marks=marks[name], id=name) for name, case in cases.items()]}


@pytest.mark.slow
@pytest.mark.parametrize("case", **_ids({**DENSE, **NORMALIZATIONS}))
def test_dense_and_scales(case):
    shape, layer = case
    compare(network(shape, layer), images(*shape))


@pytest.mark.backend_free
@pytest.mark.parametrize("equation", EINSUM)
def test_einsum_dense(equation):
    shape, arguments = EINSUM[equation]
    compare(network(shape, L.EinsumDense(equation, activation="tanh", **arguments)), images(*shape))


@pytest.mark.backend_free
@pytest.mark.parametrize("case", **_ids(CONVOLUTIONS))
def test_convolutions(case):
    shape, layer = case
    compare(network(shape, layer), images(*shape))


@pytest.mark.backend_free
@pytest.mark.parametrize("case", **_ids(CONVOLUTIONS))
def test_convolutions_in_large_products(case, monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(backend, "large_products", lambda: True)
    shape, layer = case
    compare(network(shape, layer), images(*shape))


@pytest.mark.slow
@pytest.mark.parametrize("case", **_ids(RECURRENT))
def test_recurrent(case):
    shape, layer = case
    compare(network(shape, layer), images(*shape))


@pytest.mark.parametrize("case", **_ids(FALLBACK))
def test_layers_without_a_rule(case):
    shape, layer = case
    compare(network(shape, layer), images(*shape), scaled=False)
