"""Kills training at random moments and looks at what is left: `python -m tests.crash.kills --kills 200`.

One process imports Keras and forks a child per run, which makes a kill cost a few seconds. Each child writes down the
updates that it has made. After each kill the files must be readable, and the ledger of the run that goes on to the end
must hold every update of all children. With a seed the end must be that of an uninterrupted run, bit for bit.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

UPDATES = 12
EPSILON = 4.0


def model_of(case):
    import keras

    import lipdp
    from lipdp import diffusion, layers, losses
    from lipdp.diffusion import toy

    keras.utils.set_random_seed(0)
    eager = {"run_eagerly": case["eager"]}
    if case["kind"] == "diffusion":
        model = diffusion.DiffusionModel(toy.point_network(width=8, depth=1), average=0.5)
        model.compile(keras.optimizers.Adam(0.01), **eager)
    elif case["kind"] == "clipless":
        model = lipdp.DP_Sequential(
            [layers.BoundedInput((6,)), layers.SpectralDense(8), layers.Abs(), layers.SpectralDense(3)]
        )
        model.compile(keras.optimizers.SGD(0.3, momentum=0.9), losses.SparseCategoricalCrossentropy(), **eager)
    else:
        model = lipdp.DP_Model.from_keras(keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.3, momentum=0.9), loss, **eager)
    return model


def data(case):
    import numpy as np

    rng = np.random.default_rng(0)
    if case["kind"] == "diffusion":
        return (rng.normal(size=(120, 2)).astype("float32"),)
    return rng.normal(size=(120, 6)).astype("float32"), rng.integers(0, 3, 120)


def digest(model) -> str:
    state = hashlib.sha256()
    for value in model.get_weights():
        state.update(value.tobytes())
    return state.hexdigest()


def train(case, folder: pathlib.Path) -> dict:
    """One process: the same call of `fit` each time, which writes down each update that it has made."""
    import keras

    from lipdp import callbacks

    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            os.write(log, b"%d\n" % self._model.run.ledger.updates)

    model = model_of(case)
    keep = callbacks.Checkpoint(folder / case["file"], case["every"])
    options = {} if case["kind"] in ("clipless", "diffusion") else {"strategy": case["kind"]}
    model.fit(
        *data(case), batch_size=20, epochs=3, steps_per_epoch=UPDATES // 3, epsilon=EPSILON, delta=1e-3, verbose=0,
        seed=case["seed"], callbacks=[Log(), keep], **options,
    )  # fmt: skip
    return {"updates": model.privacy.updates, "spent": model.privacy.spent(), "digest": digest(model)}


def look(case, folder: pathlib.Path) -> dict:
    """Whether the files that a kill has left are readable, and consistent."""
    from lipdp.privacy import journal

    path, found = folder / case["file"], {"updates": 0}
    if path.exists():
        model = model_of(case)
        model.load_weights(path)
        found["updates"] = model.privacy.updates
        assert int(model.optimizer.iterations.numpy()) <= model.privacy.updates
    if (folder / f"{case['file']}.journal").exists():
        reserved = journal.read(folder / f"{case['file']}.journal").ledger
        assert reserved.updates >= found["updates"]
        found["updates"] = reserved.updates
    return found


def command(case, folder: pathlib.Path) -> dict:
    """One process of `lipdp train`: the first one begins, the others go on."""
    from lipdp import report
    from lipdp.cli import main

    os.chdir(folder)
    seed = [] if case["seed"] is None else ["--seed", str(case["seed"])]
    words = ["train", "--json", "--dataset", "tiny.npz", "--epsilon", "4", "--epochs", "4", "--batch-size", "30"]
    new = [*words, *seed, "--output", "run", *["--overwrite"] * case["overwrite"]]
    begun = any((folder / place / "unfinished").exists() for place in ("run", ".run.next"))
    if not begun and not case["overwrite"] and (folder / "run" / "run.json").exists():
        code = 0  # killed between the end of the run and its answer
    else:
        code = main(["train", "--json", "--resume", "run"] if begun else new)
    if code == 2 and begun:  # killed before the settings were there: nothing had been released
        code = main([*dict.fromkeys([*new, "--overwrite"])])
    assert code == 0, f"exit code {code}"
    content = report.read("run")
    assert not (folder / ".run.next").exists() and not (folder / "run" / "unfinished").exists()
    return {"updates": content.privacy["updates"], "spent": content.privacy["epsilon"], "digest": _model(folder)}


def _model(folder) -> str:
    import keras

    return digest(keras.saving.load_model(folder / "run" / "model.keras"))


def look_at_command(case, folder: pathlib.Path) -> dict:
    """The folder is that of a whole run, or of one that is not finished; an earlier run stays whole."""
    from lipdp import report

    if case["overwrite"] or (folder / "run" / "run.json").exists():
        report.read(folder / "run")
    return {"updates": 0}


def child(work, case, folder, limit=None):
    """Runs `work` in a fork and returns what it returned, or None when it was killed after `limit` seconds."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for handle in (1, 2):
                os.dup2(said, handle)
            os.write(write, json.dumps(work(case, folder)).encode())
            code = 0
        except BaseException:
            os.write(write, ("!" + traceback.format_exc()).encode()[-8000:])
        finally:
            os._exit(code)
    os.close(write)
    if limit is not None:
        end = time.monotonic() + limit
        while time.monotonic() < end and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.002)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pid = 0
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass
    if text.startswith("!"):
        raise AssertionError(f"{work.__name__} of {case}:\n{text[1:]}\nIt said: {_said(folder)[-2000:]}")
    return json.loads(text) if text else None


