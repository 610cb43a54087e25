"""Datasets that are read into memory: `tf.data.Dataset` and `keras.utils.PyDataset`."""

import warnings
from typing import Any

import keras
import numpy as np
from keras import tree

from lipdp import checks
from lipdp.sampling.pipelines import elements_in_memory, refuse_repeated
from lipdp.sampling.together import refuse_by_others, refuse_mixing

_TOGETHER = 1024  # single examples of `tf.data` that are read at once
PAD = (
    "pad examples to one size, a public number (keras.utils.pad_sequences(x, maxlen=200); without `maxlen` the longest "
    "row says how long all are), and let `Embedding(mask_zero=True)` or `Masking` hide the padding; make sparse arrays "
    "dense."
)


def is_dataset(x: Any) -> bool:
    """Returns whether training data are a dataset that is read into memory."""
    return isinstance(x, keras.utils.PyDataset) or (hasattr(x, "as_numpy_iterator") and hasattr(x, "cardinality"))


def read_dataset(dataset: Any, example_rank: int, labeled: bool = True) -> tuple:
    """Returns what a dataset yields, all of it: inputs and labels, and weights where there are some.

    Args:
        dataset: As `x` in `arrays.as_arrays`.
        example_rank: As in `arrays.as_arrays`.
        labeled: Whether there must be labels; without, inputs alone are a tuple of one.

    Raises:
        ValueError: unknown size, rows that stand in it several times, another number of elements.
    """
    if isinstance(dataset, keras.utils.PyDataset):
        return _read(dataset, _items(dataset), labeled)
    return _read_tf_data(dataset, example_rank, labeled)


def batch_size_of(x: Any, example_rank: int) -> int | None:
    """Returns the rows of the first batch of a dataset that yields batches; None where there are none.

    Args:
        x: As in `arrays.as_arrays`; of a dataset one batch is read.
        example_rank: As in `arrays.as_arrays`.
    """
    batch: Any = None
    if isinstance(x, keras.utils.PyDataset):
        batch = x[0] if _batches(x) else None
    elif hasattr(x, "as_numpy_iterator"):
        batch = next(iter(x.as_numpy_iterator()), None)
    leaves = tree.flatten(batch)
    if batch is None or not leaves or np.ndim(leaves[0]) < max(example_rank, 1):
        return None
    return len(leaves[0]) or None


def _items(dataset) -> list:
    """Returns all batches of a PyDataset, none of them in the memory of another one."""
    items, seen = [], set()
    for i in range(_batches(dataset)):
        items.append(tree.map_structure(_array, dataset[i]))
        places = {leaf.ctypes.data for leaf in _arrays(items[-1])}
        if places & seen:
            # It writes all batches into one array: each would be the last one, whose rows would stand there many times.
            copied = (tree.map_structure(_copy, dataset[j]) for j in range(_batches(dataset)))
            return list(copied)
        seen |= places
    return items


def _array(leaf: Any) -> Any:
    return leaf if leaf is None else np.asarray(leaf)


def _copy(leaf: Any) -> Any:
    return leaf if leaf is None else np.array(leaf)


def _arrays(item: Any) -> list[np.ndarray]:
    return [leaf for leaf in tree.flatten(item) if leaf is not None and leaf.size]


def _batches(dataset) -> int:
    count = dataset.num_batches
    if count is None:
        raise ValueError("The PyDataset must have a known length. Received: num_batches=None.")
    return count


def _read_tf_data(dataset, example_rank, labeled):
    size = int(dataset.cardinality())
    if size < 0:
        way = "Remove `.repeat()`"
        if size != -1:
            way = (
                "Declare its number of elements, which is that of batches where it is batched: "
                "dataset.apply(tf.data.experimental.assert_cardinality(number))"
            )
        raise ValueError(
            "Poisson sampling needs a dataset of known, finite size, and reads all of it into memory. Received: a "
            f"tf.data.Dataset of cardinality {size}. {way}; for data larger than memory pass an object with `__len__` "
            "and `__getitem__` (docs/howto/large-data.md)."
        )
    refuse_repeated(dataset)
    refuse_mixing(dataset, example_rank)
    refuse_by_others(dataset, example_rank)
    shapes = [getattr(spec, "shape", None) for spec in tree.flatten(dataset.element_spec)]
    if all(shape is not None and shape.is_fully_defined() for shape in shapes) and shapes[0].rank < example_rank:
        items = list(dataset.batch(_TOGETHER).as_numpy_iterator())  # one by one takes 0.2 ms for each
    else:
        items = list(dataset.as_numpy_iterator())
    if items and np.ndim(tree.flatten(items[0])[0]) < example_rank:
        items = [tree.map_structure(lambda leaf: np.asarray(leaf)[None], item) for item in items]
    rows, elements = sum(len(tree.flatten(item)[0]) for item in items), elements_in_memory(dataset)
    if elements is not None and rows > elements:
        warnings.warn(
            f"A tf.data.Dataset makes {rows} rows of {elements} elements: what is protected is a row. If it should be "
            "an element, leave out what makes several rows of one, as copies to augment (there is "
            "DPSGD(augmentation_multiplicity=...)), or say whose each row is with person_ids=.",
            stacklevel=checks.users_line(),
        )
    return _read(dataset, items, labeled)


def _read(dataset, items, labeled):
    if not items:
        raise ValueError(f"The {type(dataset).__name__} is empty.")
    # As in Keras, None stands for no weights.
    items = [item[:2] if isinstance(item, tuple) and len(item) == 3 and item[2] is None else item for item in items]
    if not labeled:
        items = [item if isinstance(item, tuple) else (item,) for item in items]
    sizes = {len(item) if isinstance(item, tuple) else 1 for item in items}
    if len(sizes) > 1 or not sizes <= ({2, 3} if labeled else {1, 2, 3}):
        raise ValueError(
            "The dataset must yield (inputs, labels), or (inputs, labels, weights). Received: "
            f"{' or '.join(map(str, sorted(sizes)))} element{'' if sizes == {1} else 's'}."
        )
    try:
        return tree.map_structure(lambda *parts: np.concatenate([np.asarray(p) for p in parts]), *items)
    except ValueError as error:
        raise ValueError(f"The {type(dataset).__name__} yields examples of several shapes: {PAD}") from error
