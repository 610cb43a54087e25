"""The table of bounds that a person reads."""

import io
import sys

from rich.console import Console
from rich.table import Table

from lipdp import losses
from lipdp.bounds.propagate import propagate


def summary_bounds(model, print_fn=None) -> list[dict]:
    """Prints and returns the bounds of a compiled private model (see `DP_Model.summary_bounds`)."""
    if model.loss is None:
        raise ValueError("The bounds start at the loss. Call `compile(optimizer, loss=...)` first.")
    losses.get(model.loss)  # losses of Keras have no bound; this says what to use instead
    outputs = model.output_shape[-1]
    bounds = propagate(model, model.loss.lipschitz(outputs))
    noise = {id(v): s for v, s in zip(model.trainable_variables, model.run.noise_std, strict=False)}
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
    table = Table(
        title=f"Bounds of '{model.name}' for one example (L2 norms); loss {model.loss.name}: "
        f"{model.loss.lipschitz(outputs):.4g}-Lipschitz, model: {_lipschitz(bounds):.4g}-Lipschitz"
    )
    table.add_column("layer (type)")
    for heading in ("input bound", "Lipschitz", "gradient bound", "noise std"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['layer']} ({row['type']})",
            *(
                "-" if row[k] is None else f"{row[k]:.4g}"
                for k in ("input_bound", "lipschitz", "gradient_bound", "noise_std")
            ),
        )
    # Plain text, also inside a notebook.
    console = Console(file=io.StringIO(), width=110, force_terminal=False, force_jupyter=False, color_system=None)
    console.print(table)
    (print_fn or sys.stdout.write)(console.file.getvalue())
    return rows


def _lipschitz(bounds) -> float:
    cotangent = bounds.layers[-1].cotangent_bound
    return bounds.lipschitz / cotangent if cotangent else 0.0
