"""What the scripts of this folder share: arguments, batches, timing and the JSON line that they print.

A script is run by the Python of the library that it measures:

    PYTHON benchmarks/peers/opacus_step.py --method ghost --network cnn --batch 256 --steps 7

One step is forward pass, loss, backward pass, clipping at 1, noise of multiplier 1 and the update of plain SGD, on
batches that are in memory. The library's own step without privacy is taken in turn with it, in the same process.
"""

import argparse
import json
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from common import paired, versions  # noqa: E402

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.1
# Layers of the two networks: 3x3 convolutions with "same" padding, ReLU and 2x2 pooling, then dense layers.
FILTERS = {"cnn": (16, 32), "mlp": ()}
UNITS = {"cnn": (128, 10), "mlp": (512, 512, 10)}
# What is fine-tuned by "transformer-lora" and "transformer-full": the network of finetune.py.
TRANSFORMER = {"length": 128, "width": 512, "heads": 8, "blocks": 4, "words": 1000, "classes": 10, "rank": 8}
NETWORKS = (*UNITS, "transformer-lora", "transformer-full")
# Calls after the one that compiles which are not counted: with it each of the four batches has been seen.
WARM = 3


def batches(batch: int, network: str = "cnn", count: int = 4) -> list:
    """Images [batch, 28, 28, 1] in [0, 1], or words for a transformer, and labels of 10 classes, as arrays of NumPy."""
    rng = np.random.default_rng(0)
    if network not in UNITS:
        shape, words = (batch, TRANSFORMER["length"]), TRANSFORMER["words"]
        pairs = ((rng.integers(0, words, shape), rng.integers(0, TRANSFORMER["classes"], batch)) for _ in range(count))
        return [(x.astype("int32"), y.astype("int32")) for x, y in pairs]
    shape = (batch, 28, 28, 1)
    return [(rng.random(shape, dtype="float32"), rng.integers(0, 10, batch).astype("int32")) for _ in range(count)]


def run(library: str, packages: tuple, methods: tuple, make) -> None:
    """Times what was asked for on the command line and prints it as one line of JSON.

    Args:
        library: name of the library.
        packages: distributions whose versions are recorded.
        methods: what `--method` may be.
        make: called with (method, network, batch), gives the steps {"private": step, "plain": step}; a step is called
            without arguments and returns when the weights are updated. A step may have `rows`, of the number of a call,
            and `trainable`, the number of weights that train.
    """
    parser = argparse.ArgumentParser(description=f"Time of one private step of {library}.")
    parser.add_argument("--method", required=True, choices=methods)
    parser.add_argument("--network", required=True, choices=NETWORKS)
    parser.add_argument("--batch", required=True, type=int)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that all private steps may take")
    arguments = parser.parse_args()
    steps = make(arguments.method, arguments.network, arguments.batch)
    record = {"library": library, "method": arguments.method, "network": arguments.network, "batch": arguments.batch}
    record |= timed(steps, arguments.steps, arguments.limit)
    print(json.dumps({**record, "peak_mib": peak_mib(), "versions": versions(packages)}), flush=True)


def timed(steps: dict, count: int, limit: float) -> dict:
    """Milliseconds of each step, and those of the processor.

    They are taken in turn until `count` are done or the private ones took `limit` seconds.
    """
    first = {name: round(_seconds(step)[0], 3) for name, step in steps.items()}
    rounds, spent = [], 0.0
    while len(rounds) < WARM + count and spent <= limit:
        rounds.append({name: _seconds(step) for name, step in steps.items()})
        spent += rounds[-1]["private"][0]
    kept = rounds[WARM:] or rounds
    times, cpu = ({name: [round(1e3 * one[name][k], 3) for one in kept] for name in steps} for k in (0, 1))
    found = {"first_call_seconds": first, "times": times, **paired(times), "cpu": {"times": cpu, **paired(cpu)}}
    private = steps["private"]
    if hasattr(private, "rows"):
        found["drawn"] = [private.rows(1 + len(rounds) - len(kept) + i) for i in range(len(kept))]
    if hasattr(private, "trainable"):
        found["trainable"] = private.trainable
    if len(rounds) < 3:
        found["note"] = f"3 steps take more than {limit:g} s"
    return found


def peak_mib() -> float:
    """Largest resident memory of this process so far (Linux)."""
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return round(int(status["VmHWM"].split()[0]) / 1024, 1)


def _seconds(step) -> tuple:
    """Seconds on the clock of the wall, and of all threads of this process on a processor."""
    start, busy = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - busy
