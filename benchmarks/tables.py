"""Writes the tables of `docs/results.md`, and the short one of the README, from the results in `benchmarks/results/`.

python benchmarks/tables.py
"""

import json
import pathlib
import re

import accounting
import adaclip
import allocation
import audits
import certified
import diffusion
import dpis
import dpsgd
import few_images
import finetune
import fit_cost
import fixed_features
import frontend
import gpu
import heads
import images
import mnist
import own_layers
import peers
import per_example
import persons
import regimes
import scattered
import sources
import start_cost
import step_cost
import tabular
import transfer
import unseen_tables
from common import RESULTS

ROOT = pathlib.Path(__file__).parent.parent
README, RESULTS_PAGE = ROOT / "README.md", ROOT / "docs" / "results.md"


def _mnist(found: dict) -> str:
    return f"""
## Accuracy and certificates on MNIST

Clipless, raw pixels, delta = 1e-5, the recipe of `lipdp train --strategy clipless`, chosen on a held-out part of the
training images; {found["evaluated_on"]}, mean over seeds; certified accuracy in the L2 norm of pixels in [0, 1].
`{found["command"]}`

{mnist.table(found["table"])}
"""


def _frontend(found: dict) -> str:
    return f"""
## The fixed front end

Clipless on `Scattering2D`, delta = 1e-5; {found["evaluated_on"]}, mean over seeds (number of
runs in the last column); settings chosen on held-out training images, but a second time after figures of the test set
had been seen: on Fashion-MNIST at epsilon 0.5 and 2 (85.86 % and 88.29 % before), on MNIST, where features are centered
since then, at all four (97.17, 97.59, 97.95 and 98.35 % before, and 98.17 % at 2 with fewer updates). Certificates in
the L2 norm of pixels in [0, 1]. `python benchmarks/frontend.py`

{frontend.table(found["table"])}
"""


def _images(found: dict) -> str:
    return f"""
## Networks for images

Clipless, on pixels ("none") and on the fixed front end, delta = 1e-5; test set, mean over
seeds; settings chosen on held-out training images (LeNet and ResNet on CIFAR-10: carried over); certificates in the L2
norm of pixels in [0, 1]. `python benchmarks/images.py`

{images.table(found["table"])}

![accuracy against epsilon and against certified accuracy](../benchmarks/results/images.png)
"""


def _tabular(found: dict) -> str:
    return f"""
## Tabular data

Six tables of ADBench, delta = 1 / (N + 1): AUROC on validation rows, a fifth of all, mean over seeds. "DP-SGD, the
recipe" is what `lipdp train` takes for tables, `models.table_recipe`: columns normalized by private moments, one hidden
layer. AdaCliP and DPIS train the same network, with p of a paired t-test against DP-SGD, and a dash where the sums of
DPIS alone would cost more than the budget. The settings were chosen on a part of the training rows of campaign, celeba,
magic.gamma and yeast, and one of them on [more tables](#more-tables) as well. "clipless" is a Lipschitz network with
certificates. "no noise" is the recipe without privacy; boosting (`HistGradientBoostingClassifier`) and logistic
regression are scikit-learn's, as they come. `python benchmarks/tabular.py`

{tabular.render(found["runs"])}

{tabular.without_signal(found["runs"])}

**In units that nobody knows.** Each column times a constant from 1e-3 to 1e5 and plus another one, drawn once; columns
taken as they are, or rescaled by ranges that `layers.PrivateRescaling` releases as part of epsilon, as `lipdp train`
does for such tables. `python benchmarks/tabular.py --method dpsgd "any units" rescaled`

{tabular.render_units(found["runs"])}
"""


def _unseen_tables(found: dict) -> str:
    return f"""
## More tables

{len(unseen_tables.TABLES)} more tables of ADBench: all classical ones with at least 1000 rows, but for four that
were not at hand (backdoor, census, fraud, speech), in the units of their files. delta = 1 / (N + 1); AUROC on a fifth
of the rows of each class, mean over seeds. "recipe" is what `lipdp train` does with a table of your own: it releases
moments, and ranges of the columns where there are rows enough for them, as part of epsilon, then trains by DP-SGD.
"no noise" is the same without privacy. Boosting and logistic regression are scikit-learn's, without privacy; the second
one on standardized columns. One setting of the recipe, `constant_unit`, was chosen on a part of the training rows of
the tables with a star, after a first series without it had been seen, in which http was at 0.963, Waveform at 0.891 and
smtp at 0.069. On the other tables no setting was chosen.
`python benchmarks/unseen_tables.py`

{unseen_tables.render(found["runs"])}

{unseen_tables.summary(found["runs"])}
"""


