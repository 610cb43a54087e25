"""The private step of lipdp beside those of Opacus, jax_privacy and tensorflow-privacy, on the same machine.

    python -m venv OPACUS && OPACUS/bin/pip install -r benchmarks/peers/requirements-opacus.txt    # and so on
    python benchmarks/peers.py --opacus OPACUS/bin/python --jax-privacy JAX/bin/python --tf-privacy TF/bin/python

Each library has an environment of its own. Processes run one at a time with one thread, in rounds: lipdp, a peer,
lipdp, the next peer and so on. A process takes the private and the plain step of its library in turn (see
`peers/protocol.py`); "beside lipdp" is the peer's median over that of the lipdp process just before. lipdp steps on
Poisson batches as they are drawn and padded, the peers on exactly B rows. What needs too much memory or time is
recorded with the reason, and not tried again. `--backend` is lipdp's. To choose cores, start it under `taskset`.

    python benchmarks/peers.py --opacus ... --network transformer-lora transformer-full --batch 16 32 \\
        --name finetune_peers

fine-tunes the transformer of `finetune.py`. So small a draw may have many more or fewer than B rows: ratios by row are
of milliseconds of the processor, which other work does not add to, divided by the rows that were drawn.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from common import RESULTS, paired, spread, write

SCRIPTS = pathlib.Path(__file__).parent / "peers"
METHODS = {
    "opacus": ("ghost", "hooks"),
    "jax_privacy": ("microbatch_size=1", "vmap"),
    "tf_privacy": ("registry", "vectorized"),
}
NETWORKS = ("cnn", "mlp", "transformer-lora", "transformer-full")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def process(python: str, script: str, method: str, network: str, batch: int, arguments) -> dict:
    """What a script reports, or a note that says why it reports nothing."""
    command = [python, str(SCRIPTS / f"{script}_step.py"), "--method", method, "--network", network]
    command += ["--batch", str(batch), "--steps", str(arguments.steps), "--limit", str(arguments.limit)]
    environment = {**os.environ, **ONE_THREAD}
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)  # The packages of this environment are not those of a peer's.
    patience = arguments.patience or 10 * arguments.limit
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
        start, note = time.monotonic(), None
        while child.poll() is None:
            if resident_mib(child.pid) > 1024 * arguments.memory:
                note = f"needs more than {arguments.memory:g} GiB"
            elif time.monotonic() - start > patience:
                note = f"no result within {patience:g} s"
            if note is not None:
                child.kill()
                child.wait()
                return {"note": note}
            time.sleep(0.1)
        if child.returncode < 0:
            return {"note": f"ended by signal {-child.returncode}"}
        if child.returncode:
            errors.seek(0)
            return {"note": (errors.read().strip().splitlines() or ["failed without a message"])[-1]}
        out.seek(0)
        return json.loads(out.read().strip().splitlines()[-1])


def resident_mib(pid: int) -> float:
    """Resident memory of a process (Linux); 0 once it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(sizes[0]) / 1024 if sizes else 0.0


def combined(runs: list, beside: list) -> dict:
    """One row from the processes of one method: the steps of all, and the ratios to the lipdp process before each."""
    notes = sorted({run["note"] for run in runs if "note" in run})
    runs = [run for run in runs if "times" in run]
    row = {"note": "; ".join(notes)} if notes else {}
    if not runs:
        return row
    row |= paired(_joined(run["times"] for run in runs))
    if "cpu" in runs[0]:
        row["cpu"] = paired(_joined(run["cpu"]["times"] for run in runs))
    row["processes"] = len(runs)
    row["peak_mib"] = max(run["peak_mib"] for run in runs)
    row["first_call_seconds"] = statistics.median(run["first_call_seconds"]["private"] for run in runs)
    if "trainable" in runs[0]:
        row["trainable"] = runs[0]["trainable"]
    if "drawn" in runs[0]:
        row["drawn"] = [rows for run in runs for rows in run["drawn"]]
        row["ratio_by_row"] = spread([ratio for run in runs for ratio in ratios_by_row(run)])
    if not beside:
        return row
    whole, by_row = zip(*beside, strict=True)
    return row | {"beside_lipdp": spread(whole)} | ({"by_row": spread(by_row)} if None not in by_row else {})


def _joined(times) -> dict:
    times = list(times)
    return {step: [t for one in times for t in one[step]] for step in ("private", "plain")}


def ratios_by_row(run: dict) -> list:
    """Private over plain milliseconds of the processor by row, of which the plain step has as many as expected."""
    cpu = run["cpu"]["times"]
    times = zip(cpu["private"], cpu["plain"], run["drawn"], strict=True)
    return [private / max(rows, 1) / (plain / run["batch"]) for private, plain, rows in times]


def beside_of(our: dict, their: dict) -> tuple:
    """A peer's private milliseconds over lipdp's; those of the processor by row, where lipdp says how many it drew."""
    whole = their["milliseconds"]["private"]["median"] / our["milliseconds"]["private"]["median"]
    if "drawn" not in our:
        return whole, None
    ours = [ms / max(rows, 1) for ms, rows in zip(our["cpu"]["times"]["private"], our["drawn"], strict=True)]
    return whole, their["cpu"]["milliseconds"]["private"]["median"] / their["batch"] / statistics.median(ours)


