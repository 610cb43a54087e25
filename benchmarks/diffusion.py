"""Private diffusion models: what classifiers learn from their samples, and what they cost.

    python benchmarks/diffusion.py --train --output DIR                                   # cpu-14, MNIST, epsilon 10
    python benchmarks/diffusion.py --train --epsilon 1 --seed 0 --output DIR              # goes on when started again
    python benchmarks/diffusion.py --train --held-out --set learning_rate=2e-3 --output DIR
    KERAS_BACKEND=jax python benchmarks/diffusion.py --train --preset dpdm-28 --output DIR   # the paper's, on a GPU
    python benchmarks/diffusion.py --cost                                                 # K = 1, 8, 32; samplers

Images are in [-1, 1]; a preset of half the side takes means of 2 x 2 pixels. After training, images are drawn in equal
numbers for each class, three classifiers learn from them (protocol of Dockhorn et al. 2023) and are tested on the real
test set. Settings were chosen with `--held-out` (50,000 training images train, the other 10,000 score), never on the
test set; the cost of that choice is not part of epsilon. delta = 1e-5. DIR holds the model, its privacy statement and
a picture; a run that was cut short goes on from the last checkpoint when the same command is given again. Figures of
the test set are added to `results/diffusion.json` run by run.
"""

import argparse
import json
import os
import pathlib
import sys
import time

from common import RESULTS, spread, versions, write

DELTA = 1e-5
HELD_OUT = 10000

# Public constants of a run, by preset. `updates` and `batch` are those of the command line's defaults.
_CPU = {
    "batch": 2048,
    "updates": 5000,
    "physical_batch": 256,
    "multiplicity": 1,
    "learning_rate": 3e-3,
    "warmup": 50,
    "final_rate": 0.1,
    "p_mean": -0.5,
    "p_std": 1.2,
    "clip_norm": 1.0,
    "label_scale": 1.0,
    "label_dropout": 0.1,
    "average": 0.999,
    "sampler": "ddim",
    "steps": 50,
    "guidance": 0.0,
}
SETTINGS = {
    "cpu-14": _CPU,
    "cpu-28": _CPU,
    # After Dockhorn et al. 2023: 300 epochs of MNIST, K = 32.
    "dpdm-28": {
        **_CPU,
        "batch": 4096,
        "updates": 4395,
        "physical_batch": 64,
        "multiplicity": 32,
        "learning_rate": 3e-4,
        "warmup": 0,
        "final_rate": 1.0,
        "p_mean": -1.2,
        "sampler": "churn",
        "steps": 100,
    },
}


def images(name: str, size: int, held_out: bool):
    """Training, scoring and test images in [-1, 1]; what scores is held out of training on request."""
    from lipdp.data import load

    data = load(name)

    def resize(x):
        side = x.shape[1]
        if side == 2 * size:
            x = x.reshape(len(x), size, 2, size, 2, x.shape[-1]).mean((2, 4))
        elif side != size:
            raise ValueError(f"Images of side {side} do not fit a preset of side {size}.")
        return 2.0 * x - 1.0

    x, y, cut = resize(data.x_train), data.y_train, data.num_examples - HELD_OUT
    scoring = x[cut:], y[cut:]
    return (x[:cut], y[:cut]) if held_out else (x, y), scoring, (resize(data.x_test), data.y_test)


def build(options, settings: dict):
    import keras

    from lipdp import diffusion

    network = diffusion.preset(options.preset, 10)
    for layer in network.layers:
        if isinstance(layer, keras.layers.Embedding):
            layer.embeddings.assign(layer.embeddings * settings["label_scale"])
    model = diffusion.DiffusionModel(
        network,
        diffusion.EDM(p_mean=settings["p_mean"], p_std=settings["p_std"]),
        num_classes=10,
        noise_multiplicity=int(settings["multiplicity"]),
        label_dropout=settings["label_dropout"],
        average=settings["average"],
    )
    warmup, peak, updates = int(settings["warmup"]), settings["learning_rate"], int(settings["updates"])
    rate = keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=peak / (warmup + 1) if warmup else peak,
        decay_steps=max(updates - warmup, 1),
        alpha=settings["final_rate"],
        warmup_target=peak if warmup else None,
        warmup_steps=warmup,
    )
    model.compile(keras.optimizers.Adam(rate))
    return model


