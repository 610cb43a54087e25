"""What a `fit` of one update takes, for a new model and again, against stock Keras, in turn in one process.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/start_cost.py
    python benchmarks/start_cost.py --backend tensorflow --network mlp --rounds 3

The first `fit` of a model makes its program; a private one tries the model on a few rows before, and plans its noise at
each `fit`. Both kinds train the same ordinary network on 256 random rows by SGD: as it is, and under
`strategy="dpsgd"`. Each round makes new models, the one before the first round does not count; seconds of CPU time of
all threads. "own layers" are classes of the user's, and "to_functional" trains what `lipdp.to_functional` makes of
them. What the file holds is not measured again.
"""

import os
import time

from common import Series, in_processes, options, spread

NETWORKS = ("mlp", "cnn", "transformer", "residual", "own layers", "to_functional")
KINDS = ("ordinary", "dpsgd")
BACKENDS = ("tensorflow", "jax")
ROWS = 256


def build(network: str):
    """A network with 10 outputs, and random rows for it."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(0)
    if network in ("own layers", "to_functional"):
        return of_own_layers(), rng.integers(0, 50, (ROWS, 16)).astype("int32")
    if network == "transformer":
        inputs = keras.Input((16,), dtype="int32")
        h = layers.Embedding(50, 16)(inputs)
        for _ in range(2):
            h = layers.LayerNormalization()(layers.Add()([h, layers.MultiHeadAttention(2, 8)(h, h)]))
            inner = layers.Dense(16)(layers.Dense(32, activation="gelu")(h))
            h = layers.LayerNormalization()(layers.Add()([h, inner]))
        outputs = layers.Dense(10)(layers.GlobalAveragePooling1D()(h))
        return keras.Model(inputs, outputs), rng.integers(0, 50, (ROWS, 16)).astype("int32")
    inputs = keras.Input((16, 16, 3))
    if network == "mlp":
        h = layers.Dense(64, "relu")(layers.Dense(64, "relu")(layers.Flatten()(inputs)))
    elif network == "cnn":
        h = layers.MaxPooling2D()(layers.Conv2D(16, 5, strides=2, activation="relu")(inputs))
        h = layers.Dense(64, "relu")(layers.Flatten()(h))
    else:
        h = layers.Conv2D(8, 3, padding="same")(inputs)
        for _ in range(8):
            inner = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.GroupNormalization(4)(h))
            h = layers.Add()([h, layers.Conv2D(8, 3, padding="same")(inner)])
        h = layers.GlobalAveragePooling2D()(h)
    return keras.Model(inputs, layers.Dense(10)(h)), rng.random((ROWS, 16, 16, 3), dtype="float32")


def of_own_layers():
    """A transformer of layers of one's own, on floats, as `keras.Input` makes where no type is given."""
    import keras
    from keras import layers, ops

    class Embedded(layers.Layer):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = layers.Embedding(50, 16), layers.Embedding(16, 16)

        def call(self, inputs):
            return self.tokens(inputs) + self.places(ops.arange(16))

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, 8)
            self.inner = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(16)])
            self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
            self.dropout = layers.Dropout(0.1)

        def call(self, inputs):
            h = self.first(inputs + self.dropout(self.attention(inputs, inputs)))
            return self.second(h + self.dropout(self.inner(h)))

    inputs = keras.Input((16,))
    h = Block()(Embedded()(inputs))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(h)))


def fits(network: str, kind: str) -> tuple[float, float]:
    """Seconds of CPU time of the first `fit` of a new model, and of the next."""
    import keras
    import numpy as np

    import lipdp

    model, x = build(network)
    y, private = np.arange(ROWS) % 10, {}
    if kind != "ordinary":
        model = lipdp.to_functional(model, verbose=False) if network == "to_functional" else model
        model, private = lipdp.DP_Model.from_keras(model), {"strategy": kind, "noise_multiplier": 1.0, "delta": 1e-5}
    model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    seconds = []
    for _ in range(2):
        begin = time.process_time()
        model.fit(x, y, batch_size=64, steps_per_epoch=1, epochs=1, verbose=0, **private)
        seconds.append(time.process_time() - begin)
    return seconds[0], seconds[1]


def measure(network: str, rounds: int) -> dict:
    for kind in KINDS:
        fits(network, kind)
    found = [{kind: fits(network, kind) for kind in KINDS} for _ in range(rounds)]
    run: dict = {"network": network, "rounds": rounds}
    for place, name in enumerate(("first", "again")):
        times = {kind: [one[kind][place] for one in found] for kind in KINDS}
        run[name] = {kind: spread(values) for kind, values in times.items()}
        run[name]["ratio"] = spread([a / b for a, b in zip(times["dpsgd"], times["ordinary"], strict=True)])
    return run


def worker(arguments) -> None:
    """Measures what is asked for on the backend of this process."""
    series = Series(arguments.name, ("backend", "network"), arguments.again)
    (backend,) = arguments.backend
    for network in arguments.network:
        if series.missing(backend, network):
            run = {"backend": backend, **measure(network, arguments.rounds)}
            run["threads"] = os.environ.get("OMP_NUM_THREADS", "default")
            series.add(run, command="python benchmarks/start_cost.py")
            print(run, flush=True)


def table(runs: list) -> str:
    """Seconds and ratios of all runs, for the documents."""
    lines = ["| backend | network | first `fit`, s | DP-SGD, s | ratio | `fit` again, s | DP-SGD, s | ratio |"]
    lines.append("|" + "---|" * 8)
    for run in sorted(runs, key=lambda run: (BACKENDS.index(run["backend"]), NETWORKS.index(run["network"]))):
        cells = [run["backend"], run["network"]]
        for name in ("first", "again"):
            ratio = run[name]["ratio"]
            cells += [f"{run[name][kind]['median']:.2g}" for kind in KINDS]
            cells.append(f"{ratio['median']:.1f} [{ratio['low']:.1f}-{ratio['high']:.1f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__, "start_cost", NETWORKS, BACKENDS, rounds=5)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    return in_processes(arguments.backend, [[network] for network in arguments.network])


if __name__ == "__main__":
    main()
