"""What several rules need."""

import contextlib

from lipdp.gradients.factors import Whole


@contextlib.contextmanager
def without(layer, *names):
    """Hides attributes of a layer: `call` then stops before its activation, or leaves out a scale."""
    before = {name: layer.__dict__[name] for name in names}
    try:
        layer.__dict__.update(dict.fromkeys(names))
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
    return not getattr(layer, "lora_enabled", False) and getattr(layer, "quantization_mode", None) is None
