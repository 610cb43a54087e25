"""Which options of `lipdp train` go together."""

import argparse

from lipdp import checks
from lipdp.cli import evaluation, language, regression, text

_LARGEST_SEED = 2**32 - 1
# Options that not all tasks have, and those that do.
_TEXTS = ("text", "language")
_ONLY = {
    **dict.fromkeys(("front_end", "radii", "radius"), ("classifier",)),
    **dict.fromkeys(("input_norm", "table", "feature_ranges"), ("classifier", "regression")),
    "target_range": ("regression",),
    **dict.fromkeys(("preset", "multiplicity"), ("diffusion",)),
    **dict.fromkeys(("vocabulary", "classes"), ("text",)),
    **dict.fromkeys(("text", "length"), _TEXTS),
    "recipe": ("classifier", "text"),
    **dict.fromkeys(("person_column", "rows_per_person", "strategy"), ("classifier", "regression", *_TEXTS)),
    "backbone": ("classifier", *_TEXTS),  # of which the last one says what to do instead
}
# Of `--recipe`.
_CLASSIFIERS, _TEXT_RECIPES = ("accurate", "robust", "wrn", "head"), ("linear", "attention")
# Of a network of stock layers on the pixels of images, which has no Lipschitz constant.
_NOT_OF_WRN = {
    "front_end": "A wide residual network is a front end of its own, and all of it is trained.",
    "backbone": "A wide residual network reads images, not the features of another network.",
    "table": "A wide residual network reads images, not the columns of a table.",
    "feature_ranges": "A wide residual network reads images, not the columns of a table.",
    "person_column": "A wide residual network reads images, not the columns of a table.",
    "input_norm": "A wide residual network bounds no norm of an image.",
    "radii": "A wide residual network has no Lipschitz constant, so it certifies nothing.",
}


def check(options: argparse.Namespace) -> None:
    """Checks the options by themselves, before anything slow begins."""
    if options.dataset is None:
        raise ValueError("These options are required: --dataset, or --resume for a run that was begun. Pass one.")
    if options.epsilon is None and options.noise_multiplier is None:
        raise ValueError(
            "No privacy budget given. Received: neither --epsilon nor --noise-multiplier. Pass --epsilon 2, for "
            "example."
        )
    _check_task(options)
    given = {name: value for name, value in vars(options).items() if value is not None}
    for name, value in given.items():
        if name in ("epsilon", "noise_multiplier", "learning_rate", "input_norm", "clip_norm"):
            checks.positive(name, value)
        if name in ("epochs", "batch_size", "microbatch_size", "multiplicity", "rows_per_person"):
            checks.integer(name, value, minimum=1)
    if options.delta is not None:
        checks.delta(options.delta)
    split = options.validation_split
    if split is not None and not 0.0 < split < 1.0:
        raise ValueError(
            f"--validation-split must be a number in (0, 1). Received: --validation-split {split}. Pass 0.2, for "
            "example, or leave it out."
        )
    _check_persons(options)
    if options.seed is not None and not 0 <= options.seed <= _LARGEST_SEED:
        raise ValueError(f"`seed` must be an integer from 0 to {_LARGEST_SEED}. Received: seed={options.seed}.")


def _check_persons(options) -> None:
    if options.person_column is None and options.rows_per_person is not None:
        raise ValueError(
            "Whose rows are counted is not known. Received: --rows-per-person without --person-column. Pass the column "
            "as well."
        )
    if options.person_column is not None and options.examples_per_person != 1:
        raise ValueError(
            "Epsilon is that of a person whatever number of rows they have. Received: --person-column and "
            "--examples-per-person, which is for rows whose persons are not known. Leave the second one out; "
            "--rows-per-person bounds what a person brings into an update."
        )


def _check_task(options) -> None:
    """Refuses options of other tasks, and sets the defaults of this one."""
    if options.task == "classifier" and (options.target_range is not None or regression.is_described(options)):
        options.task = "regression"
    for name, tasks in _ONLY.items():
        if options.task not in tasks and getattr(options, name) is not None:
            hint = " The classes of a table stand in its description, which `lipdp table` begins."
            raise ValueError(
                f"An option of another task. Received: --{name.replace('_', '-')} with --task {options.task}. It is "
                f"for --task {checks.either(tasks)}: pass that task, or leave the option out."
                + (hint if name == "classes" and options.task == "classifier" else "")
            )
    _check_recipe(options)
    if options.task == "text":
        text.check(options)
    if options.task == "regression":
        regression.check(options)
    if options.task == "language":
        language.check(options)
    if options.strategy == "dpis" and (options.epsilon is None or options.noise_multiplier is not None):
        raise ValueError(
            "DPIS chooses its noise anew in each epoch, from what is left of a budget. Received: --strategy dpis "
            "without --epsilon, or with --noise-multiplier. Pass --epsilon alone."
        )
    if options.task == "classifier":
        options.recipe = options.recipe or "accurate"
        clip_norm(options)
        if options.radius is not None and options.recipe != "robust":
            raise ValueError(
                "What certificates should reach is a setting of the robust recipe. Received: --radius "
                f"{options.radius} with --recipe {options.recipe}. Pass --recipe robust; --radii are those reported."
            )
        if options.front_end == "accurate" and options.recipe == "robust":
            raise ValueError(
                "The front end 'accurate' is made for accuracy; what it certifies is small, or nothing. Received: "
                "--front-end accurate with --recipe robust. Pass --front-end robust, or leave --front-end out."
            )
        evaluation.check_radii(options.radii or ())
        if options.recipe == "wrn":
            _check_wide_resnet(options)


def _check_recipe(options) -> None:
    """Refuses the recipe of another task."""
    own, others = _CLASSIFIERS, _TEXT_RECIPES
    if options.task == "text":
        own, others = others, own
    if options.recipe in others:
        raise ValueError(
            f"A recipe of another task. Received: --recipe {options.recipe} with --task {options.task}. Pass --recipe "
            f"{checks.either(own)}{'' if options.task == 'text' else ', or --task text'}."
        )


def _check_wide_resnet(options) -> None:
    """Refuses what a network of stock layers, trained on pixels by DP-SGD, has no use for."""
    for name, why in _NOT_OF_WRN.items():
        if getattr(options, name) is not None:
            raise ValueError(
                f"{why} Received: --{name.replace('_', '-')} with --recipe wrn. Leave one of them out: the default "
                "recipe takes it, or says what does."
            )
    if options.strategy not in (None, "dpsgd"):
        raise ValueError(
            "The recipe wrn averages views of each image before it clips, at settings that are those of DP-SGD. "
            f"Received: --strategy {options.strategy} with --recipe wrn. Leave one of them out."
        )


def clip_norm(options: argparse.Namespace) -> None:
    """Refuses a clip norm where nothing is clipped."""
    if options.strategy == "clipless" and options.clip_norm is not None:
        raise ValueError(
            "Nothing is clipped per example. Received: --clip-norm with --strategy clipless. It is for --strategy "
            "dpsgd, adaclip and dpis and for --task diffusion; leave it out."
        )
