"""Layers of deel-lip 1.5 that run on Keras 3. Its package is never imported here: types are known by their names."""

import math
import numbers

from lipdp import _keras, isolation
from lipdp.bounds.registry import BoundRules, parameter_free, register_family


def _coefficient(layer) -> float:
    factor = getattr(layer, "k_coef_lip", 1.0)
    if not isinstance(factor, numbers.Real) or not math.isfinite(factor):
        raise ValueError(f"Layer '{layer.name}' needs a finite `k_coef_lip`. Received: k_coef_lip={factor!r}.")
    return abs(float(factor))


def _scaled(layer):
    """Disjoint windows, mapped by an inner product with a unit vector or by their norm, times `k_coef_lip`.

    The small number that deel-lip adds to the root stands in the derivative only and makes it smaller.
    """
    factor, sizes = _coefficient(layer), [layer.pool_size] if hasattr(layer, "pool_size") else _sides(layer)
    terms = None if any(None in size for size in sizes) else max(map(math.prod, sizes), default=1)
    return parameter_free(lambda bounds: (factor,), terms=terms)


def _sides(layer) -> list[tuple]:
    """Returns height and width of the images that a layer reads, for each use."""
    last = layer.data_format == "channels_last"
    return [shape[1:-1] if last else shape[2:] for shape in _keras.input_shapes(layer)]


def _permutation(layer) -> float:
    return 1.0


def _sorting(layer) -> BoundRules:
    """A permutation. With groups of two, separate minimum and maximum send both cotangents to one entry at ties."""
    factor = _coefficient(layer)
    backward = factor * (math.sqrt(2.0) if layer.n == 2 else 1.0)
    return BoundRules(
        lambda bounds: factor * bounds[0],
        lambda bounds: (backward,),
        lambda bounds, cotangent: (),
        lambda bounds: (factor,),
    )


def _global_average(layer):
    """The mean over the pixels of this input, times the root of the number of pixels it was built on."""
    sizes = _sides(layer)
    if not sizes or any(None in size for size in sizes):
        raise ValueError(f"Layer '{layer.name}' needs images of known size to state its bound. Received: {sizes}.")
    constant = float(layer.coef_lip) * _coefficient(layer) / math.sqrt(min(map(math.prod, sizes)))
    return parameter_free(lambda bounds: (constant,), terms=max(map(math.prod, sizes)))


_ENTRIES = {
    "FullSort": _sorting,
    "GroupSort": _sorting,
    "GroupSort2": _sorting,
    "InvertibleDownSampling": _permutation,
    "InvertibleUpSampling": _permutation,
    "ScaledAveragePooling2D": _scaled,
    "ScaledGlobalAveragePooling2D": _global_average,
    "ScaledGlobalL2NormPooling2D": _scaled,
    "ScaledL2NormPooling2D": _scaled,
}
_REFUSED = {
    "SpectralDense": "lipdp.layers.SpectralDense (its gradient passes the normalization, which has no bound)",
    "FrobeniusDense": "lipdp.layers.SpectralDense (its gradient passes the normalization, which has no bound)",
    "SpectralConv2D": "lipdp.layers.SpectralConv2D (deel-lip's constant is no upper bound)",
    "FrobeniusConv2D": "lipdp.layers.SpectralConv2D (deel-lip's constant is no upper bound)",
    "SpectralConv2DTranspose": "lipdp.layers.SpectralConv2DTranspose",
    "Householder": "lipdp.layers.Householder",
    "MaxMin": "lipdp.layers.GroupSort",
}

register_family("deel.lip", _ENTRIES, _REFUSED)
isolation.trust_family("deel.lip", _ENTRIES)
