"""Time of forward and backward pass of each layer, as a ratio to its ordinary Keras counterpart.

    python benchmarks/layer_cost.py                     # TensorFlow graph, as `fit` compiles on a CPU
    python benchmarks/layer_cost.py --xla               # with jit_compile
    KERAS_BACKEND=jax python benchmarks/layer_cost.py --name layer_cost_jax

Both layers of a pair run in turn inside one process, outputs and gradients of inputs and variables; the projection
of the kernels belongs to the optimizer and is measured in `step_cost.py`.
"""

import argparse
import pathlib
import sys
import time

import numpy as np
from common import spread, write

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))


def pairs() -> dict:
    """Returns (layer, counterpart, shape of one example, type of the input) by name, for every layer of lipdp.

    Without a counterpart, the stock layer that an export has in its place is one. A layer that is not named here is
    measured on its first test case.
    """
    from keras import layers as stock

    from lipdp import layers
    from tests.helpers.layer_cases import ALL, TOKENS

    image, map_, tokens = (32, 32, 3), (16, 16, 32), (64, 64)
    chosen = {
        "SpectralDense": (layers.SpectralDense(256), None, (784,)),
        "TokenMixing": (
            layers.TokenMixing(64),
            [stock.Permute((2, 1)), stock.Dense(64, use_bias=False), stock.Permute((2, 1))],
            tokens,
        ),
        "SpectralConv1D": (layers.SpectralConv1D(64, 5), None, (128, 32)),
        "SpectralConv2D": (layers.SpectralConv2D(32, 3), None, map_),
        "SpectralConv2D, strided": (layers.SpectralConv2D(32, 5, strides=2), None, image),
        "SpectralConv2D, 1 channel, strides (1, 2)": (layers.SpectralConv2D(16, 5, strides=(1, 2)), None, (28, 28, 1)),
        "SpectralConv2D, 4 groups": (layers.SpectralConv2D(32, 3, groups=4), None, map_),
        "SpectralConv3D": (layers.SpectralConv3D(16, 3), None, (8, 8, 8, 8)),
        "SpectralDepthwiseConv1D": (layers.SpectralDepthwiseConv1D(5), None, (128, 32)),
        "SpectralDepthwiseConv2D": (layers.SpectralDepthwiseConv2D(3), None, map_),
        "SpectralConv1DTranspose": (layers.SpectralConv1DTranspose(32, 4, strides=2), None, (64, 32)),
        "SpectralConv2DTranspose": (layers.SpectralConv2DTranspose(16, 4, strides=2), None, (8, 8, 32)),
        "SpectralConv3DTranspose": (layers.SpectralConv3DTranspose(8, 2, strides=2), None, (4, 4, 4, 16)),
        "OrthogonalConv2D": (layers.OrthogonalConv2D(32, 3), stock.Conv2D(32, 3, padding="same", use_bias=False), map_),
        "OrthogonalPatchConv2D": (
            layers.OrthogonalPatchConv2D(64, 4),
            stock.Conv2D(64, 4, strides=4, use_bias=False),
            image,
        ),
        "Bias": (layers.Bias(), stock.Dense(32), map_),
        "Abs": (layers.Abs(), stock.ReLU(), map_),
        "GroupSort": (layers.GroupSort(), stock.PReLU(), map_),
        "Householder": (layers.Householder(), stock.PReLU(), map_),
        "BoundedEmbedding": (layers.BoundedEmbedding(1000, 64), None, (64,), "int32"),
        "BoundedInput": (layers.BoundedInput(), stock.UnitNormalization(axis=(1, 2, 3)), image),
        "ClipGradient": (layers.ClipGradient(1.0), stock.UnitNormalization(axis=(1, 2, 3)), map_),
        "LowFrequencies2D": (layers.LowFrequencies2D(12), stock.AveragePooling2D(2), (28, 28, 1)),
        "LayerCentering": (layers.LayerCentering(), stock.LayerNormalization(), map_),
        "L2NormPooling2D": (layers.L2NormPooling2D(), stock.MaxPooling2D(), map_),
        "GlobalL2NormPooling2D": (layers.GlobalL2NormPooling2D(), stock.GlobalMaxPooling2D(), map_),
        "ScaledAveragePooling2D": (layers.ScaledAveragePooling2D(), None, map_),
        "ResidualAverage": (layers.ResidualAverage(), stock.Average(), [map_, map_]),
        "InvertibleDownSampling2D": (layers.InvertibleDownSampling2D(), stock.MaxPooling2D(), map_),
        "InvertibleUpSampling2D": (layers.InvertibleUpSampling2D(), stock.UpSampling2D(), (8, 8, 64)),
    }
    named = {type(layer) for layer, *_ in chosen.values()}
    for case in reversed([*ALL, *TOKENS]):
        layer = case.make()
        if isinstance(layer, layers.LipschitzLayer) and type(layer) not in named:
            chosen[type(layer).__name__] = (layer, None, list(case.shapes), case.dtype)
    return {
        name: (layer, other or _stock(layer, shape), shape, *rest)
        for name, (layer, other, shape, *rest) in chosen.items()
    }


