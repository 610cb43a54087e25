"""What `tf.data` pipelines do with rows: whether they repeat them, and whether each keeps its place."""

import dataclasses
import itertools
import math
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

from keras import tree

from lipdp import _keras
from lipdp.backend import pipelines

# Kinds of `tf.data.Dataset` that leave out no row of what they are made of, but for those behind the last full batch.
_ALL_ROWS = frozenset(
    "Map Batch Unbatch Rebatch Restructured Cache Prefetch Shuffle Concatenate Options AssertCardinality".split()
)
# Kinds that leave each row at its place, from the first on.
IN_STEP = frozenset("Map Cache Prefetch Options AssertCardinality Take".split())
# Kinds whose function says which rows there are, and not only what becomes of one.
_READING = frozenset("FlatMap Interleave".split())
# Operations that take a part of a data set.
_PARTS = re.compile(r"(Shard|Skip|Take|TakeWhile|Filter|Window)Dataset")
RANDOM = re.compile(r"Random(?!SeedGenerator)|Rng|Multinomial|^Stateful(Uniform|Standard|Truncated)")
# Python that returns a data set: `tf.data` runs functions so in its debug mode.
PYTHON, _VARIANT = ("PyFunc", "EagerPyFunc", "PyFuncStateless"), 21


def refuse_repeated(dataset: Any) -> None:
    """Refuses a `tf.data.Dataset` in which rows stand several times."""
    found = next((reason for stage in stages(dataset) if (reason := _repeats(stage))), None)
    if found is not None:
        raise ValueError(
            "Rows that stand in the data several times are protected less than epsilon says. Received: a "
            f"tf.data.Dataset with {found}. Remove it, "
            "and pass epochs=; cut a series into windows with numpy.lib.stride_tricks.sliding_window_view, and say "
            "whose each is with person_ids= (docs/howto/time-series.md); copies to augment are those of "
            "DPSGD(augmentation_multiplicity=...). If they are meant, pass arrays and examples_per_person=."
        )
    same = _same_arrays(dataset)
    if _doubles(dataset, same):
        raise ValueError(
            "Rows that stand in the data several times are protected less than epsilon says. Received: a "
            "tf.data.Dataset with `.concatenate()` of the same rows, or a choice between them. Leave one of them out; "
            "copies to augment are those of DPSGD(augmentation_multiplicity=...), and for rare classes there is "
            "class_weight=. If they are meant, pass arrays and examples_per_person=."
        )
    if _pairs_with_others(dataset, same):
        raise ValueError(
            "Rows that have a part in several rows are protected less than epsilon says. Received: a tf.data.Dataset "
            "with `.zip()` of rows and other rows of the same data set. Zip before anything that moves or leaves out "
            "rows (`.shuffle()`, `.skip()`, `.batch()`, `.filter()`); to pair rows, cut the data into disjoint pairs. "
            "If rows are to stand in several, pass arrays and examples_per_person=."
        )


def elements_in_memory(dataset: Any) -> int | None:
    """Returns of how many elements in memory functions make the rows of a `tf.data.Dataset`; None where it is unknown.

    File names are not counted: one may stand for many rows.
    """
    every = list(stages(dataset))
    ends = [stage for stage in every if not _keras.dataset_sources(stage.dataset)]
    # `.unbatch()` of arrays alone brings a function that only passes them on.
    made = any(node.op not in ("Placeholder", "Identity") for stage in every for node in stage.own)
    if not made or any(stage.kind != "TensorSlice" for stage in ends):
        return None
    if any(spec.dtype == "string" for stage in ends for spec in tree.flatten(stage.dataset.element_spec)):
        return None
    return _elements(dataset)


def _elements(dataset) -> int:
    counts = [_elements(source) for source in _keras.dataset_sources(dataset)] or [int(dataset.cardinality())]
    return min(counts) if kind_of(dataset) == "Zip" else sum(counts)


def has_rows_of(dataset: Any, other: Any) -> bool:
    """Returns whether a `tf.data.Dataset` is made of another one, or of arrays of which the other one has all rows."""
    if not all(hasattr(one, "as_numpy_iterator") for one in (dataset, other)):
        return False
    whole = _wholly(other)
    return any(id(one) in whole and (one is other or kind_of(one) == "TensorSlice") for one in behind(dataset))


