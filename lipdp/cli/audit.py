"""`lipdp audit`: a lower bound on epsilon by experiment, for a run, a strategy or a recipe."""

import argparse
import dataclasses
import math
import pathlib
from typing import Any

from lipdp.cli import datasets, output, quiet
from lipdp.cli.parser import chosen
from lipdp.report import numbers

STRATEGIES, RECIPES = ("clipless", "dpsgd", "adaclip", "dpis"), ("accurate", "robust")
# Updates of one audit of a run: enough to see something, in about half a minute.
_UPDATES = 2000
_OF_A_RUN = 512
_IN_DATA = 200


def run(options: argparse.Namespace, argv: list[str]) -> int:
    """Audits, writes what was found, and returns 1 where the lower bound exceeds the stated epsilon."""
    stated: dict[str, Any] | None = None
    if options.output is not None:
        _check_output(pathlib.Path(options.output))
    if options.target in RECIPES:
        found = _recipe(options)
    elif options.target in STRATEGIES:
        found = _strategy(options)
    else:
        found, stated = _run(options)
    written = None if options.output is None else _draw(pathlib.Path(options.output), found)
    if options.json:
        run = {} if stated is None else {"run": stated}
        output.write_json({**found.to_dict(), **run, "written": written})
    else:
        lines = [] if stated is None else [_beside(found, stated)]
        output.write(found.statement(), *lines, *([] if written is None else [f"Written: {written}"]))
    return int(found.flagged)


def _strategy(options) -> Any:
    """White box, on a network of the audit's own."""
    _refuse(options, "dataset", "strategy")
    if options.epsilon is None:
        raise ValueError(
            "`--epsilon` is required for the audit of a strategy. Received: none. Pass --epsilon 4, for example."
        )
    quiet.load_keras()
    from lipdp import audit

    return audit.white_box(options.target, epsilon=options.epsilon, delta=_delta(options), **_white_box(options))