def _stock(layer, shape):
    """Returns the stock layer that an export has in place of a layer, or the identity."""
    import keras

    inputs = [keras.Input(one) for one in (shape if isinstance(shape, list) else [shape])]
    layer(inputs if len(inputs) > 1 else inputs[0])
    return layer.stock_layer()[0] or keras.layers.Identity()


class Pass:
    """Forward and backward pass of one layer on a batch, ready to be called."""

    def __init__(self, layer, shapes, dtype, batch, xla):
        import keras

        from lipdp import backend

        shapes = shapes if isinstance(shapes, list) else [shapes]
        inputs = [keras.Input(shape, dtype=dtype) for shape in shapes]
        x = inputs if len(inputs) > 1 else inputs[0]
        for one in layer if isinstance(layer, list) else [layer]:
            x = one(x)
        rng = np.random.default_rng(0)
        draw = (lambda s: rng.integers(0, 1000, s)) if dtype == "int32" else rng.standard_normal
        self.xs = [np.asarray(draw((batch, *shape)), dtype) for shape in shapes]
        self.cotangent = rng.standard_normal((batch, *x.shape[1:])).astype("float32")
        self.xs = [keras.ops.convert_to_tensor(v) for v in self.xs]
        self.cotangent = keras.ops.convert_to_tensor(self.cotangent)
        self.pull = backend.pullback(keras.Model(inputs, x), xla)

    def __call__(self, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            results = self.pull(self.xs, self.cotangent)
        np.asarray(results[0])
        return (time.perf_counter() - begin) / repeats


def measure(own, stock, shapes, dtype, batch, rounds, xla) -> dict:
    passes = [Pass(layer, shapes, dtype, batch, xla) for layer in (own, stock)]
    for one in passes:
        one(2)
    repeats = max(1, int(0.02 / max(one(1) for one in passes)))
    times = [[one(repeats) for one in passes] for _ in range(rounds)]
    return {
        "milliseconds": spread([1e3 * a for a, _ in times]),
        "counterpart_milliseconds": spread([1e3 * b for _, b in times]),
        "ratio": spread([a / b for a, b in times]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--xla", action="store_true", help="compile with XLA on TensorFlow")
    parser.add_argument("--only", nargs="+", help="names of layers")
    parser.add_argument("--name", default="layer_cost", help="name of the result file")
    arguments = parser.parse_args()

    rows = []
    for name, (own, stock, shapes, *dtype) in pairs().items():
        if arguments.only and name not in arguments.only:
            continue
        found = measure(own, stock, shapes, *(dtype or ["float32"]), arguments.batch, arguments.rounds, arguments.xla)
        counterpart = "Dense between Permutes" if isinstance(stock, list) else type(stock).__name__
        rows.append({"layer": name, "counterpart": counterpart, **found})
        print(f"{name:45}{counterpart:25}{found['ratio']['median']:6.2f}", flush=True)
    path = write(arguments.name, {"batch": arguments.batch, "xla": arguments.xla, "layers": rows})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
