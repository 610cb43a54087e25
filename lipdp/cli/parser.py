"""Command-line parser."""

import argparse
import difflib
import sys
from typing import Any

_DATASET = "digits (no network), mnist, fashion_mnist, cifar10 (from the folder in LIPDP_DATA, else through \
Keras), or a .npz or .csv file of your own"

_TRAIN = """Train a differentially private, robustness-certified classifier and write a run folder.

Files: .npz holds x, y or x_train, y_train[, x_test, y_test]; .csv has a header, features and one column of classes.
8-bit images are divided by the constant 255. Tables are encoded by a public description of their columns (--table),
which lipdp table begins. Without one all features must be numbers and are taken as they are, and the classes are
those that occur, which epsilon does not cover. Each row is clipped to an L2 norm (--input-norm): nothing is
standardized with the private data, since means and standard deviations would cost privacy. The number of rows is
treated as public."""

_DIFFUSION = """With --task diffusion: a generative model of labeled images, trained with DP-SGD; lipdp sample draws
from it."""

_EXAMPLES = """examples:
  lipdp train --dataset digits --epsilon 4
  lipdp train --dataset mnist --epsilon 2 --output runs/mnist
  lipdp train --dataset mnist --epsilon 2 --strategy clipless        # with certificates
  lipdp table people.csv --label ill                       # fill in people.json, then
  lipdp train --dataset people.csv --epsilon 2 --validation-split 0.2
  lipdp train --task text --dataset said.csv --text said --label mood --epsilon 4 --validation-split 0.2
  lipdp train --task diffusion --dataset digits --epsilon 10 --output runs/images"""

_DESCRIPTION = """JSON description of a .csv file: ranges, vocabularies and classes that are PUBLIC; default: the .json
of the same name beside it, if there is one; see lipdp table"""

_RANGES = """instead of a description, JSON file of PUBLIC ranges of a table's columns, as {"age": [0, 120]}, mapped to
[-1, 1]; never computed from the private rows"""

_SAMPLING = """how batches are drawn, and accounted for; default: poisson. shuffle and fixed_order are not
amplified; random_allocation has each row once per epoch and is"""
_PERSON = "state epsilon for a person with at most K rows; default: 1"
_PERSON_COLUMN = """column of a .csv file that says whose each row is: persons are drawn and protected, and whole
persons held out; no model sees it"""

