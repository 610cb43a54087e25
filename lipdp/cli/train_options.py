"""The options of `lipdp train`."""

import argparse
from collections.abc import Callable

from lipdp.cli import shared_options

TRAIN = """Train a differentially private classifier and write a run folder.

Files: .npz holds x, y or x_train, y_train[, x_test, y_test]; .csv has a header, features and one column of classes, or
of a number to predict (--task regression).
8-bit images are divided by the constant 255. Tables are encoded by a public description of their columns (--table),
which lipdp table begins. Without one all features must be numbers, and the classes are those that occur, which epsilon
does not cover; where there are enough rows, ranges of the columns are released with noise as part of the budget, else
numbers are taken as they are. Each row is clipped to an L2 norm (--input-norm); columns are then normalized by mean
and standard deviation, which are released in the same way. The number of rows is treated as public."""

DIFFUSION = """With --task diffusion: a generative model of labeled images, trained with DP-SGD; lipdp sample draws
from it. With --task regression: a number of a table. With --task text: a classifier of texts. With --task language: a
model that writes texts, byte by byte; lipdp sample draws from it as well."""

EXAMPLES = """examples:
  lipdp train --dataset digits --epsilon 4
  lipdp train --dataset mnist --epsilon 2 --output runs/mnist
  lipdp train --dataset mnist --epsilon 2 --strategy clipless        # with certificates
  lipdp table people.csv --label ill                       # fill in people.json, then
  lipdp train --dataset people.csv --epsilon 2 --validation-split 0.2
  lipdp train --dataset houses.csv --label price --target-range 0 1000000 --epsilon 2
  lipdp train --task text --dataset said.csv --text said --label mood --epsilon 4 --validation-split 0.2
  lipdp train --task language --dataset said.csv --text said --epsilon 8 --validation-split 0.1
  lipdp train --task diffusion --dataset digits --epsilon 10 --output runs/images"""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `lipdp train`."""
    group = _group_of(parser, "data")
    group("--dataset", metavar="NAME|FILE", help=f"required; {shared_options.DATASET}")
    shared_options.described(group)
    group(
        "--target-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="of a .csv file without a description, PUBLIC range of the number to predict, in its unit; never "
        "computed from the private rows",
    )
    group("--person-column", metavar="COLUMN", help=shared_options.PERSON_COLUMN)
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
    shared_options.sampled(group, "--sampling")
    help = "the most rows of a person in an update, with --person-column; default: 8"
    group("--rows-per-person", type=int, metavar="K", help=help)
    group(
        "--seed", type=int, help="repeatable; epsilon then holds only against people who can neither know nor guess it"
    )
    group("--noise-generator", choices=("threefry", "chacha20"), default="threefry", help="the second is cryptographic")
    group("--training-metrics", action="store_true", help="also log loss and accuracy on the private data: NOT private")

    group = _group_of(parser, "model and training")
    group(
        "--task",
        default="classifier",
        choices=("classifier", "diffusion", "language", "regression", "text"),
        help="default: classifier; regression predicts a number of a table, and is the default where its range is "
        "given",
    )
    group("--epochs", type=int, help="default: by the budget")
    group("--batch-size", type=int, help="EXPECTED batch size; default: by the number of examples")
    # The second name is that of earlier versions.
    names = "--microbatch-size", "--physical-batch-size"
    group(*names, type=int, help="rows in memory at once; default: the whole batch, or by the recipe")
    group("--learning-rate", type=float, help="at the start, falls to zero (wrn: constant); default: by the recipe")
    group("--clip-norm", type=float, help="of strategies that clip, and of a diffusion model; default: 1")

    group = _group_of(parser, "classifiers")
    group(
        "--strategy",
        choices=("clipless", "dpsgd", "adaclip", "dpis"),
        help="default: dpsgd for tables, texts and larger sets of images, else clipless, which needs no gradients of "
        "single examples and has networks of its own, with certificates",
    )
    group(
        "--recipe",
        choices=("accurate", "robust", "wrn", "head", "linear", "attention"),
        help="default: accurate; robust trades accuracy for larger certified radii; wrn is a wide residual network for "
        "images, made for a GPU, by dpsgd and without certificates; head is for rows that lipdp features has written, "
        "and the default with --backbone. Of texts: linear, the default, or attention, which sees the order of "
        "the words",
    )
    group(
        "--front-end",
        choices=("accurate", "robust"),
        help="of images: fixed wavelets (layers.Scattering2D) with these weights, then a linear layer, all that "
        "is trained; on larger sets accurate has the features of the default recipe, and no certificates, "
        "and it does not go with --recipe robust; default: none",
    )
    group("--backbone", metavar="FILE|PRESET", help=f"train a head on the features of {shared_options.BACKBONE}")
    group("--input-norm", type=float, help="public L2 norm that each example is clipped to; default: by its size")
    group("--radius", type=float, metavar="R", help="that the robust recipe aims at, from 0 to 1; default: 0.5")
    group(
        "--radii",
        type=float,
        nargs="+",
        metavar="R",
        help="to certify, of clipless and robust networks; default: 0.1 0.5 1.0",
    )

    group = _group_of(parser, "texts and language models")
    group("--text", metavar="COLUMN", help="required; column of texts of a .csv or .jsonl file; also --label")
    group(
        "--vocabulary",
        metavar="FILE",
        help="PUBLIC words or parts of words, one a line; default: runs of 4 bytes, or words, by a fixed hash",
    )
    group(
        "--length",
        type=int,
        help="bytes, or words, that are kept of a text; default: 512 bytes, 128 words, 128 bytes of a language "
        "model; with --backbone tokens, default: 128, or what it takes if that is less",
    )
    group(
        "--classes", nargs="+", metavar="CLASS", help="PUBLIC; default: those that occur, which epsilon does not cover"
    )

    group = _group_of(parser, "diffusion models")
    group(
        "--preset",
        metavar="NAME",
        help="size of the network: small, cpu-14, cpu-28, dpdm-28 or dpdm-32; default: cpu-28 for images of "
        "28 x 28 x 1, else small; cpu-14 halves their sides",
    )
    group("--multiplicity", type=int, metavar="K", help="noises per image and update; default: 1")

    group = _group_of(parser, "output")
    group("--output", metavar="DIR", help="run folder, new or empty; default: runs/<dataset>-<time>")
    group("--overwrite", action="store_true", help="replace an earlier run in --output, once the new one is whole")
    group("--resume", metavar="DIR", help="go on with the unfinished run of this folder, with the settings it has")
    group(
        "--verbose",
        type=int,
        choices=(0, 1, 2),
        help="Keras' progress: 0 silent, 1 bar, 2 one line per epoch; default: 1, or without a terminal a line "
        "every tenth of the epochs",
    )


def _group_of(parser, title: str) -> Callable:
    """Returns the function that adds options under a title."""
    return parser.add_argument_group(title).add_argument
