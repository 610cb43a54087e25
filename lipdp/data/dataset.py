"""What a loader returns, and the two things that may be done to it before training."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lipdp import checks
from lipdp.accounting.held_out import held_out, held_out_persons
from lipdp.data.table import Table

if TYPE_CHECKING:
    from lipdp.data.text_columns import TextColumns

# Of classes that are read off the rows: more than these are no classes.
_MOST_CLASSES, _MANY_CLASSES = 100, 5


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Arrays for training and for measuring.

    Args:
        x_train: float32, `(N, height, width, channels)` in [0, 1] for images, `(N, columns)` for tables; int32
            `(N, length)` for texts.
        y_train: int32 class ids `(N,)`, from 0 to `num_classes - 1`; of `load_language` the next bytes `(N, length)`.
        x_test: like `x_train`, or None when nothing is held out.
        y_test: like `y_train`, or None.
        classes: label of each class id, as it stood in the source. Treated as public.
        name: short name.
        columns: names of a table's columns; None for images.
        table: description by which the rows of a file were encoded, and others can be; or None.
        texts: columns and tokenizer that the rows were made by, and others can be; or None.
        uncharged: what was read off the rows although it is treated as public; no epsilon covers it.
        person_ids: whose each row of `x_train` is, texts `(N,)`; None where that is not known.
        person_ids_test: the same of `x_test`.
        handwritten: whether each image is known to be one character written by hand, bright on a ground of 0.
        unscaled: whether images came in another type than uint8, and were taken as they are.

    **Guarantee.**
    Conditions: none.
    Bound: no example of `x_train` was changed in view of another one: images are divided by the constant 255,
    tables are as they were in the file, or encoded by a public description, texts by a tokenizer that is one.
    Not covered: what `uncharged` names; the list of classes, the column names and the number of rows, which are taken
    to be public.

    Example:
        >>> import numpy as np
        >>> data = Dataset(np.zeros((3, 2), "float32"), np.array([0, 1, 1]), None, None, ("no", "yes"), "toy")
        >>> data.num_classes, data.num_examples, data.is_table
        (2, 3, True)
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    classes: tuple
    name: str
    columns: tuple[str, ...] | None = None
    table: Table | None = None
    uncharged: tuple[str, ...] = ()
    person_ids: np.ndarray | None = None
    person_ids_test: np.ndarray | None = None
    texts: "TextColumns | None" = None
    handwritten: bool = False
    unscaled: bool = False

    def __repr__(self) -> str:
        """Returns sizes alone, as a notebook keeps what it shows."""
        held_out = 0 if self.y_test is None else len(self.y_test)
        return (
            f"Dataset({self.name!r}: {self.num_examples} examples of shape {self.input_shape}, "
            f"{self.num_classes} classes, {held_out} held out)"
        )

    @property
    def num_classes(self) -> int:
        """Returns the number of classes."""
        return len(self.classes)

    @property
    def num_examples(self) -> int:
        """Returns the number of training examples."""
        return len(self.y_train)

    @property
    def num_persons(self) -> int | None:
        """Returns the number of persons with training examples, where it is known whose each row is."""
        return None if self.person_ids is None else len(np.unique(self.person_ids))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one example."""
        return self.x_train.shape[1:]

    @property
    def is_table(self) -> bool:
        """Returns whether one example is a row of a table."""
        return self.x_train.ndim == 2 and self.texts is None

    def held_out(self, fraction: float) -> "Dataset":
        """Returns the data set with a part of the training rows as its test part, in place of any other.

        A row is held out or not by a fixed hash of its own values and label, whatever the other rows are: a row more or
        less in the file is then a row more or less in one part, and epsilon keeps its meaning. A random
        permutation, or a cut at a fixed share, would move other rows as well. With `person_ids` the hash is that of
        a person's id, so that whole persons are held out.

        Args:
            fraction: expected fraction of the rows, or persons, to hold out, in (0, 1).

        Returns:
            A `Dataset`; the held-out rows are in no training batch and not in `num_examples`.

        Raises:
            ValueError: when the fraction is out of range or leaves one part empty.
        """
        fraction = checks.fraction("fraction", fraction)
        ids = self.person_ids
        if ids is None:
            labels = _codes(self.classes)[self.y_train] if self.classes else self.y_train
            out = held_out([self.x_train, labels], fraction)
        else:
            out = held_out_persons(ids, fraction)
        if out.all() or not out.any():
            raise ValueError(
                f"The held-out fraction leaves one part empty. Received: {fraction!r} of {self.num_examples} rows. "
                "Rows that are equal stay together. Pass another fraction or more data."
            )
        x, y = self.x_train, self.y_train
        whose = {} if ids is None else {"person_ids": ids[~out], "person_ids_test": ids[out]}
        return dataclasses.replace(self, x_train=x[~out], y_train=y[~out], x_test=x[out], y_test=y[out], **whose)