_BACKBONE = (
    """a network trained on PUBLIC data: a .keras file, or a preset of keras_hub by name (downloaded) or folder"""
)
_MOVED = "where the backbone of the run is now; default: where it was"


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
        close = difflib.get_close_matches(word, known, 1)
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
        "train": (_train, "train a private classifier or diffusion model and write a run folder"),
        "epsilon": (_epsilon, "epsilon of a training run"),
        "calibrate": (_calibrate, "noise multiplier for a budget"),
        "group": (_group, "epsilon for groups of examples, such as all those of one person"),
        "plan": (_planning, "any one of epsilon, noise, epochs and batch size from the other three"),
        "features": (_features, "what a frozen network makes of a data set, once, as a .npz file"),
        "table": (_table, "write the description of a .csv file, to be filled in"),
        "audit": (_audit, "a lower bound on epsilon by experiment, beside the stated one"),
        "certify": (_certify, "certified accuracy of a trained model"),
        "predict": (_predict, "classes of new examples, as a .csv file"),
        "export": (_export, "a trained model in stock layers, which loads without lipdp"),
        "sample": (_sample, "draw images from a private diffusion model"),
        "report": (_report, "rebuild the report of a run folder"),
    }
    parsers = {}
    for name, (build, text) in builders.items():
        description = f"{_TRAIN}\n\n{_DIFFUSION}" if name == "train" else f"{text[0].upper()}{text[1:]}."
        parsers[name] = commands.add_parser(
            name,
            help=text,
            description=description,
            usage="%(prog)s --dataset NAME|FILE --epsilon EPSILON [options]" if name == "train" else None,
            epilog=_EXAMPLES if name == "train" else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in argv:  # the others' options would cost an import of the accounting
            build(parsers[name])
        parsers[name].add_argument("--json", action="store_true", help="write JSON to standard output, nothing else")
    return parser, parsers


def _train(parser):
    group = _group_of(parser, "data")
    group("--dataset", metavar="NAME|FILE", help=f"required; {_DATASET}")
    _described(group)
    group("--person-column", metavar="COLUMN", help=_PERSON_COLUMN)
    group(
        "--validation-split",
        type=float,
        metavar="FRACTION",
        help="hold out this part of the training rows, or persons, to measure accuracy on; they are not in N, get no "
        "protection from epsilon, and take the place of the test part of the data set",
    )

    group = _group_of(parser, "privacy")
    group("--epsilon", type=float, help="budget: the noise is calibrated to spend it")
    group("--delta", type=float, help="default: 1e-5, or the power of ten below 1 / N if that is less")
    group("--noise-multiplier", type=float, help="noise instead of a budget, or, with a budget, until it is spent")
    _sampled(group, "--sampling")
    help = "the most rows of a person in an update, with --person-column; default: 8"
    group("--rows-per-person", type=int, metavar="K", help=help)
    group(
        "--seed", type=int, help="repeatable; epsilon then holds only against people who can neither know nor guess it"
    )
    group("--noise-generator", choices=("threefry", "chacha20"), default="threefry", help="the second is cryptographic")
    group("--training-metrics", action="store_true", help="also log loss and accuracy on the private data: NOT private")

    group = _group_of(parser, "model and training")
    group("--task", default="classifier", choices=("classifier", "diffusion", "text"), help="default: classifier")
    group("--epochs", type=int, help="default: by the budget")
    group("--batch-size", type=int, help="EXPECTED batch size; default: by the number of examples")
    # The second name is that of earlier versions.
    names = "--microbatch-size", "--physical-batch-size"
    group(*names, type=int, help="rows in memory at once; default: the whole batch")
    group("--learning-rate", type=float, help="at the start, falls to zero; default: by the recipe")
    group("--clip-norm", type=float, help="of strategies that clip, and of a diffusion model; default: 1")

    group = _group_of(parser, "classifiers")
    group(
        "--strategy",
        choices=("clipless", "dpsgd", "adaclip", "dpis"),
        help="default: dpsgd for larger sets of images, else clipless, which needs no gradients of single examples and "
        "has a network of its own there",
    )
    group(
        "--recipe",
        choices=("accurate", "robust"),
        help="default: accurate; robust trades accuracy for larger certified radii",
    )
    group(
        "--front-end",
        choices=("accurate", "robust"),
        help="of images: fixed wavelets (layers.Scattering2D) with these weights, then a linear layer, all that "
        "is trained; default: none",
    )
    group("--backbone", metavar="FILE|PRESET", help=f"train a head on the features of {_BACKBONE}")
    group("--input-norm", type=float, help="public L2 norm that each example is clipped to; default: by its size")
    group("--radius", type=float, metavar="R", help="that the robust recipe aims at, from 0 to 1; default: 0.5")
    group("--radii", type=float, nargs="+", metavar="R", help="to certify; default: 0.1 0.5 1.0")

    group = _group_of(parser, "texts")
    group("--text", metavar="COLUMN", help="required; column of texts of a .csv or .jsonl file; --label as well")
    group("--vocabulary", metavar="FILE", help="PUBLIC words or parts of words, one a line; default: runs of 4 bytes")
    group("--length", type=int, help="bytes, or words, that are kept of a text; default: 512 bytes, 128 words")
    group(
        "--classes", nargs="+", metavar="CLASS", help="PUBLIC; default: those that occur, which epsilon does not cover"
    )

    group = _group_of(parser, "diffusion models")
    group(
        "--preset",
        metavar="NAME",
        help="size of the network: small, cpu-14, cpu-28, dpdm-28 or dpdm-32; default: cpu-14 for images of "
        "28 x 28 x 1, whose sides it halves, else small",
    )
    group("--multiplicity", type=int, metavar="K", help="noises per image and update; default: 1")

    group = _group_of(parser, "output")
    group("--output", metavar="DIR", help="run folder, new or empty; default: runs/<dataset>-<time>")
    group("--overwrite", action="store_true", help="replace an earlier run in --output, once the new one is whole")
    group("--resume", metavar="DIR", help="go on with the unfinished run of this folder, with the settings it has")
    group("--verbose", type=int, choices=(0, 1, 2), help="Keras' progress: 0 silent, 1 bar, 2 one line per epoch")


def _group_of(parser, title: str):
    """Returns the function that adds options under a title."""
    return parser.add_argument_group(title).add_argument


def _described(add) -> None:
    add("--table", metavar="FILE", help=_DESCRIPTION)
    add("--label", metavar="COLUMN", help="column of classes of a .csv file without a description; default: the last")
    add("--no-header", action="store_true", help='the .csv file has no column names; they are then "0", "1", ...')
    add("--feature-ranges", metavar="FILE", help=_RANGES)


def _plan(parser):
    add = parser.add_argument
    add("--sampling-probability", type=float, help="expected batch size / number of examples")
    add("--batch-size", type=int, help="expected batch size, with --num-examples")
    add("--num-examples", type=int, help="number of training examples")
    add("--updates", type=int, help="number of noisy updates")
    add("--epochs", type=int, help="instead of --updates")
    add("--delta", type=float, default=1e-5, help="default: 1e-5")
    _sampled(parser.add_argument)


def _sampled(add, option="--sampler"):
    from lipdp import accounting

    add("--accountant", default="pld", choices=accounting.names(), help="default: pld, the tight one")
    add(option, default="poisson", choices=accounting.SAMPLERS, help=_SAMPLING)
    add("--examples-per-person", type=int, default=1, metavar="K", help=_PERSON)


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
    add("--sampler", default="poisson", choices=grouped, help=_SAMPLING)
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
    _sampled(parser.add_argument)
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


def _features(parser):
    add = parser.add_argument
    add("--backbone", metavar="FILE|PRESET", required=True, help=_BACKBONE)
    add("--dataset", metavar="NAME|FILE", required=True, help=_DATASET)
    _described(add)
    add("--output", metavar="FILE", required=True, help="a .npz file, which lipdp train --dataset reads")
    add("--overwrite", action="store_true", help="replace --output")


def _certify(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--dataset", metavar="NAME|FILE", help=f"default: that of the run folder; {_DATASET}")
    _described(add)
    add("--person-column", metavar="COLUMN", help="column of a .csv file that says whose each row is; no model sees it")
    add("--backbone", metavar="FILE|PRESET", help=_MOVED)
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
    add("--dataset", metavar="NAME|FILE", help=f"of a recipe; {_DATASET}")
    add("--strategy", choices=("clipless", "dpsgd", "adaclip", "dpis"), help="of a recipe; default: clipless")
    add("--confidence", type=float, default=0.95, help="of the lower bound; default: 0.95")
    add("--seed", type=int, help="repeatable")
    add("--output", metavar="FILE", help="write a plot, .svg, .png or .pdf")


def _table(parser):
    add = parser.add_argument
    add("file", metavar="FILE", help="a .csv file")
    add("--label", metavar="COLUMN", help="column of classes; default: the last one")
    add("--no-header", action="store_true", help='the file has no column names; they are then "0", "1", ...')
    add("--person-column", metavar="COLUMN", help="column that says whose each row is: no model will see it")
    add("--output", metavar="FILE", help="default: the .json of the same name beside it")
    add("--overwrite", action="store_true", help="replace --output")


def _predict(parser):
    add = parser.add_argument
    add("run", metavar="RUN_OR_MODEL", help="a run folder or a .keras file")
    add("--data", required=True, metavar="FILE", help="a .csv file with the columns of the run, or a .npz file with x")
    add("--table", metavar="FILE", help="description of the .csv file; default: that of the run")
    add("--backbone", metavar="FILE|PRESET", help=_MOVED)
    add("--batch-size", type=int, default=256, help="examples at once; default: 256")
    add("--output", required=True, metavar="FILE", help="a .csv file: class, certified radius, logits")
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
    add("--labels", type=int, nargs="+", metavar="ID", help="class ids, taken in turn; default: all classes in turn")
    add("--sampler", choices=("ddim", "stochastic", "churn"), help="default: that of the run, else ddim")
    add("--steps", type=int, help="noise levels of the sampler; default: those of the run, else 50")
    add("--guidance", type=float, help="scale of classifier-free guidance; default: that of the run, else 0")
    add("--batch-size", type=int, default=256, help="images at once; default: 256")
    add("--seed", type=int, help="repeatable; costs no privacy")
    add("--output", required=True, metavar="FILE", help=".npz with x (8-bit) and y, or a picture: .png")
    add("--overwrite", action="store_true", help="replace --output")


def _report(parser):
    parser.add_argument("run", metavar="RUN", help="a run folder")


def _version() -> str:
    import lipdp

    return f"lipdp {lipdp.__version__}"
