"""What an epoch takes with layers of one's own, as they are and taken apart, against stock Keras, in one process.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/own_layers.py
    python benchmarks/own_layers.py --backend tensorflow --network text --rounds 3

All train the same network of subclassed layers on random rows by SGD: "ordinary" is `fit` of Keras, "own layers" is
`strategy="dpsgd"` on the network as it is, "to_functional" on what `lipdp.to_functional` makes of it. Networks:

- dense: three dense layers written by `add_weight` and `ops.matmul`, 512 wide, on rows of 784 numbers;
- text: embeddings of 20,000 words and of positions in one layer, a block of a transformer; texts of 100 words;
- images: patches of 4 x 4 and their positions in one layer, two blocks of a transformer; 32 x 32 x 3.

Each is compiled once, and then one epoch of each is taken in turn; CPU time of all threads. What the file holds is not
measured again.
"""

import os

from common import Series, in_processes, options, spread
from fit_cost import epoch

NETWORKS = ("dense", "text", "images")
KINDS = ("ordinary", "own layers", "to_functional")
BACKENDS = ("tensorflow", "jax")
BATCH, UPDATES, WORDS, LENGTH, WIDTH = 64, 16, 20_000, 100, 32


def build(network: str):
    """A network of the user's own layers, and random rows for it."""
    import keras
    import numpy as np
    from keras import layers, ops

    class Linear(layers.Layer):
        def __init__(self, units):
            super().__init__()
            self.units = units

        def build(self, input_shape):
            self.w = self.add_weight(shape=(input_shape[-1], self.units), initializer="glorot_uniform")
            self.b = self.add_weight(shape=(self.units,), initializer="zeros")

        def call(self, inputs):
            return ops.matmul(inputs, self.w) + self.b

    class Words(layers.Layer):
        def __init__(self):
            super().__init__()
            self.words, self.places = layers.Embedding(WORDS, WIDTH), layers.Embedding(LENGTH, WIDTH)

        def call(self, inputs):
            return self.words(inputs) + self.places(ops.arange(ops.shape(inputs)[-1]))

    class Patches(layers.Layer):
        def __init__(self):
            super().__init__()
            self.patches, self.places = layers.Conv2D(WIDTH, 4, strides=4), layers.Embedding(64, WIDTH)

        def call(self, inputs):
            h = ops.reshape(self.patches(inputs), (-1, 64, WIDTH))
            return h + self.places(ops.expand_dims(ops.arange(64), 0))

    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layers.MultiHeadAttention(2, WIDTH)
            self.inner = keras.Sequential([layers.Dense(2 * WIDTH, activation="relu"), layers.Dense(WIDTH)])
            self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
            self.dropout = layers.Dropout(0.1)

        def call(self, inputs):
            h = self.first(inputs + self.dropout(self.attention(inputs, inputs)))
            return self.second(h + self.dropout(self.inner(h)))

    rng, rows = np.random.default_rng(0), BATCH * UPDATES
    if network == "dense":
        inputs = keras.Input((784,))
        h = layers.ReLU()(Linear(512)(layers.ReLU()(Linear(512)(inputs))))
        return keras.Model(inputs, Linear(10)(h)), rng.random((rows, 784), dtype="float32")
    if network == "text":
        inputs, blocks = keras.Input((LENGTH,), dtype="int32"), 1
        h, x = Words()(inputs), rng.integers(0, WORDS, (rows, LENGTH)).astype("int32")
    else:
        inputs, blocks = keras.Input((32, 32, 3)), 2
        h, x = Patches()(inputs), rng.random((rows, 32, 32, 3), dtype="float32")
    for _ in range(blocks):
        h = Block()(h)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(h))), x


def measure(network: str, rounds: int) -> dict:
    import keras
    import numpy as np

    import lipdp

    models = {}
    for kind in KINDS:
        model, x = build(network)
        if kind != "ordinary":
            model = lipdp.to_functional(model, verbose=False) if kind == "to_functional" else model
            model = lipdp.DP_Model.from_keras(model)
        model.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        models[kind] = model
    y = np.arange(len(x)) % 10

    def seconds(kind):
        return epoch(models[kind], "ordinary" if kind == "ordinary" else "dpsgd", x, y, BATCH)[0]

    for kind in KINDS:  # compiled, all shapes of a batch too
        seconds(kind)
    times: dict = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            times[kind].append(seconds(kind))
    milliseconds = {kind: spread([1e3 * t / UPDATES for t in found]) for kind, found in times.items()}
    ratio = {k: spread([a / b for a, b in zip(times[k], times["ordinary"], strict=True)]) for k in KINDS[1:]}
    return {"network": network, "rounds": rounds, "milliseconds_per_update": milliseconds, "ratio": ratio}


def worker(arguments) -> None:
    """Measures what is asked for on the backend of this process."""
    series = Series(arguments.name, ("backend", "network"), arguments.again)
    (backend,) = arguments.backend
    for network in arguments.network:
        if series.missing(backend, network):
            run = {"backend": backend, **measure(network, arguments.rounds)}
            run["threads"] = os.environ.get("OMP_NUM_THREADS", "default")
            series.add(run, command="python benchmarks/own_layers.py")
            print(run, flush=True)


def table(runs: list) -> str:
    """Milliseconds and ratios of all runs, for the documents."""
    lines = ["| backend | network | Keras, ms | own layers | `to_functional` |", "|" + "---|" * 5]
    for run in sorted(runs, key=lambda run: (BACKENDS.index(run["backend"]), NETWORKS.index(run["network"]))):
        cells = [run["backend"], run["network"], f"{run['milliseconds_per_update']['ordinary']['median']:.1f}"]
        for kind in KINDS[1:]:
            ratio = run["ratio"][kind]
            cells.append(f"{ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__, "own_layers", NETWORKS, BACKENDS, rounds=5)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    return in_processes(arguments.backend)


if __name__ == "__main__":
    main()
