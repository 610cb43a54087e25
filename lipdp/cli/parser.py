"""Command-line parser."""

import argparse
import difflib
import sys
from typing import Any

from lipdp.cli import shared_options, train_options

# What other tools and papers call an option.
_ELSEWHERE = {
    "--target": "--label",
    "--lr": "--learning-rate",
    "--n": "--num-examples",
    "--persons": "--person-column",
    "--person-ids": "--person-column",
    "--sigma": "--noise-multiplier",
    "--steps": "--updates",
}


class Finished(Exception):
    """Parsing ended the command: help was shown, or the arguments were wrong."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message):
        text = " ".join(message.split()).rstrip(".")
        stop = "" if text.endswith("?") else "."
        sys.stderr.write(f"{self.prog}: error: {text}{stop} See {self.prog} --help.\n")
        raise Finished(2)

    def exit(self, status=0, message=None):
        if message:
            sys.stderr.write(message)
        raise Finished(status)


def parse(argv: list[str]) -> argparse.Namespace:
    """Returns the options of one command.

    Args:
        argv: arguments after `lipdp`.

    Returns:
        A namespace with `command` and the options of that command.

    Raises:
        Finished: help or the version was printed (code 0), or the arguments were wrong (code 2, one line written).
    """
    parser, commands = _parsers(argv)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        command = commands[options.command]
        known = [word for action in command._actions for word in action.option_strings]
        word = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
        begun = [option for option in known if len(word) > 3 and option.startswith(word)]
        meant = _ELSEWHERE.get(word)
        close = [meant] if meant in known else begun or difflib.get_close_matches(word, known)
        close.sort(key=lambda option: sorted(option) != sorted(word))  # swapped letters, as in --lable, not --table
        if not word.startswith("-") and getattr(options, "dataset", word) is None:
            close = [f"--dataset {word}"]
        command.error(f"unknown argument {word!r}" + (f". Did you mean {close[0]}?" if close else ""))
    return options


def chosen(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns some of the options, by name."""
    return {name: getattr(options, name) for name in names}


