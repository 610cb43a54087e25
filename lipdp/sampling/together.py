"""What `tf.data` pipelines do with several rows at once, where one may decide about others."""

import re
from collections.abc import Iterator
from typing import Any

from keras import tree

from lipdp import _keras
from lipdp.backend import pipelines
from lipdp.sampling.pipelines import IN_STEP, PYTHON, RANDOM, Stage, behind, kind_of, stages

# Kinds whose elements are batches where those are that they are made of.
_KEEP_BATCHES = IN_STEP | frozenset("Shuffle Skip Shard Filter Concatenate Repeat Restructured IgnoreErrors".split())
# Kinds that leave out elements by what they hold, and kinds that choose by place.
_BY_CONTENT, _BY_PLACE = frozenset("Filter IgnoreErrors Unique".split()), frozenset("Take Skip Shard".split())
# Operations that make rows of a batch as long as its longest, and what a function batches so.
_TO_LONGEST, _BATCHES_TO_LONGEST = re.compile("RaggedTensorToTensor|SparseToDense"), re.compile("PaddedBatchDataset")
# Operations that keep what a row says, in a table or a variable; in integers, random generators of Keras count.
_TO_TABLE, _TO_VARIABLE = re.compile("LookupTableInsert"), re.compile(r"^(Assign\w*VariableOp|ResourceScatter\w+)$")
_COUNTS = frozenset((3, 9, 22, 23))  # int32, int64, uint32, uint64


def refuse_mixing(dataset: Any, example_rank: int = 0) -> None:
    """Refuses a `tf.data.Dataset` with a function of batches that brings a row into several, where a trial shows it.

    The trial is on made-up batches: whether data are refused does not depend on what is in them.

    Args:
        dataset: It.
        example_rank: Rank of a batch of inputs; 0 where it is not known.
    """
    batched, ends = dict(_batches_of(dataset, example_rank)), dict(_batches_of(dataset, example_rank, told=False))
    for stage in stages(dataset):
        if _keeps(stage):
            raise ValueError(
                "Rows that have a part in several rows are protected less than epsilon says. Received: a "
                f"tf.data.Dataset with a `.{stage.kind.lower()}()` that writes what rows hold into a variable or a "
                "table, which later rows may read. Make of each row what follows from it alone; a vocabulary comes "
                "from public data."
            )
        sources, given = _keras.dataset_sources(stage.dataset), pipelines.own_functions(stage.dataset)
        if len(sources) != 1 or not given:
            continue
        groups = stage.kind == "GroupByWindow"
        function = stage.dataset._reduce_func._func if groups else given[0]
        known = stage.kind in ("Map", "FlatMap", "Interleave") and len(given) == 1 and batched[id(sources[0])]
        draws = bool(stage.unseen) or stage.has(RANDOM) or any(node.op in PYTHON for node in stage.own)
        tried = sources[0], function, stage.kind
        if (known or groups) and pipelines.mixes_rows(*tried, draws=draws):
            raise ValueError(
                "Rows that have a part in several rows are protected less than epsilon says. Received: a "
                f"tf.data.Dataset with a {_METHODS[stage.kind]} in which rows of a batch see each other, as in "
                "MixUp, CutMix, and where the mean of a batch is subtracted. Map rows one by one, before `.batch()`; "
                "to change images at random, put layers such as RandomFlip into the model. If rows are to stand in "
                "several, pass arrays and examples_per_person=."
            )
        # Where one element is made of a batch, as of the steps of a series, what is left out of it is of one example.
        of_rows = ends[id(stage.dataset)] or (stage.kind != "Map" and _makes_rows(stage.dataset, less=not groups))
        drops = groups and _drops(stage.own)  # which is refused for that
        if (known or groups) and of_rows and not (draws or drops) and pipelines.chooses_by_others(*tried):
            raise ValueError(
                "Which rows of a batch are kept would follow from those beside them, and one row more in front would "
                "bring others in and out in all batches behind it. Received: a tf.data.Dataset with a "
                f"{_METHODS[stage.kind]} that keeps some of rows that are all alike, as x[:8] does. Choose rows by "
                "what each alone says, by `.filter()` before `.batch()`; to train on fewer rows, pass a part of the "
                "arrays."
            )


