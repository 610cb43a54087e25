"""What is attacked: models, strategies and their options, optimizers, ways of execution, hostile rows."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import layers as stock

import lipdp
from lipdp import diffusion, layers, losses, strategies
from lipdp.diffusion import toy
from tests.adversarial.attack import ROWS, Target, watched
from tests.helpers.random_models import random_model

CLASSES = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to train."""

    model: str
    strategy: Any
    optimizer: str = "SGD"
    execution: str = "default"
    steps: int = 1
    microbatch: int | None = None
    warm: int = 0
    seed: int = 0
    policy: str = "float32"

    def __str__(self):
        options = {k: v for k, v in self.strategy.get_config().items() if v != getattr(type(self.strategy), k, None)}
        options = {k: type(v).__name__ if isinstance(v, dict) else v for k, v in options.items()}
        written = ",".join(f"{k}={v}" for k, v in options.items() if v is not None)
        parts = [self.model, f"{self.strategy.name}({written})", self.optimizer, self.execution]
        parts += [self.policy] if self.policy != "float32" else []
        return f"{'-'.join(parts)}-steps{self.steps}-mb{self.microbatch}-warm{self.warm}-{self.seed}".replace(" ", "")

    def target(self) -> Target:
        keras.utils.set_random_seed(self.seed)
        make, data = MODELS[self.model]
        x, y = data(np.random.default_rng(self.seed))
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            model = make(self.seed, self.strategy)
        finally:
            keras.config.set_dtype_policy(before)
        optimizer = watched(getattr(keras.optimizers, self.optimizer))(0.05)
        options = EXECUTIONS[self.execution] | {"steps_per_execution": self.steps}
        if isinstance(model, diffusion.DiffusionModel):
            model.compile(optimizer, **options)
        else:
            model.compile(optimizer, loss=_loss(self.strategy, self.seed), **options)
        return Target(model, x, y, self.strategy, self.microbatch, self.warm)


EXECUTIONS = {"default": {}, "eager": {"run_eagerly": True}, "graph": {"jit_compile": False}}


def _loss(strategy, seed):
    if not strategy.per_example:
        made = (
            losses.SparseCategoricalCrossentropy(temperature=3.0, clip=0.5 if seed % 2 else None),
            losses.SparseCategoricalCrossentropy(clip=0.25),
        )
        # A quantile needs something that it can lower.
        return made[1 if strategy.quantile is not None else seed % 2]
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def hostile(shape, rng):
    """Rows at which bounds and norms are hard to compute: large, tiny, zero, sparse, cancelling, overflowing."""
    size = int(np.prod(shape))
    sparse = np.zeros(size)
    sparse[rng.integers(size)] = 1e6
    cancelling = 1e19 * (-1.0) ** np.arange(size)
    made = [
        1e3 * rng.normal(size=size), 1e15 * rng.normal(size=size), np.full(size, 3e38), sparse, cancelling,
        np.zeros(size), 1e-30 * rng.normal(size=size), rng.normal(size=size), np.ones(size),
    ]  # fmt: skip
    return np.stack(made).reshape(-1, *shape).astype("float32")


def _floats(*shape):
    def data(rng):
        x = np.concatenate([rng.normal(size=(ROWS, *shape)).astype("float32"), hostile(shape, rng)])
        return x, rng.integers(0, CLASSES, len(x)).astype("int32")

    return data


def _tokens(rng):
    x = np.concatenate([rng.integers(0, 10, (ROWS, 7)), np.full((2, 7), 3), np.arange(7)[None], np.zeros((1, 7))])
    return x.astype("int32"), rng.integers(0, CLASSES, len(x)).astype("int32")


def _points(rng):
    return np.concatenate([rng.normal(size=(ROWS, 2)).astype("float32"), hostile((2,), rng)]), None


def _labeled_points(rng):
    x, _ = _points(rng)
    return x, rng.integers(0, CLASSES, len(x)).astype("int32")