def labeled_by(dataset: Any, name: str) -> Any:
    """Returns a `tf.data.Dataset` of dictionaries as one of `(inputs, labels)`; `name` is that of the labels."""
    columns = dataset.element_spec
    if not isinstance(columns, dict) or name not in columns or len(columns) < 2:
        found = f"the columns {', '.join(map(repr, columns))}" if isinstance(columns, dict) else "no dictionaries"
        raise ValueError(
            "`y` may name the labels in a tf.data.Dataset of dictionaries. Received: "
            f"y={name!r}, and {found}. Pass one of the columns, or leave y out where it yields (inputs, labels)."
        )
    names = [other for other in columns if other != name]
    only = names[0] if len(names) == 1 else None

    def pair(row):
        return ({other: row[other] for other in names} if only is None else row[only]), row[name]

    return dataset.map(pair)


def refuse_shuffled(x: Any) -> None:
    """Refuses a `tf.data.Dataset` that is shuffled where it matters which row stands where."""
    if not hasattr(x, "as_numpy_iterator"):
        return
    found = next((reason for stage in stages(x) if (reason := _moves(stage))), None)
    # Of the whole pipeline: an option that is set at its end is that of all before.
    if found is None and hasattr(x, "options") and x.options().deterministic is False:
        found = "the option `deterministic=False`"
    if found is not None:
        raise ValueError(
            "Ids of persons, `sample_weight`, and epochs in which each example takes part once go by the places of the "
            f"rows, which must be the same each time the data are read. Received: a tf.data.Dataset with {found}. "
            "Remove it: `fit` draws at random by itself. Or have the pipeline yield ids or weights beside the rows, "
            "read all of it into arrays once (as_numpy_iterator), and pass these."
        )


@dataclasses.dataclass(frozen=True)
class Stage:
    """A data set of a pipeline.

    Args:
        dataset: It.
        own: Operations of its functions.
        outside: Operations of the data sets from outside that these functions use.
        unseen: Why some of it cannot be looked into; empty where all of it can.
    """

    dataset: Any
    own: list
    outside: list
    unseen: str

    @property
    def kind(self) -> str:
        return kind_of(self.dataset)

    def has(self, pattern: str | re.Pattern) -> bool:
        """Returns whether its functions, or what they use, hold an operation of some name."""
        return any(re.search(pattern, node.op) for node in (*self.own, *self.outside))


def _functions(dataset) -> list:
    """Returns the functions of a data set from its attributes: `_functions` of TensorFlow leaves some out."""
    return [value.function for value in vars(dataset).values() if hasattr(value, "function")]


def stages(dataset: Any) -> Iterator[Stage]:
    """Yields a data set and all that it is made of, with their functions."""
    own, outside, unseen = [], [], ""
    try:
        for function in _functions(dataset):
            nodes, others = pipelines.of_function(function)
            own, outside = own + nodes, outside + others
        if kind_of(dataset) == "Variant":
            outside = outside + pipelines.of_variant(_keras.dataset_variant(dataset))
    except (AttributeError, ValueError) as error:
        unseen = f"{type(error).__name__}: {error}"
    if any(node.op in PYTHON and _VARIANT in node.attr["Tout"].list.type for node in own):
        unseen = "Python that returns a data set, as in the debug mode of tf.data"
    yield Stage(dataset, own, outside, unseen)
    for source in _keras.dataset_sources(dataset):
        yield from stages(source)


def kind_of(dataset: Any) -> str:
    """Returns the name of a data set's class, without what says how it is run."""
    return type(dataset).__name__.strip("_").removeprefix("Parallel").removesuffix("Dataset")


def _repeats(stage: Stage) -> str | None:
    """Returns what of a stage repeats rows."""
    if "Repeat" in stage.kind:
        return "`.repeat()`, as timeseries_dataset_from_array of Keras has one inside"
    if stage.has(r"Repeat\w*Dataset"):
        return "`.repeat()` inside of a function"
    if stage.kind == "Window" and _overlap(*_keras.dataset_windows(stage.dataset)):
        return "`.window()` whose windows overlap"
    if stage.kind == "Scan" or stage.has("ScanDataset"):
        return "`.scan()`, whose state brings what one row says to all later ones"
    if stage.unseen:
        return f"a function that cannot be looked into ({stage.unseen})"
    parts = any(_PARTS.search(node.op) for node in stage.own)
    if stage.kind in _READING and stage.outside and not parts and not _single(stage.dataset):
        return f"{_called(stage)} that reads the whole of another data set for each element"
    return None


def _overlap(size: int, shift: int, stride: int) -> bool:
    """Returns whether a row stands in two of the windows: so many shifts are a whole number of strides within one."""
    return shift // math.gcd(shift, stride) < size


def _single(dataset) -> bool:
    """Returns whether the function of a stage gets one element."""
    return [int(source.cardinality()) for source in _keras.dataset_sources(dataset)] == [1]