_METHODS = {
    "Map": "`.map()` behind `.batch()`",
    "FlatMap": "`.flat_map()` behind `.batch()`",
    "Interleave": "`.interleave()` behind `.batch()`",
    "GroupByWindow": "`.group_by_window()`",
}


def _keeps(stage: Stage) -> bool:
    """Returns whether functions of a stage keep what a row says for those behind it."""
    if stage.has(_TO_TABLE):
        return True
    writes = (node for node in stage.own if _TO_VARIABLE.search(node.op))
    return any(node.attr["dtype"].type not in _COUNTS for node in writes)


def refuse_by_others(dataset: Any, example_rank: int = 0) -> None:
    """Refuses a `tf.data.Dataset` in which other rows say how long a row is, or whether it is there at all.

    Args:
        dataset: It.
        example_rank: Rank of a batch of inputs; 0 where it is not known.
    """
    batched = dict(_batches_of(dataset, example_rank))
    for stage in stages(dataset):
        if (found := _pads(stage)) is not None:
            raise ValueError(
                "Rows that are padded to the longest of their batch follow from that one, which would change all "
                f"others where it joins or leaves. Received: a tf.data.Dataset with {found}. Give them a public "
                "length: .padded_batch(32, padded_shapes=([200], [])), .to_tensor(shape=(None, 200)), or "
                "output_sequence_length=200 of TextVectorization; cut longer rows before."
            )
        if stage.kind == "TakeWhile" or stage.has("TakeWhileDataset"):
            raise ValueError(
                "One row would say whether all rows behind it are there. Received: a tf.data.Dataset with "
                "`.take_while()`. Say of each row alone whether it is there, by `.filter()`."
            )
        if _leaves_out(stage.dataset) or (stage.kind == "GroupByWindow" and _drops(stage.own)):
            raise ValueError(
                "Rows behind the last full batch would be left out, and one row more in front would bring another one "
                "out. Received: a tf.data.Dataset with `.batch(drop_remainder=True)`, and a number of rows that full "
                "batches do not hold, or that is not known. Leave it out: `fit` draws batches by itself."
            )
        sources = _keras.dataset_sources(stage.dataset)
        if stage.kind in ("Filter", "IgnoreErrors") and batched[id(sources[0])]:
            raise ValueError(
                "One row would say whether all others of its batch are there. Received: a tf.data.Dataset with "
                f"`{'.filter()' if stage.kind == 'Filter' else '.ignore_errors()'}` behind `.batch()`. Put it before "
                "`.batch()` (batch_size=None where Keras makes the data set), so that it says of each row alone "
                "whether it is there."
            )
        if stage.kind == "DirectedInterleave" and getattr(stage.dataset, "_stop_on_empty_dataset", False):
            raise ValueError(
                "Rows would be left out as soon as one of several data sets has no more of them, so that one row says "
                "whether several of the others are there. Received: a tf.data.Dataset with `sample_from_datasets` or "
                "`choose_from_datasets` and stop_on_empty_dataset=True. Pass stop_on_empty_dataset=False; for rare "
                "classes there is class_weight=."
            )
        if (found := _counts_what_is_left(stage.dataset)) is not None:
            raise ValueError(
                "Rows that are chosen or numbered by their place would be other ones where a row before them is left "
                f"out by what it holds. Received: a tf.data.Dataset with {found} behind `.filter()`, "
                f"`.ignore_errors()` or `.unique()`. Put {found} before these."
            )


def _pads(stage: Stage) -> str | None:
    """Returns what of a stage makes rows as long as the longest of a batch, where their length is not given."""
    specs = tree.flatten(stage.dataset.element_spec)
    if all(None not in (getattr(spec, "shape", None) or ())[1:] for spec in specs):
        return None
    if stage.kind == "PaddedBatch" or stage.has(_BATCHES_TO_LONGEST):
        return "`.padded_batch()`, or buckets of lengths, without padded shapes"
    of_batches = stage.kind == "MapAndBatch" or any(map(_batched, _keras.dataset_sources(stage.dataset)))
    return "a `.map()` behind `.batch()` that pads" if of_batches and stage.has(_TO_LONGEST) else None