def _dpsgd(found: dict) -> str:
    return f"""
## DP-SGD

A small convolutional network on MNIST raw pixels, delta = 1e-5; {found["evaluated_on"]}, mean over
seeds; the learning rate was chosen on held-out training images at epsilon 1. A rate that falls to zero was scored on
the test set as well (one seed: 96.62, 97.41 and 97.86 %) and dropped for its held-out figure. *Published*: Papernot et
al. 2021.
`python benchmarks/dpsgd.py`

{dpsgd.table(found["table"])}
"""


def _adaclip(found: dict) -> str:
    return f"""
## AdaCliP beside DP-SGD

MNIST, delta = 1e-5; {found["evaluated_on"]}, mean over seeds; settings chosen on held-out
training images, mostly with DP-SGD; "network" is a convolution and one layer of logits on images of half the side, not
the network of the paper, and AdaCliP's rate at epsilon 2 was chosen again after a test figure (95.58 %). The noise
ratio is AdaCliP's root mean energy over DP-SGD's; p is of a paired t-test. *Published*: Pichapati et al. 2019.
`python benchmarks/adaclip.py`

{adaclip.table(adaclip.summarise(found["runs"]))}

Figure 2 of the paper: the error of a private regression by dimension, 3 runs each.
`python benchmarks/adaclip.py --figure`

![squared error of the weights by dimension](../benchmarks/results/adaclip_figure.svg)
"""


def _dpis(found: dict) -> str:
    cost = RESULTS / "dpis_cost.json"
    cost = json.loads(cost.read_text()) if cost.exists() else None
    text = f"""
## DPIS beside DP-SGD

The same network, budget and settings, delta = 1e-5; {found["evaluated_on"]}, mean over seeds;
settings chosen on held-out training images, mostly of MNIST. One hidden layer of 64 tanh on `Scattering2D`'s centered
features of norm 1; digits are sheared upright first, each by itself. Both came after a series without them had missed
the paper's figures on MNIST's test set (98.31, 98.47 and 98.52 % at epsilon 2, 3 and 4, two seeds). At epsilon 0.5
the strategies are as good as each other; p is of a paired t-test. *Paper*: Wei et al. 2022, Table 3, on networks of its
own. Seconds are of whole runs, norm passes included, on a busy machine. `python benchmarks/dpis.py`

{dpis.table(dpis.summary(found["runs"]))}
"""
    return text + (f"\n{dpis.cost_text(cost)} `{cost['command']}`\n" if cost else "")


def _regimes(found: dict) -> str:
    return f"""
## Where AdaCliP and DPIS help

Regimes that theory names, each strategy beside DP-SGD at the same budget, delta = 1e-5: means over seeds on test rows,
and p of a paired t-test. Categories, columns of several scales and the rare class are made from the seed; words are of
paragraphs of the docstrings of scipy and scikit-learn as installed, which of the two is the class; magic.gamma is in
the units of its authors; Fashion-MNIST has 20,000 training images here. "normalized" is DP-SGD behind
`PrivateNormalization`, "larger batches" DP-SGD with as many updates on eight times the batch. AdaCliP has one deviation
per layer where there are several layers. Learning rates fall to zero. Rate and clip norm were chosen for each regime,
budget and way with the same effort, six settings each, on held-out training rows or data of another seed
(`benchmarks/regimes.py --held-out`). Kinds of regimes and sizes were chosen in trials on such rows, too. On real
data each has won once with p below 0.05, both at epsilon 4, and something simpler gains more there: AdaCliP on words,
DPIS on Fashion-MNIST. Seconds are beside other work, more or less of it. `python benchmarks/regimes.py`

{regimes.table(found["runs"])}
"""