def compare(network: str, batch: int, pythons: dict, arguments, versions: dict) -> list:
    """Rows of one network and batch size, lipdp's first."""
    ours, theirs, beside, refused = [], {}, {}, set()
    for _ in range(arguments.rounds):
        our = None
        for library, python in pythons.items():
            for method in METHODS[library]:
                if (library, method) in refused or method in arguments.without:
                    continue
                if our is None or not arguments.once:
                    our = process(sys.executable, "lipdp", arguments.backend, network, batch, arguments)
                    ours.append(our)
                theirs.setdefault((library, method), []).append(
                    process(python, library, method, network, batch, arguments)
                )
                pair = our, theirs[library, method][-1]
                for name, run in zip(("lipdp", library), pair, strict=True):
                    versions |= {name: run["versions"]} if "versions" in run else {}
                if all("times" in run for run in pair):
                    beside.setdefault((library, method), []).append(beside_of(*pair))
                if "note" in pair[1]:
                    refused.add((library, method))
    found = [("lipdp", arguments.backend, combined(ours, []))]
    found += [(*key, combined(runs, beside.get(key, []))) for key, runs in theirs.items()]
    place = {"network": network, "batch": batch, "load": round(os.getloadavg()[0], 2)}
    return [{**place, "library": lib, "method": how, **row} for lib, how, row in found]


def kept(arguments) -> tuple:
    """Rows of the result file that are not measured again, each with its command, and the versions of libraries."""
    path = RESULTS / f"{arguments.name}.json"
    found = json.loads(path.read_text()) if path.exists() else {"results": [], "libraries": {}}
    again = {*itertools.product(arguments.network, arguments.batch)}
    rows = [row for row in found["results"] if (row["network"], row["batch"]) not in again]
    return [{"command": found["command"], **row} for row in rows], found["libraries"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opacus", metavar="PYTHON")
    parser.add_argument("--jax-privacy", metavar="PYTHON")
    parser.add_argument("--tf-privacy", metavar="PYTHON")
    parser.add_argument("--backend", default="tensorflow", choices=["tensorflow", "jax"])
    parser.add_argument("--network", nargs="+", default=["cnn", "mlp"], choices=NETWORKS)
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each method")
    parser.add_argument("--steps", type=int, default=7, help="steps that are counted in each process")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds that the private steps of a process may take"
    )
    parser.add_argument("--memory", type=float, default=10.0, help="GiB that a process may hold")
    parser.add_argument("--patience", type=float, help="seconds that a process may take; default: 10 times the limit")
    parser.add_argument("--once", action="store_true", help="lipdp once a round, not before each peer")
    parser.add_argument("--without", nargs="+", default=[], help="methods that are left out", metavar="METHOD")
    parser.add_argument("--add", action="store_true", help="keep what the file holds of other networks and sizes")
    parser.add_argument("--name", default="peers", help="name of the result file")
    arguments = parser.parse_args()
    pythons = {library: getattr(arguments, library) for library in METHODS if getattr(arguments, library)}
    if not pythons:
        parser.error("give the Python of at least one library: --opacus, --jax-privacy or --tf-privacy")
    rows, versions = kept(arguments) if arguments.add else ([], {})
    for network in arguments.network:
        for batch in arguments.batch:
            rows += compare(network, batch, pythons, arguments, versions)
            # Written as it goes: the whole takes hours.
            path = write(arguments.name, {"results": rows, "libraries": versions})
            print(table(rows), flush=True)
    print(f"written to {path}")


def table(rows: list) -> str:
    """The results as a Markdown table."""
    head = "| network | B | library | method | plain ms | private ms | ratio | beside lipdp | MiB | steps | |"
    lines = [head, "|" + "---|" * 11]
    for row in rows:
        cells = [row["network"], str(row["batch"]), row["library"], row["method"]]
        if "ratio" in row:
            ms, ratio, beside = row["milliseconds"], row["ratio"], row.get("beside_lipdp")
            cells += [f"{ms['plain']['median']:.1f}", f"{ms['private']['median']:.1f}"]
            cells += [f"{ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]"]
            cells += [f"{beside['median']:.2f}" if beside else "-", f"{row['peak_mib']:.0f}", str(row["steps"])]
        else:
            cells += ["-"] * 6
        lines.append("| " + " | ".join([*cells, row.get("note", "")]) + " |")
    return "\n".join(lines)


def finetune_table(rows: list) -> str:
    """The results of fine-tuning as a Markdown table, in milliseconds of the processor; lipdp's are by drawn row."""
    names = ("trains", "B", "library", "method", "weights", "plain, ms", "private, ms", "ratio", "beside lipdp", "MiB")
    lines = [f"| {' | '.join([*names, 'steps', ''])} |", "|---" * (len(names) + 2) + "|"]
    for row in rows:
        cells = [row["network"].removeprefix("transformer-"), str(row["batch"]), row["library"], row["method"]]
        if "cpu" in row:
            ms, ratio = row["cpu"]["milliseconds"], row.get("ratio_by_row", row["cpu"]["ratio"])
            cells += [f"{row['trainable']:,}", f"{ms['plain']['median']:.0f}", f"{ms['private']['median']:.0f}"]
            cells += [f"{ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]"]
            cells += [f"{row['by_row']['median']:.2f}" if "by_row" in row else "-"]
            cells += [f"{row['peak_mib']:.0f}", str(row["steps"])]
        else:
            cells += ["-"] * 7
        lines.append("| " + " | ".join([*cells, row.get("note", "")]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