class Folder:
    """What a run leaves behind, and goes on from."""

    def __init__(self, path, identity: dict):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.model_file, known = self.path / "model.keras", self.path / "arguments.json"
        if known.exists() and json.loads(known.read_text()) != identity:
            sys.exit(f"{self.path} holds a run with other arguments: {known.read_text()}. Give another --output.")
        known.write_text(json.dumps(identity))
        progress = self.path / "progress.json"
        # Written with each checkpoint: time spent, and scores on the way.
        self.progress = {"seconds": 0.0, "processor_seconds": 0.0, "scores": []}
        if self.model_file.exists():
            self.progress = json.loads(progress.read_text())

    def save(self, model) -> None:
        temporary = self.path / "next.keras"
        model.save(temporary)
        (self.path / "progress.json").write_text(json.dumps(self.progress))
        os.replace(temporary, self.model_file)


def callback(options, folder: Folder, settings, scoring):
    """Clocks, saves and scores during `fit`."""
    import keras

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self._start = None
            self._last = time.perf_counter(), time.process_time()

        def on_train_batch_end(self, batch, logs=None):
            done = self.model.run.ledger.updates
            now, processor = time.perf_counter(), time.process_time()
            folder.progress["seconds"] += now - self._last[0]
            folder.progress["processor_seconds"] += processor - self._last[1]
            # The first update compiles.
            self._start = self._start or (done, now)
            if done % options.report_every == 0 and done > self._start[0]:
                speed = (done - self._start[0]) / (now - self._start[1])
                print(
                    f"update {done}/{int(settings['updates'])}  {speed:.3f} updates/s  "
                    f"{folder.progress['seconds']:.0f} s  {folder.progress['processor_seconds']:.0f} processor s",
                    flush=True,
                )
            at_end = done == int(settings["updates"])
            asked = options.evaluate_every and done % options.evaluate_every == 0 and not at_end
            if asked or done % options.checkpoint_every == 0 or at_end:
                getattr(self.model, "jax_state_sync", lambda: None)()
                if asked:
                    found = score(self.model, settings, scoring, 5000, 15, ("cnn",), options.seed)
                    folder.progress["scores"].append({"updates": done, **found})
                    print(folder.progress["scores"][-1], flush=True)
                folder.save(self.model)
            # Neither saving nor scoring is training.
            self._last = time.perf_counter(), time.process_time()

    return Watch()


def score(model, settings, real, samples: int, epochs: int, classifiers, seed: int) -> dict:
    """Accuracy on real images of classifiers that learnt from `samples` images of the model."""
    import numpy as np

    from lipdp import diffusion

    start = time.perf_counter()
    labels = np.arange(samples) % 10
    drawn = model.sample(
        samples, labels, sampler(settings), guidance=settings["guidance"], batch_size=500, seed=seed + 1
    )
    middle = time.perf_counter()
    # Outside of this range there are no pixels.
    drawn = np.clip(drawn, -1.0, 1.0)
    accuracy = diffusion.downstream_accuracy(
        drawn, labels, *real, classifiers=classifiers, num_classes=10, epochs=epochs, seed=seed
    )
    return {
        "samples": samples,
        "epochs": epochs,
        "accuracy": {name: round(value, 4) for name, value in accuracy.items()},
        "sampling_seconds": round(middle - start, 1),
        "classifier_seconds": round(time.perf_counter() - middle, 1),
    }


def sampler(settings):
    from lipdp import diffusion

    kinds = {"ddim": diffusion.DDIM, "churn": diffusion.Churn}
    if settings["sampler"] == "stochastic":
        return diffusion.DDIM(int(settings["steps"]), eta=1.0)
    # The paper's setting of Churn for MNIST is not used: these are mild and were not tuned.
    return kinds[settings["sampler"]](int(settings["steps"]))


