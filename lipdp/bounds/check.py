"""The adversarial search on one layer: does a bound break, and how close does the search come?"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lipdp.bounds import adversary
from lipdp.bounds.registry import rules


def check(
    layer: Any,
    *shapes: tuple[int, ...],
    norms: Sequence[float] = (1.0, 8.0),
    dtype: str = "float32",
    seed: int = 0,
    print_fn: Callable[[str], Any] | None = None,
) -> dict[str, float]:
    """Searches for a violation of a layer's bounds, over inputs, weights and cotangents, and prints their tightness.

    Args:
        layer: A layer with bounds: one of `lipdp.layers`, a Keras layer, or one declared with `register`. A small
            instance: Jacobians are computed in full.
        shapes: Shape of one example, for each input. Small ones, for the same reason.
        norms: Norms of the inputs to try.
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
    reaches to 0.9 can hardly be improved. The layer's weights are as before afterwards.

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
    rng = np.random.default_rng(seed)
    probe = adversary.Probe(layer, *shapes, dtype=dtype)
    bounds = rules(layer)
    ratios = {"output": 0.0, "jacobian": 0.0}
    with _kept(probe.variables):
        # Unequal norms tell the inputs of a merge apart.
        sizes = [tuple(norm * (1.0 + 0.5 * k) for k in range(len(shapes))) for norm in norms]
        settings = [adversary.weight_settings(v, rng) for v in probe.variables]
        for turn in range(max(map(len, settings), default=1)):
            adversary.assign(probe.variables, [s[turn % len(s)] for s in settings])
            for size in sizes if not settings else sizes[:1]:
                constants = bounds.input_lipschitz(size)
                jacobians = adversary.largest_input_jacobians(probe, size, rng)
                pairs = zip(jacobians, constants, strict=True)
                ratios["jacobian"] = max(ratios["jacobian"], *(_ratio(f, c) for f, c in pairs))
                output = _ratio(adversary.largest_output(probe, size, rng), bounds.output_bound(size))
                ratios["output"] = max(ratios["output"], output)
        if probe.variables:
            size = tuple(2.0 * n for n in sizes[0])
            gradients = adversary.largest_parameter_gradients(probe, size, rng)
            limits = bounds.parameter_bounds(size, 1.0)
            ratios["gradient"] = max(_ratio(g, b) for g, b in zip(gradients, limits, strict=True))
    return ratios


def _ratio(measured: float, bound: float) -> float:
    if measured == 0.0:
        return 0.0
    return measured / bound if bound else float("inf")


@contextlib.contextmanager
def _kept(variables):
    before = [adversary._numpy(v.value) for v in variables]
    try:
        yield
    finally:
        adversary.assign(variables, before)
