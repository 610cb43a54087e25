"""What several rules need."""

import contextlib

from keras import ops

from lipdp.gradients.factors import Whole


def without(layer, *names):
    """Hides attributes of a layer: `call` then stops before its activation, or leaves out a scale."""
    return replaced(layer, **dict.fromkeys(names))


@contextlib.contextmanager
def replaced(layer, **values):
    """Puts other values in the place of attributes of a layer."""
    before = {name: layer.__dict__[name] for name in values}
    try:
        layer.__dict__.update(values)
        yield
    finally:
        layer.__dict__.update(before)


def before_activation(layer, call, *args, **kwargs):
    """Runs a layer up to its activation; returns that and the activation."""
    activation = layer.activation
    with without(layer, "activation"):
        outputs = call(*args, **kwargs)
    return outputs, (lambda z: z) if activation is None else activation


def bias(rows, g, variable):
    """Returns the factor of a variable that was added, broadcast, to what has the cotangent `g`."""
    return variable, Whole(rows.summed(g, tuple(variable.shape)))


def plain(layer) -> bool:
    """Whether the weights of a layer are used as they are: neither quantized nor with low-rank additions."""
    return not adapted(layer) and not_quantized(layer)


def adapted(layer) -> bool:
    """Whether a layer has low-rank additions (`enable_lora`)."""
    return getattr(layer, "lora_enabled", False)


def additions(layer, kind: str = "kernel"):
    """Returns the factor of a layer's low-rank addition and its two matrices, or None for them."""
    if not adapted(layer):
        return 1.0, None
    a, b = (ops.convert_to_tensor(getattr(layer, f"lora_{kind}_{part}")) for part in "ab")
    return layer.lora_alpha / layer.lora_rank, (a, b)


def not_quantized(layer) -> bool:
    return getattr(layer, "quantization_mode", None) is None
