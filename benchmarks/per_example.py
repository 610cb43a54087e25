"""Cost of a DP-SGD step against the same network without privacy, interleaved in one process.

    python benchmarks/per_example.py                 # both backends, all networks and sizes, memory
    python benchmarks/per_example.py --backend tensorflow --network cnn --batch 1024 --rounds 15

Two steps are compared, each the compiled training step that `fit` runs, with the same SGD:

- private: Poisson batches as they are drawn and padded, per-example clipping, noise;
- plain: the Keras model without privacy, exactly B rows.

Ratios are paired within a round, so that a busy machine slows both sides. `--microbatch` is `microbatch_size` of the
private step.
"""

import argparse
import json
import os
import subprocess
import sys

from stepping import Stepper, interleaved, peak_memory

# Batch sizes that stand for a network where none are asked for.
SIZES = {
    "cnn": (256, 1024, 4096),
    "mlp": (256, 1024, 4096),
    "lstm": (256,),
    "text": (256,),
    "transformer": (64,),
    "unet": (64,),
}
STEPS = ("private", "plain")


def build(network: str):
    """A Keras model and the data it reads, as (model, x, y, loss)."""
    import keras
    import numpy as np
    from keras import layers as L

    rng = np.random.default_rng(0)
    examples = 20000
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    y = rng.integers(0, 10, examples).astype("int32")
    if network in ("cnn", "mlp"):
        x = rng.random((examples, 28, 28, 1), dtype="float32")
        if network == "mlp":
            stack = [L.Flatten(), L.Dense(512, "relu"), L.Dense(512, "relu")]
        else:
            stack = []
            for filters in (16, 32):
                stack += [L.Conv2D(filters, 3, padding="same", activation="relu"), L.MaxPooling2D(2)]
            stack += [L.Flatten(), L.Dense(128, "relu")]
        model = keras.Sequential([keras.Input((28, 28, 1)), *stack, L.Dense(10)])
    elif network == "lstm":
        x = rng.integers(0, 100, (examples, 80)).astype("int32")
        model = keras.Sequential([keras.Input((80,), dtype="int32"), L.Embedding(100, 8), L.LSTM(32), L.Dense(10)])
    elif network == "text":
        # Words are as frequent as in a language.
        x = np.minimum(rng.zipf(1.3, (examples, 200)), 10000).astype("int32") - 1
        stack = [L.Embedding(10000, 64), L.GlobalAveragePooling1D(), L.Dense(64, "relu"), L.Dense(10)]
        model = keras.Sequential([keras.Input((200,), dtype="int32"), *stack])
    elif network == "transformer":
        x = rng.normal(size=(examples, 80, 64)).astype("float32")
        inputs = keras.Input((80, 64))
        h = L.LayerNormalization()(inputs)
        h = inputs + L.MultiHeadAttention(4, 16)(h, h)
        z = L.Dense(64)(L.Dense(128, "gelu")(L.LayerNormalization()(h)))
        model = keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling1D()(h + z)))
    else:
        x = rng.random((examples, 28, 28, 1), dtype="float32")
        y = rng.random((examples, 28, 28, 1), dtype="float32")
        model, loss = unet(keras, L), keras.losses.MeanSquaredError()
    return model, x, y, loss


def unet(keras, L):
    """16, 32 and 64 channels, group normalization, strided convolutions, skips by concatenation."""

    def block(h, filters):
        skip = h if h.shape[-1] == filters else L.Conv2D(filters, 1)(h)
        for _ in range(2):
            h = L.Conv2D(filters, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(h)))
        return h + skip

    inputs = keras.Input((28, 28, 1))
    h = L.Conv2D(16, 3, padding="same")(inputs)
    first = block(h, 16)
    second = block(L.Conv2D(32, 3, strides=2, padding="same")(first), 32)
    h = block(L.Conv2D(64, 3, strides=2, padding="same")(second), 64)
    h = L.Conv2D(32, 3, padding="same")(L.UpSampling2D(2)(h))
    h = block(L.Concatenate()([h, second]), 32)
    h = L.Conv2D(16, 3, padding="same")(L.UpSampling2D(2)(h))
    h = block(L.Concatenate()([h, first]), 16)
    return keras.Model(inputs, L.Conv2D(1, 3, padding="same")(L.Activation("swish")(L.GroupNormalization(8)(h))))


def stepper(network: str, step: str, batch: int, microbatch: int | None = None) -> Stepper:
    """The private or the plain step of a network."""
    import keras

    import lipdp
    from lipdp import strategies

    model, x, y, loss = build(network)
    private = step == "private"
    if private:
        model = lipdp.DP_Model.from_keras(model)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return Stepper(model, x, y, batch, strategies.DPSGD(clip_norm=1.0) if private else None, microbatch)


def measure(network: str, batch: int, rounds: int, microbatch: int | None) -> dict:
    from common import spread

    steppers = {step: stepper(network, step, batch, microbatch) for step in STEPS}
    first = {step: round(one(), 2) for step, one in steppers.items()}
    times = interleaved(steppers, rounds)
    return {
        "milliseconds": {step: spread([1e3 * t for t in values]) for step, values in times.items()},
        "ratio": spread([a / b for a, b in zip(times["private"], times["plain"], strict=True)]),
        "ratio_of_medians": round(sorted(times["private"])[rounds // 2] / sorted(times["plain"])[rounds // 2], 4),
        "first_call_seconds": first,
        "rounds": rounds,
    }


def worker(arguments) -> None:
    rows = []
    for network in arguments.network:
        for batch in arguments.batch or SIZES[network]:
            # Long steps vary less.
            rounds = arguments.rounds if batch < 4096 else max(7, arguments.rounds // 2)
            row = {"network": network, "batch": batch, "microbatch": arguments.microbatch}
            row |= measure(network, batch, rounds, arguments.microbatch)
            if arguments.memory:
                row["peak_mib"] = {
                    step: peak_memory(f"per_example.stepper({network!r}, {step!r}, {batch}, {arguments.microbatch})")
                    for step in STEPS
                }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    print("ROWS " + json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["tensorflow", "jax"], choices=["tensorflow", "jax"])
    parser.add_argument("--network", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--batch", nargs="+", type=int, default=None)
    parser.add_argument("--microbatch", type=int, default=None, help="microbatch_size of the private step")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="per_example", help="name of the result file")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)

    from common import write

    results = {}
    for backend in arguments.backend:
        command = [sys.executable, os.path.abspath(__file__), "--worker", "--rounds", str(arguments.rounds)]
        command += ["--network", *arguments.network, "--memory" if arguments.memory else "--no-memory"]
        command += ["--batch", *map(str, arguments.batch)] if arguments.batch else []
        command += ["--microbatch", str(arguments.microbatch)] if arguments.microbatch else []
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        results[backend] = json.loads(out.rsplit("ROWS ", 1)[1])
    path = write(arguments.name, {"results": results})
    print(table(results))
    print(f"written to {path}")
    return None


def table(results: dict) -> str:
    """The results as a Markdown table."""
    lines = ["| backend | network | B | plain ms | private ms | ratio | memory |", "|---|---|---|---|---|---|---|"]
    for backend, rows in results.items():
        for row in rows:
            ms, ratio, memory = row["milliseconds"], row["ratio"], row.get("peak_mib")
            memory = f"{memory['private'] / memory['plain']:.2f}" if memory else "-"
            lines.append(
                f"| {backend} | {row['network']} | {row['batch']} | {ms['plain']['median']:.1f} | "
                f"{ms['private']['median']:.1f} | {ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}] | "
                f"{memory} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