def _run(options) -> tuple[Any, dict[str, Any]]:
    """White box, with strategy, sampler and noise of a run; and what the run itself states."""
    from lipdp.cli.certify import find, load

    if not pathlib.Path(options.target).exists():
        raise FileNotFoundError(
            f"There is no such run. Received: {options.target!r}. Pass a run folder, a .keras file, a strategy "
            f"({', '.join(STRATEGIES)}) or a recipe ({', '.join(RECIPES)})."
        )
    _refuse(options, "dataset", "strategy", "epsilon", "delta", "sampling", "sampling_probability")
    model = load(find(options.target)[0])
    plan, request = model.run.plan, model.run.request
    if plan is None or request is None:
        raise ValueError(f"The model has released nothing yet. Received: {options.target!r}. Train it first.")
    from lipdp import audit, strategies

    scheme, canaries = plan.sampling, options.canaries or _OF_A_RUN
    wanted = options.updates or min(plan.updates, _UPDATES)
    if scheme.by_epoch:
        wanted = max(1, wanted // scheme.updates_per_epoch) * scheme.updates_per_epoch
    runs = options.runs or max(1, _UPDATES // wanted)
    importance = isinstance(request.strategy, strategies.DPIS)
    strategy: Any = request.strategy
    if images := getattr(strategy, "augmentation", None) is not None:
        # The rows of the audit are no images: their copies stay alike.
        strategy = dataclasses.replace(strategy, augmentation=None)
    found = audit.white_box(
        strategy,
        epsilon=plan.epsilon if importance else None,
        noise_multiplier=None if importance else plan.noise_multiplier,
        delta=plan.delta,
        updates=wanted,
        sampling=scheme.name,
        sampling_probability=min(1.0, scheme.batch_size / scheme.num_examples),
        rows_per_person=scheme.rows_per_person,
        canaries=canaries,
        runs=1 if importance else runs,
        confidence=options.confidence,
        seed=options.seed,
    )
    stated = {"epsilon": model.privacy.epsilon(), "updates": model.privacy.updates}
    left_out: dict[str, Any] = {"augmentation_left_out": True} if images else {}
    releases = model.privacy.to_dict()["releases"]
    if moments := sum(release["count"] for release in releases if release["kind"] == "moments"):
        left_out["moments_left_out"] = moments
    return found, {**stated, "sampling_probability": scheme.sampling_probability, **left_out}


def _beside(found, stated: dict[str, Any]) -> str:
    """Says whose epsilon the audit holds its bound against, and what the run states."""
    audited, noise = found.details, "budget" if found.strategy == "dpis" else "noise"
    notes = " Copies of a row were alike: its augmentation was left out." if "augmentation_left_out" in stated else ""
    if moments := stated.get("moments_left_out"):
        notes += f" The {moments} noisy moments that the run released as well are left out, with their part of epsilon."
    if audited.get("runs") == 1 and found.strategy != "dpis" and not found.flagged:
        notes += " One run makes few trials, and keeps the bound low: --runs 8 takes 8 times as long, and finds more."
    return (
        f"The run states epsilon {numbers.epsilon(stated['epsilon'])}, for {stated['updates']} updates with sampling "
        f"probability {stated['sampling_probability']:.4g}. Audited were {audited['updates']} updates with "
        f"{audited['sampling_probability']:.4g}, the nearest that its rows allow, and the same {noise}: "
        f"{numbers.epsilon(found.epsilon)} is their epsilon.{notes}"
    )


def _recipe(options) -> Any:
    """One run on a data set, with canaries among its rows."""
    _refuse(options, "updates", "runs", "sampling_probability")
    if options.dataset is None or options.epsilon is None:
        raise ValueError(
            "`--dataset` and `--epsilon` are required for the audit of a recipe. Received: "
            f"--dataset {options.dataset}, --epsilon {options.epsilon}. Pass --dataset digits --epsilon 4, for example."
        )
    dataset = datasets.read(argparse.Namespace(**_NOTHING | vars(options)))
    quiet.load_keras()
    from lipdp import audit
    from lipdp.models import classifier

    recipe = classifier.classifier_recipe(
        *(dataset.input_shape, dataset.num_classes, dataset.num_examples, options.epsilon, options.target),
        method=options.strategy,
        row_norm=None if dataset.table is None else dataset.table.norm,
        rescaled=datasets.is_rescaled(
            argparse.Namespace(**_NOTHING | vars(options) | {"recipe": options.target}), dataset
        ),
        handwritten=dataset.handwritten,
    )
    batch_size = min(recipe.batch_size, dataset.num_examples)
    recipe = dataclasses.replace(recipe, batch_size=batch_size)
    return audit.one_run(
        lambda: recipe.build(dataset.num_examples),
        dataset.x_train,
        dataset.y_train,
        fit={
            "epsilon": options.epsilon,
            "delta": _delta(options, dataset.num_examples),
            "epochs": recipe.epochs,
            "batch_size": batch_size,
            "strategy": recipe.strategy(),
            "sampling": options.sampling or "poisson",
        },
        canaries=options.canaries or _IN_DATA,
        confidence=options.confidence,
        seed=options.seed,
    )


_NOTHING = {"table": None, "feature_ranges": None, "label": None, "no_header": False, "person_column": None}


def _delta(options, num_examples: int = 1) -> float:
    if options.delta is not None:
        return options.delta
    return min(1e-5, 10.0 ** -(math.floor(math.log10(num_examples)) + 1))


def _white_box(options) -> dict[str, Any]:
    given = chosen(options, "updates", "sampling", "sampling_probability", "canaries", "runs", "confidence", "seed")
    return {name: value for name, value in given.items() if value is not None}


def _refuse(options, *names: str) -> None:
    """Refuses options that this kind of audit does not look at."""
    for name in names:
        if getattr(options, name) is not None:
            raise ValueError(
                f"An option of another kind of audit. Received: --{name.replace('_', '-')} with {options.target!r}. "
                "Leave it out."
            )


def _check_output(path: pathlib.Path) -> None:
    """Refuses, before anything is trained, what no plot can be written to."""
    from matplotlib.backend_bases import FigureCanvasBase

    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder of the output does not exist. Received: --output {path}. Create it first.")
    if path.suffix[1:] not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f"Unsupported file extension. Received: --output {path}. Use .svg, .png or .pdf.")


def _draw(path: pathlib.Path, found) -> str:
    found.plot().savefig(path)
    return str(path)
