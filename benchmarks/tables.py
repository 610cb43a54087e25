"""Writes the tables of the README from the results in `benchmarks/results/`.

python benchmarks/tables.py
"""

import json
import pathlib
import re

import accounting
import frontend
import mnist
import step_cost
import tabular
from common import RESULTS

README = pathlib.Path(__file__).parent.parent / "README.md"


def render() -> str:
    accuracy = json.loads((RESULTS / "mnist.json").read_text())
    cost = json.loads((RESULTS / "step_cost.json").read_text())
    beside = json.loads((RESULTS / "step_cost_jax.json").read_text())
    asked = json.loads((RESULTS / "accounting.json").read_text())
    front = json.loads((RESULTS / "frontend.json").read_text())
    tables = json.loads((RESULTS / "tabular.json").read_text())
    cores = cost["machine"]["cores"]
    return f"""
**Accuracy** on MNIST raw pixels, delta = 1e-5, the default recipe of `lipdp train`, chosen on a held-out part of the
training images; {accuracy["evaluated_on"]}, mean over seeds; certified accuracy in the L2 norm of pixels in [0, 1].
`{accuracy["command"]}`

{mnist.table(accuracy["table"])}

**Accuracy with the fixed front end** `Scattering2D`, delta = 1e-5; {front["evaluated_on"]}, mean over seeds (number of
runs in the last column); settings chosen on held-out training images, those of Fashion-MNIST at epsilon 0.5 and 2 a
second time after figures of the test set (85.86 % and 88.29 %) had been seen; certificates in the L2 norm of pixels in
[0, 1]. `{front["command"]}`

{frontend.table(front["table"])}

**Tables** of ADBench, epsilon = {tables["epsilon"]:g}, delta = 1 / (N + 1): AUROC on {tables["evaluated_on"]},
beside the same run without noise; settings chosen on a part of the training rows.
`{tables["command"]}`

{tabular.render(tables["table"])}

**Cost** of a training step, median [10 % - 90 %] of paired ratios on a shared machine with {cores} CPU cores;
*plain* is the same Lipschitz network without noise, projection and Poisson padding, *ordinary* a ReLU network.
`{cost["command"]}` and `{beside["command"]}`

{step_cost.table({**cost["results"], **beside["results"]})}

**Accounting**: seconds of one processor from a cold start, lipdp's median of {_runs(asked)} runs, beside dp-accounting
{asked["versions"]["dp-accounting"]} as it is. The noise is for delta = {asked["delta"]:g}, the groups for 1e-6,
which dp-accounting computes on a grid of 1e-3; both agree within 1e-4.
`{asked["command"]}`

{accounting.table(asked["results"])}
"""


def _runs(asked: dict) -> int:
    return next(iter(asked["results"].values()))["lipdp"]["runs"]


def update(text: str) -> str:
    """The README with its tables renewed."""
    pattern = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
    return pattern.sub(lambda found: found[1] + render().lstrip("\n") + found[2], text)


if __name__ == "__main__":
    README.write_text(update(README.read_text()))