def _plain(shape, make, dtype="float32"):
    def private(seed, strategy):
        return lipdp.DP_Model.from_keras(keras.Sequential([keras.Input(shape, dtype=dtype), *make()]))

    return private


def _shared(seed, strategy):
    """One layer on three ways, a residual, and a nested model that is called twice."""
    inputs = keras.Input((6,))
    dense, inner_input = stock.Dense(6, activation="tanh"), keras.Input((6,))
    inner = keras.Model(inner_input, stock.Add()([inner_input, dense(inner_input)]))
    x = stock.Concatenate()([inner(dense(inputs)), inner(inputs)])
    return lipdp.DP_Model.from_keras(keras.Model(inputs, stock.Dense(CLASSES)(stock.LayerNormalization()(x))))


def _attention(seed, strategy):
    inputs = keras.Input((4, 6))
    x = stock.Add()([inputs, stock.MultiHeadAttention(2, 3)(inputs, inputs)])
    x = stock.GlobalAveragePooling1D()(stock.LayerNormalization()(x))
    return lipdp.DP_Model.from_keras(keras.Model(inputs, stock.Dense(CLASSES)(x)))


def _two_outputs(seed, strategy):
    inputs = keras.Input((6,))
    inside = stock.Dense(8, activation="relu")(inputs)
    outputs = {"first": stock.Dense(CLASSES)(inside), "second": stock.Dense(CLASSES)(inside)}
    return lipdp.DP_Model.from_keras(keras.Model(inputs, outputs))


def _two_labels(rng):
    x, y = _floats(6)(rng)
    return x, {"first": y, "second": y[::-1].copy()}


def _random(shape):
    """A random graph of Lipschitz layers, some of them shared, that takes rows of one shape."""

    def make(seed, strategy):
        seeds = (s for s in range(100 * seed, 100 * seed + 100))
        graph = next(m for m in map(random_model, seeds) if m.input_shape[1:] == shape)
        return lipdp.DP_Model(graph.inputs[0], graph.outputs[0])

    return make


def _lipschitz(seed, strategy):
    return lipdp.DP_Sequential(
        [
            layers.BoundedInput((6, 6, 1), norm=2.0), layers.SpectralConv2D(4, 3), layers.Bias(0.5), layers.GroupSort(),
            layers.L2NormPooling2D(2), layers.Flatten(), layers.LayerCentering(), layers.SpectralDense(8), layers.Abs(),
            layers.SpectralDense(CLASSES),
        ]
    )  # fmt: skip


def _diffusion(classes):
    def make(seed, strategy):
        if classes is None:
            network = toy.point_network(width=8, depth=1)
        else:
            x, level, label = keras.Input((2,)), keras.Input(()), keras.Input((), dtype="int32")
            inside = stock.Dense(8)(stock.Concatenate()([x, stock.Reshape((1,))(level)]))
            inside = stock.Add()([inside, stock.Embedding(classes + 1, 8)(label)])
            network = keras.Model([x, level, label], stock.Dense(2)(stock.Activation("silu")(inside)))
        copies = strategy.augmentation_multiplicity
        return diffusion.DiffusionModel(network, num_classes=classes, noise_multiplicity=copies, average=0.5)

    return make


