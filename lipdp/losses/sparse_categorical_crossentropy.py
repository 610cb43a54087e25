"""Cross-entropy of a softmax, for class ids."""

from lipdp import _keras
from lipdp.losses import labels
from lipdp.losses.categorical_crossentropy import CategoricalCrossentropy


@_keras.serializable
class SparseCategoricalCrossentropy(CategoricalCrossentropy):
    """`CategoricalCrossentropy` with labels given as class ids.

    Args:
        temperature: factor on the logits, above 0.
        clip: optional L2 norm of each example's gradient at the logits, see `lipdp.losses.Loss`.
        **kwargs: `reduction`, `name` and `dtype`, see `lipdp.losses.Loss`.

    Raises:
        ValueError: if an argument is out of its range.

    Labels: whole numbers in `[0, C)`, shape `(batch,)` or `(batch, 1)`, C >= 2.

    **Guarantee.** `exact_lipschitz` is sqrt(2): ids are one-hot labels, and the supremum of
    `CategoricalCrossentropy` is reached on those. An id outside `[0, C)` is refused by `check_labels`; in
    `call` it is a row of zeros, which has no gradient.

    Example:
        >>> from lipdp import losses
        >>> loss = losses.SparseCategoricalCrossentropy(temperature=8.0)
        >>> round(loss.lipschitz(10), 4)
        1.4142
        >>> round(float(loss([1], [[0.0, 0.0]])), 4)  # log(2) / 8
        0.0866
    """

    accepts = (labels.id_targets, labels.check_ids)
