"""What `fit` costs from end to end, against the ordinary network of stock Keras, in one process and in turn.

    LIPDP_DATA=... OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/fit_cost.py
    LIPDP_DATA=... python benchmarks/fit_cost.py --name fit_cost_two_cores
    python benchmarks/fit_cost.py --backend tensorflow --network mlp --batch 1024 --rounds 3

Each `fit` has two epochs on the 60,000 images of MNIST, and the second one counts: batches, transfers, metrics and all
that Keras does between steps are in it. Three are compared, each compiled once and then called in turn:

- ordinary: convolutions or dense layers with biases and ReLU, the loss of Keras, SGD;
- clipless: the network that README prints, or an MLP of its layers, under `strategy="clipless"`;
- dpsgd: the ordinary network under `strategy="dpsgd"`.

Private `fit`s keep freed memory from one update to the next, that of Keras does not: `MALLOC_CHECK_=0` before the
command leaves the allocator of all three alone. Ratios are paired within a round, of CPU time of all threads and of the
clock on the wall. What the file holds is not measured again: a run that was cut short goes on.
"""

import os
import time

from common import Series, in_processes, options, spread

NETWORKS = ("readme", "mlp")
KINDS = ("ordinary", "clipless", "dpsgd")
BACKENDS = ("tensorflow", "jax")


def ordinary(network: str):
    import keras
    from keras import layers

    if network == "mlp":
        stack = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(512, "relu")]
    else:
        stack = [layers.Conv2D(16, 5, strides=2, padding="same", activation="relu"), layers.MaxPooling2D(2)]
        stack += [layers.Flatten(), layers.Dense(64, "relu")]
    return keras.Sequential([keras.Input((28, 28, 1)), *stack, layers.Dense(10)])


def lipschitz(network: str):
    import lipdp
    from lipdp import layers

    stack = [layers.BoundedInput(shape=(28, 28, 1), norm=7.0)]
    if network == "mlp":
        stack.append(layers.Flatten())
        for _ in range(2):
            stack += [layers.SpectralDense(512), layers.Abs()]
    else:
        stack += [layers.SpectralConv2D(16, 5, strides=2), layers.Abs(), layers.MaxPooling2D(2)]
        stack += [layers.BoundedInput(norm=2.3), layers.Flatten(), layers.SpectralDense(64), layers.Abs()]
    return lipdp.DP_Sequential([*stack, layers.SpectralDense(10)])


def build(network: str, kind: str):
    """A compiled model of one kind."""
    import keras

    import lipdp
    from lipdp import losses

    if kind == "clipless":
        model, loss = lipschitz(network), losses.SparseCategoricalCrossentropy(temperature=17.0, clip=0.2)
    else:
        model, loss = ordinary(network), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = lipdp.DP_Model.from_keras(model) if kind == "dpsgd" else model
    model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    return model


class Clock:
    """A callback with the seconds of CPU and of the wall that the last epoch took."""

    def __new__(cls):
        import keras

        class Epoch(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self._begin = time.process_time(), time.perf_counter()

            def on_epoch_end(self, epoch, logs=None):
                now = time.process_time(), time.perf_counter()
                self.seconds = tuple(b - a for a, b in zip(self._begin, now, strict=True))

        return Epoch()


def epoch(model, kind: str, x, y, batch: int) -> tuple[float, float]:
    """Seconds of CPU and of the wall of the second epoch of one `fit`."""
    clock = Clock()
    private = {} if kind == "ordinary" else {"strategy": kind, "noise_multiplier": 1.0}
    model.fit(x, y, batch_size=batch, epochs=2, verbose=0, callbacks=[clock], **private)
    return clock.seconds


def measure(network: str, batch: int, rounds: int, x, y) -> dict:
    models = {kind: build(network, kind) for kind in KINDS}
    few = 4 * batch
    for kind, model in models.items():  # compiled, all shapes of a batch too
        epoch(model, kind, x[:few], y[:few], batch)
    found = [{kind: epoch(model, kind, x, y, batch) for kind, model in models.items()} for _ in range(rounds)]
    updates = len(x) // batch
    run: dict = {"network": network, "batch": batch, "rounds": rounds, "milliseconds_per_update": {}, "ratio": {}}
    for place, name in enumerate(("cpu", "wall")):
        times = {kind: [one[kind][place] for one in found] for kind in KINDS}
        run["milliseconds_per_update"][name] = {k: spread([1e3 * t / updates for t in v]) for k, v in times.items()}
        run["ratio"][name] = {
            kind: spread([a / b for a, b in zip(times[kind], times["ordinary"], strict=True)]) for kind in KINDS[1:]
        }
    return run


def worker(arguments) -> None:
    """Measures what is asked for on the backend of this process."""
    import numpy as np

    with np.load(os.path.join(os.environ["LIPDP_DATA"], "mnist.npz")) as data:
        x, y = data["x_train"][..., None] / np.float32(255), data["y_train"].astype("int32")
    series = Series(arguments.name, ("backend", "network", "batch"), arguments.again)
    (backend,) = arguments.backend
    for network in arguments.network:
        for batch in arguments.batch:
            if series.missing(backend, network, batch):
                run = {"backend": backend, **measure(network, batch, arguments.rounds, x, y)}
                run["threads"] = os.environ.get("OMP_NUM_THREADS", "default")
                run["cores"] = len(os.sched_getaffinity(0))
                run["load"] = round(os.getloadavg()[0], 2)
                # Not the command of this process, which did a part.
                name = "" if arguments.name == "fit_cost" else f" --name {arguments.name}"
                series.add(run, command=f"python benchmarks/fit_cost.py{name}", note=arguments.note)
                print(line(run), flush=True)


def line(run: dict) -> str:
    cells = [f"{run['backend']:11}{run['network']:7}{run['batch']:5}"]
    for name in ("cpu", "wall"):
        for kind in KINDS[1:]:
            ratio = run["ratio"][name][kind]
            cells.append(f"{kind} {name} {ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]")
    return "  ".join(cells)


def table(runs: list) -> str:
    """The ratios of all runs, for the documents."""
    lines = ["| backend | network | B | ordinary, ms | clipless, CPU | clipless, wall | DP-SGD, CPU | DP-SGD, wall |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    places = {"tensorflow": 0, "jax": 1, "readme": 0, "mlp": 1}
    for run in sorted(runs, key=lambda run: (places[run["backend"]], places[run["network"]], run["batch"])):
        cells = [run["backend"], run["network"], str(run["batch"])]
        cells.append(f"{run['milliseconds_per_update']['cpu']['ordinary']['median']:.1f}")
        for kind in KINDS[1:]:
            for name in ("cpu", "wall"):
                ratio = run["ratio"][name][kind]
                cells.append(f"{ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = options(__doc__, "fit_cost", NETWORKS, BACKENDS, rounds=3)
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--note", default="", help="kept in the file: what else the machine did")
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    return in_processes(arguments.backend, [[network] for network in arguments.network])


if __name__ == "__main__":
    main()