# By name: what makes a model of a seed and a strategy, and what makes its data.
CLIPPED = {
    "logistic": (_plain((6,), lambda: [stock.Dense(CLASSES)]), _floats(6)),
    "mlp": (_plain((6,), lambda: [stock.Dense(8, "tanh"), stock.Dense(CLASSES)]), _floats(6)),
    "relu": (_plain((6,), lambda: [stock.Dense(8, "relu"), stock.Dense(CLASSES)]), _floats(6)),
    "convolution": (
        _plain(
            (6, 6, 1),
            lambda: [
                stock.Conv2D(4, 3, activation="relu"), stock.GroupNormalization(2), stock.MaxPooling2D(2),
                stock.DepthwiseConv2D(2), stock.Flatten(), stock.Dense(CLASSES),
            ],
        ),
        _floats(6, 6, 1),
    ),
    "tokens": (
        _plain((7,), lambda: [stock.Embedding(10, 4), stock.LSTM(5), stock.Dense(CLASSES)], "int32"), _tokens
    ),
    "dropout": (
        _plain(
            (6,),
            lambda: [
                stock.GaussianNoise(0.3), stock.Dense(8, "relu"), stock.Dropout(0.5), stock.Dense(CLASSES),
            ],
        ),
        _floats(6),
    ),
    "changed_images": (
        _plain(
            (6, 6, 1),
            lambda: [
                stock.RandomFlip(), stock.RandomTranslation(0.2, 0.2), stock.RandomContrast(0.3),
                stock.Conv2D(4, 3, activation="relu"), stock.SpatialDropout2D(0.3), stock.Flatten(),
                stock.Dense(CLASSES),
            ],
        ),
        _floats(6, 6, 1),
    ),
    "masked_tokens": (
        _plain(
            (7,),
            lambda: [stock.Embedding(10, 4), stock.GRU(5, dropout=0.3, recurrent_dropout=0.3), stock.Dense(CLASSES)],
            "int32",
        ),
        _tokens,
    ),
    "shared": (_shared, _floats(6)),
    "attention": (_attention, _floats(4, 6)),
    "two_outputs": (_two_outputs, _two_labels),
}  # fmt: skip
LIPSCHITZ = {
    "lipschitz": (_lipschitz, _floats(6, 6, 1)),
    "graph": (_random((6,)), _floats(6)),
    "image_graph": (_random((4, 4, 2)), _floats(4, 4, 2)),
}
DIFFUSION = {"diffusion": (_diffusion(None), _points), "labeled_diffusion": (_diffusion(CLASSES), _labeled_points)}
MODELS = CLIPPED | LIPSCHITZ | DIFFUSION
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Nadam", "Adamax", "Ftrl", "Lion", "Lamb")

_SHIFT = strategies.RandomShift(1, flip=True)


def chosen(kind, number):
    """Returns one of the ways to train with a kind of strategy: the same for the same number."""
    rng = np.random.default_rng([number, *kind.encode()])

    def one(*values):
        return values[rng.integers(len(values))]

    copies = one(1, 1, 3)
    if kind == "clipless":
        model, strategy = one(*LIPSCHITZ), strategies.Clipless(one("global", "per_layer", "optimal"), one(None, 0.5))
    elif kind == "diffusion":
        model = one(*DIFFUSION)
        strategy = one(strategies.DPSGD, strategies.AdaCliP)(clip_norm=0.5, augmentation_multiplicity=copies)
    else:
        model = one(*CLIPPED, *LIPSCHITZ)
        image = model in ("convolution", "changed_images", "lipschitz", "image_graph")
        views = {"augmentation_multiplicity": copies, "augmentation": _SHIFT if image and copies > 1 else None}
        clip_norm = one(1.0, 0.01, 30.0)
        if kind == "adaclip":
            strategy = strategies.AdaCliP(
                clip_norm, granularity=one("coordinate", "layer"), adapt_norm=one(False, True), **views
            )
        else:
            clipping = one("flat", "per_layer", "automatic", "quantile")
            ordinary = {"clipping": clipping} if clipping != "quantile" else {"quantile": one(0.3, 0.7)}
            strategy = strategies.DPSGD(clip_norm, **ordinary, **views)
    constant = strategy.name != "adaclip" and getattr(strategy, "quantile", None) is None
    return Case(
        model,
        strategy,
        optimizer=one(*OPTIMIZERS),
        execution=one("default", "default", "eager", "graph"),
        steps=one(1, 1, 2) if constant else 1,
        microbatch=one(None, 6, 8),
        warm=one(0, 2, 5),
        seed=number,
    )