def train(options, settings: dict) -> dict:
    import keras

    from lipdp import diffusion, strategies
    from lipdp.diffusion.unet import PRESETS

    identity = {
        "dataset": options.dataset,
        "preset": options.preset,
        "epsilon": options.epsilon,
        "seed": options.seed,
        "evaluated_on": "held-out training images" if options.held_out else "test set",
        "settings": settings,
    }
    folder = Folder(options.output, identity)
    size = PRESETS[options.preset]["image_shape"][0]
    (x, y), scoring, test = images(options.dataset, size, options.held_out)
    keras.utils.set_random_seed(options.seed)
    if folder.model_file.exists():
        model = keras.saving.load_model(folder.model_file)
        print(f"goes on after {model.privacy.updates} updates", flush=True)
    else:
        model = build(options, settings)
        print(f"{model.count_params()} parameters, {len(x)} training images", flush=True)
    if model.privacy.updates < int(settings["updates"]):
        model.fit(
            x,
            y,
            batch_size=int(settings["batch"]),
            steps_per_epoch=int(settings["updates"]),
            epsilon=options.epsilon,
            delta=DELTA,
            strategy=strategies.DPSGD(settings["clip_norm"]),
            physical_batch_size=int(settings["physical_batch"]),
            training_metrics=False,
            callbacks=[callback(options, folder, settings, scoring)],
            seed=options.seed,
            verbose=0,
        )
        folder.save(model)
    (folder.path / "privacy.txt").write_text(model.privacy.statement() + "\n")
    drawn = model.sample(100, None, sampler(settings), guidance=settings["guidance"], seed=options.seed)
    picture = folder.path / "samples.png"
    diffusion.image_grid(drawn, picture, columns=10, scale=0.3)
    print(f"{picture}", flush=True)
    real = scoring if options.held_out else test
    classifiers = ("logistic_regression", "mlp", "cnn")
    final = score(model, settings, real, options.samples, options.epochs, classifiers, options.seed)
    result = {
        **identity,
        "command": f"python benchmarks/diffusion.py {' '.join(sys.argv[1:])}",
        "backend": keras.backend.backend(),
        **final,
        "spent": model.privacy.epsilon(),
        "delta": DELTA,
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.privacy.updates,
        "parameters": model.network.count_params(),
        "seconds": round(folder.progress["seconds"], 1),
        "processor_seconds": round(folder.progress["processor_seconds"], 1),
        "on_the_way": folder.progress["scores"],
        "versions": versions(),
    }
    (folder.path / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if not options.held_out:
        name = f"{options.name}_{options.preset}_{options.dataset}_{options.epsilon:g}.png"
        (RESULTS / name).write_bytes(picture.read_bytes())
    return result


def cost(options) -> dict:
    """Seconds of an update for several K as ratios to a plain step of the network, and images per second."""
    import keras
    import numpy as np

    from lipdp import diffusion, strategies
    from lipdp.diffusion.unet import PRESETS

    size, channels = PRESETS[options.preset]["image_shape"][1:]
    batch, rng = options.cost_batch, np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20 * batch, size, size, channels)).astype("float32")
    y = rng.integers(0, 10, len(x)).astype("int32")

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds = time.perf_counter() - self._start

    def private(multiplicity):
        model = diffusion.DiffusionModel(
            diffusion.preset(options.preset), num_classes=10, noise_multiplicity=multiplicity, average=0.0
        )
        model.compile("adam")
        # As many rows at once for each K.
        chunk = max(1, int(options.physical_batch or 256) // multiplicity)

        def step():
            clock = Clock()
            model.fit(
                x,
                y,
                batch_size=batch,
                steps_per_epoch=1,
                noise_multiplier=1.0,
                strategy=strategies.DPSGD(1.0),
                physical_batch_size=chunk,
                training_metrics=False,
                callbacks=[clock],
                verbose=0,
            )
            return clock.seconds

        return step

    def plain():
        graph = diffusion.DiffusionModel(diffusion.preset(options.preset), num_classes=10)
        model = keras.Model(graph.inputs, graph.outputs)
        model.compile("adam", loss=diffusion.DenoisingLoss())

        def step():
            clock = Clock()
            rows = rng.integers(0, len(x), batch)
            clean = x[rows], y[rows].astype("float32")
            model.fit(clean, np.zeros((batch, 1), "float32"), batch_size=batch, callbacks=[clock], verbose=0)
            return clock.seconds

        return step

    steps = {"plain": plain(), **{f"K={k}": private(k) for k in options.multiplicities}}
    for step in steps.values():
        step()
    rounds = [{name: step() for name, step in steps.items()} for _ in range(options.rounds)]
    result = {
        "preset": options.preset,
        "batch": batch,
        "plain_ms_per_example": spread([1000 * one["plain"] / batch for one in rounds]),
        "ratio": {name: spread([one[name] / one["plain"] for one in rounds]) for name in steps if name != "plain"},
    }
    print(json.dumps(result), flush=True)
    network = diffusion.preset(options.preset)
    ways = {
        "DDIM": diffusion.DDIM(50),
        "DDIM, stochastic": diffusion.DDIM(50, eta=1.0),
        "Churn": diffusion.Churn(50, s_churn=10.0),
    }

    def draw(way, batches):
        start = time.perf_counter()
        diffusion.generate(network, batches * 250, "edm", way, num_classes=10, batch_size=250, seed=0)
        return time.perf_counter() - start

    def speed(way):
        # The first batch compiles.
        return 500 / max(draw(way, 3) - draw(way, 1), 1e-9)

    result["samples_per_second"] = {
        name: {"steps": way.steps, **spread([speed(way) for _ in range(3)])} for name, way in ways.items()
    }
    return result


def table(content: dict) -> str:
    """The results as Markdown tables."""
    lines = [
        "| data | preset | epsilon | CNN % | MLP % | logistic regression % | synthetic images | updates | B | K | "
        "processor minutes | seed |",
        "|" + "---|" * 12,
    ]
    for run in content.get("runs", []):
        found, settings = run["accuracy"], run["settings"]
        accuracies = " | ".join(f"{100 * found[name]:.2f}" for name in ("cnn", "mlp", "logistic_regression"))
        lines.append(
            f"| {run['dataset']} | {run['preset']} | {run['epsilon']:g} | {accuracies} | {run['samples']} | "
            f"{run['updates']} | {int(settings['batch'])} | {int(settings['multiplicity'])} | "
            f"{run['processor_seconds'] / 60:.0f} | {run['seed']} |"
        )
    return "\n".join(lines)


def cost_table(content: dict) -> str:
    found = content["cost"]
    lines = ["| update, B = {batch} | over a plain step |".format(**found), "|---|---|"]
    lines += [f"| {name} | {_range(ratio)} |" for name, ratio in found["ratio"].items()]
    lines += ["", "| sampler | steps | images per second |", "|---|---|---|"]
    for name, row in found["samples_per_second"].items():
        lines.append(f"| {name} | {row['steps']} | {_range(row, 0)} |")
    return "\n".join(lines)


def _range(row: dict, digits: int = 2) -> str:
    median, low, high = (f"{row[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} [{low}-{high}]"


def _place(run: dict) -> tuple:
    return tuple(run[key] for key in ("dataset", "preset", "epsilon", "seed"))


def _settings(options, parser) -> dict:
    settings = dict(SETTINGS[options.preset])
    for name in ("batch", "updates", "multiplicity", "physical_batch"):
        if getattr(options, name) is not None:
            settings[name] = getattr(options, name)
    if options.set and not options.held_out:
        parser.error("settings are chosen with --held-out, not on the test set")
    for pair in options.set:
        name, _, value = pair.partition("=")
        if name not in settings:
            parser.error(f"unknown setting {name!r}; known: {', '.join(settings)}")
        settings[name] = type(settings[name])(value)
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train, sample and score")
    parser.add_argument("--cost", action="store_true", help="cost of an update and speed of the samplers")
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--preset", default="cpu-14", choices=list(SETTINGS))
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--batch", type=int, help="expected batch size")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--multiplicity", type=int, help="noises per example and update, K")
    parser.add_argument("--physical-batch", type=int, help="examples at once; only speed and memory depend on it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", help="folder of the run; the same command goes on from its checkpoint")
    parser.add_argument("--held-out", action="store_true", help="train on 50,000 images, score on 10,000 others")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings to try, with --held-out")
    parser.add_argument("--checkpoint-every", type=int, default=200, help="updates")
    parser.add_argument("--report-every", type=int, default=50, help="updates")
    parser.add_argument(
        "--evaluate-every",
        type=int,
        default=0,
        help="updates; a CNN from 5000 samples is scored on the last 10,000 training images (held out or not)",
    )
    parser.add_argument("--samples", type=int, default=60000, help="synthetic images for the classifiers")
    parser.add_argument("--epochs", type=int, default=50, help="of the classifiers")
    parser.add_argument("--multiplicities", type=int, nargs="+", default=[1, 8, 32], help="K, for --cost")
    parser.add_argument("--cost-batch", type=int, default=256, help="B, for --cost")
    parser.add_argument("--rounds", type=int, default=7, help="for --cost")
    parser.add_argument("--name", default="diffusion", help="name of the result file")
    options = parser.parse_args()
    if options.train == options.cost:
        parser.error("say --train or --cost")
    if options.train and not options.output:
        parser.error("--train needs --output DIR")
    settings = _settings(options, parser)

    path = RESULTS / f"{options.name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    content = {key: known[key] for key in ("cost", "runs") if key in known}
    if options.cost:
        content["cost"] = {"versions": versions(), **cost(options)}
        print(cost_table(content))
    else:
        found = train(options, settings)
        print(json.dumps({k: v for k, v in found.items() if k not in ("versions", "on_the_way")}), flush=True)
        if options.held_out:
            return
        kept = [run for run in content.get("runs", []) if _place(run) != _place(found)]
        content["runs"] = sorted([*kept, found], key=_place)
        print(table(content))
    print(f"written to {write(options.name, content)}")


if __name__ == "__main__":
    main()
