"""Per-example losses that know the largest norm of their gradient."""

from lipdp.losses.base import Loss
from lipdp.losses.binary_crossentropy import BinaryCrossentropy
from lipdp.losses.categorical_crossentropy import CategoricalCrossentropy
from lipdp.losses.class_weight import check_class_weight, check_weighted_labels, class_factors
from lipdp.losses.cosine_similarity import CosineSimilarity
from lipdp.losses.endings import endings
from lipdp.losses.huber import Huber
from lipdp.losses.mean_absolute_error import MeanAbsoluteError
from lipdp.losses.multiclass_hinge import MulticlassHinge
from lipdp.losses.multiclass_hkr import MulticlassHKR
from lipdp.losses.multiclass_kr import MulticlassKR
from lipdp.losses.per_example import label_check, limited_values, resolve
from lipdp.losses.per_output import OutputLosses, Untrained, check_per_example, example_values, parts
from lipdp.losses.registry import get, of_places
from lipdp.losses.sparse_categorical_crossentropy import SparseCategoricalCrossentropy

__all__ = ["BinaryCrossentropy", "CategoricalCrossentropy", "CosineSimilarity", "Huber", "Loss", "MeanAbsoluteError"]
__all__ += ["MulticlassHKR", "MulticlassHinge", "MulticlassKR", "SparseCategoricalCrossentropy"]
__all__ += ["OutputLosses", "check_per_example", "endings", "example_values", "get", "label_check", "limited_values"]
__all__ += ["check_class_weight", "check_weighted_labels", "class_factors", "of_places", "parts"]
__all__ += ["Untrained", "resolve"]
