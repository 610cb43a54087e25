"""How close the adversarial search comes to the bounds of each layer: the table of `docs/layers.md`.

    python benchmarks/tightness.py            # searches, writes results/tightness.json and the table
    python benchmarks/tightness.py --render   # only the table, from the results

The cases are those of `tests/helpers/layer_cases.py`: small inputs, extreme weights. 1 means that a bound is reached.
Layers, formulas and files are read from `lipdp.layers`: nothing here changes for a new layer.
"""

import argparse
import json
import pathlib
import re
import sys

from common import RESULTS, write

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "layers.md"
sys.path.insert(0, str(ROOT))


def own_layers() -> list[type]:
    """Returns the layers of lipdp in the order of `lipdp/layers/__init__.py`."""
    from lipdp import layers

    kinds = [value for value in vars(layers).values() if isinstance(value, type)]
    return [kind for kind in kinds if issubclass(kind, layers.LipschitzLayer) and kind is not layers.LipschitzLayer]


def measure() -> list[dict]:
    """Returns the largest ratios over all cases of each layer type."""
    from lipdp.bounds.check import tightness
    from tests.helpers.layer_cases import ALL, TOKENS

    rows = {kind: {"layer": kind.__name__, "cases": 0} for kind in own_layers()}
    for case in [*ALL, *TOKENS]:
        layer = case.make()
        row = rows.get(type(layer))
        if row is None:
            continue
        row["cases"] += 1
        for name, ratio in tightness(layer, *case.shapes, dtype=case.dtype, seed=len(case.name)).items():
            row[name] = max(row.get(name, 0.0), round(ratio, 6))
        print(row, flush=True)
    return list(rows.values())


def row(kind: type, ratios: dict, cost: dict | None) -> str:
    """Returns the line of the table for a layer: what its class says, and what was measured."""
    tightest = [f"{ratios[name]:.3f}" if ratios.get(name) else "-" for name in ("output", "jacobian", "gradient")]
    time = f"{cost['ratio']['median']:.2f} ({cost['counterpart']})" if cost else "-"
    proof = f"[Guarantee](../{kind.__module__.replace('.', '/')}.py)"
    gradient = "-" if kind.gradient_formula == "-" else f"`{kind.gradient_formula}`"
    cells = [f"`{kind.__name__}`", kind.lipschitz_formula, gradient, *tightest, time, proof]
    return f"| {' | '.join(cells)} |"


def render() -> str:
    tight = json.loads((RESULTS / "tightness.json").read_text())
    cost = json.loads((RESULTS / "layer_cost.json").read_text())
    ratios, costs = ({entry["layer"]: entry for entry in results["layers"]} for results in (tight, cost))
    lines = [
        f"`{tight['command']}` and `{cost['command']}` ({tight['backend']})",
        "",
        "| layer | Lipschitz | gradient of weights at most | tightest: output | Jacobian | gradient | time | proof |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [row(kind, ratios.get(kind.__name__, {}), costs.get(kind.__name__)) for kind in own_layers()]
    return "\n".join(lines)


def update(text: str) -> str:
    """Returns the document with its table renewed."""
    pattern = re.compile(r"(<!-- table:begin -->\n).*?(<!-- table:end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + render() + "\n" + match[2], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="renew the table only")
    if not parser.parse_args().render:
        import keras

        write("tightness", {"backend": keras.backend.backend(), "layers": measure()})
    DOCUMENT.write_text(update(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
