"""Private diffusion models: what classifiers learn from their samples, and what they cost.

    python benchmarks/diffusion.py --train --preset cpu-28 --epsilon 1 --output DIR       # MNIST
    python benchmarks/diffusion.py --train --epsilon 10 --preset cpu-14 --output DIR      # goes on when started again
    python benchmarks/diffusion.py --train --held-out --set learning_rate=2e-3 --output DIR
    KERAS_BACKEND=jax python benchmarks/diffusion.py --train --preset dpdm-28 --output DIR   # the paper's, on a GPU
    python benchmarks/diffusion.py --cost                                                 # K = 1, 8, 32; samplers

Images are in [-1, 1]; a preset of half the side takes means of 2 x 2 pixels. After training, images are drawn in equal
numbers for each class, and labeled by the classifier of the model if it has one. Three others learn from them
(protocol of Dockhorn et al. 2023: the epoch is chosen on drawn images) and are tested on the real test set. The
Frechet distance is that of the test set to as many drawn images, on features of a classifier of real images, by which
nothing is chosen. Settings were chosen with `--held-out` (50,000 training images train, the other 10,000 score), never
on the test set; the cost of that choice is not part of epsilon. delta = 1e-5. DIR holds the model, its privacy
statement and a picture; a run that was cut short goes on from the last checkpoint when the same command is given
again. Figures of the test set are added to `results/diffusion.json` run by run.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import statistics
import sys
import time

from common import RESULTS, device, versions, write
from diffusion_cost import cost, cost_table

from lipdp.privacy import files

DELTA = 1e-5
DRAWN = "drawn.npy"
HELD_OUT = 10000

PRESETS = ("cpu-14", "cpu-28", "dpdm-28")
PROTOCOL = ("logistic_regression", "mlp", "cnn")
# Chosen on held-out training images of Fashion-MNIST, at epsilon 10 and seed 0: network, and its epochs.
WIDER, COARSE = "wider_cnn", "coarse_cnn"
OWN = {WIDER: 20, COARSE: 12}
DROPOUT, RATE = 0.2, 1e-3


def images(recipe, data, held_out: bool):
    """Training, scoring and test images; what scores is held out of training on request."""
    x, y, cut = recipe.images(data.x_train), data.y_train, data.num_examples - HELD_OUT
    scoring = x[cut:], y[cut:]
    return (x[:cut], y[:cut]) if held_out else (x, y), scoring, (recipe.images(data.x_test), data.y_test)


class Folder:
    """What a run leaves behind, and goes on from."""

    def __init__(self, path, identity: dict):
        self.path = pathlib.Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.model_file, known = self.path / "model.keras", self.path / "arguments.json"
        if known.exists() and json.loads(known.read_text()) != identity:
            sys.exit(f"{self.path} holds a run with other arguments: {known.read_text()}. Give another --output.")
        files.write_text(known, json.dumps(identity))
        progress = self.path / "progress.json"
        # Written with each checkpoint: time spent, and scores on the way.
        self.progress = {"seconds": 0.0, "processor_seconds": 0.0, "scores": []}
        if self.model_file.exists():
            self.progress = json.loads(progress.read_text())

    def note(self) -> None:
        files.write_text(self.path / "progress.json", json.dumps(self.progress))

    def save(self, model) -> None:
        # Progress first: a kill in between counts a little time twice, and loses none.
        self.note()
        model.save(self.model_file)


def callback(options, folder: Folder, recipe, scoring):
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
                    f"update {done}/{recipe.updates}  {speed:.3f} updates/s  "
                    f"{folder.progress['seconds']:.0f} s  {folder.progress['processor_seconds']:.0f} processor s",
                    flush=True,
                )
            at_end = done == recipe.updates
            asked = options.evaluate_every and done % options.evaluate_every == 0 and not at_end
            if asked or done % options.checkpoint_every == 0 or at_end:
                getattr(self.model, "jax_state_sync", lambda: None)()
                if asked:
                    found = score(self.model, recipe, scoring, 5000, 15, ("cnn",), options.seed)
                    folder.progress["scores"].append({"updates": done, **found})
                    print(folder.progress["scores"][-1], flush=True)
                folder.save(self.model)
            # Neither saving nor scoring is training.
            self._last = time.perf_counter(), time.process_time()

    return Watch()


def own_cnn(name: str, image_shape, num_classes: int, steps: int):
    """A CNN with twice the filters of the protocol's and less dropout, at a rate that falls to zero.

    The coarse one averages pixels two by two at first: drawn images differ from real ones in what is finer.
    """
    import keras
    from keras import layers as L

    def stage(filters, pooled, padding="valid"):
        pooling = [L.MaxPooling2D(2)] if pooled else []
        return [L.Conv2D(filters, 3, padding=padding), *pooling, L.ReLU(), L.Dropout(DROPOUT)]

    stack = [*stage(64, True), *stage(128, True)]
    if name == COARSE:
        stack = [L.AveragePooling2D(2), *stage(64, False, "same"), *stage(128, True)]
    stack += [L.Conv2D(256, 3, activation="relu"), L.Flatten(), L.Dense(128, activation="relu"), L.Dropout(0.5)]
    model = keras.Sequential([keras.Input(image_shape), *stack, L.Dense(num_classes)], name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(RATE, steps)), loss, metrics=["accuracy"]
    )
    return model


def score(
    model, recipe, real, samples: int, epochs: int, classifiers, seed: int, features=None, folder: Folder | None = None
) -> dict:
    """Accuracy on real images of classifiers that learned from `samples` images of the model, and how far these are.

    A folder keeps the images and what each classifier reached: a run that was stopped goes on from there.
    """
    import keras
    import numpy as np

    from lipdp import diffusion

    found = {"samples": samples, "epochs": epochs, "accuracy": {}, "classifier_seconds": 0.0}
    if folder is not None:
        found = folder.progress.setdefault("final", found)
        if (found["samples"], found["epochs"]) != (samples, epochs):
            sys.exit(f"{folder.path} was scored with another number of images or epochs. Give another --output.")
    if folder is not None and "sampling_seconds" in found and (folder.path / DRAWN).exists():
        drawn = np.load(folder.path / DRAWN)
    else:
        start = time.perf_counter()
        drawn = model.sample(
            samples,
            np.arange(samples) % recipe.num_classes,
            recipe.make_sampler(),
            guidance=recipe.guidance,
            batch_size=500,
            seed=seed + 1,
        )
        seconds = round(time.perf_counter() - start, 1)
        # Outside of this range there are no pixels.
        drawn = np.clip(drawn, -1.0, 1.0)
        if folder is not None:
            np.save(folder.path / DRAWN, drawn)
        found["sampling_seconds"] = seconds
    labels = np.arange(samples) % recipe.num_classes if model.classifier is None else model.classify(drawn)
    for name in classifiers:
        if name not in found["accuracy"]:
            if folder is not None:
                folder.note()
            start = time.perf_counter()
            classifier, passes = name, epochs
            if name in OWN:
                keras.utils.set_random_seed(seed)
                passes = min(epochs, OWN[name])
                classifier = own_cnn(name, drawn.shape[1:], 10, passes * math.ceil(0.9 * samples / 128))
            reached = diffusion.downstream_accuracy(
                drawn, labels, *real, classifiers=(classifier,), num_classes=10, epochs=passes, seed=seed
            )
            found["accuracy"][name] = round(reached[name], 4)
            found["classifier_seconds"] = round(found["classifier_seconds"] + time.perf_counter() - start, 1)
    distance = None
    if features is not None:
        distance = round(diffusion.frechet_distance(real[0], drawn[: len(real[0])], features), 2)
    return {**found, "frechet_distance": distance}


def train(options, changes: dict) -> dict:
    import keras

    from lipdp import diffusion
    from lipdp.data import load

    data = load(options.dataset)
    examples = data.num_examples - (HELD_OUT if options.held_out else 0)
    recipe = diffusion.recipe(
        data.input_shape,
        data.num_classes,
        examples,
        options.preset,
        epsilon=options.epsilon,
        handwritten=data.handwritten,
        **changes,
    )
    identity = {
        "dataset": options.dataset,
        "preset": options.preset,
        "epsilon": options.epsilon,
        "seed": options.seed,
        "evaluated_on": "held-out training images" if options.held_out else "test set",
        "settings": json.loads(json.dumps(dataclasses.asdict(recipe))),
    }
    folder = Folder(options.output, identity)
    (x, y), scoring, test = images(recipe, data, options.held_out)
    keras.utils.set_random_seed(options.seed)
    if folder.model_file.exists():
        model = keras.saving.load_model(folder.model_file)
        print(f"goes on after {model.run.ledger.updates} updates", flush=True)
    else:
        start, processor = time.perf_counter(), time.process_time()
        known = {"delta": DELTA, "seed": options.seed, "verbose": 2}
        model = recipe.build(recipe.train_classifier(x, y, **known))
        print(f"{model.network.count_params()} parameters, {len(x)} training images", flush=True)
        recipe.learn_moments(model, x, y, seed=options.seed, verbose=2)
        folder.progress["seconds"] += time.perf_counter() - start
        folder.progress["processor_seconds"] += time.process_time() - processor
        if recipe.moments_noise is not None:
            if options.evaluate_every:
                found = score(model, recipe, scoring, 5000, 15, ("cnn",), options.seed)
                folder.progress["scores"].append({"updates": 0, **found})
                print(folder.progress["scores"][-1], flush=True)
            folder.save(model)
    # Its own: those of a classifier came before.
    if model.run.ledger.updates < recipe.updates:
        model.fit(
            x,
            y,
            batch_size=recipe.batch_size,
            steps_per_epoch=recipe.updates,
            epsilon=options.epsilon,
            delta=DELTA,
            strategy=recipe.strategy(),
            microbatch_size=recipe.microbatch(model),
            training_metrics=False,
            callbacks=[callback(options, folder, recipe, scoring)],
            seed=options.seed,
            verbose=0,
        )
        folder.save(model)
    (folder.path / "privacy.txt").write_text(model.privacy.statement() + "\n")
    drawn = model.sample(100, None, recipe.make_sampler(), guidance=recipe.guidance, seed=options.seed)
    picture = folder.path / "samples.png"
    diffusion.image_grid(drawn, picture, columns=10, scale=0.3)
    print(f"{picture}", flush=True)
    real = scoring if options.held_out else test
    # Of a network that real images train: it measures, and nothing is chosen by it.
    features = diffusion.classifier_features(x, y, data.num_classes, seed=0)
    final = score(
        model, recipe, real, options.samples, options.epochs, options.classifiers, options.seed, features, folder
    )
    result = {
        **identity,
        "command": f"python benchmarks/diffusion.py {' '.join(sys.argv[1:])}",
        "backend": keras.backend.backend(),
        "device": device(),
        **final,
        "spent": model.privacy.epsilon(),
        "delta": DELTA,
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": model.run.ledger.updates,
        "parameters": model.network.count_params(),
        "seconds": round(folder.progress["seconds"], 1),
        "processor_seconds": round(folder.progress["processor_seconds"], 1),
        "on_the_way": folder.progress["scores"],
        "versions": versions(),
    }
    (folder.path / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder.path / DRAWN).unlink()
    if not options.held_out:
        name = f"{options.name}_{options.preset}_{options.dataset}_{options.epsilon:g}.png"
        (RESULTS / name).write_bytes(picture.read_bytes())
    return result


# Classifier accuracies on real images, 28 x 28: Dockhorn et al. 2023 (DPDM) and Li et al. 2025 (DP-FETA), with CNNs.
PUBLISHED = {
    ("mnist", 1.0): "DPDM 89.2, DP-FETA 95.6",
    ("mnist", 10.0): "DPDM 97.7, DP-FETA 98.1",
    ("fashion_mnist", 1.0): "DP-FETA 81.7",
    ("fashion_mnist", 10.0): "DP-FETA 87.3",
}


def by_setting(content: dict) -> list[list[dict]]:
    """The runs of the same classifiers that differ in nothing but their seed, together."""

    def setting(run):
        same = run["samples"], run["epochs"], json.dumps(run["settings"], sort_keys=True), sorted(run["accuracy"])
        return *_place(run)[:-1], *same

    runs = sorted(content.get("runs", []), key=lambda run: (*setting(run), run["seed"]))
    return [list(same) for _, same in itertools.groupby(runs, setting)]


def table(content: dict) -> str:
    """The results as a Markdown table, one row for the seeds of one setting."""
    own = [name for name in OWN if any(name in run["accuracy"] for run in content.get("runs", []))]
    titles = "".join(f"{name.replace('_cnn', ' CNN')} % (sd) | " for name in own)
    lines = [
        f"| data | preset | epsilon | labels | CNN % (sd) | {titles}published | "
        "MLP % (sd) | logistic regression % (sd) | distance | synthetic images | epochs | updates | B | K | device | "
        "processor minutes | seeds |",
        "|" + "---|" * (17 + len(own)),
    ]
    for runs in by_setting(content):
        one = runs[0]
        means = dict.fromkeys((*PROTOCOL, *OWN), "")
        for name in one["accuracy"]:
            values = [100 * run["accuracy"][name] for run in runs]
            means[name] = f"{statistics.mean(values):.2f}"
            if len(runs) > 1:
                means[name] += f" ({statistics.stdev(values):.2f})"
        labels = "classifier" if one["settings"].get("classifier") else "drawn for"
        minutes = statistics.median(run["processor_seconds"] for run in runs) / 60
        distances = [run["frechet_distance"] for run in runs if run.get("frechet_distance") is not None]
        distance = f"{statistics.mean(distances):.1f}" if distances else ""
        published = PUBLISHED.get((one["dataset"], one["epsilon"]), "")
        lines.append(
            f"| {one['dataset']} | {one['preset']} | {one['epsilon']:g} | {labels} | {means['cnn']} | "
            f"{''.join(means[name] + ' | ' for name in own)}{published} | {means['mlp']} | "
            f"{means['logistic_regression']} | {distance} | {one['samples']} | {one['epochs']} | "
            f"{one['updates']} | {one['settings']['batch_size']} | {one['settings']['multiplicity']} | "
            f"{one.get('device', 'CPU')} | {minutes:.0f} | {len(runs)} |"
        )
    return "\n".join(lines)


def _place(run: dict) -> tuple:
    return tuple(run[key] for key in ("dataset", "preset", "epsilon", "seed"))


def _changes(options, parser) -> dict:
    from lipdp.diffusion import Recipe

    given = {
        "batch_size": options.batch,
        "updates": options.updates,
        "multiplicity": options.multiplicity,
        "microbatch_size": options.microbatch,
    }
    if options.set and not options.held_out:
        parser.error("settings are chosen with --held-out, not on the test set")
    kinds = {field.name: field.type for field in dataclasses.fields(Recipe) if field.default is not dataclasses.MISSING}
    for pair in options.set:
        name, _, value = pair.partition("=")
        if pair == "classifier=None":
            given[name] = None
            continue
        if name not in kinds:
            parser.error(f"unknown setting {name!r}; known: {', '.join(kinds)}")
        kind = kinds[name]
        given[name] = kind(value) if isinstance(kind, type) else float(value)  # or None
    return given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train, sample and score")
    parser.add_argument("--cost", action="store_true", help="cost of an update and speed of the samplers")
    parser.add_argument("--dataset", default="mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--preset", default="cpu-28", choices=PRESETS)
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--batch", type=int, help="expected batch size")
    parser.add_argument("--updates", type=int)
    parser.add_argument("--multiplicity", type=int, help="noises per example and update, K")
    parser.add_argument("--microbatch", type=int, help="examples at once; only speed and memory depend on it")
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
    known = (*PROTOCOL, *OWN)
    parser.add_argument("--classifiers", nargs="+", choices=known, default=known, help="that learn from drawn images")
    parser.add_argument("--multiplicities", type=int, nargs="+", default=[1, 8, 32], help="K, for --cost")
    parser.add_argument("--cost-batch", type=int, default=256, help="B, for --cost")
    parser.add_argument("--rounds", type=int, default=7, help="for --cost")
    parser.add_argument("--name", default="diffusion", help="name of the result file")
    options = parser.parse_args()
    if options.train == options.cost:
        parser.error("say --train or --cost")
    if options.train and not options.output:
        parser.error("--train needs --output DIR")
    changes = _changes(options, parser)

    if options.cost:
        command = f"python benchmarks/diffusion.py {' '.join(sys.argv[1:])}"
        found = {"command": command, "versions": versions(), **cost(options)}
        print(cost_table({"cost": found}))
    else:
        found = train(options, changes)
        print(json.dumps({k: v for k, v in found.items() if k not in ("versions", "on_the_way")}), flush=True)
        if options.held_out:
            return
    # Read only now: another run may have ended in the meantime.
    path = RESULTS / f"{options.name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    content = {key: known[key] for key in ("cost", "runs") if key in known}
    if options.cost:
        content["cost"] = found
    else:

        def again(run):
            return (_place(run), set(run["accuracy"])) == (_place(found), set(found["accuracy"]))

        kept = [run for run in content.get("runs", []) if not again(run)]
        content["runs"] = sorted([*kept, found], key=_place)
        print(table(content))
    print(f"written to {write(options.name, content)}")


if __name__ == "__main__":
    main()