def _diffusion(found: dict) -> str:
    text = """
## Diffusion models

Delta = 1e-5: accuracy on the real test set of classifiers that learned from synthetic images only. "cpu-28" knows
[moments](diffusion.md#moments-first) before the images, from epsilon 2 on of [several kinds of images in a
class](diffusion.md#several-kinds-of-images-in-a-class); settings chosen on held-out training images of MNIST at
epsilon 1 and 10. Where images are no handwriting it has [a classifier for its
labels](diffusion.md#labels-by-a-classifier), which alone would cost half of epsilon; its settings were chosen on
held-out training images of Fashion-MNIST. "cpu-14" draws images of half the side, settings chosen there with 300
updates at epsilon 10. The protocol of Dockhorn et al. has 60,000 images and classifiers of 50 epochs; the table says
where there were fewer. The test set of MNIST had been opened with fewer for seed 0 at epsilon 1: 93.27 % from 20,000
images in 20 epochs, 93.95 % from 60,000; at epsilon 10 for the settings of before, which learned one normal
distribution for each class: 95.62 % in 20 epochs. That of Fashion-MNIST had been opened, for seed 0, without the
classifier: CNN 76.04 %, MLP 75.23 %, logistic regression 75.96 % at epsilon 1; 80.24, 82.00, 80.12 % at 10.
With it, for the same five seeds on a CPU and classifiers of 20 epochs: CNN 77.71 %, MLP 80.58 %, logistic regression
80.29 % at 1; 82.87, 83.96, 82.13 % at 10. That 50 epochs do better was seen on held-out training images, in one run.
The ten runs on a GPU shared it; a core of a CPU trains in 8 and 14 minutes.
The *wider CNN* (64, 128 and 256 filters, dropout 0.2, Adam at 1e-3 falling to zero over 20 epochs) was chosen at
epsilon 10 on held-out training images, one seed, where it had 84.1 % from 27,000 drawn images, and one of the
protocol's width 83.7 %; its five runs were trained anew on a CPU with JAX and scored, as their distances were, with
TensorFlow. The *coarse CNN* averages pixels two by two before as many filters, 12 epochs: drawn images differ from
real ones in what is finer. It was chosen there too, after the test set had been opened with the wider one: 84.8 %,
one seed, where the wider one had 83.9 % in as many epochs; its five runs are of the same drawn images.
*Published* are 28 x 28 images and CNNs: DPDM (Dockhorn et al. 2023) and DP-FETA (Li et al. 2025). *Distance* is the
Frechet distance of the test set to 10,000 drawn images, on features of a classifier that real images trained; it is
not the FID of the literature, and runs before it was measured have none.

"""
    for runs in diffusion.by_setting(found):
        seeds = ", ".join(str(run["seed"]) for run in runs[1:])
        text += f"`{runs[0]['command']}`" + (f" and seeds {seeds}\n" if seeds else "\n")
    text += f"\n{diffusion.table(found)}\n" if "runs" in found else ""
    return text + (f"\n`{found['cost']['command']}`\n\n{diffusion.cost_table(found)}\n" if "cost" in found else "")


def _persons(found: dict) -> str:
    return f"""
## Persons with several rows

Fashion-MNIST, its training images given to {found["persons"]} synthetic persons with 1 to 50 rows each (median
{found["median_rows"]:g}), classes skewed; the budget is for a person with all rows, delta = 1e-5:
`fit(person_ids=)` with 8 rows of each drawn person, `fit(examples_per_person=50)` on drawn rows, and one row of each
person alone. Test set, mean over seeds; learning rates chosen on held-out training images for each way
(`benchmarks/persons.py --held-out`).
`python benchmarks/persons.py`

{persons.table(found["table"])}
"""


def _step_cost(found: dict) -> str:
    beside = json.loads((RESULTS / "step_cost_jax.json").read_text())
    return f"""
## Cost of a clipless step

Median [10 % - 90 %] of paired ratios on a shared machine with {found["machine"]["cores"]}
CPU cores; *plain* is the same Lipschitz network without noise, projection and Poisson padding, *ordinary* a ReLU
network. `{found["command"]}` and `{beside["command"]}`

{step_cost.table({**found["results"], **beside["results"]})}
"""


def _per_example(found: dict) -> str:
    paths = [RESULTS / f"per_example_{name}.json" for name in ("jax", "more")]
    parts = [found, *(json.loads(path.read_text()) for path in paths if path.exists())]
    commands = " and ".join(f"`{one['command']}`" for one in parts)
    rows = {}
    for one in parts:
        for backend, measured in one["results"].items():
            # What was measured again stands in place of what was.
            again = {(row["network"], row["batch"]) for row in measured}
            kept = [row for row in rows.get(backend, ()) if (row["network"], row["batch"]) not in again]
            rows[backend] = [*kept, *measured]
    return f"""
## Cost of a DP-SGD step

Against the same network without privacy, median [10 % - 90 %] of paired ratios; memory is
the ratio of peaks of processes that do nothing else. {commands}

{per_example.table(rows)}
"""


def _finetune(found: dict) -> str:
    return f"""
## Cost of fine-tuning

Against the same transformer without privacy (4 blocks, 512 wide, sequences of 128; stock layers, random weights): the
head alone, low-rank additions of rank 8 to queries and values with the head, or all weights. One CPU core, default
settings of `fit`, median [10 % - 90 %] of paired ratios. A private step is a Poisson draw, which has B rows on average
only: `drawn` is the mean of the steps that were timed, and the ratio by drawn row is of times by row. Memory is the
ratio of peaks of processes that do nothing else. Times are beside other work on the machine, which slows both steps of
a pair. `{found["command"]}`

{finetune.table(found["runs"])}
"""


