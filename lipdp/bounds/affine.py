"""Keras' own dense and convolution layers: bounded gradients, no constraint, hence no Lipschitz constant in training.

They may train where nothing trainable lies upstream, because no cotangent has to pass them there.
"""

import math

import numpy as np
from keras import layers, ops

from lipdp import _keras
from lipdp.bounds.registry import BoundRules, register, unknown
from lipdp.bounds.stock import activation_constants
from lipdp.layers.base import of_products
from lipdp.norms import conv_fourier_bound, conv_multiplicity, spectral_norm


def _rules(layer, multiplicity: int, norm) -> BoundRules:
    """Of `y = s(A(x) W + b)`: with |s'| <= a, the gradient of W is at most `a sqrt(M) ||x|| ||g||`.

    The bias is added at P positions: its gradient is `sum_p s' g_p`, of norm at most `a sqrt(P) ||g||`. M is the
    largest number of times that an entry of x stands in A(x). `norm` certifies the present linear part.
    """
    if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
        raise ValueError(
            f"Layer '{layer.name}' has no bound with LoRA or quantization. Received: a {type(layer).__name__} changed "
            "by `enable_lora` or `quantize`."
        )
    slope, offset = activation_constants(layer, layer.activation)
    spots = _positions(layer)

    def parameters(bounds, cotangent):
        kernel = [slope * math.sqrt(multiplicity) * bounds[0] * cotangent]
        return (*kernel, slope * math.sqrt(spots) * cotangent) if layer.use_bias else tuple(kernel)

    def trained_output(bounds):
        bias = float(np.linalg.norm(ops.convert_to_numpy(layer.bias))) if layer.use_bias else 0.0
        entries = spots * layer.compute_output_shape(_keras.input_shapes(layer)[0])[-1]
        return slope * (norm() * bounds[0] + math.sqrt(spots) * bias) + offset * math.sqrt(entries)

    free = (float("inf"),)
    return BoundRules(
        lambda bounds: float("inf"),
        lambda bounds: free,
        parameters,
        lambda bounds: (slope * norm(),),
        trained_output_bound=trained_output,
        refusal=ValueError(unknown(layer)),
        # Every entry of the kernel, and of the bias, is read once per position.
        gradient_terms=lambda inputs, output: spots,
        output_terms=lambda inputs, output: of_products(math.prod(layer.kernel.shape[:-1])),
    )


def _positions(layer) -> int:
    """Largest number of positions of an output, over all uses."""
    shapes = [tuple(layer.compute_output_shape(shape)) for shape in _keras.input_shapes(layer)]
    if not shapes or any(None in shape[1:] for shape in shapes):
        raise ValueError(f"Layer '{layer.name}' needs a full input shape to state its bound. Received: {shapes}.")
    return max(math.prod(shape[1:-1]) for shape in shapes)


@register(layers.Dense)
def _dense(layer) -> BoundRules:
    return _rules(layer, 1, lambda: spectral_norm(ops.convert_to_numpy(layer.kernel)))


def _convolution(layer) -> BoundRules:
    if layer.padding not in ("same", "valid") or layer.data_format != "channels_last" or layer.groups != 1:
        raise ValueError(
            f"Layer '{layer.name}' has a bound for padding 'same' or 'valid', channels last and one group. Received: "
            f"padding={layer.padding!r}, data_format={layer.data_format!r}, groups={layer.groups!r}."
        )
    # With another number of channels than it was built on, it would be a grouped convolution.
    multiplicity = conv_multiplicity(layer.kernel_size, layer.strides, layer.dilation_rate)

    def norm():
        kernel = ops.convert_to_numpy(layer.kernel)
        unfold = math.sqrt(multiplicity) * spectral_norm(kernel)
        return min(unfold, conv_fourier_bound(kernel, layer.strides, layer.dilation_rate))

    return _rules(layer, multiplicity, norm)


for _type in (layers.Conv1D, layers.Conv2D, layers.Conv3D):
    register(_type, _convolution)
