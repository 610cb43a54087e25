"""`lipdp train`: from a data set and a budget to a run folder."""

import argparse
import contextlib
import dataclasses
import datetime
import functools
import math
import pathlib
import shlex
import sys
import time
import warnings
from typing import Any

from lipdp import data, report
from lipdp.accounting import Sampling
from lipdp.cli import (
    backbone,
    datasets,
    diffusion,
    encoder,
    evaluation,
    language,
    output,
    quiet,
    regression,
    resuming,
    text,
    train_check,
    train_tell,
)
from lipdp.cli.parser import chosen
from lipdp.cli.versions import versions
from lipdp.privacy import files
from lipdp.privacy.plan import Plan
from lipdp.report import folder as folders
from lipdp.report import place
from lipdp.report.folder import MODEL, SAMPLES

# What the tasks on texts do in ways of their own.
_OF_TEXTS: dict[str, Any] = {"text": text, "language": language}


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Trains, writes the run folder and prints the outcome."""
    started, clock = datetime.datetime.now().isoformat(sep=" ", timespec="seconds"), time.monotonic()
    if options.resume is None:
        _train(options, argv, started, clock)
        return
    work = place.unfinished(options.resume)
    with place.working(work):
        place.final(work)  # refuses a mark that is corrupt before hours of training, not after them
        if folders.is_whole(work):  # stopped on the last steps
            report.render(work)
            folder = place.finish(work)
            train_tell.tell(options, folders.read(folder), folder)
            return
        options, argv, started = resuming.recall(work, options)
        _train(options, argv, started, clock, work)


def _train(options, argv: list[str], started: str, clock: float, work: pathlib.Path | None = None) -> None:
    """Trains in `work`, where an earlier process has begun, or in a new folder."""
    train_check.check(options)
    if work is None and options.output is not None:
        place.free(options.output, options.overwrite)  # `claim` asks again, seconds later
    frozen = None if options.backbone is None else _frozen(options)
    raw = dataset = _dataset(options, frozen)
    digests, count = resuming.digests(options, frozen), dataset.num_persons or dataset.num_examples
    if work is not None:
        resuming.check_same(work, options, digests, count)
    if frozen is not None:
        dataset = frozen.apply(raw, output.verbosity(options))
    generative = options.task == "diffusion"
    delta = _default_delta(count) if options.delta is None else options.delta
    asked = options.strategy
    recipe: Any = diffusion.recipe(options, dataset, delta) if generative else _recipe(options, dataset)
    updates = recipe.updates if generative else recipe.updates(count)
    plan = _plan(options, recipe, updates, count, delta)
    (datasets if dataset.texts is None else text).tell(options, raw)
    evaluation.tell_reached(options, recipe)
    train_tell.tell_cost(options, recipe, updates)
    with contextlib.ExitStack() as stack:
        if work is None:
            work = report.claim(options.output, dataset.name, options.overwrite)
            stack.enter_context(place.working(work))
            if asked is None:
                train_tell.tell_choice(options, recipe, dataset)
        try:
            if not (work / place.SETTINGS).exists():
                resuming.note(work, options, argv, started, digests, count)
            written = _made(options, argv, work, recipe, dataset, plan, started, clock, frozen)
        except BaseException as error:
            _stopped(work, error)
            raise
        folder = place.finish(work)
    train_tell.tell(options, written, folder)


def _stopped(work: pathlib.Path, error: BaseException) -> None:
    """Keeps what can be gone on with, and says so; a run that has released nothing leaves nothing."""
    try:
        place.check_held(work)
    except FileExistsError:
        return  # what is there is another run's
    if not resuming.released(work):
        place.abandon(work)
        return
    words = f"`lipdp train --resume {shlex.quote(str(place.final(work)))}` goes on with the run."
    if isinstance(error, KeyboardInterrupt):
        error.args = (f"interrupted; {words}",)
    else:
        sys.stderr.write(f"lipdp train: the run is not finished; {words}\n")


def _made(options, argv, work, recipe, dataset, plan, started, clock, frozen) -> report.RunFolder:
    """Trains, measures and writes the files of a run."""
    generative = options.task == "diffusion"
    with _range_untold(generative):
        trained, history, held_out = _fit(options, recipe, dataset, plan, work)
    model = trained if generative else recipe.whole(trained)
    results: dict[str, Any] = {"held_out": None, "bounds": []}
    statement = model.privacy.statement()
    if dataset.texts is not None:
        statement += text.unit(dataset.texts, options.person_column)
        if frozen is None:  # whose tokenizer is part of the preset
            dataset.texts.to_json(work / folders.TEXTS)
        if dataset.x_test is not None:
            results["held_out"] = _OF_TEXTS[options.task].measure(model, dataset)
    elif not generative:
        if recipe.bounded:
            results["bounds"] = output.finite(model.summary_bounds(print_fn=lambda text: None))
        if held_out is not None and recipe.bounded:
            results["held_out"] = evaluation.measure(
                model, dataset.x_test, dataset.y_test, options.radii or evaluation.RADII, dataset.person_ids_test
            )
        elif held_out is not None and options.task == "regression":
            results["held_out"] = regression.measure(trained, recipe, held_out[0], dataset)
        elif held_out is not None:
            # Of features that are there: the fixed layers can take longer than all of the training.
            results["held_out"] = evaluation.accuracy(trained, held_out[0], dataset.y_test, dataset.person_ids_test)
    facts = {
        "command": shlex.join(["lipdp", *argv]),
        "argv": argv,
        "settings": _settings(options, recipe, dataset, plan, frozen),
        "versions": versions(),
        "started": started,
        "seconds": round(time.monotonic() - clock, 1),
    }
    privacy = output.finite(model.privacy.to_dict())
    written = report.RunFolder(facts, results, privacy, statement, history)
    place.check_held(work)
    model.save(work / MODEL)
    if dataset.table is not None:
        dataset.table.to_json(work / folders.TABLE)
    if generative:
        with files.replacing(work / SAMPLES, private=options.seed is not None) as path:
            diffusion.draw_samples(model, recipe, path)
    place.check_held(work)
    report.write(work, written)
    report.render(work)
    return written


def _frozen(options) -> Any:
    """Returns the network in front of the one that trains."""
    if options.task == "text":
        return encoder.load(options.backbone, options.length)
    return backbone.load(options.backbone)


def _dataset(options, frozen) -> data.Dataset:
    own = _OF_TEXTS.get(options.task)
    dataset = _table_or_images(options) if own is None else own.read(options, frozen)
    return dataset if options.validation_split is None else dataset.held_out(options.validation_split)


def _table_or_images(options) -> data.Dataset:
    try:
        return datasets.read(options)
    except ValueError as error:
        described = datasets.description(options) is not None
        if not (hint := text.hint(options.dataset, options.label, str(error) if described else None)):
            raise
        raise ValueError(f"{error}{hint}") from error


def _style(options) -> str:
    """Returns the style of a classifier: behind a backbone a head, unless certificates are asked for."""
    headed = options.backbone is not None and options.recipe == "accurate" and options.strategy != "clipless"
    return "head" if headed else options.recipe


def _recipe(options, dataset):
    if options.task in _OF_TEXTS:
        return _OF_TEXTS[options.task].recipe(options, dataset)
    if options.task == "regression":
        return regression.recipe(options, dataset)
    quiet.load_keras()
    from lipdp.models import classifier

    style = _style(options)
    recipe = classifier.classifier_recipe(
        dataset.input_shape,
        dataset.num_classes,
        dataset.num_persons or dataset.num_examples,
        options.epsilon,
        style,
        method=options.strategy,
        front_end=options.front_end,
        row_norm=None if dataset.table is None or options.backbone or style == "head" else dataset.table.norm,
        rescaled=datasets.is_rescaled(options, dataset),
        radius=options.radius,
        handwritten=dataset.handwritten,
    )
    recipe = backbone.adapted(options, recipe)
    options.strategy = recipe.method
    train_check.clip_norm(options)
    overrides = chosen(options, "epochs", "batch_size", "learning_rate", "input_norm", "clip_norm")
    others = "--strategy clipless or --recipe robust" + (", without --front-end" if options.front_end else "")
    if options.radii is not None and not recipe.bounded:
        # These features have no Lipschitz constant.
        constant = not any(getattr(recipe, name, False) for name in ("patches", "deskewed", "standardized"))
        certified = "small, and `lipdp certify RUN` measures it" if constant else "nothing"
        raise ValueError(
            f"The network of this recipe is made for accuracy; what it certifies is {certified}. Received: --radii. "
            f"Pass {others}, or leave --radii out."
        )
    if options.input_norm is not None and not hasattr(recipe, "input_norm"):
        raise ValueError(
            "The recipe for these images bounds no norm of an image. Received: --input-norm. Leave it out, or pass "
            f"{others}."
        )
    return dataclasses.replace(recipe, **{name: value for name, value in overrides.items() if value is not None})


def _default_delta(num_examples: int) -> float:
    """Returns 1e-5, or the largest power of ten below 1 / N when that is less."""
    return min(1e-5, 10.0 ** -(math.floor(math.log10(num_examples)) + 1))


def _plan(options, recipe, updates: int, num_examples: int, delta: float) -> Plan:
    """Returns the plan that `fit` will make, so that a wrong one ends before anything slow begins."""
    sampling = Sampling(options.sampling).bind(num_examples, recipe.batch_size, options.examples_per_person)
    public = {"sampling": sampling, "updates": updates, "delta": delta, "accountant": options.accountant}
    if options.strategy == "dpis":
        # Its filter plans by itself; this checks the other numbers.
        return Plan(**public, noise_multiplier=1.0, epsilon=options.epsilon)
    if options.noise_multiplier is not None:
        return Plan(**public, noise_multiplier=options.noise_multiplier, epsilon=options.epsilon)
    spent = recipe.first_releases(sampling)
    with _status(options, "Calibrating the noise ..."):
        return Plan.calibrated(**public, epsilon=options.epsilon, spent=spent)


def _fit(options, recipe, dataset, plan, work):
    quiet.load_keras()
    from lipdp.callbacks import Checkpoint

    rows = resuming.rows(work, options.training_metrics, options.seed is not None)
    if options.seed is not None:
        import keras

        keras.utils.set_random_seed(options.seed)
    generative = options.task == "diffusion"
    if generative:
        model = diffusion.begin(options, recipe, dataset, plan.delta, work)
        epochs = diffusion.epochs(recipe, dataset.num_examples)
        prepare = recipe.images
    else:
        model, epochs = recipe.trained(plan.sampling.num_examples), recipe.epochs
        prepare = functools.partial(recipe.prepare, verbose=output.verbosity(options))
        if recipe.fixes_layers:
            size = 2.0 * dataset.num_examples * math.prod(model.input_shape[1:]) / 2**30
            sys.stderr.write(
                f"lipdp train: note: features of all {dataset.num_examples} rows are computed first, once; they take "
                f"{size:.1f} GiB of memory.\n"
            )
    datasets.without_charge(model, dataset)
    held_out = None if dataset.x_test is None else (prepare(dataset.x_test), dataset.y_test)
    with warnings.catch_warnings():
        # The plan above has given this warning already.
        warnings.filterwarnings("ignore", message="delta is not below 1 / num_examples")
        # A run that was stopped behind its training: what is left is to evaluate.
        warnings.filterwarnings("ignore", message="The checkpoint holds a finished run")
        model.fit(
            prepare(dataset.x_train),
            dataset.y_train,
            batch_size=recipe.batch_size,
            epochs=epochs,
            verbose=train_tell.verbosity(options),
            # Rows first: those of an epoch are there when its checkpoint is.
            callbacks=[rows, Checkpoint(work / place.CHECKPOINT), *train_tell.progress(options, epochs)],
            validation_data=held_out,
            delta=plan.delta,
            strategy=recipe.strategy(),
            microbatch_size=options.microbatch_size or recipe.microbatch(model),
            person_ids=dataset.person_ids,
            rows_per_person=options.rows_per_person,
            **chosen(options, "epsilon", "noise_multiplier", "accountant", "sampling", "examples_per_person"),
            **chosen(options, "training_metrics", "seed", "noise_generator"),
        )
    return model, tuple(rows.kept), held_out


def _range_untold(generative: bool) -> contextlib.AbstractContextManager:
    """A context in which no warning says of private images whether an entry is out of range: `tell` goes by types."""
    if not generative:
        return contextlib.nullcontext()
    quiet.load_keras()
    from lipdp.diffusion import pixels

    return pixels.scaled()


def _settings(options, recipe, dataset, plan, frozen) -> dict:
    own = ("input_shape", "image_shape", "num_classes", "microbatch_size", "updates")
    layers = {k: v for k, v in dataclasses.asdict(recipe).items() if k not in own}
    return {
        **chosen(options, "task", "strategy", "dataset", "label", "no_header", "feature_ranges"),
        **chosen(options, "person_column", "validation_split"),
        **_of_texts(options, dataset),
        "table": None if dataset.texts is not None else datasets.description(options),
        **({} if frozen is None else {"backbone": {"name": frozen.name, "sha256": frozen.digest}}),
        # Earlier versions went by the place of a row.
        "held_out_by": "label" if options.person_column is None else "person",
        "input_shape": list(dataset.input_shape),
        "classes": list(dataset.classes),
        # How many rows persons have is private.
        "num_examples" if dataset.person_ids is None else "num_persons": plan.sampling.num_examples,
        "epsilon": options.epsilon,
        "delta": plan.delta,
        "updates": plan.updates,
        **chosen(options, "accountant", "sampling", "examples_per_person", "rows_per_person"),
        **layers,
        "microbatch_size": options.microbatch_size or getattr(recipe, "microbatch_size", None),
        **chosen(options, "training_metrics", "seed", "noise_generator"),
    }


def _of_texts(options, dataset) -> dict:
    """Returns the settings that runs on texts alone have."""
    if dataset.texts is None:
        return {}
    own = {**chosen(options, "text", "vocabulary"), "length": dataset.texts.tokenizer.length}
    return {name: value for name, value in own.items() if value is not None}


def _status(options, text: str):
    if options.json or options.verbose == 0 or not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)