def _finetune_peers(found: dict) -> str:
    rows = found["results"]
    load = max(row["load"] for row in rows)
    done = {(row["network"], row["batch"]) for row in rows}
    left = [f"{what} at B = {batch}" for what in ("lora", "full") for batch in (16, 32)]
    left = [name for name in left if ("transformer-" + name.split()[0], int(name.split()[-1])) not in done]
    missing = f"Still to be measured: {', '.join(left)}.\n" if left else ""
    return f"""
## The same fine-tuning with other libraries

The transformer of the table above on one core, one thread for each library: lipdp on TensorFlow, Opacus with the
additions of peft, and jax_privacy, each by turns with its own framework's step without privacy in one process. Where
Opacus has no rule for attention it is made of linear layers. Keras, and the network for JAX as well, add matrices for
each head, peft for all heads together; `weights` counts what trains, with Keras the biases of queries and values too.
The machine was busy (load up to {load:.0f} on {found["machine"]["cores"]} cores): milliseconds and ratios are of
the processor, over all threads; few steps were timed, fewer still where they took long by the clock. lipdp's ratio is
by drawn row; *beside lipdp* is milliseconds by row over those of lipdp's process in the same round. MiB is the peak of
a process that takes both steps.
{missing}`{rows[0].get("command", found["command"])}`, and the same for other networks and B

{peers.finetune_table(rows)}
"""


def _peers(found: dict) -> str:
    return f"""
## The private step beside those of other libraries

Each library runs in an environment and processes of its own with one thread,
in turn; *beside lipdp* is the library's median over lipdp's just before. `{found["command"]}`

{peers.table(found["results"])}
"""


def _gpu(found: dict) -> str:
    device = found["runs"][0]["device"]
    return f"""
## Steps on a GPU

JAX {found["versions"]["jax"]} on one {device}: median [10 % - 90 %] of ratios to stock Keras' ordinary network, paired
in one process; jax_privacy on the same Keras network; memory is the peak of a process that takes only that step.
Networks, microbatches and spread are in `benchmarks/results/gpu_steps.json`; each row names its command. While the row
of the wide residual network was taken, another process used the device now and then: the lower end is that of a step
alone. The U-Net is missing: XLA tries ways of computing its private step for more than five minutes. The rows of the
CNN are older than the one product in which a GPU now makes the gradients of a kernel. Those of
DP-SGD are older than its microbatches of one size, which take about 4 % more rows at B = 1024.

{gpu.table(found["runs"])}
"""


def _fit_cost(found: dict) -> str:
    two_cores = json.loads((RESULTS / "fit_cost_two_cores.json").read_text())
    narrow = json.loads((RESULTS / "fit_cost_avx2.json").read_text())
    return f"""
## What `fit` costs from end to end

The second epoch of `fit` on the 60,000 images of MNIST, with batches, transfers and metrics, as a multiple of stock
Keras' ordinary network with biases and ReLU, trained in turn in one process; median [10 % - 90 %] of
{found["runs"][0]["rounds"]} rounds. "readme" is the convolutional network of the README,
"mlp" two dense layers of 512: clipless trains them with layers of this library, DP-SGD trains the ordinary ones.
CPU time is that of all threads. The machine matters: the faster a core multiplies matrices, the more everything else
counts. On an earlier one with AVX-512, TensorFlow's clipless "readme" came to 1.54, 1.03 and 0.94 times the CPU time.

One core with one thread. On TensorFlow the clock on the wall says less here: the ordinary `fit` takes time that
is no CPU time of its process, so the columns of CPU time are the ones to compare.
`OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

{fit_cost.table(found["runs"])}

Another core, without AVX-512: TensorFlow leaves oneDNN off there, and the ordinary network of convolutions takes long.
In both, other work ran on the second core.
`OMP_NUM_THREADS=1 taskset -c 0 {narrow["command"]} --backend tensorflow`

{fit_cost.table(narrow["runs"])}

Two cores, threads as the frameworks choose them: waiting counts for a user, so the clock on the
wall says more here. `{two_cores["command"]}`

{fit_cost.table(two_cores["runs"])}
"""


def _start_cost(found: dict) -> str:
    return f"""
## What it takes to begin

A `fit` of one update of 64 rows, the first of a new model and the next of the same: seconds of CPU time on one core of
stock Keras and of `strategy="dpsgd"` on the same network, and median [10 % - 90 %] of the paired ratios of
{found["runs"][0]["rounds"]} rounds, beside other work. The first one makes the program of a step, and a private one
tries the network on a few rows before; the noise is planned once for each `fit`, however long that is. "own layers" is
a transformer of classes of the user's own, which run one row at a time; "to_functional" trains what
`lipdp.to_functional` makes of it.
`OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

{start_cost.table(found["runs"])}
"""