def _moves(stage: Stage) -> str | None:
    """Returns what of a stage may bring rows to another place."""
    if "Shuffle" in stage.kind:
        return "`.shuffle()`"
    if stage.has("Shuffle"):
        return "`.shuffle()` inside of a function"
    nodes, unseen = [*stage.own, *stage.outside], stage.unseen
    if type(stage.dataset).__name__.startswith("_ParallelInterleave"):  # alone keeps no note of it
        try:
            nodes += pipelines.of_variant(_keras.dataset_variant(stage.dataset))
        except ValueError as error:
            unseen = str(error)
    if getattr(stage.dataset, "_deterministic", "") == "false" or any(map(_unordered, nodes)):
        return "`deterministic=False`"
    if stage.kind == "DirectedInterleave" and _at_random(stage.dataset):
        return "`.sample_from_datasets()`"
    if stage.kind not in ("Map", "MapAndBatch") and stage.has(RANDOM):
        return f"{_called(stage)} that draws random numbers"
    if stage.has("OptionsDataset"):
        return "`.with_options()` inside of a function"
    if unseen:
        return f"a function that cannot be looked into ({unseen})"
    return None


def _unordered(node) -> bool:
    return "deterministic" in node.attr and node.attr["deterministic"].s == b"false"


def _called(stage: Stage) -> str:
    """Returns the name of the method that makes such a data set."""
    return f"a `.{re.sub(r'(?<!^)(?=[A-Z])', '_', stage.kind).lower()}()`"


def _at_random(dataset) -> bool:
    """Returns whether chance says from which of several data sets the next row is."""
    choice = _keras.dataset_sources(dataset)[:1]
    return any("Random" in stage.kind or stage.has(RANDOM) for one in choice for stage in stages(one))


def _same_arrays(dataset) -> dict[int, int]:
    """Returns, for each data set of the arrays that an earlier one in the pipeline has too, the identity of that one.

    Keras' examples make two of the same arrays for mixup. Which arrays are the same their largest ones say: labels may
    be so by chance.
    """
    same: dict[int, int] = {}
    arrays: dict[int, Any] = {}
    for one in behind(dataset):
        if kind_of(one) != "TensorSlice" or id(one) in arrays or id(one) in same:
            continue
        held = pipelines.largest_of(one)
        first = next((key for key, other in arrays.items() if pipelines.equal(held, other)), None)
        if first is None:
            arrays[id(one)] = held
        else:
            same[id(one)] = first
    return same


def _doubles(dataset, same: dict[int, int]) -> bool:
    """Returns whether a dataset, or what it is made of, holds all of another one and, beside that, rows of it again."""
    parts, kind = _keras.dataset_sources(dataset), kind_of(dataset)
    # The first of several from which is chosen says which.
    beside = parts if kind == "Concatenate" else parts[1:] if kind == "DirectedInterleave" else ()
    for one, other in itertools.permutations(beside, 2):
        if _wholly(one, same) & _all_behind(other, same):
            return True
    return any(_doubles(part, same) for part in parts)


def _pairs_with_others(dataset, same: dict[int, int]) -> bool:
    """Returns whether a dataset, or what it is made of, zips rows with other rows of the same data set."""
    parts = _keras.dataset_sources(dataset)
    if kind_of(dataset) == "Zip":
        for one, other in itertools.combinations(parts, 2):
            shared = _all_behind(one, same) & _all_behind(other, same)
            if shared and not _in_step(one, same) & _in_step(other, same):
                return True
    return any(_pairs_with_others(part, same) for part in parts)


def _in_step(dataset, same: dict[int, int]) -> set[int]:
    """Returns the datasets, itself among them, whose n-th row is what the n-th row of one is made of."""
    moves = kind_of(dataset) not in IN_STEP or getattr(dataset, "_deterministic", "") == "false"
    behind = [] if moves else [_in_step(source, same) for source in _keras.dataset_sources(dataset)]
    return {same.get(id(dataset), id(dataset))}.union(*behind)


def _all_behind(dataset, same: dict[int, int]) -> set[int]:
    """Returns from which datasets, itself among them, the rows of one come, all or some."""
    return {same.get(id(one), id(one)) for one in behind(dataset)}


def behind(dataset: Any) -> Iterator[Any]:
    """Yields a data set and all that it is made of."""
    yield dataset
    for source in _keras.dataset_sources(dataset):
        yield from behind(source)


def _wholly(dataset, same: Mapping[int, int] = types.MappingProxyType({})) -> set[int]:
    """Returns which datasets, itself among them, one holds with all rows."""
    kept = _keras.dataset_sources(dataset) if kind_of(dataset) in _ALL_ROWS else ()
    return {same.get(id(dataset), id(dataset))}.union(*(_wholly(source, same) for source in kept))
