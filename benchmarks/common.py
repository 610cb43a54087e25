"""What the benchmarks share: versions, statistics and the JSON they leave behind."""

import importlib.metadata
import json
import os
import pathlib
import platform
import sys

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"


def versions(packages=("lipdp", "keras", "tensorflow", "jax", "numpy", "dp-accounting")) -> dict:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **found}


def machine() -> dict:
    return {"cores": os.cpu_count(), "processor": platform.machine()}


def spread(values) -> dict:
    """Median and the 10 % and 90 % quantiles."""
    low, median, high = np.quantile(np.asarray(values, float), [0.1, 0.5, 0.9])
    return {"median": round(float(median), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def paired(times: dict) -> dict:
    """Milliseconds of a private and a plain step taken in turn: the spread of both, and of the ratios of pairs."""
    ratio = [a / b for a, b in zip(times["private"], times["plain"], strict=True)]
    return {
        "milliseconds": {name: spread(values) for name, values in times.items()},
        "ratio": spread(ratio),
        "steps": len(ratio),
    }


def write(name: str, content: dict) -> pathlib.Path:
    """Writes `results/<name>.json` with what is needed to repeat the run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = f"python benchmarks/{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    record = {"command": command, "versions": versions(), "machine": machine(), **content}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
