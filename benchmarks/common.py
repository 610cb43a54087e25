"""What the benchmarks share: versions, statistics and the JSON they leave behind."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
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


def device() -> str:
    """The kind of device that the run was on. Benchmarks use a GPU under JAX only."""
    import keras

    if keras.backend.backend() != "jax":
        return "CPU"
    import jax

    (first, *_) = jax.devices()
    return "CPU" if first.platform == "cpu" else first.device_kind


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


def p_value(first: list[dict], other: list[dict], score: str = "accuracy") -> float | None:
    """Of a paired t-test between runs of the same seeds; None for fewer than three, or where all are equal."""
    from scipy import stats

    sides = [{run["seed"]: run[score] for run in runs} for runs in (first, other)]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    differences = [sides[1][seed] - sides[0][seed] for seed in seeds]
    if len(seeds) < 3 or len(set(differences)) < 2:
        return None
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def p_text(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def settings(pairs: list[str]) -> dict:
    """What the command line says as NAME=VALUE: true, false, a number, whole where it is written without a point."""
    found = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    words = {"true": True, "false": False}
    return {
        name: words[value] if value in words else int(value) if value.lstrip("-").isdigit() else float(value)
        for name, value in found.items()
    }


def write(name: str, content: dict) -> pathlib.Path:
    """Writes `results/<name>.json` with what is needed to repeat the run."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = f"python benchmarks/{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    record = {"command": command, "versions": versions(), "machine": machine(), **content}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def options(text: str, name: str, networks, backends, rounds: int) -> argparse.ArgumentParser:
    """The command line of a benchmark that runs by `in_processes`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=list(backends), choices=backends)
    parser.add_argument("--network", nargs="+", default=list(networks), choices=networks)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--again", action="store_true", help="also what the file holds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", default=name, help="name of the result file")
    return parser


def in_processes(backends, networks=((),)) -> None:
    """Runs this command as a worker, in a process for each backend and for each group of networks.

    As many programs as networks would slow each other down in one.
    """
    for backend in backends:
        for group in networks:
            command = [sys.executable, *sys.argv, "--worker", "--backend", backend]
            command += ["--network", *group] * bool(group)
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run(command, env=environment, check=True)


class Series:
    """The runs of a benchmark, kept in its result file one by one: a long series may be cut short and goes on.

    Args:
        name: name of the result file; None: nothing is kept.
        place: names of the entries of a run by which it is known.
        again: whether runs that the file holds are repeated.
    """

    def __init__(self, name: str | None, place, again: bool = False):
        self._name, self._place = name, tuple(place)
        path = RESULTS / f"{name}.json"
        self.runs = json.loads(path.read_text()).get("runs", []) if name and path.exists() else []
        self._done = set() if again else {self._key(run) for run in self.runs}

    def _key(self, run: dict) -> tuple:
        return tuple(run[name] for name in self._place)

    def missing(self, *place) -> bool:
        """Whether this run is still to be done."""
        return place not in self._done

    def add(self, run: dict, **content) -> None:
        """Keeps a run; `content` are functions of all runs, or values, that stand beside them in the file."""
        self.runs = sorted([r for r in self.runs if self._key(r) != self._key(run)] + [run], key=self._key)
        if self._name:
            made = {name: value(self.runs) if callable(value) else value for name, value in content.items()}
            write(self._name, {**made, "runs": self.runs})