def _said(folder: pathlib.Path) -> str:
    return (folder / "said").read_text(errors="replace")


def cases(quick: bool) -> list[dict]:
    kinds = ("clipless", "dpsgd", "adaclip", "dpis", "diffusion")
    made = [
        {"kind": kind, "file": file, "every": every, "seed": seed, "eager": quick or (i + j) % 3 > 0}
        for i, kind in enumerate(kinds)
        for j, (file, every) in enumerate((("c.weights.h5", "epoch"), ("c.keras", 1), ("c.weights.h5", 2)))
        for seed in (None, 7)
    ]
    lines = [{"kind": "command", "seed": seed, "overwrite": again} for again in (False, True) for seed in (None, 7)]
    return [made[0], made[3], made[7]] if quick else made + 3 * lines


def prepared(case, folder: pathlib.Path) -> None:
    """What is there before the first process."""
    if case["kind"] == "command":
        import numpy as np

        rng = np.random.default_rng(0)
        x = rng.normal(size=(120, 5)).astype("float32")
        np.savez(folder / "tiny.npz", x=x, y=(x[:, 0] > 0).astype(int))


def trial(case, reference: dict, rng: random.Random, kills: int) -> int:
    """Kills a run `kills` times at most, lets it end, and checks the end; returns how often it was killed."""
    run, inspect = (command, look_at_command) if case["kind"] == "command" else (train, look)
    folder, killed, owed = pathlib.Path(tempfile.mkdtemp(prefix="kills-")), 0, 0
    try:
        prepared(case, folder)
        if case["kind"] == "command" and case["overwrite"]:
            child(command, case | {"overwrite": False, "seed": 3}, folder)
        for _ in range(kills):
            if child(run, case, folder, limit=rng.uniform(0.1, 1.1) * reference["seconds"]) is not None:
                break
            killed += 1
            owed = child(inspect, case, folder)["updates"]
            if case["kind"] != "command":
                made = len((folder / "log").read_bytes().splitlines()) if (folder / "log").exists() else 0
                assert case["seed"] is not None or made <= owed, f"{case}: {made} updates made, {owed} on file"
        end = child(run, case, folder)
        # DPIS may end early: the noisy sums that open an epoch, which are lost, cost much of the budget of small data.
        early = case["kind"] == "dpis" and case["seed"] is None and "does not pay for another" in _said(folder)
        assert early or end["updates"] == reference["updates"], (case, end, reference)
        assert end["spent"] <= EPSILON * (1.0 + 1e-9), (case, end)
        if case["seed"] is not None:
            assert end["digest"] == reference["digest"], f"{case}: not the uninterrupted run"
        elif case["kind"] != "command":
            made = len((folder / "log").read_bytes().splitlines())
            assert made <= end["updates"], f"{case}: {made} updates made, {end['updates']} charged"
        left = [path.name for path in folder.rglob(".~*")]
        assert not left, f"{case}: {left}"
        return killed
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further run after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="three small cases")
    options = parser.parse_args()
    import keras  # noqa: F401  each child has it already

    import lipdp.cli.train
    import lipdp.diffusion
    import lipdp.model  # noqa: F401

    rng, start, total = random.Random(options.seed), time.monotonic(), 0
    references, counts = {}, collections.Counter()
    for i in range(10_000):
        chosen = cases(options.quick)
        case = chosen[i % len(chosen)]
        if total >= options.kills or time.monotonic() - start > options.seconds:
            break
        key = json.dumps(case)
        if key not in references:
            folder, before = pathlib.Path(tempfile.mkdtemp(prefix="kills-")), time.monotonic()
            prepared(case, folder)
            run = command if case["kind"] == "command" else train
            whole = case | {"overwrite": False} if case["kind"] == "command" else case
            references[key] = child(run, whole, folder) | {"seconds": time.monotonic() - before}
            shutil.rmtree(folder, ignore_errors=True)
        killed = trial(case, references[key], rng, min(3, options.kills - total))
        total += killed
        counts[case["kind"], case.get("file", "folder")] += killed
    for (kind, file), count in sorted(counts.items()):
        sys.stdout.write(f"{kind} {file}: {count} kills\n")
    sys.stdout.write(f"{total} kills, every end right, {time.monotonic() - start:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
