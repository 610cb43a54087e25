"""What a user may get wrong in the first hour, one call per row: each is told what was received and what to do.

`REFUSED` holds, by group, the call, and words that the message must have: what was received, and the cure. `WARNED` is
told the same while it works, and `ACCEPTED` is what looks wrong and is not. No call may fail in Keras, TensorFlow,
numpy or Python.
"""

import functools
import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, bounds, certify, layers, losses, models, sampling, strategies
from lipdp.cli import main
from tests.helpers.models import DELTA, blobs, mlp

pytestmark = pytest.mark.backend_free

X, Y = blobs(examples=300)
HOT = np.eye(3, dtype="float32")[Y]
KL = keras.losses
LOGITS = KL.SparseCategoricalCrossentropy(from_logits=True)
TEXT = np.array(["a", "b", "c"] * 100)


@functools.cache
def clipless():
    return mlp()


@functools.cache
def plain(loss=LOGITS, outputs=3, activation=None):
    graph = keras.Sequential([keras.Input((8,)), keras.layers.Dense(outputs, activation=activation, name="last")])
    model = lipdp.DP_Model.from_keras(graph)
    model.compile("sgd", loss=loss)
    return model


def stack(*middle, loss="sparse_categorical_crossentropy", start=True):
    first = layers.BoundedInput((8,)) if start else keras.Input((8,))
    model = lipdp.DP_Sequential([first, layers.SpectralDense(8), *middle, layers.SpectralDense(3)])
    model.compile("sgd", loss=loss)
    return model


def graph(*middle):
    model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((8,)), *middle, keras.layers.Dense(3)]))
    model.compile("sgd", loss=LOGITS)
    return model


