"""All layers of Keras, in many configurations: where one is trusted, no row moves another."""

import inspect
import itertools

import keras
import numpy as np
import pytest
from keras import layers as L

from lipdp.isolation import known

ROWS = 5
SHAPES = ((), (4,), (4, 3), (4, 4, 3), (3, 4, 4, 3))
# Tried for each argument of this name.
AXES = (0, 1, 2, 3, -1, -2, -3, -4, -5, (0, 1), (1, 2), (-2, -1), (-3, -1), (-4, -1))
VALUES = {
    "axis": AXES,
    "axes": AXES,
    "attention_axes": (None, 0, 1, -2, -3, (0,), (1,), (1, 2), (-3,), (-2,)),
    "dropout": (0.0, 0.5),
    "activation": (None, "softmax", "glu"),
    "equation": (
        *("ab,bc->ac", "ab,ac->bc", "...a,ab->...b", "abc,cd->abd", "abc,ad->bcd", "ab,b->ab", "...ab,bc->...ac"),
        *("...ab,abc->...c", "ab,cd->acd", "a...b,bc->a...c", "...ab,ca->...cb", "...a,ab->b...", "ba,cb->ca"),
    ),
    "output_shape": ((None, 3), 3, (3, 3)),
    "target_shape": ((-1,), (2, -1), (-1, 3)),
    "dims": ((1,), (2, 1), (1, 2, 3), (3, 1, 2), (2, 1, 3)),
    "mode": ("horizontal_and_vertical", "vertical"),
    "scale": (0.5, (1.0, 2.0, 3.0)),
    "padding": ("valid", "same", "causal", 1),
    "groups": (1, -1),
    "noise_shape": (None, (1, 3)),
    "shared_axes": (None, (1,)),
    "output_mode": ("int", "one_hot", "multi_hot", "count"),
    "score_mode": ("dot", "concat"),
    **dict.fromkeys(("crop_to_aspect_ratio", "pad_to_aspect_ratio", "antialias", "normalize"), (False, True)),
    **dict.fromkeys(("keepdims", "return_sequences", "stateful"), (False, True)),
    **dict.fromkeys(("units", "filters", "key_dim", "head_dim", "output_dim"), (3,)),
    **dict.fromkeys(("num_heads", "num_query_heads", "kernel_size", "pool_size", "size", "n", "height", "width"), (2,)),
    **dict.fromkeys(("rate", "stddev", "factor", "contrast_factor", "brightness_factor"), (0.5,)),
    **dict.fromkeys(("height_factor", "width_factor", "x_factor", "y_factor", "hue_factor"), (0.3,)),
    **{"num_key_value_heads": (1,), "input_dim": (7,), "cropping": (1,), "num_bins": (3,), "num_tokens": (5,)},
    **{"bin_boundaries": ((0.0, 1.0),), "sigma": (1.0,), "value_range": ((0, 1),), "max_boxes": (3,)},
}
SET = {
    "Normalization": {"mean": [0.0], "variance": [1.0], "axis": [None, 0, -1, 1]},
    "RandomGaussianBlur": {"factor": [1.0]},
    # Long to build: few of each are enough.
    **{f"ConvLSTM{n}D": {"filters": [2], "kernel_size": [1]} for n in (1, 2, 3)},
    **{name: {"units": [3], "stateful": [False, True]} for name in ("GRU", "LSTM", "SimpleRNN")},
}
LONG = [name for name, options in SET.items() if "units" in options or "filters" in options]
SCALED = ("Rescaling",)
INTEGERS = ("Embedding", "ReversibleEmbedding", "CategoryEncoding", "Hashing", "IntegerLookup")
OTHERS = {
    "RNN": lambda: L.RNN([L.SimpleRNNCell(3), L.LSTMCell(3), L.GRUCell(3)]),
    "Bidirectional": lambda: L.Bidirectional(L.LSTM(3)),
    "SpectralNormalization": lambda: L.SpectralNormalization(L.Dense(3)),
    "Lambda": lambda: L.Lambda(lambda x: x[::-1]),
    "Pipeline": lambda: L.Pipeline([L.RandomFlip("vertical", seed=1), L.Rescaling(2.0)]),
}
# Cells take no sequences, and are tried in what takes them.
NAMES = sorted({c.__name__ for c in vars(L).values() if inspect.isclass(c) and issubclass(c, L.Layer)})
NAMES = [name for name in NAMES if hasattr(L, name) and not name.endswith("Cell")]
QUICK = ("AdditiveAttention", "Attention", "CenterCrop", "EinsumDense", "RandomFlip", "Resizing")


