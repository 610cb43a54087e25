"""Options that several commands have, and the words on them."""

from collections.abc import Callable

DATASET = "digits (no network), mnist, fashion_mnist, cifar10 (from the folder in LIPDP_DATA, else through \
Keras), or a .npz or .csv file of your own"

DESCRIPTION = """JSON description of a .csv file: ranges, vocabularies and classes that are PUBLIC; default: the .json
of the same name beside it, if there is one; see lipdp table"""

LABEL = "column of classes, or of the number to predict, of a .csv file without a description; default: the last"

RANGES = """instead of a description, JSON file of PUBLIC ranges of a table's columns, as {"age": [0, 120]}, mapped to
[-1, 1]; never computed from the private rows"""

SAMPLER = """how batches are drawn, and accounted for; default: poisson. shuffle and fixed_order are not amplified"""
SAMPLING = SAMPLER + "; random_allocation has each row once per epoch, and is amplified"
PERSON = "state epsilon for a person with at most K rows; default: 1"
PERSON_COLUMN = """column of a .csv or .jsonl file that says whose each row is: persons are drawn and protected, and
whole persons held out; no model sees it"""

BACKBONE = (
    """a network trained on PUBLIC data: a .keras file, or a preset of keras_hub by name (downloaded) or folder"""
)
MOVED = "where the backbone of the run is now; default: where it was"


def described(add: Callable) -> None:
    """Adds what says how to read a table."""
    add("--table", metavar="FILE", help=DESCRIPTION)
    add("--label", metavar="COLUMN", help=LABEL)
    add("--no-header", action="store_true", help='the .csv file has no column names; they are then "0", "1", ...')
    add("--feature-ranges", metavar="FILE", help=RANGES)


def sampled(add: Callable, option: str = "--sampler") -> None:
    """Adds who is in a batch, and how that is accounted for."""
    from lipdp import accounting

    add("--accountant", default="pld", choices=accounting.names(), help="default: pld, the tight one")
    add(option, default="poisson", choices=accounting.SAMPLERS, help=SAMPLING)
    add("--examples-per-person", type=int, default=1, metavar="K", help=PERSON)
