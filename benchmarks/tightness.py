"""How close the adversarial search comes to the bounds of each layer: the table of `docs/layers.md`.

    python benchmarks/tightness.py            # searches, writes results/tightness.json and the table
    python benchmarks/tightness.py --render   # only the table, from the results

The cases are those of `tests/helpers/layer_cases.py`: small inputs, extreme weights. 1 means that a bound is reached.
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

_CONV = ("1", "`‖x‖ ‖g‖`")
# Lipschitz constant; bound on the gradient of the weights, for an input x and a cotangent g; file of the proof.
BOUNDS = {
    "SpectralDense": (*_CONV, "dense"),
    "TokenMixing": (*_CONV, "mixing"),
    "SpectralConv1D": (*_CONV, "convolution"),
    "SpectralConv2D": (*_CONV, "convolution"),
    "SpectralConv3D": (*_CONV, "convolution"),
    "SpectralDepthwiseConv1D": (*_CONV, "depthwise"),
    "SpectralDepthwiseConv2D": (*_CONV, "depthwise"),
    "SpectralConv1DTranspose": (*_CONV, "transposed"),
    "SpectralConv2DTranspose": (*_CONV, "transposed"),
    "SpectralConv3DTranspose": (*_CONV, "transposed"),
    "OrthogonalPatchConv2D": (*_CONV, "patches"),
    "Bias": ("1", "`‖g‖`", "bias"),
    "BoundedEmbedding": ("none: tokens", "`‖g‖`", "embedding"),
    "Householder": (*_CONV, "householder"),
    "Abs": ("1", "-", "activations"),
    "GroupSort": ("1", "-", "activations"),
    "BoundedInput": ("1", "-", "bounded_input"),
    "ClipGradient": ("1; cotangents at most `norm`", "-", "clip_gradient"),
    "LayerCentering": ("1", "-", "centering"),
    "ResidualAverage": ("1 - w and w", "-", "residual"),
    "Scattering2D": ("1", "-", "scattering"),
    "L2NormPooling2D": ("sqrt(M)", "-", "pooling"),
    "GlobalL2NormPooling2D": ("1", "-", "pooling"),
    "ScaledAveragePooling2D": ("1", "-", "pooling"),
    "InvertibleDownSampling2D": ("1", "-", "sampling"),
    "InvertibleUpSampling2D": ("1", "-", "sampling"),
}


def measure() -> list[dict]:
    """The largest ratio over all cases of a layer type."""
    from lipdp import layers
    from lipdp.bounds.check import tightness
    from tests.helpers.layer_cases import ALL, Case

    found: dict[str, dict] = {}
    tokens = Case("embedding", lambda: layers.BoundedEmbedding(2, 2), (6,))
    for case in [*ALL, tokens]:
        layer = case.make()
        kind = type(layer).__name__
        if kind not in BOUNDS:
            continue
        dtype = "int32" if case is tokens else "float32"
        row = found.setdefault(kind, {"layer": kind, "cases": 0})
        row["cases"] += 1
        for name, ratio in tightness(layer, *case.shapes, dtype=dtype, seed=len(case.name)).items():
            row[name] = max(row.get(name, 0.0), round(ratio, 6))
        print(row, flush=True)
    return [found[kind] for kind in BOUNDS]


def render() -> str:
    tight = json.loads((RESULTS / "tightness.json").read_text())
    cost = json.loads((RESULTS / "layer_cost.json").read_text())
    costs = {row["layer"]: row for row in cost["layers"]}
    lines = [
        f"`{tight['command']}` and `{cost['command']}` ({tight['backend']})",
        "",
        "| layer | Lipschitz | gradient of weights at most | tightest: output | Jacobian | gradient | time | proof |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in tight["layers"]:
        kind = row["layer"]
        lipschitz, gradient, file = BOUNDS[kind]
        ratios = [f"{row[name]:.3f}" if row.get(name) else "-" for name in ("output", "jacobian", "gradient")]
        spent = costs.get(kind)
        time = f"{spent['ratio']['median']:.2f} ({spent['counterpart']})" if spent else "-"
        lines.append(
            f"| `{kind}` | {lipschitz} | {gradient} | {' | '.join(ratios)} | {time} | "
            f"[Guarantee](../lipdp/layers/{file}.py) |"
        )
    return "\n".join(lines)


def update(text: str) -> str:
    """The document with its table renewed."""
    pattern = re.compile(r"(<!-- table:begin -->\n).*?(<!-- table:end -->)", re.DOTALL)
    return pattern.sub(lambda found: found[1] + render() + "\n" + found[2], text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="renew the table only")
    if not parser.parse_args().render:
        import keras

        write("tightness", {"backend": keras.backend.backend(), "layers": measure()})
    DOCUMENT.write_text(update(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