def configurations(name):
    """Returns arguments for one type: all combinations, or, where these are many, one changed at a time."""
    options = {}
    parameters = list(inspect.signature(getattr(L, name).__init__).parameters.items())[1:]
    for argument, parameter in [] if name in LONG else parameters:
        required = parameter.default is parameter.empty
        if argument in VALUES and (argument != "scale" or name in SCALED):
            options[argument] = list(VALUES[argument])
            if not required and parameter.default not in options[argument]:
                options[argument].insert(0, parameter.default)
    options |= SET.get(name, {})
    found = [dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())]
    if len(found) <= 24:
        return found
    first = {argument: values[0] for argument, values in options.items()}
    return [first | {argument: value} for argument, values in options.items() for value in values]


def makers(name):
    if name in OTHERS:
        return [OTHERS[name]]
    return [lambda config=config: getattr(L, name)(**config) for config in configurations(name)]


CALLS = {
    "alone": lambda make, x: make()(x),
    "of a list": lambda make, x: make()([x, x]),
    "of two": lambda make, x: make()(x, x),
    "of two ranks": lambda make, x: make()([L.GlobalAveragePooling1D()(x) if len(x.shape) == 3 else L.Flatten()(x), x]),
    "in time": lambda make, x: L.TimeDistributed(make())(x),
    "as activation": lambda make, x: L.Activation(make())(x),
}


def build(call, make, shape, dtype):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape, dtype=dtype)
    model = keras.Model(inputs, call(make, inputs))
    for layer in model.layers:
        layer.trainable = False
    return model


def moves(model, shape, dtype):
    """Whether another row than the one that changes has another output."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 2, (ROWS, *shape)) if dtype == "int32" else rng.normal(size=(ROWS, *shape))
    before, runs = [v.numpy() for v in model.variables], []
    for training, row in itertools.product((False, True), (None, ROWS - 1, 0)):
        x = whole.astype(dtype)
        if row is not None:
            x[row] = 1 - x[row] if dtype == "int32" else -3 * x[row] - 1
        outputs = keras.tree.flatten(model(x, training=training))
        runs.append([keras.ops.convert_to_numpy(t).astype("float64") for t in outputs])
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
    for usual, *others in (runs[:3], runs[3:]):
        for row, other in zip((ROWS - 1, 0), others, strict=True):
            for a, b in zip(usual, other, strict=True):
                if len(a) != ROWS or not np.allclose(
                    *(np.delete(t, row, 0) for t in (a, b)), atol=1e-5, equal_nan=True
                ):
                    return True
    return False


def tried(name):
    """Returns how many models that are trusted ran, and in which of them rows move each other."""
    number, found = 0, []
    for make, shape, (how, call) in itertools.product(makers(name), SHAPES, CALLS.items()):
        dtype = "int32" if name in INTEGERS else "float32"
        try:
            model = build(call, make, shape, dtype)
        except Exception:  # not a configuration for such inputs
            continue
        if known.foreign(model):
            continue
        try:
            mixing = moves(model, shape, dtype)
        except Exception:  # it does not run at all
            continue
        number += 1
        if mixing:
            found.append((how, shape, model.layers[-1].get_config()))
    return number, found


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES])
def test_no_row_moves_another_where_a_layer_is_trusted(name):
    number, found = tried(name)
    assert not found, found[0]
    if name in QUICK:
        assert number > 0