def _own_layers(found: dict) -> str:
    return f"""
## Layers of your own

An update of 64 rows of a network of subclassed layers on one core: milliseconds of CPU time of stock Keras, and median
[10 % - 90 %] of the paired ratios to it under `strategy="dpsgd"`, of {found["runs"][0]["rounds"]} epochs in turn,
beside other work. Left: layers of one's own run one row at a time. Right: what `lipdp.to_functional` makes of them.
"dense": three layers with a matrix and a bias of their own, 512 wide; "text": 20,000 words and their positions, one
block of a transformer; "images": patches and their positions, two blocks.
`OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

{own_layers.table(found["runs"])}
"""


def _fixed_features(found: dict) -> str:
    beside = json.loads((RESULTS / "fixed_features_jax.json").read_text())
    runs = {one["backend"]: one["runs"] for one in (found, beside)}
    return f"""
## Cost of fixed features

`lipdp.features` through the fixed layers of the default recipe on images: milliseconds of the processor for each image,
and median [10 % - 90 %] of paired ratios to Keras' ResNet50 without its head, for 32 x 32. One core, no AVX-512, beside
other work. `OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`, and with `KERAS_BACKEND=jax` the same with
`--name fixed_features_jax`

{fixed_features.table(runs)}
"""


def _sources(found: dict) -> str:
    return f"""
## Data on disk

Peak resident set, in MB, of a process that trains a small network on rows of 64 x 64 x 3 bytes at B = 256; one run
each, on two busy cores. `{found["command"]}`

{sources.table(found)}
"""


def _low_precision(found: dict) -> str:
    (low,) = found["table"]
    plain = json.loads((RESULTS / "dpsgd_low_float32.json").read_text())
    (full,) = plain["table"]
    return f"""
## Low precision

DP-SGD on MNIST at epsilon {low["epsilon"]:g} (delta {found["delta"]:g}), network and settings of the table of DP-SGD,
{low["runs"]} seeds: {100 * full["accuracy"]:.2f} % (sd {100 * full["deviation"]:.2f}) in float32 and
{100 * low["accuracy"]:.2f} % ({100 * low["deviation"]:.2f}) under `mixed_bfloat16`.
`{found["command"]}`, and the same with `--policy float32`
"""


def _allocation(found: dict) -> str:
    return f"""
## Random allocation

Epsilon at noise multiplier {found["noise_multiplier"]:g}, {found["updates"]} updates an epoch, {found["epochs"]}
epochs, delta {found["delta"]:g}: a bound by the accountant, an estimate by simulation ({found["samples"]:,} draws, seed
{found["seed"]}). `{found["command"]}`

{allocation.table(found)}
"""


def _accounting(found: dict) -> str:
    return f"""
## Accounting

Seconds of one processor from a cold start, lipdp's median of {_runs(found)} runs, beside dp-accounting
{found["versions"]["dp-accounting"]} as it is. The noise is for delta = {found["delta"]:g}, the groups for 1e-6,
which dp-accounting computes on a grid of 1e-3; both agree within 1e-4.
`{found["command"]}`

{accounting.table(found["results"])}
"""