def _parsers(argv: list[str]) -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(prog="lipdp", description="Differentially private, robustness-certified training.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    builders = {
        "train": (
            train_options.add,
            "train a private classifier, diffusion, language or regression model and write a run folder",
        ),
        "epsilon": (_epsilon, "epsilon of a training run"),
        "calibrate": (_calibrate, "noise multiplier for a budget"),
        "group": (_group, "epsilon for groups of examples, such as all those of one person"),
        "plan": (_planning, "any one of epsilon, noise, epochs and batch size from the other three"),
        "images": (_images, "read folders of image files, at one size, into a .npz file"),
        "features": (_features, "compute the outputs of a frozen network for a data set, once, as a .npz file"),
        "table": (_table, "write the description of a .csv file, to be filled in"),
        "audit": (_audit, "a lower bound on epsilon by experiment, beside the stated one"),
        "certify": (_certify, "certified accuracy of a trained model"),
        "predict": (_predict, "classes of new examples, or numbers, as a .csv file"),
        "export": (_export, "a trained model in stock layers, which loads without lipdp"),
        "sample": (_sample, "draw images from a private diffusion model, or texts from a language model"),
        "report": (_report, "rebuild the report of a run folder"),
    }
    parsers = {}
    for name, (build, text) in builders.items():
        description = (
            f"{train_options.TRAIN}\n\n{train_options.DIFFUSION}"
            if name == "train"
            else f"{text[0].upper()}{text[1:]}."
        )
        parsers[name] = commands.add_parser(
            name,
            help=text,
            description=description,
            usage="%(prog)s --dataset NAME|FILE --epsilon EPSILON [options]" if name == "train" else None,
            epilog=train_options.EXAMPLES if name == "train" else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in argv:  # the others' options would cost an import of the accounting
            build(parsers[name])
        parsers[name].add_argument("--json", action="store_true", help="write JSON to standard output, nothing else")
    return parser, parsers


def _plan(parser):
    add = parser.add_argument
    add("--sampling-probability", type=float, help="expected batch size / number of examples")
    add("--batch-size", type=int, help="expected batch size, with --num-examples")
    add("--num-examples", type=int, help="number of training examples")
    add("--updates", type=int, help="number of noisy updates")
    add("--epochs", type=int, help="instead of --updates")
    add("--delta", type=float, default=1e-5, help="default: 1e-5")
    shared_options.sampled(parser.add_argument)


def _group(parser):
    from lipdp import accounting

    grouped = [name for name, scheme in accounting.SCHEMES.items() if scheme.group_relations]
    add = parser.add_argument
    add("sizes", type=int, nargs="+", metavar="K", help="group sizes")
    add("--noise-multiplier", type=float, required=True, help="noise over sensitivity")
    add("--updates", type=int, required=True, help="number of noisy updates")
    add("--delta", type=float, default=1e-5, help="default: 1e-5")
    add("--sampling-probability", type=float, help="expected batch size / number of examples")
    add("--batch-size", type=int, help="instead, with --num-examples; fixed_size needs them")
    add("--num-examples", type=int, help="number of examples; for fixed_size those WITHOUT the group")
    add("--sampler", default="poisson", choices=grouped, help=shared_options.SAMPLER)
    add(
        "--accountant", default="pld", choices=accounting.names(), help="default: pld, which groups under sampling need"
    )


def _planning(parser):
    add = parser.add_argument
    add("--num-examples", type=int, required=True, help="number of training examples")
    add("--epsilon", type=float, help="the budget; give three of the next four, the fourth is found")
    add("--noise-multiplier", type=float, help="noise over sensitivity")
    add("--epochs", type=int, help="of ceil(N / B) updates each")
    add("--batch-size", type=int, help="expected batch size")
    add("--delta", type=float, default=1e-5, help="default: 1e-5")
    shared_options.sampled(parser.add_argument)
    add("--model", metavar="FILE", help="a compiled .keras model: also its signal-to-noise ratio, from its bounds")
    add("--output", metavar="DIR", help="write plan.json and plots as .svg files")


def _epsilon(parser):
    parser.add_argument("--noise-multiplier", type=float, required=True, help="noise over sensitivity")
    _plan(parser)


def _calibrate(parser):
    add = parser.add_argument
    add("--epsilon", type=float, help="the budget; or one of the next two")
    add("--advantage", type=float, help="instead, how far the true positive rate of attacks may be above the false one")
    add("--tpr", type=float, help="instead, the largest true positive rate at --fpr")
    add("--fpr", type=float, help="false positive rate of --tpr")
    _plan(parser)


def _images(parser):
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="a folder of images, or of one folder for each class")
    names = "PUBLIC list of the folders that are classes; left out: images without classes, for lipdp predict"
    add("--classes", nargs="+", metavar="CLASS", help=names)
    add("--size", type=int, nargs="+", metavar="PIXELS", required=True, help="height and width, or one number for both")
    add("--color", choices=("rgb", "grayscale"), default="rgb", help="default: rgb")
    add("--skip-broken", action="store_true", help="leave out files that cannot be read; default: an error")
    add("--output", metavar="FILE", required=True, help="a .npz file, for --dataset of lipdp train")
    add("--overwrite", action="store_true", help="replace --output")


def _features(parser):
    add = parser.add_argument
    add("--backbone", metavar="FILE|PRESET", required=True, help=shared_options.BACKBONE)
    add("--dataset", metavar="NAME|FILE", required=True, help=shared_options.DATASET)
    shared_options.described(add)
    add("--output", metavar="FILE", required=True, help="a .npz file, which lipdp train --dataset reads")
    add("--overwrite", action="store_true", help="replace --output")


