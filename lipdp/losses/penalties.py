"""Penalties on weights, `kernel_regularizer` and the like: their gradient joins the update behind the noise."""

import numbers
from typing import Any

import keras
from keras import ops

_KNOWN = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
# What each reads when it is called: another attribute of this name is not its own.
_READ = dict(zip(_KNOWN, (("l1",), ("l2",), ("l1", "l2")), strict=True))


def check(variable: Any) -> None:
    """Refuses a weight with a regularizer whose gradient is not known, or whose factor a step would not follow."""
    regularizer = variable.regularizer
    if not variable.trainable or regularizer is None:
        return
    if type(regularizer) not in _KNOWN:
        name = getattr(regularizer, "__name__", type(regularizer).__name__)
        raise ValueError(
            f"Weight '{variable.path}' has a regularizer other than L1, L2 and L1L2 of Keras, whose gradient is added "
            f"after the noise. Received: {name}. Use one of these, or leave it out, as lipdp.fix(model) does in a "
            "copy where the layer is one of Keras' own, and use `weight_decay` of the optimizer."
        )
    for name in _READ[type(regularizer)]:
        factor = getattr(regularizer, name)
        # L1 of Keras makes a tensor of a number.
        tensor = ops.is_tensor(factor) and not hasattr(factor, "assign") and tuple(factor.shape) == ()
        if not (tensor or isinstance(factor, numbers.Real)):
            raise ValueError(
                f"The regularizer of weight '{variable.path}' has a factor that is no number; a step that was compiled "
                f"keeps the one it began with. Received: {name}={type(factor).__name__}. Set a float, and another one "
                "between two calls of `fit`."
            )


def is_known(config: Any) -> bool:
    """Returns whether a configuration is that of a regularizer that `add` knows."""
    kind = config.get("class_name") if isinstance(config, dict) else None
    return kind in [known.__name__ for known in _KNOWN] and config.get("module") == "keras.regularizers"


def others(layer: keras.layers.Layer, losses: list) -> int:
    """Returns how many of the losses of a layer or a model are no penalties on its weights."""
    return len(losses) - sum(v.regularizer is not None for v in layer.trainable_weights)


def refuse_additional(model: keras.Model, losses: list) -> None:
    """Refuses losses of a model that are no penalties on its weights: no bound and no clipping covers them."""
    added = others(model, losses)
    if added:
        raise ValueError(
            f"Additional losses (`add_loss`) have no sensitivity bound. Received: {added} of them. Leave them out; "
            "return what one is computed from as an output with a loss of its own (docs/training.md)."
        )


def described(model: keras.Model) -> list:
    """Returns place, L1 and L2 factor of each weight that has a penalty."""
    variables = enumerate(model.trainable_weights)
    return [[place, *_factors(v.regularizer)] for place, v in variables if v.regularizer is not None]


def add(gradients: list, variables: list) -> list:
    """Returns noisy gradients with those of the penalties on their weights.

    **Guarantee.** What is added follows from weights, which follow from earlier noisy gradients: post-processing.
    """
    return [g if v.regularizer is None else g + _gradient(v) for g, v in zip(gradients, variables, strict=True)]


def _gradient(variable):
    weight = ops.convert_to_tensor(variable.value)
    l1, l2 = _factors(variable.regularizer)
    return l1 * ops.sign(weight) + 2.0 * l2 * weight


def _factors(regularizer) -> list[float]:
    return [float(getattr(regularizer, name)) if name in _READ[type(regularizer)] else 0.0 for name in ("l1", "l2")]
