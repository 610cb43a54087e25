"""The table of bounds, as text and as dictionaries."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops, tree
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table

from lipdp import backend, losses, sampling
from lipdp.bounds.propagate import Bounds, propagate

# Float32 may add this much to a measured ratio.
_TOLERANCE = 1e-4


class BoundsRows(list):
    """Rows of the table: a list of dictionaries that a notebook does not print once more behind the table."""

    def __repr__(self) -> str:
        return f"<bounds of {len(self)} layers: a list of dictionaries>"


def summary_bounds(
    model: Any, x: ArrayLike | None = None, y: ArrayLike | None = None, print_fn: Callable[[str], Any] | None = None
) -> list[dict]:
    """Prints and returns the bounds of a compiled private model (see `DP_Model.summary_bounds`)."""
    if model.loss is None:
        raise ValueError("The bounds start at the loss. Call `compile(optimizer, loss=...)` first.")
    losses.get(model.loss)  # losses of Keras have no bound; this says what to use instead
    outputs = model.output_shape[-1]
    bounds = propagate(model, model.loss.lipschitz(outputs))
    noise = {id(v): s for v, s in zip(model.trainable_variables, model.run.noise_std, strict=False)}
    measured = {} if x is None else _measured(model, bounds, x, y)
    rows = [
        {
            "layer": use.name,
            "type": use.kind,
            "input_bound": use.input_bound,
            "lipschitz": use.lipschitz,
            "cotangent_bound": use.cotangent_bound,
            "gradient_bound": sum(g * g for g in use.gradient_bounds) ** 0.5 * bounds.slack if use.variables else None,
            "noise_std": max((noise[id(v)] for v in use.variables if id(v) in noise), default=None),
        }
        for use in bounds.layers
    ]
    columns = {
        "input_bound": "input bound",
        "lipschitz": "Lipschitz",
        "gradient_bound": "gradient bound",
        "noise_std": "noise std",
    }
    if x is not None:
        columns |= {"measured": "measured (not private)", "tightness": "measured / bound"}
        for row, use in zip(rows, bounds.layers, strict=True):
            row |= {"measured": None, "tightness": None}
            if use.variables:
                row["measured"], row["tightness"] = measured[id(use.layer)]
    table = Table(
        title=f"Bounds of '{model.name}' for one example (L2 norms); loss {model.loss.name}: "
        f"{model.loss.lipschitz(outputs):.4g}-Lipschitz, model: {_lipschitz(bounds):.4g}-Lipschitz"
    )
    table.add_column("layer (type)")
    for heading in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(f"{row['layer']} ({row['type']})", *("-" if row[k] is None else f"{row[k]:.4g}" for k in columns))
    text = io.StringIO()
    # Plain text, also inside a notebook.
    Console(
        file=text, width=140 if x is not None else 110, force_terminal=False, force_jupyter=False, color_system=None
    ).print(table)
    (print_fn or sys.stdout.write)(text.getvalue())
    return BoundsRows(rows)


def _measured(model, bounds: Bounds, x, y) -> dict[int, tuple[float, float]]:
    """Per layer, by id: the largest gradient norm of one example of the sample, and that over its bound."""
    x, y = sampling.as_arrays(x, y, len(tree.flatten(model.inputs)[0].shape))
    _, y = sampling.weight_and_labels(y)
    model.loss.check_labels(y, model.output_shape[-1])
    norms = backend.gradient_norms(model)
    with backend.full_precision():
        # One example at a time: neither memory nor the order of others matters.
        squares = np.square(
            [
                ops.convert_to_numpy(norms(tree.map_structure(lambda leaf, i=i: leaf[i : i + 1], x), y[i : i + 1]))
                for i in range(len(y))
            ],
            dtype="float64",
        )
    place = {id(v): k for k, v in enumerate(model.trainable_variables)}
    measured = {}
    for use in bounds.layers:
        if use.variables:
            largest = math.sqrt(float(squares[:, [place[id(v)] for v in use.variables]].sum(axis=1).max()))
            bound = math.hypot(*(bounds.gradient(v) for v in use.variables))
            measured[id(use.layer)] = largest, largest / bound if bound else 0.0
            if not largest <= bound * (1.0 + _TOLERANCE):
                raise RuntimeError(
                    f"One example moves the gradient of layer '{use.name}' by {largest:.6g}, more than its bound "
                    f"{bound:.6g}. Were weights set by hand? `fit` would bring them back first. Otherwise the bound "
                    "is wrong: please report it."
                )
    return measured


def _lipschitz(bounds) -> float:
    cotangent = bounds.layers[-1].cotangent_bound
    return bounds.lipschitz / cotangent if cotangent else 0.0