@functools.cache
def two_outputs():
    inputs = keras.Input((8,))
    model = lipdp.DP_Model(inputs, [keras.layers.Dense(3, name="c")(inputs), keras.layers.Dense(1, name="r")(inputs)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    return model


def fit(model=None, x=X, y=Y, **arguments):
    standard = {"batch_size": 30, "epochs": 1, "delta": DELTA, "verbose": 0, "epsilon": 1.0}
    return (clipless() if model is None else model).fit(x, y, **standard | arguments)


def dpsgd(loss=LOGITS, outputs=3, activation=None, **arguments):
    return fit(plain(loss, outputs, activation), strategy="dpsgd", **arguments)


def bounded(model):
    return fit(model, strategy="clipless")


def compiled(**arguments):
    return clipless().compile(**{"optimizer": "sgd", "loss": losses.SparseCategoricalCrossentropy()} | arguments)


def epsilon(*without, **others):
    known = {"noise_multiplier": 1.0, "sampling_probability": 0.01, "updates": 100, "delta": 1e-5}
    return accounting.epsilon(**{k: v for k, v in known.items() if k not in without} | others)


def calibrated(*without, **others):
    known = {"epsilon": 1.0, "sampling_probability": 0.01, "updates": 100, "delta": 1e-5}
    return accounting.calibrate(**{k: v for k, v in known.items() if k not in without} | others)


def certified(x=X, y=Y, **others):
    return certify.certified_accuracy(clipless(), x, y, **others)


class InTurn(keras.Model):
    def train_step(self, data):
        return {}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


class PrivateSubclass(lipdp.DP_Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


class Mixing(keras.layers.Layer):
    def call(self, inputs):
        return inputs - keras.ops.mean(inputs, axis=0)


def not_a_number(array):
    array = array.astype("float32")
    array[3] = np.nan
    return array


FIT = {
    "epsilon as text": (lambda: fit(epsilon="1"), "epsilon='1'", "such as epsilon=1.0"),
    "epsilon 0": (lambda: fit(epsilon=0), "above 0", "epsilon=0", "of the order of 1"),
    "epsilon -1": (lambda: fit(epsilon=-1), "above 0", "epsilon=-1", "of the order of 1"),
    "epsilon infinite": (lambda: fit(epsilon=np.inf), "epsilon=inf", "finite number above 0"),
    "epsilon NaN": (lambda: fit(epsilon=np.nan), "epsilon=nan", "finite number above 0"),
    "epsilon True": (lambda: fit(epsilon=True), "epsilon=True", "finite number above 0"),
    "epsilon in a list": (lambda: fit(epsilon=[1.0]), "epsilon=[1.0]", "finite number above 0"),
    "no budget": (lambda: fit(epsilon=None), "No privacy budget", "epsilon=None", "fit(epsilon=1.0"),
    "delta 0": (lambda: fit(delta=0), "delta=0", "such as 1e-5"),
    "delta 1": (lambda: fit(delta=1), "delta=1", "such as 1e-5"),
    "delta negative": (lambda: fit(delta=-1e-5), "delta=-1e-05", "such as 1e-5"),
    "delta as text": (lambda: fit(delta="1e-5"), "delta='1e-5'", "such as 1e-5"),
    "delta None": (lambda: fit(delta=None), "delta=None", "such as 1e-5"),
    "noise 0": (lambda: fit(noise_multiplier=0), "noise_multiplier=0", "above 0"),
    "noise as text": (lambda: fit(noise_multiplier="1"), "noise_multiplier='1'", "above 0"),
    "batch 0": (lambda: fit(batch_size=0), "batch_size=0", "a positive integer"),
    "batch 1.5": (lambda: fit(batch_size=1.5), "batch_size=1.5", "a positive integer"),
    "batch above N": (lambda: fit(batch_size=301), "larger than the data", "301"),
    "epochs 0": (lambda: fit(epochs=0), "epochs=0", "a positive integer"),
    "epochs 1.5": (lambda: fit(epochs=1.5), "epochs=1.5", "a positive integer"),
    "initial epoch": (lambda: fit(initial_epoch=1), "initial_epoch=1", "before the last epoch"),
    "steps 0": (lambda: fit(steps_per_epoch=0), "steps_per_epoch=0", "a positive integer"),
    "microbatch 0": (lambda: fit(microbatch_size=0), "microbatch_size=0", "a positive integer"),
    "rows of a person 0": (lambda: fit(examples_per_person=0), "examples_per_person=0", "a positive integer"),
    "seed negative": (lambda: fit(seed=-1), "seed=-1", "non-negative"),
    "seed as text": (lambda: fit(seed="a"), "seed='a'", "non-negative"),
    "metrics flag": (lambda: fit(training_metrics="no"), "training_metrics='no'", "True or False"),
    "generator of noise": (lambda: fit(noise_generator="philox"), "'philox'", "chacha20"),
    "accountant": (lambda: fit(accountant="pdl"), "'pdl'", "pld"),
    "accountant of dpis": (lambda: fit(accountant="rdp_order:5"), "'rdp_order:5.0'", "strategy='dpis'"),
    "sampling": (lambda: fit(sampling="uniform"), "`sampling` must be", "sampling='uniform'", "poisson"),
    "sampling of balls and bins": (lambda: fit(sampling="balls_in_bins"), "sampling='balls_in_bins'", "Use 'poisson'"),
    "sampling with sizes": (lambda: fit(sampling=sampling.Sampling("poisson").bind(300, 30)), "a name", "batch_size"),
    "strategy": (lambda: fit(strategy="clip"), "strategy='clip'", "dpsgd"),
    "strategy None": (lambda: fit(strategy=None), "strategy=None", "dpsgd"),
    "shuffle": (lambda: fit(shuffle=True), "shuffle=True", "Leave it out"),
    "class weights": (lambda: fit(class_weight={0: 2.0}), "class_weight", "strategy='dpsgd'", "class_priors"),
    "class weights in a list": (
        lambda: fit(class_weight=[1.0, 2.0], strategy="dpsgd"),
        "[1.0, 2.0]",
        "class_weight",
        "dictionary from class ids",
    ),
    "optimizer without a name": (lambda: plain().compile("lamb", loss=LOGITS), "'lamb'", "Pass keras.optimizers.Lamb("),
    "sample weights": (lambda: fit(sample_weight=np.ones(300)), "sample_weight", "strategy='dpsgd'", "weights.md"),
    "too few sample weights": (
        lambda: fit(sample_weight=np.ones(299), strategy="dpsgd"),
        "sample_weight",
        "(299,) for 300 examples",
        "one number for each",
    ),
    "sample weights by place": (
        lambda: fit(sample_weight=np.ones((300, 3)), strategy="dpsgd"),
        "(300, 3) for 300 examples",
        "write a loss of your own",
        "docs/howto/weights.md",
    ),
    "split": (lambda: fit(validation_split=1.5), "validation_split=1.5", "in (0, 1)"),
    "monitor": (
        lambda: fit(callbacks=[keras.callbacks.EarlyStopping(monitor="loss")]),
        "EarlyStopping (loss)",
        "val_loss",
    ),
    "callbacks 3": (lambda: fit(callbacks=[3]), "Received: 3", "Pass such objects"),
    "callback class": (lambda: fit(callbacks=[keras.callbacks.EarlyStopping]), "EarlyStopping", "Make an object"),
    "train_on_batch": (lambda: clipless().train_on_batch(X, Y), "train_on_batch", "Use `fit`"),
    "before compile": (
        lambda: fit(lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(3)])),
        "compile",
        "before `fit`",
    ),
}

UNKNOWN = {
    "epsilom": (lambda: fit(epsilom=1.0), "'epsilom'", "Did you mean `epsilon`"),
    "eps": (lambda: fit(eps=1.0), "'eps'", "Did you mean `epsilon`"),
    "target_epsilon": (lambda: fit(target_epsilon=1.0), "'target_epsilon'", "Did you mean `epsilon`"),
    "target_delta": (lambda: fit(target_delta=1e-5), "'target_delta'", "Did you mean `delta`"),
    "fit secure_mode": (lambda: fit(secure_mode=True), "'secure_mode'", "noise_generator='chacha20'"),
    "fit max_grad_norm": (lambda: fit(max_grad_norm=1.0), "'max_grad_norm'", "DPSGD(clip_norm=...)"),
    "fit l2_norm_clip": (lambda: fit(l2_norm_clip=1.0), "'l2_norm_clip'", "DPSGD(clip_norm=...)"),
    "fit clipping_norm": (lambda: fit(clipping_norm=1.0), "'clipping_norm'", "DPSGD(clip_norm=...)"),
    "fit rows": (lambda: fit(number_of_examples=300), "'number_of_examples'", "Leave it out", "counts the rows"),
    "fit clip_norm": (lambda: fit(clip_norm=1.0), "'clip_norm'", "DPSGD(clip_norm=...)"),
    "fit sigma": (lambda: fit(sigma=1.0), "'sigma'", "Did you mean `noise_multiplier`"),
    "fit noise": (lambda: fit(noise=1.0), "'noise'", "Did you mean `noise_multiplier`"),
    "fit microbatches": (lambda: fit(num_microbatches=1), "'num_microbatches'", "Did you mean `microbatch_size`"),
    "fit physical batch": (lambda: fit(max_physical_batch_size=1), "max_physical", "Did you mean `microbatch_size`"),
    "fit batchsize": (lambda: fit(batchsize=1), "'batchsize'", "Did you mean `batch_size`"),
    "fit nb_epoch": (lambda: fit(nb_epoch=1), "'nb_epoch'", "Did you mean `epochs`"),
    "fit learning_rate": (lambda: fit(learning_rate=1.0), "'learning_rate'", "to `compile`"),
    "fit workers": (lambda: fit(workers=2), "'workers'", "Leave it out", "keras.utils.PyDataset"),
    "fit use_multiprocessing": (lambda: fit(use_multiprocessing=True), "'use_multiprocessing'", "Leave it out"),
    "fit anything": (lambda: fit(zzz=2), "'zzz'", "It takes: x, y, batch_size"),
    "tau of deel-lip": (lambda: losses.CategoricalCrossentropy(tau=8.0), "'tau'", "Did you mean `temperature`"),
    "bound of lip-dp": (lambda: layers.BoundedInput(upper_bound=7.0), "'upper_bound'", "Did you mean `norm`"),
    "DPSGD max_grad_norm": (lambda: strategies.DPSGD(max_grad_norm=1.0), "'max_grad_norm'", "Did you mean `clip_norm`"),
    "DPSGD l2_norm_clip": (lambda: strategies.DPSGD(l2_norm_clip=1.0), "'l2_norm_clip'", "Did you mean `clip_norm`"),
    "DPSGD clip_nrom": (lambda: strategies.DPSGD(clip_nrom=1.0), "'clip_nrom'", "Did you mean `clip_norm`"),
    "DPSGD noise": (lambda: strategies.DPSGD(noise_multiplier=1.0), "'noise_multiplier'", "Pass it to `fit`"),
    "DPSGD microbatches": (lambda: strategies.DPSGD(num_microbatches=1), "'num_microbatches'", "microbatch_size=..."),
    "AdaCliP max_grad_norm": (lambda: strategies.AdaCliP(max_grad_norm=1.0), "AdaCliP()", "Did you mean `clip_norm`"),
    "DPIS max_grad_norm": (lambda: strategies.DPIS(max_grad_norm=1.0), "DPIS()", "Did you mean `clip_norm`"),
    "Clipless clip_norm": (lambda: strategies.Clipless(clip_norm=1.0), "Clipless()", "DPSGD(clip_norm=...)"),
    "dense activation": (lambda: layers.SpectralDense(3, activation="relu"), "'activation'", "lipdp.layers.Abs()"),
    "dense use_bias": (lambda: layers.SpectralDense(3, use_bias=True), "'use_bias'", "lipdp.layers.Bias()"),
    "dense bias": (lambda: layers.SpectralDense(3, bias_initializer="zeros"), "'bias_initializer'", "Bias()"),
    "dense regularizer": (lambda: layers.SpectralDense(3, kernel_regularizer="l2"), "regularizer", "weight_decay"),
    "dense constraint": (
        lambda: layers.SpectralDense(3, kernel_constraint=None),
        "kernel_constraint",
        "leave that out",
    ),
    "dense unts": (lambda: layers.SpectralDense(3, unts=3), "'unts'", "Did you mean `units`"),
    "conv use_bias": (lambda: layers.SpectralConv2D(3, 3, use_bias=False), "'use_bias'", "lipdp.layers.Bias()"),
    "conv activation": (lambda: layers.SpectralConv2D(3, 3, activation="relu"), "'activation'", "lipdp.layers.Abs()"),
    "conv data_format": (lambda: layers.SpectralConv2D(3, 3, data_format="channels_first"), "data_format", "transpose"),
    "input max_norm": (lambda: layers.BoundedInput((8,), max_norm=1.0), "'max_norm'", "Did you mean `norm`"),
    "loss from_logits": (lambda: losses.BinaryCrossentropy(from_logits=True), "'from_logits'", "always take logits"),
    "sparse from_logits": (lambda: losses.SparseCategoricalCrossentropy(from_logits=True), "logits", "leave it out"),
    "loss temperatur": (lambda: losses.CategoricalCrossentropy(temperatur=1.0), "'temperatur'", "`temperature`"),
    "loss smoothing": (
        lambda: losses.CategoricalCrossentropy(label_smoothing=0.1),
        "label_smoothing",
        "It takes: temp",
    ),
    "loss axis": (lambda: losses.CategoricalCrossentropy(axis=1), "'axis'", "It takes: temperature, clip"),
    "compile optimiser": (lambda: compiled(optimiser="sgd"), "'optimiser'", "Did you mean `optimizer`"),
    "compile losss": (lambda: compiled(losss="bce"), "'losss'", "Did you mean `loss`"),
    "compile l2_norm_clip": (lambda: compiled(l2_norm_clip=1.0), "'l2_norm_clip'", "DPSGD(clip_norm=...)"),
    "compile epsilon": (lambda: compiled(epsilon=1.0), "'epsilon'", "Pass epsilon=... to `fit`"),
    "accounting steps": (lambda: epsilon("updates", steps=10), "'steps'", "Did you mean `updates`"),
    "accounting rate": (lambda: epsilon(sample_rate=0.1), "'sample_rate'", "Did you mean `sampling_probability`"),
    "accounting batch": (lambda: epsilon(batch_size=10), "'batch_size'", "without a model accounting.solve takes it"),
    "accounting epochs": (lambda: epsilon(num_epochs=10), "'num_epochs'", "accounting.solve"),
    "DPSGD batch": (lambda: strategies.DPSGD(batch_size=10), "'batch_size'", "Pass it to `fit`"),
    "accounting accontant": (lambda: epsilon(accontant="pld"), "'accontant'", "Did you mean `accountant`"),
    "calibrate target": (lambda: calibrated("epsilon", target_epsilon=1.0), "target_epsilon", "Did you mean `epsilon`"),
    "calibrate target delta": (lambda: calibrated("delta", target_delta=1e-5), "target_delta", "Did you mean `delta`"),
    "no delta": (lambda: epsilon("delta"), "needs `delta`", "Received: noise_multiplier", "delta=..."),
    "calibrate without delta": (lambda: calibrated("delta"), "a budget or from a bound", "delta=None", "Pass both"),
    "updates without noise": (
        lambda: accounting.max_updates(epsilon=1.0, delta=1e-5, sampling_probability=0.1),
        "needs `noise_multiplier`",
        "Received: epsilon",
        "noise_multiplier=...",
    ),
    "by position": (lambda: accounting.epsilon(1.0, 0.01, 100, 1e-5), "by name", "Received: 4", "updates=..."),
}

DATA = {
    "x of numbers as text": (lambda: fit(x=X.astype(str)), "text, as dtype <U", "astype('float32')"),
    "x of words": (lambda: fit(x=np.full((300, 8), "a")), "text, as dtype <U1", "Encode categories"),
    "x of objects": (lambda: fit(x=np.full((300, 8), "a", dtype=object)), "text, as dtype object", "Encode categories"),
    "x of bytes": (lambda: fit(x=np.full((300, 8), b"a", dtype=object)), "text, as dtype object", "ByteTokenizer"),
    "x of nothing": (lambda: fit(x=None), "x=None", "one row per example"),
    "recipe of nothing": (lambda: models.text_recipe((8,), 3, 300).fit(None, Y), "x=None", "one row per example"),
    "x ragged": (lambda: fit(x=np.array([[1], [1, 2]] * 150, dtype=object)), "dtype object", "pad_sequences"),
    "x of dates": (lambda: fit(x=np.zeros((300, 8), "datetime64[D]")), "dtype datetime64", "array of numbers"),
    "x complex": (lambda: fit(x=X.astype(complex)), "dtype complex128", "x.real, x.imag"),
    "y complex": (lambda: fit(y=Y.astype(complex)), "dtype complex128", "real and imaginary"),
    "y of words": (lambda: fit(y=TEXT), "text, as dtype <U1", "integers from 0", "classes.index"),
    "y of objects": (lambda: fit(y=TEXT.astype(object)), "text, as dtype object", "integers from 0"),
    "y missing": (lambda: fit(y=None), "y=None", "Pass them as y"),
    "y shorter": (lambda: fit(y=Y[:-1]), "same length", "[300, 299], inputs first", "one label"),
    "y scalar": (lambda: fit(y=3), "a scalar", "one row per example"),
    "y of several": (lambda: fit(y=[Y, Y]), "a list of 2", "Pass the array itself"),
    "y by name": (lambda: fit(y={"last": Y}), "a dict of 'last'", "Pass the array itself"),
    "x NaN": (lambda: fit(x=not_a_number(X)), "in 1 of 300 examples", "Remove or replace"),
    "y NaN": (lambda: fit(y=not_a_number(Y)), "in 1 of 300", "Remove or replace", "gaps: docs/howto/weights.md"),
    "empty": (lambda: fit(x=X[:0], y=Y[:0]), "no example", "length 0"),
    "too narrow": (lambda: fit(x=X[:, :5]), "[(None, 8)]", "(300, 5)", "array per input"),
    "too deep": (lambda: fit(x=X[..., None]), "[(None, 8)]", "(300, 8, 1)", "array per input"),
    "two inputs": (lambda: fit(x=[X, X]), "[(None, 8)]", "array per input"),
    "a function": (lambda: fit(x=fit, y=None), "a function, 'fit'", "Call it"),
    "a path of data": (lambda: fit(x="people.csv", y=None), "x='people.csv'", "lipdp.data.load"),
    "a data set": (lambda: fit(x=lipdp.data.load("digits"), y=None), "a Dataset", "fit(data.x_train, data.y_train)"),
    "a generator": (lambda: fit(x=((X, Y) for _ in range(3)), y=None), "a generator", "numpy.concatenate"),
    "an iterator": (lambda: fit(x=iter([(X, Y)]), y=None), "iterator", "PyDataset"),
    "a list of batches": (lambda: fit(x=[(X, Y)], y=None), "a list", "numpy.concatenate"),
    "class above": (lambda: fit(y=Y + 1), "[0, 3)", "Number the classes from 0 to 2"),
    "class below": (lambda: fit(y=Y - 1), "[0, 3)", "Number the classes from 0 to 2"),
    "class 0.5": (lambda: fit(y=Y + 0.5), "whole numbers", "integer class ids"),
    "clipless one-hot": (lambda: fit(y=HOT), "(300, 3)", "use CategoricalCrossentropy"),
    "dpsgd class above": (lambda: dpsgd(y=Y + 1), "from 0 to 2", "Received: 3"),
    "dpsgd some classes": (lambda: dpsgd(y=Y - 5), "Received: -3, -4, -5, in 300 of 300"),
    "dpsgd many classes": (lambda: dpsgd(y=np.arange(300)), "Received: 3, 4, 5, 6, 7, ..., in 297 of 300 labels"),
    "many classes": (lambda: fit(y=np.arange(300)), "Received: 3, 4, 5, 6, 7, ..., first at row 3", "from 0 to 2"),
    "dpsgd one-hot": (lambda: dpsgd(y=HOT), "('batch', 3)", "use keras.losses.CategoricalCrossentropy"),
    "dpsgd ids": (
        lambda: dpsgd(KL.CategoricalCrossentropy(from_logits=True)),
        "('batch',)",
        "keras.losses.SparseCategoricalCrossentropy",
    ),
    "broadcast column": (
        lambda: dpsgd(KL.MeanSquaredError(), y=Y[:, None].astype("float32")),
        "('batch', 1)",
        "('batch', 3)",
        "the same shape",
    ),
    "broadcast vector": (
        lambda: dpsgd(KL.MeanSquaredError(), y=Y.astype("float32")),
        "('batch',)",
        "('batch', 3)",
        "the same shape",
    ),
    "validation of 1": (lambda: fit(validation_data=(X,)), "a tuple of 1", "(inputs, labels)"),
    "validation of 4": (lambda: fit(validation_data=(X, Y, Y, Y)), "a tuple of 4", "(inputs, labels)"),
    "validation array": (lambda: fit(validation_data=X), "a ndarray", "(inputs, labels)"),
    "validation text": (lambda: fit(validation_data="test"), "a str", "(inputs, labels)"),
    "validation dict": (lambda: fit(validation_data={"x": X}), "a dict", "(inputs, labels)"),
    "validation narrow": (lambda: fit(validation_data=(X[:, :2], Y)), "[(None, 8)]", "(300, 2)", "array per input"),
    "validation shorter": (lambda: fit(validation_data=(X, Y[:-1])), "validation_data", "same length", "[300, 299]"),
    "validation NaN": (lambda: fit(validation_data=(not_a_number(X), Y)), "validation_data", "in 1 of 300"),
    "validation classes": (lambda: fit(validation_data=(X, Y + 1)), "validation_data", "Number the classes"),
    "validation weights": (lambda: fit(validation_data=(X, Y, np.ones(3))), "(3,) for 300", "one weight per example"),
    "validation steps": (lambda: fit(validation_data=(X, Y), validation_steps=0), "validation_steps=0", "positive"),
    "validation batch": (lambda: fit(validation_data=(X, Y), validation_batch_size=-1), "=-1", "positive"),
    "validation freq": (lambda: fit(validation_data=(X, Y), validation_freq="a"), "validation_freq='a'", "positive"),
}

MODELS = {
    "optimizer sgdd": (lambda: compiled(optimizer="sgdd"), "'sgdd'", "Did you mean 'sgd'"),
    "optimizer 3": (lambda: compiled(optimizer=3), "Received: 3", "keras.optimizers.SGD"),
    "optimizer None": (lambda: compiled(optimizer=None), "Received: None", "keras.optimizers.SGD"),
    "optimizer class": (lambda: compiled(optimizer=keras.optimizers.SGD), "SGD", "Make an object"),
    "metrics acc2": (lambda: compiled(metrics=["acc2"]), "'acc2'", "Did you mean 'acc'"),
    "metrics huber": (lambda: compiled(metrics=["huber"]), "'huber'", "pass keras.metrics.huber."),
    "metrics with arguments": (
        lambda: compiled(metrics=["PrecisionAtRecall"]),
        "'PrecisionAtRecall'",
        "pass keras.metrics.PrecisionAtRecall(...)",
    ),
    "metrics hubber": (lambda: compiled(metrics=["hubber"]), "'hubber'", "Pass for example"),
    "metrics 3": (lambda: compiled(metrics=[3]), "Received: 3", "metrics=['accuracy']"),
    "loss weights": (lambda: compiled(loss_weights=[1.0]), "loss_weights", "temperature"),
    "loss 3": (lambda: compiled(loss=3), "Received: 3", "Use one of lipdp.losses"),
    "loss misspelt": (lambda: compiled(loss="hubr"), "'hubr'", "Did you mean lipdp.losses.Huber"),
    "losses by output": (lambda: compiled(loss={"c": LOGITS, "r": "mse"}), "a dict of ['c', 'r']", "has one output"),
    "losses in a list": (lambda: compiled(loss=[LOGITS, "mse"]), "a list of 2", "has one output"),
    "two outputs": (lambda: fit(two_outputs(), strategy="clipless"), "one output", "with 2", "strategy='dpsgd'"),
    "two outputs dpsgd": (lambda: fit(two_outputs(), strategy="dpsgd"), "'c', 'r'", "a list in this order"),
    "layers 3": (lambda: lipdp.DP_Sequential(3), "Received: int", "[layer, ...]"),
    "one layer": (lambda: lipdp.DP_Sequential(layers.SpectralDense(3)), "SpectralDense", "[layer, ...]"),
    "a layer class": (lambda: lipdp.DP_Sequential([layers.SpectralDense]), "class SpectralDense", "Make an object"),
    "a layer 3": (lambda: lipdp.DP_Sequential([3]), "Received: 3", "keras.Layer"),
    "DP_Model of a model": (lambda: lipdp.DP_Model(plain()), "the model", "DP_Model.from_keras(model)"),
    "DP_Model of nothing": (lambda: lipdp.DP_Model(), "no inputs", "DP_Model(inputs, outputs)", "from_keras"),
    "DP_Model of inputs": (lambda: lipdp.DP_Model(keras.Input((3,))), "no outputs", "DP_Model(inputs, outputs)"),
    "subclass of DP_Model": (PrivateSubclass, "a subclass with a `call` of its own", "DP_Model.from_keras"),
    "from_keras sequential": (
        lambda: lipdp.DP_Sequential.from_keras(keras.Model(*[keras.Input((3,))] * 2)),
        "the functional model",
        "Write DP_Model.from_keras(model)",
    ),
    "from_keras subclassed sequential": (
        lambda: lipdp.DP_Sequential.from_keras(Subclassed()),
        "subclassed",
        "keras.Model(inputs, outp",
    ),
    "fix None": (lambda: lipdp.fix(None), "NoneType", "keras.saving.load_model"),
    "fix subclass": (lambda: lipdp.fix(Subclassed()), "Subclassed", "keras.Model(inputs, outputs)"),
    "from_keras subclass": (lambda: lipdp.DP_Model.from_keras(Subclassed()), "subclassed", "keras.Model(inputs, outp"),
    "from_keras GAN": (
        lambda: lipdp.DP_Model.from_keras(InTurn()),
        "`train_step` of its own",
        "docs/training.md has a variational autoencoder",
        "pass keras.Model(inputs, outputs)",
        "lipdp.diffusion.DiffusionModel",
    ),
    "from_keras None": (lambda: lipdp.DP_Model.from_keras(None), "NoneType", "keras.saving.load_model"),
    "from_keras private": (lambda: lipdp.DP_Model.from_keras(plain()), "is private already", "Train it directly"),
    "from_keras unbuilt": (
        lambda: lipdp.DP_Model.from_keras(keras.Sequential([keras.layers.Dense(3)])),
        "does not know its input shape",
        "keras.Input(shape)",
    ),
    "unbuilt without a shape": (
        lambda: fit(lipdp.DP_Sequential([layers.SpectralDense(3)]), x=iter([X])),
        "does not know its input shape",
        "BoundedInput(shape)",
    ),
    "unbuilt of vectors": (
        lambda: fit(lipdp.DP_Sequential([layers.SpectralDense(3)]), x=X[:, 0]),
        "shape (300,)",
        "one row per example",
    ),
    "units 0": (lambda: layers.SpectralDense(0), "units=0", "a positive integer"),
    "units 1.5": (lambda: layers.SpectralDense(1.5), "units=1.5", "a positive integer"),
    "kernel 0": (lambda: layers.SpectralConv2D(3, 0), "kernel_size=0", "a positive integer"),
    "padding": (lambda: layers.SpectralConv2D(3, 3, padding="full"), "'full'", "'same'"),
    "groups": (lambda: layers.SpectralConv2D(3, 3, groups=2), "groups=2", "divide"),
    "norm as shape": (lambda: layers.BoundedInput(1.0), "shape=1.0", "BoundedInput(norm=1.0)"),
    "norm 0": (lambda: layers.BoundedInput((8,), norm=0), "norm=0", "[1e-6, 1e6]"),
    "norm negative": (lambda: layers.BoundedInput((8,), norm=-1.0), "norm=-1.0", "[1e-6, 1e6]"),
    "temperature 0": (lambda: losses.CategoricalCrossentropy(temperature=0), "temperature=0", "above 0"),
    "clip 0": (lambda: losses.CategoricalCrossentropy(clip=0), "clip=0", "above 0"),
    "reduction": (lambda: losses.CategoricalCrossentropy(reduction="add"), "reduction=add", "sum_over_batch_size"),
    "clip_norm 0": (lambda: strategies.DPSGD(clip_norm=0), "clip_norm=0", "above 0"),
    "clip_norm as text": (lambda: strategies.DPSGD(clip_norm="1"), "clip_norm='1'", "above 0"),
    "clipping": (lambda: strategies.DPSGD(clipping="global"), "'global'", "'flat'"),
    "norms of layers": (lambda: strategies.DPSGD(clip_norm=[1.0, 2.0]), "clip_norm=[1.0, 2.0]", "per_layer"),
    "quantile 2": (lambda: strategies.DPSGD(quantile=2), "quantile=2", "(0, 1)"),
    "noise allocation": (lambda: strategies.Clipless(noise="best"), "'best'", "'optimal'"),
    "logits as probabilities": (
        lambda: dpsgd(KL.SparseCategoricalCrossentropy()),
        "ends without softmax",
        "from_logits=True",
    ),
    "categorical logits as probabilities": (
        lambda: dpsgd(KL.CategoricalCrossentropy(), y=HOT),
        "ends without softmax",
        "from_logits=True",
    ),
    "binary logits as probabilities": (
        lambda: dpsgd(KL.BinaryCrossentropy(), 1, y=Y % 2),
        "ends without softmax",
        "from_logits=True",
    ),
    "a function on logits": (
        lambda: dpsgd(KL.sparse_categorical_crossentropy),
        "ends without softmax",
        "from_logits=True",
    ),
    "probabilities as logits": (
        lambda: dpsgd(LOGITS, 3, "softmax"),
        "ends in softmax",
        "Remove that, or set from_logits=False",
    ),
    "a loss on logits, probabilities": (
        lambda: dpsgd(losses.SparseCategoricalCrossentropy(), 3, "softmax"),
        "ends in softmax",
        "by name",
    ),
    "batch normalization": (
        lambda: fit(graph(keras.layers.BatchNormalization()), strategy="dpsgd"),
        "mixes the examples",
        "lipdp.fix(model)",
    ),
    "regularizer": (
        lambda: fit(graph(keras.layers.Dense(4, kernel_regularizer="orthogonal_regularizer")), strategy="dpsgd"),
        "regularizer",
        "weight_decay",
    ),
    "a layer that mixes": (lambda: fit(graph(Mixing()), strategy="dpsgd"), "a layer mixes examples", "each row alone"),
}

# Clipless refuses what has no bound, and says both ways out.
BOTH = "Or train this model as it is with fit(strategy='dpsgd')"
CLIPLESS = {
    "Dense": (lambda: bounded(plain(losses.SparseCategoricalCrossentropy())), "'last'", "BoundedInput", BOTH),
    "Dense behind a bound": (
        lambda: fit(stack(keras.layers.Dense(4))),
        "Dense",
        "SpectralDense",
        BOTH,
    ),
    "no BoundedInput": (lambda: fit(stack(start=False)), "unbounded norm", "BoundedInput", BOTH),
    "LayerNormalization": (lambda: fit(stack(keras.layers.LayerNormalization())), "LayerCentering", BOTH),
    "PReLU": (lambda: fit(stack(keras.layers.PReLU())), "PReLU", "lipdp.layers.Abs", BOTH),
    "mean squared error": (lambda: bounded(plain(KL.MeanSquaredError())), "lipdp.losses.Huber instead", BOTH),
    "a loss of Keras": (lambda: bounded(plain()), "Use lipdp.losses.SparseCategoricalCrossentropy", BOTH),
    "a loss of one's own": (lambda: bounded(plain(lambda y, z: z[:, 0])), "Use one of lipdp.losses", BOTH),
}

NUMBERS = {
    "budget 0": (lambda: calibrated(epsilon=0), "epsilon=0", "of the order of 1"),
    "budget negative": (lambda: calibrated(epsilon=-1), "epsilon=-1", "of the order of 1"),
    "budget as text": (lambda: calibrated(epsilon="1"), "epsilon='1'", "of the order of 1"),
    "delta 0": (lambda: epsilon(delta=0), "delta=0", "such as 1e-5"),
    "delta 2": (lambda: epsilon(delta=2), "delta=2", "such as 1e-5"),
    "noise negative": (lambda: epsilon(noise_multiplier=-1), "noise_multiplier=-1", "at least 0"),
    "noise as text": (lambda: epsilon(noise_multiplier="1"), "noise_multiplier='1'", "at least 0"),
    "probability 0": (lambda: epsilon(sampling_probability=0), "=0", "batch size divided by the number of examples"),
    "probability 2": (lambda: epsilon(sampling_probability=2), "=2", "batch size divided by the number of examples"),
    "probability missing": (lambda: epsilon("sampling_probability"), "=None", "batch size divided by the number"),
    "updates negative": (lambda: epsilon(updates=-1), "updates=-1", "non-negative"),
    "updates 1.5": (lambda: epsilon(updates=1.5), "updates=1.5", "non-negative"),
    "updates 0": (lambda: calibrated(updates=0), "updates=0", "a positive integer"),
    "accountant": (lambda: epsilon(accountant="moments"), "'moments'", "pld"),
    "sampler": (lambda: epsilon(sampler="uniform"), "'uniform'", "poisson"),
    "group 0": (lambda: epsilon(group_size=0), "group_size=0", "a positive integer"),
    "budget is spent": (
        lambda: calibrated(spent=[accounting.Mechanism(0.5, 0.5, 1000)]),
        "already spent",
        "Pass a larger epsilon",
    ),
    "needs no noise": (lambda: calibrated(epsilon=1e9), "needs no noise", "order of 1 to 10"),
}

CERTIFY = {
    "narrow": (lambda: certify.radii(clipless(), X[:, :3]), "[(None, 8)]", "(300, 3)", "array per input"),
    "empty": (lambda: certify.radii(clipless(), X[:0]), "no example", "length 0", "at least one row"),
    "None": (lambda: certify.radii(clipless(), None), "object", "one row per example"),
    "text": (lambda: certify.radii(clipless(), "x"), "<U1", "one row per example"),
    "words": (lambda: certify.radii(clipless(), np.full((3, 8), "a")), "<U1", "one row per example"),
    "batch 0": (lambda: certify.radii(clipless(), X, batch_size=0), "batch_size=0", "a positive integer"),
    "radius negative": (lambda: certified(at=[-1.0]), "at=-1.0", "at least 0"),
    "radius as text": (lambda: certified(at="0.1"), "at='0.1'", "at least 0"),
    "labels shorter": (lambda: certified(y=Y[:5]), "same length", "300 and 5"),
    "labels None": (lambda: certified(y=None), "dtype object", "integers from 0"),
    "labels of words": (lambda: certified(y=TEXT), "<U1", "integers from 0"),
    "labels wide": (lambda: certified(y=np.zeros((300, 7))), "(300, 7)", "one-hot rows of 3"),
    "no model": (lambda: certify.lipschitz(None), "NoneType", "keras.saving.load_model"),
    "no model for radii": (lambda: certify.radii(None, X), "NoneType", "keras.saving.load_model"),
    "a path": (lambda: certify.lipschitz("model.keras"), "str", "keras.saving.load_model"),
    "no bound": (
        lambda: certify.lipschitz(keras.Sequential([keras.Input((8,)), keras.layers.LayerNormalization()])),
        "LayerNormalization",
        "LayerCentering",
    ),
    "a radius of the metric": (lambda: certify.CertifiedAccuracy(-1.0), "radius=-1.0", "at least 0"),
    "export None": (lambda: lipdp.export(None), "NoneType", "keras.saving.load_model"),
    "export a path": (lambda: lipdp.export("model.keras"), "str", "keras.saving.load_model"),
    "export unbuilt": (
        lambda: lipdp.export(keras.Sequential([layers.SpectralDense(3)])),
        "not built",
        "give its first layer an input shape",
    ),
    "export a layer of one's own": (lambda: lipdp.export(stack(Mixing())), "Mixing", "Replace it"),
    "bounds of two outputs": (lambda: bounds.propagate(two_outputs(), 1.0), "one output", "2 outputs"),
    "bounds before compile": (
        lambda: lipdp.DP_Sequential([layers.BoundedInput((8,)), layers.SpectralDense(3)]).summary_bounds(),
        "compile",
    ),
    "old format": (lambda: clipless().save("model.h5"), "'model.h5'", ".keras"),
    "data set": (lambda: lipdp.data.load("mnst"), "'mnst'", "Did you mean 'mnist'"),
}

REFUSED = {
    f"{group}: {name}": row
    for group, rows in {
        "fit": FIT,
        "unknown argument": UNKNOWN,
        "data": DATA,
        "model": MODELS,
        "clipless": CLIPLESS,
        "accounting": NUMBERS,
        "certify": CERTIFY,
    }.items()
    for name, row in rows.items()
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_a_cure(name):
    call, *words = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    _check(str(caught.value), words)
    if name not in BY_KERAS:
        assert _raised_by(caught) == "lipdp", caught.traceback[-1]
        assert str(caught.value).endswith((".", "?", ")"))


# Keras' own texts that say what was received and what to pass.
BY_KERAS = ("model: a layer 3", "model: reduction")


def _raised_by(caught) -> str:
    """The package whose code raised an error."""
    return str(caught.traceback[-1].frame.f_globals["__name__"]).split(".")[0]


def _check(text: str, words) -> None:
    assert not [word for word in words if word not in text], text
    assert "\n" not in text and "  " not in text, text


WARNED = {
    "a sum over the batch": (
        lambda: compiled(loss=losses.SparseCategoricalCrossentropy(reduction="sum")),
        "reduction='sum'",
        "multiply the learning rate",
    ),
    "a sum under DP-SGD": (
        lambda: plain(KL.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
        "reduction='sum'",
        "multiply the learning rate",
    ),
    "delta of 1 / N": (
        lambda: lipdp.privacy.Plan(
            sampling=sampling.Sampling("poisson").bind(300, 30), updates=1, noise_multiplier=4.0, delta=0.01
        ),
        "delta=0.01",
        "num_examples=300",
        "well below",
    ),
}


# A warning is looked for, so that those of NumPy about JAX's arrays are not filtered.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WARNED)
def test_it_works_and_warns(name):
    call, *words = WARNED[name]
    with pytest.warns(UserWarning) as caught:
        call()
    _check(next(str(w.message) for w in caught if w.category is UserWarning), words)


ACCEPTED = {
    "strategy in capitals": lambda: strategies.get("DPSGD").name == "dpsgd",
    "strategy with a hyphen": lambda: strategies.get("DP-SGD").name == "dpsgd",
    "strategy class": lambda: strategies.get(strategies.DPSGD) == strategies.DPSGD(),
    "tiny budget": lambda: calibrated(epsilon=1e-9) > 1000.0,
    "tinier budget": lambda: calibrated(epsilon=1e-12) > 1000.0,
    "one radius": lambda: set(certified(at=0.1)) == {0.1},
    "one radius, one-hot": lambda: set(certified(y=HOT, at=0.1)) == {0.1},
    "rows as lists": lambda: certify.radii(clipless(), X[:3].tolist()).shape == (3,),
    "a column of numbers": lambda: losses.check_per_example(KL.MeanSquaredError(), np.ones((3, 1)), (None, 1)) is None,
    "a vector of numbers": lambda: losses.check_per_example(KL.MeanSquaredError(), np.ones(3), (None, 1)) is None,
    # Whether there is one class only is a fact about private labels: the loss takes any number of classes.
    "one class": lambda: losses.SparseCategoricalCrossentropy().check_labels(np.zeros(300, int), 3) is None,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_it_is_taken_as_it_was_meant(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of TensorFlow, by numpy
        assert ACCEPTED[name]()


@pytest.mark.slow
def test_a_sequential_model_without_a_shape_is_built_by_its_first_fit():
    model = lipdp.DP_Sequential([layers.BoundedInput(norm=1.0), layers.SpectralDense(3)])
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    fit(model, epsilon=None, noise_multiplier=4.0, steps_per_epoch=1)
    assert model.input_shape == (None, 8) and model.privacy.updates == 1


def test_nothing_was_charged():
    for model in (clipless(), plain(), two_outputs()):
        assert model.run.ledger.releases == 0


RUN = "--noise-multiplier 1 --batch-size 10 --num-examples 1000 --updates 100"
TRAIN = "train --epsilon 1 --verbose 0"
COMMANDS = {
    "no command": ("", "COMMAND"),
    "unknown command": ("trian", "'trian'", "train"),
    "no data": ("train --epsilon 1", "--dataset"),
    "no budget": ("train --dataset digits", "epsilon"),
    "misspelt option": ("train --dataset digits --batchsize 3", "--batchsize", "--batch-size"),
    "misspelt budget": ("train --dataset digits --epsilom 3", "--epsilom", "--epsilon"),
    "unknown data": (f"{TRAIN} --dataset digts", "'digts'", "Did you mean 'digits'"),
    "no such file": (f"{TRAIN} --dataset no.csv", "no.csv", "existing file"),
    "other file": (f"{TRAIN} --dataset x.parquet", "x.parquet", ".csv"),
    "table of arrays": ("table {objects} --label y", "objects.npz", "arrays", "--dataset"),
    "table of another kind": ("table {binary}", "binary.parquet", "is not a text file", "to_csv"),
    "budget 0": ("train --dataset digits --epsilon 0", "epsilon=0", "above 0"),
    "budget as text": ("train --dataset digits --epsilon one", "'one'", "float"),
    "delta 2": (f"{TRAIN} --dataset digits --delta 2", "delta=2", "such as 1e-5"),
    "batch 0": (f"{TRAIN} --dataset digits --batch-size 0", "batch_size=0", "positive"),
    "epochs 0": (f"{TRAIN} --dataset digits --epochs 0", "epochs=0", "positive"),
    "split 2": (f"{TRAIN} --dataset digits --validation-split 2", "2", "(0, 1)"),
    "seed negative": (f"{TRAIN} --dataset digits --seed -1", "seed=-1", "from 0"),
    "recipe": (f"{TRAIN} --dataset digits --recipe best", "'best'", "accurate"),
    "other task": (f"{TRAIN} --dataset digits --clip-norm 1", "--clip-norm", "diffusion"),
    "label of images": (f"{TRAIN} --dataset digits --label y", "'y'", "Leave it out"),
    "accountant": (f"{TRAIN} --dataset digits --accountant pdl", "'pdl'", "pld"),
    "junk": (f"{TRAIN} --dataset {{junk}}", "another kind of file", "numpy.savez"),
    "objects": (f"{TRAIN} --dataset {{objects}}", "Python objects", "numpy.savez"),
    "one array": (f"{TRAIN} --dataset {{array}}", "single array", "numpy.savez"),
    "no header": (f"{TRAIN} --dataset {{headless}}", "column names", "2 of 3 that are numbers", "Add a header"),
    "no header, numbers": (f"{TRAIN} --dataset {{numbers}}", "column names", "3 of 3", "Add a header"),
    "missing value": (
        f"{TRAIN} --dataset {{missing}}",
        "missing value in 1 of 3",
        "put a public constant",
        '"missing": true',
    ),
    "categories": (f"{TRAIN} --dataset {{categories}}", "Column 'a'", "lipdp table"),
    "unknown label": (f"{TRAIN} --dataset {{good}} --label il", "'il'", "Did you mean 'ill'"),
    "uneven rows": (f"{TRAIN} --dataset {{uneven}}", "2 values", "the same number"),
    "epsilon without noise": ("epsilon --batch-size 10 --num-examples 1000 --updates 3", "noise-multiplier"),
    "epsilon without updates": ("epsilon --noise-multiplier 1 --batch-size 10 --num-examples 1000", "updates"),
    "epsilon noise": (f"epsilon {RUN} --noise-multiplier -1", "noise_multiplier=-1", "at least 0"),
    "epsilon delta": (f"epsilon {RUN} --delta 0", "delta=0", "such as 1e-5"),
    "epsilon accountant": (f"epsilon {RUN} --accountant rpd", "'rpd'", "rdp"),
    "epsilon sampler": (f"epsilon {RUN} --sampler uniform", "'uniform'", "poisson"),
    "epsilon option": (f"epsilon {RUN} --detla 1e-5", "--detla", "Did you mean --delta"),
    "calibrate budget": (
        "calibrate --epsilon 0 --batch-size 10 --num-examples 1000 --updates 3",
        "epsilon=0",
        "above 0",
    ),
    "calibrate no budget": ("calibrate --batch-size 10 --num-examples 1000 --updates 3", "epsilon"),
    "plan too little": ("plan --num-examples 1000 --epsilon 1", "three"),
    "plan examples": ("plan --num-examples 0 --epsilon 1 --epochs 1 --batch-size 1", "num_examples=0", "positive"),
    "group size": ("group one --noise-multiplier 1 --updates 3 --sampling-probability 0.1", "'one'"),
    "certify nothing": ("certify no-such-run", "no-such-run"),
    "report nothing": ("report no-such-run", "no-such-run"),
    "sample nothing": ("sample no-such-run --output x.npz", "no-such-run"),
    "sample output": ("sample no-such-run --output x.gif", "x.gif", ".png"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files that people have, by what is wrong with them."""
    folder = tmp_path_factory.mktemp("files")
    texts = {
        "good": "a,b,ill\n1,2,no\n3,4,yes\n5,6,no\n",
        "headless": "1.5,22000,no\n3,4,yes\n5,6,no\n",
        "numbers": "1.5,22000,0\n3,4,1\n5,6,0\n",
        "missing": "a,b,ill\n1,2,no\n3,,yes\n5,6,no\n",
        "categories": "a,b,ill\nred,2,no\nblue,4,yes\nred,6,no\n",
        "uneven": "a,b,ill\n1,2,no\n3,4\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "junk.npz").write_text("a,b\n1,2\n")
    (folder / "binary.parquet").write_bytes(b"PAR1\xff\xfe")
    np.savez(folder / "objects.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2))
    with open(folder / "array.npz", "wb") as file:
        np.save(file, np.zeros(3))
    return {path.stem: str(path) for path in folder.iterdir()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_refused_with_a_cure(name, files, capsys):
    line, *words = COMMANDS[name]
    assert main(line.format(**files).split()) in (1, 2)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("lipdp") and captured.err.count("\n") == 1, captured.err
    assert not [word for word in words if word not in captured.err], captured.err


@pytest.mark.filterwarnings("ignore::lipdp.data.UnchargedWarning")
def test_a_table_of_numbers_that_count_has_a_header(tmp_path):
    (tmp_path / "t.csv").write_text("0,1,label\n7,8,a\n9,10,b\n")
    assert lipdp.data.load(tmp_path / "t.csv").x_train.shape == (2, 2)


def test_the_corpus_is_whole():
    """As many calls as were tried by hand; a row that falls out is noticed."""
    assert len(REFUSED) + len(WARNED) + len(ACCEPTED) + len(COMMANDS) >= 213
