"""Cost of a clipless step against the same network without privacy, interleaved in one process.

    python benchmarks/step_cost.py                 # both backends, all sizes, memory
    python benchmarks/step_cost.py --backend tensorflow --batch 1024 --rounds 15

Three steps are compared, each the compiled training step that `fit` runs:

- clipless: Poisson batches as they are drawn and padded, noise, projection;
- plain: the same Lipschitz network, exactly B rows, an ordinary Keras optimizer: no noise, no projection;
- ordinary: the network with ReLU and biases that one would train without privacy.

Ratios are paired within a round, so that a busy machine slows both sides.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time

NETWORKS = ("mlp", "cnn")
STEPS = ("clipless", "plain", "ordinary")


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
        model = (lipdp.DP_Sequential if step == "clipless" else keras.Sequential)([image, *stack])
        loss = losses.SparseCategoricalCrossentropy(temperature=6.0, clip=0.2)
    if step == "plain":
        for variable in model.trainable_variables:
            variable.constraint = None
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


class Stepper:
    """Calls the compiled training step of a model, on prepared batches."""

    def __init__(self, network: str, step: str, batch: int):
        import keras
        import numpy as np

        from lipdp import training

        rng = np.random.default_rng(0)
        examples = 60000
        x = rng.random((examples, 28, 28, 1), dtype="float32")
        y = rng.integers(0, 10, examples).astype("int32")
        # Held as `fit` holds it, with and without privacy.
        self._data = x, y
        self.model = build(network, step)
        self._jax = keras.backend.backend() == "jax"
        if step == "clipless":
            session = training.Session.prepare(
                self.model,
                x,
                y,
                batch_size=batch,
                epochs=1000,
                initial_epoch=0,
                steps_per_epoch=None,
                validation_split=0.0,
                validation_data=None,
                epsilon=None,
                noise_multiplier=1.0,
                delta=1e-5,
                strategy="clipless",
                accountant="pld",
                physical_batch_size=None,
                training_metrics=True,
                seed=None,
            )
            self._armed = session.armed(verbose=0)
            self._armed.__enter__()
            source = session.batches()
        else:
            source = ((x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]) for i in range(4))
            self.model.optimizer.build(self.model.trainable_variables)
        self._batches = [keras.tree.map_structure(keras.ops.convert_to_tensor, next(source)) for _ in range(4)]
        self._feed = self._iterator()
        self.model._symbolic_build(data_batch=self._batches[0])
        self.model.make_train_function()
        if self._jax:
            self._state = self.model._get_jax_state(
                trainable_variables=True,
                non_trainable_variables=True,
                optimizer_variables=True,
                metrics_variables=True,
            )

    def _iterator(self):
        """An endless iterator as `fit` makes it; under TensorFlow with an unknown batch size."""
        if self._jax:
            return itertools.cycle(self._batches)
        import tensorflow as tf

        signature = tf.nest.map_structure(
            lambda t: tf.TensorSpec((None, *t.shape[1:]), t.dtype), tuple(self._batches[0])
        )
        source = tf.data.Dataset.from_generator(lambda: iter(self._batches), output_signature=signature)
        return iter(source.cache().repeat().prefetch(1))

    def __call__(self) -> float:
        batch = next(self._feed)
        start = time.perf_counter()
        if self._jax:
            import jax

            _, self._state = self.model.train_function(self._state, iter([batch]))
            jax.block_until_ready(self._state)
        else:
            self.model.train_function(iter([batch]))
        return time.perf_counter() - start


def measure(network: str, batch: int, rounds: int) -> dict:
    from common import spread

    steppers = {step: Stepper(network, step, batch) for step in STEPS}
    for _ in range(4):
        for stepper in steppers.values():
            stepper()
    times = {step: [] for step in STEPS}
    for _ in range(rounds):
        for step, stepper in steppers.items():
            times[step].append(stepper())
    return {
        "milliseconds": {step: spread([1e3 * t for t in values]) for step, values in times.items()},
        "ratio_to_plain": spread([a / b for a, b in zip(times["clipless"], times["plain"], strict=True)]),
        "ratio_to_ordinary": spread([a / b for a, b in zip(times["clipless"], times["ordinary"], strict=True)]),
        "ratio_of_medians": round(sorted(times["clipless"])[rounds // 2] / sorted(times["plain"])[rounds // 2], 4),
        "rounds": rounds,
    }


def peak_memory(network: str, step: str, batch: int) -> float:
    """MiB of a fresh process that does nothing but this step (Linux)."""
    # Not getrusage: its maximum is inherited from the process that forked.
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import step_cost as s\n"
        f"f = s.Stepper({network!r}, {step!r}, {batch})\nfor _ in range(4): f()\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status'))\n"
        "sys.stdout.write('PEAK %d' % int(status['VmHWM'].split()[0]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return round(int(out.rsplit("PEAK", 1)[1]) / 1024, 1)


def worker(arguments) -> None:
    rows = []
    for network in arguments.network:
        for batch in arguments.batch:
            # Long steps vary less.
            rounds = arguments.rounds if batch < 4096 else max(7, arguments.rounds // 2)
            row = {"network": network, "batch": batch, **measure(network, batch, rounds)}
            if arguments.memory:
                row["peak_mib"] = {step: peak_memory(network, step, batch) for step in STEPS}
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
        environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
        results[backend] = json.loads(out.rsplit("ROWS ", 1)[1])
    path = write(arguments.name, {"results": results})
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
