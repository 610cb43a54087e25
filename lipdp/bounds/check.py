"""The adversarial search on one layer: does a bound break, and how close does the search come?"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from lipdp import _keras
from lipdp.bounds import adversary
from lipdp.bounds.registry import rules

# Of cotangents, where the backward pass may treat small and large ones in different ways.
_LENGTHS = (1e-3, 1.0, 1e3)


def check(
    layer: Any,
    *shapes: tuple[int, ...],
    norms: Sequence[float] = (1.0, 8.0),
    dtype: str = "float32",
    seed: int = 0,
    print_fn: Callable[[str], Any] | None = None,
) -> dict[str, float]:
    """Searches for a violation of a layer's bounds, over inputs, weights and cotangents, and prints their tightness.

    A layer whose `call`, or that of a layer inside it, takes `training` is searched with False and with True.

    Args:
        layer: A layer with bounds: one of `lipdp.layers`, a Keras layer, or one declared with `register`. A small
            instance: Jacobians are computed in full.
        shapes: Shape of one example, for each input. Small ones, for the same reason.
        norms: Norms of the inputs to try, each with all weights that are tried.
        dtype: Type of the inputs; `"int32"` for tokens.
        seed: Seed of the search.
        print_fn: Receives the table as text; default: standard output.

    Returns:
        The largest ratio found of what was measured to its bound: `"output"` (norm of the output),
        `"jacobian"` (of the backward pass, by singular values) and `"gradient"` (of the worst trainable variable).
        1 means that the bound is reached, 0 that there is none to reach.

    Raises:
        ValueError: a bound is exceeded by more than float32 rounding, or no bound is registered for the layer.

    **Guarantee.** None: a search that finds no violation proves nothing. A bound that it breaks is wrong; one that it
    reaches to 0.9 can hardly be improved. `cotangent_bounds` are tried with cotangents of three lengths;
    `gradient_terms`, which counts roundings, is not tried. The layer's weights are as before afterwards.

    Example:
        >>> from lipdp import bounds, layers
        >>> ratios = bounds.check(layers.SpectralDense(3), (4,), print_fn=lambda text: None)
        >>> [round(ratio, 2) for ratio in ratios.values()]
        [1.0, 1.0, 1.0]
    """
    ratios = tightness(layer, *shapes, norms=norms, dtype=dtype, seed=seed)
    broken = {kind: ratio for kind, ratio in ratios.items() if not ratio <= 1.0 + adversary.TOLERANCE}
    lines = [f"Bounds of '{layer.name}' ({type(layer).__name__}) on inputs {', '.join(map(str, shapes))}"]
    lines += [
        f"  {kind:<10}{ratio:10.4f} of its bound{'  EXCEEDED' if kind in broken else ''}"
        for kind, ratio in ratios.items()
    ]
    (print_fn or sys.stdout.write)("\n".join(lines) + "\n")
    if broken:
        worst = max(broken, key=broken.get)
        raise ValueError(
            f"Layer '{layer.name}' of type {type(layer).__name__} exceeds its {worst} bound: the value found is "
            f"{broken[worst]:.6g} times the declared one. Correct the function given to lipdp.bounds.register, or "
            "the method of the layer."
        )
    return ratios


def tightness(
    layer: Any, *shapes: tuple[int, ...], norms: Sequence[float] = (1.0, 8.0), dtype: str = "float32", seed: int = 0
) -> dict[str, float]:
    """Returns what `check` returns, violations included."""
    # Unequal norms tell the inputs of a merge apart.
    sizes = [tuple(norm * (1.0 + 0.5 * k) for k in range(len(shapes))) for norm in norms]
    ratios = {"output": 0.0, "jacobian": 0.0}
    for training in (False, True):
        if training and not any("training" in inspect.signature(part.call).parameters for part in _parts(layer)):
            break  # the same once more
        rng = np.random.default_rng(seed)
        probe = adversary.Probe(layer, *shapes, dtype=dtype, training=training)
        with _kept(probe.model.variables):
            for kind, found in _searched(probe, rules(layer), sizes, rng).items():
                ratios[kind] = max(ratios.get(kind, 0.0), found)
    return ratios


def _searched(probe, bounds, sizes, rng) -> dict[str, float]:
    ratios = {"output": 0.0, "jacobian": 0.0}
    settings = [adversary.weight_settings(v, rng) for v in probe.variables]
    for turn in range(max(map(len, settings), default=1)):
        adversary.assign(probe.variables, [s[turn % len(s)] for s in settings])
        for size in sizes:
            constants = bounds.input_lipschitz(size)
            jacobians = adversary.largest_input_jacobians(probe, size, rng)
            pairs = zip(jacobians, constants, strict=True)
            ratios["jacobian"] = max(ratios["jacobian"], *(adversary.ratio(f, c) for f, c in pairs))
            output = adversary.ratio(adversary.largest_output(probe, size, rng), bounds.output_bound(size))
            ratios["output"] = max(ratios["output"], output)
    if bounds.cotangent_bounds is not None:
        for size in sizes:
            sent = adversary.largest_cotangent_ratio(probe, size, bounds.cotangent_bounds, rng, _LENGTHS)
            ratios["jacobian"] = max(ratios["jacobian"], sent)
    if probe.variables:
        ratios["gradient"] = 0.0
        for size in sizes:
            gradients = adversary.largest_parameter_gradients(probe, size, rng)
            limits = bounds.parameter_bounds(size, 1.0)
            pairs = zip(gradients, limits, strict=True)
            ratios["gradient"] = max(ratios["gradient"], *(adversary.ratio(g, b) for g, b in pairs))
    return ratios


def _parts(layer):
    return _keras.walk(layer, include_self=True) if isinstance(layer, keras.layers.Layer) else []


@contextlib.contextmanager
def _kept(variables):
    before = [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]
    try:
        yield
    finally:
        # Not only the trainable ones: in training a layer may change its state.
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
