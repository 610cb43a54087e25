"""Per-example losses that know the largest norm of their gradient."""

from lipdp.losses.base import Loss as Loss
from lipdp.losses.binary_crossentropy import BinaryCrossentropy as BinaryCrossentropy
from lipdp.losses.categorical_crossentropy import CategoricalCrossentropy as CategoricalCrossentropy
from lipdp.losses.cosine_similarity import CosineSimilarity as CosineSimilarity
from lipdp.losses.huber import Huber as Huber
from lipdp.losses.mean_absolute_error import MeanAbsoluteError as MeanAbsoluteError
from lipdp.losses.multiclass_hinge import MulticlassHinge as MulticlassHinge
from lipdp.losses.multiclass_hkr import MulticlassHKR as MulticlassHKR
from lipdp.losses.multiclass_kr import MulticlassKR as MulticlassKR
from lipdp.losses.per_example import check_per_example as check_per_example
from lipdp.losses.per_example import example_values as example_values
from lipdp.losses.per_example import refuse_additional as refuse_additional
from lipdp.losses.per_example import resolve as resolve
from lipdp.losses.registry import get as get
from lipdp.losses.sparse_categorical_crossentropy import (
    SparseCategoricalCrossentropy as SparseCategoricalCrossentropy,
)
