"""Cost of a clipless step against the same network without privacy, interleaved in one process.

    python benchmarks/step_cost.py                 # both backends, all sizes, memory
    python benchmarks/step_cost.py --backend tensorflow --batch 1024 --rounds 15
    python benchmarks/step_cost.py --chacha --name step_cost_chacha    # noise of ChaCha20 beside that of Threefry

Three steps are compared, each the compiled training step that `fit` runs:

- clipless: Poisson batches as they are drawn and padded, noise, projection;
- plain: the same Lipschitz network, exactly B rows, an ordinary Keras optimizer: no noise, no projection;
- ordinary: the network with ReLU and biases that one would train without privacy.

Ratios are paired within a round, so that a busy machine slows both sides.
"""

import argparse
import json
import os
import subprocess
import sys

from stepping import Stepper, interleaved, peak_memory

NETWORKS = ("mlp", "cnn")
STEPS = ("clipless", "plain", "ordinary")
CHACHA = "clipless, ChaCha20"


def build(network: str, step: str):
    import keras

    import lipdp
    from lipdp import layers, losses

    image = keras.Input((28, 28, 1))
    if step == "ordinary":
        if network == "mlp":
            stack = [keras.layers.Flatten()]
            stack += [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]
        else:
            stack = []
            for filters in (16, 32):
                stack += [
                    keras.layers.Conv2D(filters, 3, padding="same", activation="relu"),
                    keras.layers.MaxPooling2D(2),
                ]
            stack += [keras.layers.Flatten(), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential([image, *stack])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        stack = [layers.BoundedInput(norm=7.0)]
        if network == "mlp":
            stack.append(layers.Flatten())
            for _ in range(2):
                stack += [layers.SpectralDense(512), layers.Abs()]
        else:
            for filters in (16, 32):
                stack += [layers.SpectralConv2D(filters, 3), layers.Abs(), layers.MaxPooling2D(2)]
            stack += [layers.Flatten(), layers.SpectralDense(128), layers.Abs()]
        stack.append(layers.SpectralDense(10))
        model = (lipdp.DP_Sequential if step in ("clipless", CHACHA) else keras.Sequential)([image, *stack])
        loss = losses.SparseCategoricalCrossentropy(temperature=6.0, clip=0.2)
    if step == "plain":
        for variable in model.trainable_variables:
            variable.constraint = None
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


def stepper(network: str, step: str, batch: int) -> Stepper:
    """One of the three steps of a network."""
    import numpy as np

    rng = np.random.default_rng(0)
    examples = 60000
    x = rng.random((examples, 28, 28, 1), dtype="float32")
    y = rng.integers(0, 10, examples).astype("int32")
    options = {"noise_generator": "chacha20"} if step == CHACHA else {}
    return Stepper(build(network, step), x, y, batch, "clipless" if "clipless" in step else None, **options)


def measure(network: str, batch: int, rounds: int, chacha: bool) -> dict:
    from common import spread

    if chacha:
        times = interleaved({step: stepper(network, step, batch) for step in ("clipless", CHACHA)}, rounds)
        ratios = [a / b for a, b in zip(times[CHACHA], times["clipless"], strict=True)]
        milliseconds = {step: spread([1e3 * t for t in values]) for step, values in times.items()}
        return {"milliseconds": milliseconds, "ratio_to_threefry": spread(ratios), "rounds": rounds}
    times = interleaved({step: stepper(network, step, batch) for step in STEPS}, rounds)
    return {
        "milliseconds": {step: spread([1e3 * t for t in values]) for step, values in times.items()},
        "ratio_to_plain": spread([a / b for a, b in zip(times["clipless"], times["plain"], strict=True)]),
        "ratio_to_ordinary": spread([a / b for a, b in zip(times["clipless"], times["ordinary"], strict=True)]),
        "ratio_of_medians": round(sorted(times["clipless"])[rounds // 2] / sorted(times["plain"])[rounds // 2], 4),
        "rounds": rounds,
    }


def worker(arguments) -> None:
    rows = []
    for network in arguments.network:
        for batch in arguments.batch:
            # Long steps vary less.
            rounds = arguments.rounds if batch < 4096 else max(7, arguments.rounds // 2)
            row = {"network": network, "batch": batch, **measure(network, batch, rounds, arguments.chacha)}
            if arguments.memory and not arguments.chacha:
                row["peak_mib"] = {
                    step: peak_memory(f"step_cost.stepper({network!r}, {step!r}, {batch})") for step in STEPS
                }
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    print("ROWS " + json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["tensorflow", "jax"], choices=["tensorflow", "jax"])
    parser.add_argument("--network", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--chacha", action="store_true", help="only the clipless step, with either generator")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="step_cost", help="name of the result file")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)

    from common import write

    results = {}
    for backend in arguments.backend:
        command = [sys.executable, os.path.abspath(__file__), "--worker", "--rounds", str(arguments.rounds)]
        command += ["--network", *arguments.network, "--batch", *map(str, arguments.batch)]
        command.append("--memory" if arguments.memory else "--no-memory")
        command += ["--chacha"] * arguments.chacha
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        results[backend] = json.loads(out.rsplit("ROWS ", 1)[1])
    path = write(arguments.name, {"results": results})
    if not arguments.chacha:
        print(table(results))
    print(f"written to {path}")
    return None


def table(results: dict) -> str:
    """The results as a Markdown table."""
    lines = [
        "| backend | network | B | plain ms | clipless ms | clipless / plain | clipless / ordinary | memory / plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for backend, rows in results.items():
        for row in rows:
            ms, plain, ordinary = row["milliseconds"], row["ratio_to_plain"], row["ratio_to_ordinary"]
            memory = row.get("peak_mib")
            ratio = f"{memory['clipless'] / memory['plain']:.2f}" if memory else "-"
            lines.append(
                f"| {backend} | {row['network']} | {row['batch']} | {ms['plain']['median']:.1f} | "
                f"{ms['clipless']['median']:.1f} | {plain['median']:.2f} [{plain['low']:.2f}-{plain['high']:.2f}] | "
                f"{ordinary['median']:.2f} [{ordinary['low']:.2f}-{ordinary['high']:.2f}] | {ratio} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