def _codes(classes: Sequence) -> np.ndarray:
    """Returns a number for each class that follows from its label alone; its id depends on the labels of other rows."""
    texts = [str(int(label) if isinstance(label, (bool, np.bool_)) else label) for label in classes]
    return np.array(
        [
            int(text) if text.isascii() and text.isdigit() and len(text) < 8 else zlib.crc32(text.encode()) % 2**24
            for text in texts
        ],
        "float32",
    )


def class_ids(labels: np.ndarray, source: str) -> tuple[np.ndarray, tuple]:
    """Returns int32 ids and the sorted labels they stand for.

    Args:
        labels: whole numbers, booleans or strings, shape `(N,)` or `(N, 1)`.
        source: where they come from, for messages.

    Returns:
        `(ids, classes)`; labels that already are 0 .. C - 1 stay as they are.

    Raises:
        ValueError: when the shape is another one, a label is missing or not a whole number, or there is one class.

    Example:
        >>> ids, classes = class_ids(np.array(["cat", "dog", "cat"]), "toy")
        >>> ids.tolist(), classes
        ([0, 1, 0], ('cat', 'dog'))
    """
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"Labels must be one class per row. Received: an array of shape {labels.shape} in {source}. For one-hot "
            "rows, pass y.argmax(axis=1); for rows of several classes docs/howto/tables.md names a loss."
        )
    labels = as_texts(labels, source)
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            missing = int((~np.isfinite(labels)).sum())
            raise ValueError(f"{missing} of {len(labels)} labels in {source} are missing. Remove these rows.")
        # Beyond 2^53 floats tell whole numbers no longer apart.
        wrong = labels[(labels != np.round(labels)) | (np.abs(labels) > 2.0**53)]
        if len(wrong):
            raise ValueError(
                f"Labels must be classes. Received: numbers such as {float(wrong[0])!r} in {source}. "
                "Name the column of classes (--label, in Python label=), or bin the numbers into classes at public "
                "thresholds. For a number to predict give its public range (--target-range, in Python target_range=): "
                "docs/howto/regression.md."
            )
        labels = labels.astype("int64")
    elif labels.dtype.kind not in "biuU":
        raise ValueError(f"Labels must be whole numbers or strings. Received: dtype {labels.dtype} in {source}.")
    classes, ids = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"A classifier needs at least two classes. Received: {len(classes)} in {source}.")
    return ids.astype("int32"), tuple(value.item() for value in classes)


def check_few(classes: Sequence, count: int, source: str, todo: str, numbered: bool = False) -> None:
    """Refuses values that are hardly classes: all of them are written into the description, as public.

    Args:
        classes: the values that occur.
        count: number of rows.
        source: where they come from, for messages.
        todo: what to do instead.
        numbered: whether they are numbers from 0 without a gap, which repeat nothing of the rows: of these there may be
            more.
    """
    many = not numbered and len(classes) > _MOST_CLASSES
    if many or len(classes) > max(_MANY_CLASSES, count / 2):
        raise ValueError(
            f"{source} holds too many values to take for public classes. Received: more than "
            f"{'' if numbered else f'{_MOST_CLASSES}, or more than '}half as many as rows. {todo}"
        )


def as_texts(labels: np.ndarray, source: str) -> np.ndarray:
    """Returns labels of bytes, as h5py writes texts, as texts: JSON, which names the classes of a run, has no bytes."""
    if labels.dtype.kind != "S":
        return labels
    try:
        return np.char.decode(labels, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Labels of bytes must be texts in UTF-8. Received: {error} in {source}. Save them as texts."
        ) from error
