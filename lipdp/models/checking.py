"""What `fit` will say of a model, and what the norms of its gradients cost, before there is any data."""

import io
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops, tree
from rich.console import Console
from rich.table import Table

from lipdp import _keras, backend, checks, gradients, isolation
from lipdp.gradients import rules
from lipdp.gradients.leaves import leaves
from lipdp.gradients.refused import refusal
from lipdp.training import model_checks

_LENGTH = 128
_ALONE = (
    "It is neither Keras' nor lipdp's and runs one row at a time, which takes longer. lipdp.to_functional(model) takes "
    "it apart where it only calls layers; or declare it with lipdp.row_wise if it treats each row alone."
)
_WHOLE = (
    "It has no rule of its own: the gradients of each example are built at full size. Write it with layers of Keras, "
    "or freeze it."
)


def check(model: keras.Model, length: int | None = None, print_fn: Callable[[str], Any] | None = None) -> list[dict]:
    """Prints and returns, per layer: whether it can be trained privately, by which rule, and what its norms cost.

    Args:
        model: A built model, private or not; it need not be compiled.
        length: What stands for sizes of the input that are not known, such as the length of sequences, at least 1.
            Default: the length that the model's preprocessor makes, else 128.
        print_fn: Receives the table as text; default: standard output.

    Returns:
        One dictionary per layer with weights or with something to change: `layer` (its path), `type`, `rule` ("frozen",
        or how the norm of its largest weight is computed), `trains` (trainable weights), `memory` (float32 numbers that
        the norms of one example hold beside what the passes leave), `products` (multiplications for these norms) and
        `todo`, what to change and why, in the words of `fit`, or "". Memory and products are None where the model
        cannot be run as it is. What a model as a whole is refused for stands in a last one, whose layer is the model.
        Strategies that clip train a model without anything to change, and one whose layers have a rule beside it more
        slowly. Clipless training computes no norms, and needs layers with bounds: see `summary_bounds`.

    Raises:
        ValueError: a model that is subclassed or not built, or a length below 1 or that the model does not take.

    Example:
        >>> import keras
        >>> import lipdp
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        >>> rows = lipdp.check(model, print_fn=lambda text: None)
        >>> [(row["type"], row["rule"], row["products"]) for row in rows]
        [('Dense', 'product of two norms', 16), ('Dense', 'product of two norms', 8)]
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(
            f"`check` takes a built Keras model. Received: {type(model).__name__}. Give it an `Input`, or call `build`."
        )
    if _keras.graph(model) is None:
        raise ValueError(
            f"`check` needs a graph of layers. Received: the subclassed model '{model.name}'. Build it as "
            "keras.Model(inputs, outputs)."
        )
    given = checks.integer("length", length, minimum=1, optional=True)
    length = given or getattr(getattr(model, "preprocessor", None), "sequence_length", None) or _LENGTH
    x = _made_up(model, length)
    found = [_row(layer) for layer in _keras.walk(model)]
    whole, costs = "", {}
    if not any(row["refused"] for row in found):
        try:
            gradients.supported(model)
            costs = _costs(model, x)
        except ValueError as error:
            whole = str(error)
    alone = {id(operation) for operation, _ in isolation.foreign(model)}
    own_rules = {id(layer): rule for layer, rule in leaves(model)}
    for row in found:
        layer, trained = row.pop("instance"), row.pop("variables")
        each = [(v.shape, *costs[id(v)]) for v in trained if id(v) in costs]
        row["memory"] = sum(held for *_, held, _ in each) if costs else None
        row["products"] = sum(products for *_, products in each) if costs else None
        if row["todo"]:
            continue
        if id(layer) in alone:
            row["rule"], row["todo"] = "one row at a time", _ALONE
        elif own_rules.get(id(layer)) is rules.fallback:
            row["rule"], row["todo"] = "whole gradients", _WHOLE
        elif each:
            row["rule"] = max(each, key=lambda one: int(np.prod(one[0])))[1]
        else:
            row["rule"] = "" if row["trains"] else "frozen"
    rows = [row for row in found if row["todo"] or row["weights"]]
    for row in rows:
        del row["weights"], row["refused"]
    if whole:
        empty = {"rule": "", "trains": 0, "memory": None, "products": None}
        rows.append({"layer": model.name, "type": type(model).__name__, **empty, "todo": whole})
    (print_fn or sys.stdout.write)(_text(model, rows))
    return rows


def _row(layer) -> dict:
    todo = refusal(layer)
    variables = [v for v in _keras.all_own_variables(layer)]
    trained = [v for v in variables if v.trainable]
    return {
        "instance": layer,
        "layer": layer.path or layer.name,
        "type": type(layer).__name__,
        "rule": "",
        "trains": sum(int(np.prod(v.shape)) for v in trained),
        "weights": sum(int(np.prod(v.shape)) for v in variables),
        "variables": trained,
        "refused": bool(todo),
        "todo": todo,
    }


def _made_up(model, length: int) -> Any:
    """Returns one row of inputs, with `length` for each size that is not known."""
    structure, _ = _keras.structures(_keras.graph(model))

    def made_up(tensor):
        shape = (1, *(length if size is None else size for size in tensor.shape[1:]))
        return ops.ones(shape, keras.backend.standardize_dtype(tensor.dtype))

    x = tree.map_structure(made_up, structure)
    if any(None in tensor.shape[1:] for tensor in tree.flatten(structure)):
        try:
            model(x)
        except Exception as error:  # each framework has its own
            raise ValueError(
                f"The model does not take inputs whose unknown sizes are {length}. Received: length={length}. Pass one "
                "that it takes, such as the most tokens of a text."
            ) from error
    return x


def _costs(model, x: Any) -> dict[int, tuple[str, int, int]]:
    """Returns, by the id of a trainable variable, what the norm of one example takes."""

    def values(y, y_pred):
        return sum(ops.mean(ops.reshape(ops.cast(t, "float32"), (1, -1)), axis=1) for t in tree.flatten(y_pred))

    record = gradients.capture(backend.Forward(model), x, None, ops.ones((1,)), loss_values=values)
    return dict(zip(map(id, model.trainable_variables), record.costs(), strict=True))


def _text(model, rows) -> str:
    strategy = model_checks.default_strategy(model)
    bad = [row for row in rows if row["rule"] == "" and row["todo"]]
    groups = _alike(rows)
    verdict = f"{len(bad)} to change" if bad else f'fit(strategy="auto") trains it by "{strategy}"'
    table = Table(title=f"Model '{model.name}': {verdict}")
    table.add_column("layer (type)", overflow="fold")
    table.add_column("norm by")
    for heading in ("trains", "memory", "products"):
        table.add_column(heading, justify="right")
    # Without costs there is nothing to say of the layers that can stay.
    shown = [same[0] for same in groups] if bad else [row for row in rows if row["rule"] != "frozen"]
    for row in shown:
        cells = ("-" if row[key] is None else f"{row[key]:,}" for key in ("trains", "memory", "products"))
        table.add_row(f"{row['layer']} ({row['type']})", row["rule"], *cells)
    text = io.StringIO()
    Console(file=text, width=110, force_terminal=False, force_jupyter=False, color_system=None).print(table)
    if bad:
        text.write(f"Layers with weights that can stay as they are: {len(rows) - sum(map(len, groups))}.\n")
    else:
        text.write("For the norms of one example: float32 numbers held (memory), multiplications (products).\n")
        if len(shown) < len(rows):
            text.write(f"{len(rows) - len(shown)} frozen layers are left out.\n")
    for first, *others in groups:
        text.write(f"{first['layer']}: {first['todo']}" if first["rule"] else first["todo"])
        text.write(f" The same holds for {len(others)} more, such as '{others[0]['layer']}'.\n" if others else "\n")
    return text.getvalue()


def _alike(rows) -> list[list[dict]]:
    """Returns the rows with something to do, together those for which it is the same but for the name."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        if row["todo"]:
            name = row["layer"].rpartition("/")[2]
            groups.setdefault(row["todo"].replace(name, ""), []).append(row)
    return list(groups.values())