def _scattered(found: dict) -> str:
    def before(dataset: str, changes: str, method: str = "dpsgd") -> str:
        wanted = dataset, changes, method
        runs = [run for run in found["runs"] if (run["dataset"], run["changes"], run["method"]) == wanted]
        runs = [run for run in runs if run["evaluated_on"] == "test set"]
        budgets = sorted({run["epsilon"] for run in runs})
        scores = [[100.0 * run["accuracy"] for run in runs if run["epsilon"] == budget] for budget in budgets]
        means = " / ".join(f"{sum(one) / len(one):.2f}" for one in scores)
        return f"{means} % at epsilon {' / '.join(f'{budget:g}' for budget in budgets)}"

    return f"""
## The default recipe on images

`lipdp train --dataset mnist`, `fashion_mnist` or `cifar10`: a small network, by DP-SGD, on fixed features normalized by
private moments: those of `Scattering2D` beside those of `PatchFeatures2D` and, on CIFAR-10, of `EncoderFeatures2D`;
digits of MNIST are deskewed first, and have those of `Scattering2D` alone. "clipless": `--front-end accurate`, one
layer on all of these features. No public data, delta = 1e-5. Test set, mean over seeds. Settings were chosen on
held-out training images of CIFAR-10 and Fashion-MNIST, for "clipless" of Fashion-MNIST alone. Both test sets had been
opened before `PatchFeatures2D` came, by the recipe of wavelets alone (5 seeds):
CIFAR-10 {before("cifar10", "patches=0")},
Fashion-MNIST {before("fashion_mnist", "patches=0")};
that of CIFAR-10 once more before features were scaled by random images:
{before("cifar10", "scaled=False encoded=False")},
clipless {before("cifar10", "scaled=False encoded=False", "clipless")},
DPIS {before("cifar10", "scaled=False encoded=False", "dpis")}; before the encoder came, by the runs of the third
table below, and by one with its features scaled another way (68.16 % at epsilon 1); and, before channels were
decorrelated, by those of the second. How far they are was chosen at epsilon 1, one seed. Deskewing, and the rate
with it, were chosen on held-out digits (one seed) after MNIST's test set had given, without it,
{before("mnist", "deskewed=False")}. This copy of CIFAR-10 was encoded again as JPEG, that of the published figures
was not. Seconds are those of `fit`, one or two cores, beside other work;
the features take some minutes more. *Published*: Tramer & Boneh 2021; R+R: the
reproduction of ACSAC 2024; De et al. 2022. `python benchmarks/scattered.py`

{scattered.table(found["runs"])}

**Before channels were decorrelated.** The same for CIFAR-10, when each channel of the features was scaled by itself.
These runs are older, and this version does not repeat them.

{scattered.table(found["runs"], scattered.BEFORE)}

What decorrelating the channels adds:

{scattered.gain(found["runs"], scattered.BEFORE)}

**Without the encoder.** The same as in the second table, on wavelets and patches alone (`encoded=False`).

{scattered.table(found["runs"], f"{scattered.BEFORE} encoded=False")}

What the encoder adds. It has learned in seven minutes on one H200 that two views of a random image belong together:
images of random networks, and of shapes that cover one another, 300,000 of them, drawn by
`benchmarks/random_images.py`; so there is no public data in it either. The idea is that of DP-RandP (Tang et al. 2023:
72.3 % at epsilon 1), where the encoder goes on learning in private, which this one does not.
`KERAS_BACKEND=jax python benchmarks/encoder.py --seconds 430 --output runs/encoder`

{scattered.gain(found["runs"], f"{scattered.BEFORE} encoded=False", scattered.BEFORE)}
"""


def _transfer(found: dict) -> str:
    return f"""
## Fine-tuning from public weights

A convolutional network that has learned five classes of CIFAR-10 without privacy learns the other five by DP-SGD: its
new head, low-rank additions of rank 8 to the hidden layer as well, or all weights, against all weights from scratch;
25,000 private images, delta = 1e-5. Test set, mean over seeds; rates chosen on held-out training images at epsilon 2,
once for each way. This copy of CIFAR-10 was encoded again as JPEG. Seconds are those of `fit`, beside other work.
`python benchmarks/transfer.py`

{transfer.table(found["runs"])}
"""


def _heads(found: dict) -> str:
    return f"""
## Heads on public features

The default head (`lipdp.recipe(style="head")`, `lipdp train --backbone`) on the features of two networks that have
learned five classes of CIFAR-10 without privacy, trained by DP-SGD on the first rows of the other five, beside a
clipless head of Lipschitz layers, which is certified in the space of features; delta = 1e-5. `hidden` is the width of
the hidden layer. Test set, mean over seeds; settings of the head were chosen on held-out training images and on
features of texts. This copy of CIFAR-10 was encoded again as JPEG. Seconds are those of `fit`, beside other work.
`python benchmarks/heads.py`

{heads.table(found["runs"])}
"""


def _few_images(found: dict) -> str:
    return f"""
## Few images

The default recipe on the first images of a training set, epsilon = {found["epsilon"]:g}, delta = 1e-5, beside clipless
training of the pixels and the [robust recipe](howto/certified.md); test set, mean over seeds. Learning rates grow with
the number of images, up to 16,384 (of digits and images in color 50,000), 8000 and 50,000, which was chosen on the last
training images, with one to three seeds (`benchmarks/few_images.py --held-out`).
`python benchmarks/few_images.py`; 16,000 images: `--dataset cifar10 --way default --rows 16000`

{few_images.table(found["runs"])}
"""


def _certified(found: dict) -> str:
    return f"""
## Private and certified

Share of the test set that is classified correctly whatever changes the pixels by up to a radius (L2, pixels in [0, 1]),
proved, with the recipe of `lipdp train --recipe robust`, see [the page](howto/certified.md). Mean over seeds; delta =
1e-5. Settings were chosen on held-out training images of MNIST and taken to the other sets by their size; this copy of
CIFAR-10 was encoded again as JPEG. Seconds are beside other work.
`python benchmarks/certified.py`

{certified.table(found["runs"])}
"""


