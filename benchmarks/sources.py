"""Memory and draws of training on files that are read row by row.

    python benchmarks/sources.py                     # both backends; leaves 1.2 GB in a temporary folder while it runs
    python benchmarks/sources.py --backend jax --gigabytes 10 --megabytes 300

Each case is a process of its own, which trains the same network on rows of 64 x 64 x 3 bytes:

- none: 1024 rows in memory, so what the process needs without data;
- mapped: a `numpy.memmap` of a real file, one epoch;
- sparse: a `numpy.memmap` of a file with holes, 100 GB, a hundred updates;
- array: the real file read into memory, as an array of uint8.

Memory is the peak resident set, `VmHWM` of Linux: pages of a mapped file count as long as they are mapped. Draws are
numbers of 4096 rows out of N, and batches the rows themselves, of four bytes each, out of sparse files: the system
makes up each page when it is read first, which is once for most pages of a small file and always for a large one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

CASES = ("none", "mapped", "sparse", "array")
SHAPE, BATCH = (64, 64, 3), 256
ROW = 64 * 64 * 3


def peak() -> float:
    """Returns the largest resident set of this process so far, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024.0 for line in status if line.startswith("VmHWM"))


def model():
    import keras

    import lipdp
    from lipdp import layers

    network = lipdp.DP_Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Rescaling(1.0 / 255.0),
            keras.layers.AveragePooling2D(8),
            layers.BoundedInput(norm=8.0),
            layers.Flatten(),
            layers.SpectralDense(32),
            layers.Abs(),
            layers.SpectralDense(10),
        ]
    )
    network.compile("sgd", loss="sparse_categorical_crossentropy")
    return network


def train(case: str, path: str, rows: int) -> dict:
    import numpy as np

    if case == "none":
        x = np.zeros((1024, *SHAPE), "uint8")
    elif case == "array":
        x = np.fromfile(path, "uint8").reshape(rows, *SHAPE)
    else:
        x = np.memmap(path, np.uint8, "r", shape=(rows, *SHAPE))
    y = np.zeros(len(x), "int8")
    steps = {"none": 50, "sparse": 100}.get(case)
    network, before = model(), peak()
    start = time.perf_counter()
    network.fit(x, y, batch_size=BATCH, steps_per_epoch=steps, noise_multiplier=1.0, verbose=0)
    seconds = time.perf_counter() - start
    return {
        "rows": len(x),
        "gigabytes": round(x.nbytes / 1e9, 3),
        "updates": network.privacy.updates,
        "seconds": round(seconds, 1),
        "megabytes_before_fit": round(before),
        "megabytes_peak": round(peak()),
    }


def draws(folder: str, rows: int) -> dict:
    import numpy as np
    from common import spread

    from lipdp.sampling import Batches, PaddedSize, PoissonSampler, as_rows

    path = os.path.join(folder, f"{rows}.rows")
    with open(path, "wb") as file:
        file.truncate(5 * rows)
    data = np.memmap(path, np.uint8, "r", shape=(rows, 4)), np.memmap(path, np.int8, "r", 4 * rows, (rows,))
    sampler, times = PoissonSampler(rows, 4096 / rows, seed=0), {"draw": [], "batch": []}
    for update in range(30):
        start = time.perf_counter()
        sampler.draw(update)
        times["draw"].append(1e3 * (time.perf_counter() - start))
    batches = Batches(sampler, *as_rows(*data, 2), PaddedSize(4096, None, True), start=0)
    source = iter(batches)
    for _ in range(30):
        start = time.perf_counter()
        next(source)
        times["batch"].append(1e3 * (time.perf_counter() - start))
    batches.close()
    return {
        "rows": rows,
        "milliseconds": {name: spread(each[5:]) for name, each in times.items()},
        "peak": round(peak()),
    }


def child(*arguments, backend: str = "jax") -> dict:
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(found: dict) -> str:
    """The memory of each case and the time of draws, for the documents."""
    mapped, sparse = (next(iter(found["runs"].values()))[case]["gigabytes"] for case in ("mapped", "sparse"))
    lines = [
        f"| backend | no data | {mapped:g} GB, mapped | {sparse:g} GB, mapped (with holes) "
        f"| {mapped:g} GB, array in memory |",
        "|---|---|---|---|---|",
    ]
    names = {"jax": "JAX", "tensorflow": "TensorFlow"}
    for backend, cases in found["runs"].items():
        lines.append(f"| {names[backend]} | " + " | ".join(str(cases[case]["megabytes_peak"]) for case in CASES) + " |")
    times = ", ".join(f"{flat['milliseconds']['draw']['median']:.2f}" for flat in found["draws"])
    rows = ", ".join(f"1e{len(str(flat['rows'])) - 1}" for flat in found["draws"])
    return "\n".join(lines) + f"\n\nDrawing 4096 out of N = {rows} rows takes {times} ms."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "tensorflow"), action="append")
    parser.add_argument("--gigabytes", type=float, default=100.0, help="size of the sparse file")
    parser.add_argument("--megabytes", type=float, default=1200.0, help="size of the real file")
    parser.add_argument("--case", nargs=3, metavar=("CASE", "PATH", "ROWS"))
    arguments = parser.parse_args()
    if arguments.case:
        case, path, rows = arguments.case
        print(json.dumps(draws(path, int(rows)) if case == "draws" else train(case, path, int(rows))))
        return
    import numpy as np
    from common import write

    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"sparse": int(1e9 * arguments.gigabytes) // ROW, "mapped": int(1e6 * arguments.megabytes) // ROW}
        sizes |= {"none": 0, "array": sizes["mapped"]}
        paths = {case: os.path.join(folder, "sparse" if case == "sparse" else "real") for case in CASES}
        with open(paths["sparse"], "wb") as file:
            file.truncate(sizes["sparse"] * ROW)
        rng = np.random.default_rng(0)
        with open(paths["mapped"], "wb") as file:
            for start in range(0, sizes["mapped"], 4096):
                file.write(rng.bytes(ROW * min(4096, sizes["mapped"] - start)))
        for backend in arguments.backend or ("jax", "tensorflow"):
            runs[backend] = {case: child("--case", case, paths[case], sizes[case], backend=backend) for case in CASES}
            print(backend, json.dumps(runs[backend], indent=1))
        flat = [child("--case", "draws", folder, rows) for rows in (10**6, 10**8, 10**9)]
        print(json.dumps(flat, indent=1))
    print(write("sources", {"runs": runs, "draws": flat}))


if __name__ == "__main__":
    main()