def _leaves_out(dataset) -> bool:
    """Returns whether a data set of batches leaves out rows behind the last full one, as far as numbers are known."""
    drops, size = (_held(dataset, name) for name in ("_drop_remainder", "_batch_size"))
    if kind_of(dataset) == "Window" or not drops:
        return False
    counts = [int(source.cardinality()) for source in _keras.dataset_sources(dataset)]
    return not size or any(count < 0 or count % int(size) for count in counts)


def _drops(nodes: list) -> bool:
    """Returns whether a function batches with `drop_remainder`, as far as it is a constant."""
    true = {node.name for node in nodes if node.op == "Const" and any(node.attr["value"].tensor.bool_val)}
    batches = (node for node in nodes if "BatchDataset" in node.op)
    # An output of a constant is named after it, or with what comes behind a colon.
    return any(re.match(r"[^:]*", name)[0] in true for node in batches for name in node.input)  # type: ignore[index]


def _counts_what_is_left(dataset) -> str | None:
    """Returns what of a data set goes by the places of rows behind which others were left out by what they hold."""
    parts, kind = _keras.dataset_sources(dataset), kind_of(dataset)
    if not any(kind_of(one) in _BY_CONTENT for part in parts for one in behind(part)):
        return None
    if kind in _BY_PLACE:
        return f"`.{kind.lower()}()`"
    numbers = kind == "Zip" and any(_numbers(next(stages(part))) for part in parts)
    return "`.enumerate()`" if numbers else None


def _numbers(stage: Stage) -> bool:
    # `.enumerate()` wraps its range into another data set.
    return stage.kind == "Range" or (stage.kind == "Variant" and stage.has("RangeDataset"))


def _held(dataset, name: str) -> Any:
    """Returns an attribute of a data set, which `MapAndBatch` calls a little otherwise; None where there is none."""
    return getattr(dataset, name, getattr(dataset, f"{name}_t", None))


def _batched(dataset) -> bool:
    """Returns whether elements are batches of rows, as far as what made them tells."""
    kind = kind_of(dataset)
    if kind in ("Batch", "PaddedBatch", "Rebatch", "MapAndBatch"):
        return True
    return kind in _KEEP_BATCHES and any(map(_batched, _keras.dataset_sources(dataset)))


def _batches_of(dataset, example_rank: int, told: bool = True) -> Iterator[tuple[int, bool]]:
    """Yields the identity of each data set behind one, and whether its elements are batches of rows.

    What becomes of them tells it too: the model takes batches at the end, or `.unbatch()` makes rows of them.

    Args:
        dataset: It.
        example_rank: Rank of a batch of inputs; 0 where it is not known.
        told: Whether what made them counts beside that.
    """
    rank = _rank(dataset)
    yield from _down(dataset, bool(example_rank and rank is not None and rank >= example_rank), told)


def _down(dataset, by_end: bool, told: bool) -> Iterator[tuple[int, bool]]:
    yield id(dataset), by_end or (told and _batched(dataset))
    kind = kind_of(dataset)
    for source in _keras.dataset_sources(dataset):
        below = kind in ("Unbatch", "Rebatch") or (by_end and kind in _KEEP_BATCHES | {"Zip"})
        # One element that becomes rows holds all of them.
        below = below or (kind in ("FlatMap", "Interleave") and _makes_rows(dataset) and int(source.cardinality()) == 1)
        yield from _down(source, below and bool(_rank(source)), told)


def _makes_rows(dataset, less: bool = True) -> bool:
    """Returns whether elements have one axis less than those that they are made of, or as many."""
    of, made = (_rank(one) for one in (*_keras.dataset_sources(dataset), dataset))
    return of is not None and made is not None and of == made + less


def _rank(dataset) -> int | None:
    shape = getattr(next(iter(tree.flatten(dataset.element_spec)), None), "shape", None)
    return None if shape is None else shape.rank