def _audits(found: dict) -> str:
    known = found["summary"]
    return f"""
## Audits

Lower bounds on epsilon by white-box audits (`lipdp.audit.white_box`: 256 canaries, 4 updates, sampling probability 0.5,
delta = 1e-5, 300 runs; DPIS 2048 and 12), each at 95 % by itself, TensorFlow / JAX. {known["audits"]} audits, of which
{known["flagged"]} above the stated epsilon; by chance up to one in 20 might be, and near 0.3 % would be by how the
bounds are made. Persons have four rows each, of which two are in an update. What keeps some lower is the accounting:
shuffled batches are charged without amplification, those of constant size, and random allocation at epsilon 10, by
bounds that are not tight. [DPIS](howto/audit.md#samplers-persons-dpis) has fewer trials. Faults and tightness are on
the page [audit a run](howto/audit.md#it-catches-faults). `{found["command"]}` with each backend

{audits.table(found["runs"])}
"""


# The order of the page; a benchmark without results has no table.
SECTIONS = {
    "mnist": _mnist,
    "scattered": _scattered,
    "few_images": _few_images,
    "certified": _certified,
    "frontend": _frontend,
    "images": _images,
    "tabular": _tabular,
    "unseen_tables": _unseen_tables,
    "dpsgd": _dpsgd,
    "adaclip": _adaclip,
    "dpis": _dpis,
    "regimes": _regimes,
    "persons": _persons,
    "diffusion": _diffusion,
    "step_cost": _step_cost,
    "per_example": _per_example,
    "finetune": _finetune,
    "transfer": _transfer,
    "heads": _heads,
    "finetune_peers": _finetune_peers,
    "peers": _peers,
    "fit_cost": _fit_cost,
    "start_cost": _start_cost,
    "own_layers": _own_layers,
    "fixed_features": _fixed_features,
    "gpu_steps": _gpu,
    "sources": _sources,
    "dpsgd_low_mixed_bfloat16": _low_precision,
    "accounting": _accounting,
    "allocation": _allocation,
    "audits": _audits,
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


def short() -> str:
    """The few lines of the README, one per kind of result."""
    lines = ["| what | result | beside it |", "|---|---|---|"]
    for name, line in SHORT.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            lines.append(line(json.loads(path.read_text())))
    return "\n".join(lines) + "\n"


def _at(rows: list, **place) -> dict:
    return next(row for row in rows if all(row[key] == value for key, value in place.items()))


def _ratio(rows: list, network: str, batch: int, name: str) -> str:
    return f"{_at(rows, network=network, batch=batch)[name]['median']:.2f}"


def _short_scattered(found: dict) -> str:
    rows, lines = scattered.reached(found["runs"]), []
    for dataset, title, beside in (
        ("cifar10", "CIFAR-10", "R+R: 60.9 / 67.0 / 69.7 / 72.4 %"),
        ("mnist", "MNIST", "Tramer & Boneh: 98.5 % at 2"),
    ):
        chosen = [row for row in rows if row["dataset"] == dataset and row["epsilon"] in (1.0, 2.0, 4.0, 8.0)]
        budgets = " / ".join(f"{row['epsilon']:g}" for row in chosen)
        ours = " / ".join(f"{row['accuracy']:.1f}" for row in chosen)
        lines.append(f"| {title}, default recipe, no public data, epsilon {budgets} | {ours} % | {beside} |")
    return "\n".join(lines)


def _short_tabular(found: dict) -> str:
    def mean(method: str) -> str:
        chosen = {"table": "campaign", "method": method, "evaluated_on": tabular.place(False), "changes": ""}
        runs = [run for run in found["runs"] if all(run[key] == value for key, value in chosen.items())]
        scores = [run["auroc"] for run in runs if run["epsilon"] in (None, 1.0)]
        return f"{sum(scores) / len(scores):.3f}"

    return (
        f"| table of ADBench (campaign), default recipe, epsilon 1: AUROC | {mean('dpsgd')} | "
        f"boosted trees, not private: {mean('boosting')} |"
    )


def _short_dpis(found: dict) -> str:
    rows = [_at(found["table"], dataset="mnist", epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0)]
    cells = (" / ".join(f"{row[name]:.{digits}f}" for row in rows) for name, digits in (("dpis", 2), ("paper", 1)))
    return "| MNIST, fixed front end, DPIS, epsilon 1 / 2 / 4 | {} % | paper: {} % |".format(*cells)


def _short_mnist(found: dict) -> str:
    row = _at(found["table"], epsilon=2.0)
    return (
        f"| MNIST, pixels, clipless, epsilon 2 | {100 * row['accuracy']:.2f} % | "
        f"certified at L2 0.1: {100 * row['certified_0.1']:.1f} % |"
    )


def _short_certified(found: dict) -> str:
    chosen = {"dataset": "mnist", "method": "dpsgd", "epsilon": 2.0, "radius": 0.5, "evaluated_on": "test set"}
    runs = [run for run in found["runs"] if all(run[key] == value for key, value in chosen.items())]

    def mean(value) -> float:
        return 100 * sum(map(value, runs)) / len(runs)

    within = " / ".join(f"{mean(lambda run, r=r: run['certified'][r]):.1f}" for r in ("0.5", "1"))
    return (
        f"| MNIST, pixels, robust recipe, epsilon 2: certified at L2 0.5 / 1.0 | {within} % | accuracy: "
        f"{mean(lambda run: run['accuracy']):.1f} % |"
    )


def _short_diffusion(found: dict) -> str:
    def mean(epsilon):
        place = {"dataset": "mnist", "preset": "cpu-28", "epsilon": epsilon}
        scores = [100 * run["accuracy"]["cnn"] for run in found["runs"] if place.items() <= run.items()]
        return f"{sum(scores) / len(scores):.1f}"

    return (
        "| synthetic digits, 28 x 28, epsilon 1 / 10: CNN trained on them, tested on real ones | "
        f"{mean(1.0)} / {mean(10.0)} % | DP-FETA: 95.6 / 98.1 %, DPDM: 89.2 / 97.7 % |"
    )


def _short_step_cost(found: dict) -> str:
    rows = found["results"]["tensorflow"]
    mlp, cnn = (_ratio(rows, network, 1024, "ratio_to_ordinary") for network in ("mlp", "cnn"))
    return f"| time of a clipless step, B = 1024, TensorFlow | {cnn} (CNN), {mlp} (MLP) | ReLU network, no privacy: 1 |"


def _short_per_example(found: dict) -> str:
    rows = found["results"]["tensorflow"]
    mlp, cnn = (_ratio(rows, network, 1024, "ratio") for network in ("mlp", "cnn"))
    return f"| time of a DP-SGD step, B = 1024, TensorFlow | {cnn} (CNN), {mlp} (MLP) | same network, no privacy: 1 |"


SHORT = {
    "scattered": _short_scattered,
    "mnist": _short_mnist,
    "certified": _short_certified,
    "tabular": _short_tabular,
    "dpis": _short_dpis,
    "diffusion": _short_diffusion,
    "step_cost": _short_step_cost,
    "per_example": _short_per_example,
}


def update(text: str, tables: str) -> str:
    """A page with what stands between its markers renewed."""
    pattern = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
    return pattern.sub(lambda page: page[1] + tables.lstrip("\n") + page[2], text)


def plot(path) -> None:
    """Accuracy on the test set of MNIST against epsilon, for the ways to train that have figures."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def rows(name, **place):
        found = json.loads((RESULTS / f"{name}.json").read_text())["table"]
        return [row for row in found if all(row[key] == value for key, value in place.items())]

    importance, clipped = rows("dpis", dataset="mnist"), rows("dpsgd")
    front, pixels = rows("frontend", dataset="mnist", preset="accurate"), rows("mnist")
    series = {
        "DPIS, fixed front end": ([r["epsilon"] for r in importance], [r["dpis"] for r in importance], "C0o-"),
        "published, DPIS": ([r["epsilon"] for r in importance], [r["paper"] for r in importance], "C0x:"),
        "clipless, fixed front end": ([r["epsilon"] for r in front], [100 * r["accuracy"] for r in front], "C1o-"),
        "DP-SGD, pixels": ([r["epsilon"] for r in clipped], [100 * r["accuracy"] for r in clipped], "C2o-"),
        "published, DP-SGD": ([r["epsilon"] for r in clipped], [r["target"] for r in clipped], "C2x:"),
        "clipless, pixels": ([r["epsilon"] for r in pixels], [100 * r["accuracy"] for r in pixels], "C3o-"),
    }
    figure, axes = plt.subplots(figsize=(7.5, 3.4))
    for label, (epsilons, accuracies, style) in series.items():
        axes.plot(epsilons, accuracies, style, label=label, markersize=5)
    axes.set(xlabel="epsilon at delta = 1e-5", ylabel="accuracy on the test set, %", title="MNIST", xscale="log")
    axes.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    # The same file from the same figures.
    with matplotlib.rc_context({"svg.hashsalt": "lipdp"}):
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    plot(ROOT / "docs" / "images" / "mnist.svg")
    RESULTS_PAGE.write_text(update(RESULTS_PAGE.read_text(), render()))
    README.write_text(update(README.read_text(), short()))
    rows = scattered.reached(json.loads((RESULTS / "scattered.json").read_text())["runs"])
    (ROOT / "lipdp" / "models" / "reached.json").write_text(json.dumps(rows, indent=1) + "\n")