def _certify(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--dataset", metavar="NAME|FILE", help=f"default: that of the run folder; {shared_options.DATASET}")
    shared_options.described(add)
    add("--person-column", metavar="COLUMN", help="column of a .csv file that says whose each row is; no model sees it")
    add("--backbone", metavar="FILE|PRESET", help=shared_options.MOVED)
    add("--radii", type=float, nargs="+", default=[0.1, 0.5, 1.0], metavar="R", help="default: 0.1 0.5 1.0")


def _audit(parser):
    from lipdp import accounting

    add = parser.add_argument
    add(
        "target",
        metavar="RUN_OR_RECIPE",
        help="a run folder or a .keras file: its strategy, sampler and noise; clipless, dpsgd, adaclip or dpis: one "
        "that is yet to run, both on a network of the audit's own; accurate or robust: this recipe, on --dataset",
    )
    add("--epsilon", type=float, help="budget, where no run says it")
    add("--delta", type=float, help="default: 1e-5, or the power of ten below 1 / N if that is less")
    add("--sampling", choices=accounting.SAMPLERS, help="default: poisson")
    add("--sampling-probability", type=float, help="expected batch size / number of rows; default: 0.5")
    add("--updates", type=int, help="updates of one run of the audit; default: 4, or those of the run, at most 2000")
    add("--runs", type=int, help="how many runs to observe; default: 300, or as many as take 2000 updates")
    add("--canaries", type=int, help="how many; default: 256, of dpis 2048, of a run 512, in a data set 200")
    add("--dataset", metavar="NAME|FILE", help=f"of a recipe; {shared_options.DATASET}")
    add("--strategy", choices=("clipless", "dpsgd", "adaclip", "dpis"), help="of a recipe; default: that of the recipe")
    add("--confidence", type=float, default=0.95, help="of the lower bound; default: 0.95")
    add("--seed", type=int, help="repeatable")
    add("--output", metavar="FILE", help="write a plot, .svg, .png or .pdf")


def _table(parser):
    add = parser.add_argument
    add("file", metavar="FILE", help="a .csv file")
    add("--label", metavar="COLUMN", help="column of classes, or of the number to predict; default: the last")
    help = "regression: the label is a number to predict, whose range is to be filled in; default: classifier"
    add("--task", choices=("classifier", "regression"), default="classifier", help=help)
    add("--no-header", action="store_true", help='the file has no column names; they are then "0", "1", ...')
    add("--person-column", metavar="COLUMN", help="column that says whose each row is: no model will see it")
    add("--output", metavar="FILE", help="default: the .json of the same name beside it")
    add("--overwrite", action="store_true", help="replace --output")


def _predict(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--data", required=True, metavar="FILE", help="a .csv file with the columns of the run, or a .npz file with x")
    add("--table", metavar="FILE", help="description of the .csv file; default: that of the run")
    add(
        "--keep",
        nargs="+",
        metavar="COLUMN",
        help="columns of the .csv file, such as ids, or arrays of the .npz file, such as files, that the output begins "
        "with",
    )
    add("--backbone", metavar="FILE|PRESET", help=shared_options.MOVED)
    add("--batch-size", type=int, default=256, help="examples at once; default: 256")
    add(
        "--output",
        required=True,
        metavar="FILE",
        help="a .csv file: class, certified radius where there is one, logits; or the prediction of a number",
    )
    add("--overwrite", action="store_true", help="replace --output")


def _export(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--output", required=True, metavar="DIR", help="a new folder: model, privacy statement, description of a table")
    add("--format", choices=("keras", "saved_model"), default="keras", help="default: keras, a .keras file")


def _sample(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--num", type=int, default=100, help="how many to draw; default: 100")
    add("--prompt", metavar="TEXT", help="of a language model: what each text begins with")
    add("--temperature", type=float, help="of a language model: below 1 texts are more alike; default: 1")
    add("--labels", type=int, nargs="+", metavar="ID", help="what to draw, taken in turn; default: all classes in turn")
    add("--sampler", choices=("ddim", "stochastic", "churn"), help="default: that of the run, else ddim")
    add("--steps", type=int, help="noise levels of the sampler; default: those of the run, else 50")
    add("--guidance", type=float, help="scale of classifier-free guidance; default: that of the run, else 0")
    add("--batch-size", type=int, default=256, help="images at once; default: 256")
    add("--seed", type=int, help="repeatable; costs no privacy")
    add("--output", required=True, metavar="FILE", help="images: .npz with x (8-bit) and y, or .png; texts: .jsonl")
    add("--overwrite", action="store_true", help="replace --output")


def _report(parser):
    parser.add_argument("run", metavar="RUN", help="a run folder")


def _version() -> str:
    import lipdp

    return f"lipdp {lipdp.__version__}"
