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
import regression
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

Clipless training on raw pixels with the recipe of `lipdp train --strategy clipless`, at delta = 1e-5. Accuracy is on
the {found["evaluated_on"]}, mean over seeds. Certified accuracy is in the L2 norm of pixels in [0, 1]. Settings were
chosen on held-out training images. `{found["command"]}`

{mnist.table(found["table"])}
"""


def _frontend(found: dict) -> str:
    return f"""
## The fixed front end

Clipless training on the features of `Scattering2D`, at delta = 1e-5. Accuracy is on the {found["evaluated_on"]}, mean
over seeds, whose number is in the last column. Certificates are in the L2 norm of pixels in [0, 1].
`python benchmarks/frontend.py`

Settings were chosen on held-out training images, and some of them a second time after figures of the test set had been
seen: on Fashion-MNIST at epsilon 0.5 and 2 (85.86 % and 88.29 % before); on MNIST at all four budgets, when features
were first centered (97.17, 97.59, 97.95 and 98.35 % before, and 98.17 % at epsilon 2 with fewer updates).

{frontend.table(found["table"])}
"""


def _images(found: dict) -> str:
    return f"""
## Networks for images

Clipless training on pixels ("none") and on the fixed front end, at delta = 1e-5. Accuracy is on the test set, mean over
seeds. Certificates are in the L2 norm of pixels in [0, 1]. Settings were chosen on held-out training images; for LeNet
and ResNet on CIFAR-10 they were carried over. `python benchmarks/images.py`

{images.table(found["table"])}

![accuracy against epsilon and against certified accuracy](../benchmarks/results/images.png)
"""


def _regression(found: dict) -> str:
    return f"""
## Numbers of tables

The default recipe of `lipdp train --task regression`, `models.regression_recipe`, at delta = 1e-5: California housing,
and one column of four tables of ADBench. Errors are mean absolute errors, as parts of that of the median of the test
rows (1: no better); R squared is 0 for their mean. Linear regression and boosting (`HistGradientBoostingRegressor`) are
those of scikit-learn, with their defaults and without privacy. Settings were chosen on a fifth of the rows that is
neither in the test part nor trained on then, of the same five tables, with one seed. Ranges of the four are read off a
sixth of the rows that is not used otherwise. `python benchmarks/regression.py`

{regression.render(found["runs"])}
"""


def _tabular(found: dict) -> str:
    return f"""
## Tabular data

Six tables of ADBench, at delta = 1 / (N + 1). AUROC is on validation rows, a fifth of all rows, mean over seeds.
`python benchmarks/tabular.py`

- "DP-SGD, the recipe" is what `lipdp train` uses for tables, `models.table_recipe`: columns normalized by private
  moments, and one hidden layer.
- AdaCliP and DPIS train the same network. p is from a paired t-test against DP-SGD. A dash means that the norms that
  DPIS releases would cost more than the whole budget.
- "clipless" is a Lipschitz network with certificates.
- "no noise" is the recipe without privacy. Boosting (`HistGradientBoostingClassifier`) and logistic regression are
  those of scikit-learn, with their defaults and without privacy.

Settings were chosen on a part of the training rows of campaign, celeba, magic.gamma and yeast, and one of them on
[more tables](#more-tables) as well.

{tabular.render(found["runs"])}

{tabular.without_signal(found["runs"])}

**Unknown units.** Each column is multiplied by a constant between 1e-3 and 1e5 and shifted by another one, both drawn
once. Columns are then used as they are, or rescaled by ranges that `layers.PrivateRescaling` releases as part of
epsilon, as `lipdp train` does for such tables. `python benchmarks/tabular.py --method dpsgd "any units" rescaled`

{tabular.render_units(found["runs"])}
"""


def _unseen_tables(found: dict) -> str:
    return f"""
## More tables

{len(unseen_tables.TABLES)} more tables of ADBench, in the units of their files: all classical ones with at least 1000
rows, except four that were not at hand (backdoor, census, fraud, speech). delta = 1 / (N + 1). AUROC is on a fifth of
the rows of each class, mean over seeds. `python benchmarks/unseen_tables.py`

- "recipe" is what `lipdp train` does with a table of your own. It releases moments, and ranges of the columns where
  there are enough rows for them, as part of epsilon, and then trains by DP-SGD.
- "no noise" is the same without privacy. Boosting and logistic regression are those of scikit-learn, without privacy,
  the second one on standardized columns.

One setting of the recipe, `constant_unit`, was chosen on a part of the training rows of the tables with a star, after a
first series without it had been seen (http 0.963, Waveform 0.891, smtp 0.069). No setting was chosen on the other
tables.

{unseen_tables.render(found["runs"])}

{unseen_tables.summary(found["runs"])}
"""


def _dpsgd(found: dict) -> str:
    return f"""
## DP-SGD

A small convolutional network on raw pixels of MNIST, at delta = 1e-5. Accuracy is on the {found["evaluated_on"]}, mean
over seeds. *Published*: Papernot et al. 2021. `python benchmarks/dpsgd.py`

The learning rate was chosen on held-out training images at epsilon 1. A rate that falls to zero was also scored on the
test set (one seed: 96.62, 97.41 and 97.86 %); it was dropped because of its held-out figure.

{dpsgd.table(found["table"])}
"""


def _adaclip(found: dict) -> str:
    return f"""
## AdaCliP beside DP-SGD

MNIST at delta = 1e-5. Accuracy is on the {found["evaluated_on"]}, mean over seeds; p is from a paired t-test. The noise
ratio is the root mean energy of the noise of AdaCliP divided by that of DP-SGD. "network" is a convolution and one
layer of logits on images of half the side, not the network of the paper. *Published*: Pichapati et al. 2019.
`python benchmarks/adaclip.py`

Settings were chosen on held-out training images, most of them with DP-SGD. The rate of AdaCliP at epsilon 2 was chosen
again after a figure of the test set had been seen (95.58 %).

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

One hidden layer of 64 tanh units on the centered features of `Scattering2D`, scaled to norm 1, with the same network,
budget and settings for both strategies, at delta = 1e-5. Digits are deskewed first, each by itself. Accuracy is on the
{found["evaluated_on"]}, mean over seeds; p is from a paired t-test. *Paper*: Wei et al. 2022, Table 3, on networks of
its own. Seconds are of whole runs, including the passes that compute norms, on a busy machine.
`python benchmarks/dpis.py`

Settings were chosen on held-out training images, mostly of MNIST. Deskewing and norm 1 were added after a first
series had missed the figures of the paper on the test set of MNIST (98.31, 98.47 and 98.52 % at epsilon 2, 3 and 4,
two seeds). At epsilon 0.5 there is no difference between the strategies.

{dpis.table(dpis.summary(found["runs"]))}
"""
    return text + (f"\n{dpis.cost_text(cost)} `{cost['command']}`\n" if cost else "")


def _regimes(found: dict) -> str:
    return f"""
## Where AdaCliP and DPIS help

Regimes in which theory says that they should, each strategy beside DP-SGD at the same budget, at delta = 1e-5: mean
over seeds on test rows, p from a paired t-test. `python benchmarks/regimes.py`

On real data each strategy wins once with p below 0.05, both at epsilon 4, and something simpler gains more there:
AdaCliP on words, DPIS on Fashion-MNIST.

- Data: categories, columns of several scales and the rare class are generated from the seed. Words are from paragraphs
  of the docstrings of scipy and scikit-learn as installed; the class says from which of the two. magic.gamma is in the
  units of its authors. Fashion-MNIST has 20,000 training images here.
- Ways: "normalized" is DP-SGD behind `PrivateNormalization`. "larger batches" is DP-SGD with as many updates and eight
  times the batch size. AdaCliP has one deviation per layer where there are several layers.
- Settings: learning rates fall to zero. Rate and clip norm were chosen for each regime, budget and way with the same
  effort, six settings each, on held-out training rows or on data of another seed (`benchmarks/regimes.py --held-out`).
  The regimes and their sizes were chosen on such rows, too.
- Seconds were measured beside other work.

{regimes.table(found["runs"])}
"""


def _diffusion(found: dict) -> str:
    text = """
## Diffusion models

Classifiers learn from synthetic images only and are tested on the real test set; delta = 1e-5. *Published* figures are
of 28 x 28 images and CNNs: DPDM (Dockhorn et al. 2023) and DP-FETA (Li et al. 2025). *Distance* is the Frechet distance
between the test set and 10,000 drawn images, on the features of a classifier of real images; it is not the FID of the
literature. Runs that are older than this measure have none.

- "cpu-28" learns [moments](diffusion.md#moments-first) before the images; from epsilon 2 on, those of [several kinds of
  images in a class](diffusion.md#several-kinds-of-images-in-a-class). For images that are no handwriting it has [a
  classifier for its labels](diffusion.md#labels-by-a-classifier), which alone would cost half of epsilon.
- "cpu-14" draws images of half the side.
- The protocol of Dockhorn et al. has 60,000 images and classifiers of 50 epochs. The table says where there were fewer.
- The *wider CNN* has 64, 128 and 256 filters, dropout 0.2, and Adam at 1e-3, falling to zero over 20 epochs.
- The *coarse CNN* first averages pixels two by two, then has as many filters, and 12 epochs: drawn images differ from
  real ones in fine details.
- A core of a CPU trains "cpu-28" in 8 (epsilon 1) and 14 minutes (epsilon 10). The ten runs on a GPU shared it.

Settings of "cpu-28" were chosen on held-out training images of MNIST at epsilon 1 and 10, those of the classifier for
labels on held-out training images of Fashion-MNIST, and those of "cpu-14" with 300 updates at epsilon 10. The wider
CNN was chosen at epsilon 10 on held-out training images, one seed: 84.1 % from 27,000 drawn images, and 83.7 % for
the width of the protocol. Its five runs were trained again on a CPU with JAX, and scored with TensorFlow. That 50
epochs are better than 20 was seen on held-out training images, in one run.

What had been seen on the test sets before:

- MNIST, seed 0, epsilon 1: 93.27 % from 20,000 images in 20 epochs, 93.95 % from 60,000. Epsilon 10 with earlier
  settings, one normal distribution for each class: 95.62 % in 20 epochs.
- Fashion-MNIST, seed 0, without the classifier for labels: CNN 76.04 %, MLP 75.23 %, logistic regression 75.96 % at
  epsilon 1; 80.24, 82.00 and 80.12 % at epsilon 10.
- Fashion-MNIST with it, the same five seeds on a CPU, classifiers of 20 epochs: CNN 77.71 %, MLP 80.58 %, logistic
  regression 80.29 % at epsilon 1; 82.87, 83.96 and 82.13 % at epsilon 10.
- The coarse CNN was chosen on held-out training images (84.8 %, one seed, where the wider one had 83.9 % in as many
  epochs), but after the wider one had been tested. Its five runs use the same drawn images.

"""
    for runs in diffusion.by_setting(found):
        seeds = ", ".join(str(run["seed"]) for run in runs[1:])
        text += f"`{runs[0]['command']}`" + (f" and seeds {seeds}\n" if seeds else "\n")
    text += f"\n{diffusion.table(found)}\n" if "runs" in found else ""
    return text + (f"\n`{found['cost']['command']}`\n\n{diffusion.cost_table(found)}\n" if "cost" in found else "")


def _persons(found: dict) -> str:
    return f"""
## Persons with several rows

The training images of Fashion-MNIST, given to {found["persons"]} synthetic persons with 1 to 50 rows each (median
{found["median_rows"]:g}) and skewed classes. The budget protects a person with all of their rows, at delta = 1e-5.
Three ways: `fit(person_ids=)` with 8 rows of each drawn person, `fit(examples_per_person=50)` on drawn rows, and one
row of each person alone. Accuracy is on the test set, mean over seeds. Learning rates were chosen for each way on
held-out training images (`benchmarks/persons.py --held-out`). `python benchmarks/persons.py`

{persons.table(found["table"])}
"""


def _step_cost(found: dict) -> str:
    beside = json.loads((RESULTS / "step_cost_jax.json").read_text())
    return f"""
## Cost of a clipless step

Median [10 % - 90 %] of paired ratios on a shared machine with {found["machine"]["cores"]} CPU cores. *plain* is the
same Lipschitz network without noise, projection and Poisson padding; *ordinary* is a ReLU network.
`{found["command"]}` and `{beside["command"]}`

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

Relative to the same network without privacy: median [10 % - 90 %] of paired ratios. Memory is the ratio of the peaks of
two processes that each run one of the steps alone. {commands}

{per_example.table(rows)}
"""


def _finetune(found: dict) -> str:
    return f"""
## Cost of fine-tuning

Relative to the same transformer without privacy (4 blocks, 512 wide, sequences of 128, stock layers, random weights).
What trains is the head alone, the head and LoRA of rank 8 on queries and values, or all weights. One CPU core, default
settings of `fit`, median [10 % - 90 %] of paired ratios. A Poisson draw has B rows on average only: `drawn` is their
mean over the steps that were timed, and the ratio by drawn row divides each time by its rows. Memory is the ratio of
the peaks of two processes that each run one of the steps alone. Times are beside other work on the machine, which slows
down both steps of a pair. `{found["command"]}`

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

The transformer of [Cost of fine-tuning](#cost-of-fine-tuning) on one core, with one thread for each library: lipdp on
TensorFlow, Opacus with LoRA by peft, and jax_privacy. Each alternates with the step without privacy of its own
framework, in one process. `{rows[0].get("command", found["command"])}`, and the same for other networks and B.
{missing}
- Where Opacus has no rule for attention, it is built from linear layers. Keras, and the network for JAX, add LoRA for
  each head, peft for all heads together. `weights` counts what trains; in Keras this includes the biases of queries
  and values.
- The machine was busy (load up to {load:.0f} on {found["machine"]["cores"]} cores), so milliseconds and ratios are of
  CPU time, over all threads. Few steps were timed, and fewer still where they took long.
- The ratio of lipdp is by drawn row. *beside lipdp* is milliseconds by row divided by those of the process of lipdp in
  the same round. MiB is the peak of a process that runs both steps.

{peers.finetune_table(rows)}
"""


def _peers(found: dict) -> str:
    return f"""
## The private step beside those of other libraries

Each library runs in an environment and in processes of its own, with one thread, one after the other. *beside lipdp* is
the median of the library divided by that of lipdp just before. `{found["command"]}`

{peers.table(found["results"])}
"""


def _gpu(found: dict) -> str:
    device = found["runs"][0]["device"]
    return f"""
## Steps on a GPU

JAX {found["versions"]["jax"]} on one {device}: median [10 % - 90 %] of ratios to the ordinary network of stock Keras,
paired in one process; jax_privacy trains the same Keras network. Memory is the peak of a process that runs only that
step. Networks, microbatches and spread are in `benchmarks/results/gpu_steps.json`. Each row names its command.

- Wide residual network: another process used the device now and then; the lower end is that of a step alone.
- U-Net: missing, because XLA searches for more than five minutes for the way to compute its private step.
- CNN: measured before the gradients of a kernel became one product on a GPU. Its rows of DP-SGD are also older than
  microbatches of one size, which take about 4 % more rows at B = 1024.

{gpu.table(found["runs"])}
"""


def _fit_cost(found: dict) -> str:
    two_cores = json.loads((RESULTS / "fit_cost_two_cores.json").read_text())
    narrow = json.loads((RESULTS / "fit_cost_avx2.json").read_text())
    return f"""
## What `fit` costs from end to end

The second epoch of `fit` on the 60,000 images of MNIST, with batches, transfers and metrics, relative to the ordinary
network of stock Keras with biases and ReLU. Both train alternately in one process: median [10 % - 90 %] of
{found["runs"][0]["rounds"]} rounds. "readme" is the convolutional network of the README, "mlp" two dense layers of
512 units. Clipless trains them with layers of this library, DP-SGD trains the ordinary ones. CPU time is that of all
threads.

The machine matters: the faster a core multiplies matrices, the more everything else weighs. On an earlier machine with
AVX-512, clipless training of "readme" on TensorFlow took 1.54, 1.03 and 0.94 times the CPU time.

**One core, one thread.** Compare the columns of CPU time: on TensorFlow the wall-clock time of the ordinary `fit`
includes waiting. `OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

{fit_cost.table(found["runs"])}

**One core without AVX-512.** TensorFlow does not use oneDNN there, and the ordinary convolutional network is slow. As
above, other work ran on the second core. `OMP_NUM_THREADS=1 taskset -c 0 {narrow["command"]} --backend tensorflow`

{fit_cost.table(narrow["runs"])}

**Two cores**, with as many threads as the frameworks choose. Waiting counts for a user, so compare the wall-clock
time here. `{two_cores["command"]}`

{fit_cost.table(two_cores["runs"])}
"""


def _start_cost(found: dict) -> str:
    return f"""
## What it takes to begin

A `fit` of one update of 64 rows: the first one of a new model, and the next one of the same model. Seconds of CPU
time on one core for stock Keras and for `strategy="dpsgd"` on the same network, and median [10 % - 90 %] of the
paired ratios of {found["runs"][0]["rounds"]} rounds, beside other work.
`OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

The first `fit` compiles the step; a private one also tries the network on a few rows before. The noise is planned once
for each `fit`, whatever its length. "own layers" is a transformer of subclassed layers, which run one row at a time;
"to_functional" trains what `lipdp.to_functional` makes of it.

{start_cost.table(found["runs"])}
"""


def _own_layers(found: dict) -> str:
    return f"""
## Layers of your own

An update of 64 rows of a network of subclassed layers under `strategy="dpsgd"`, on one core: milliseconds of CPU time
of stock Keras, and median [10 % - 90 %] of the paired ratios to it, over {found["runs"][0]["rounds"]} alternating
epochs, beside other work. On the left the layers run one row at a time; on the right is what `lipdp.to_functional`
makes of them. `OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`

"dense" is three layers with a matrix and a bias of their own, 512 wide. "text" embeds 20,000 words and their positions,
with one transformer block. "images" embeds patches and their positions, with two blocks.

{own_layers.table(found["runs"])}
"""


def _fixed_features(found: dict) -> str:
    beside = json.loads((RESULTS / "fixed_features_jax.json").read_text())
    runs = {one["backend"]: one["runs"] for one in (found, beside)}
    return f"""
## Cost of fixed features

`lipdp.features` through the fixed layers of the default recipe for images: milliseconds of CPU time for each image,
and median [10 % - 90 %] of the paired ratios to Keras' ResNet50 without its head, at 32 x 32. One core without
AVX-512, beside other work. `OMP_NUM_THREADS=1 taskset -c 0 {found["command"]}`, and with `KERAS_BACKEND=jax` the same
with `--name fixed_features_jax`

{fixed_features.table(runs)}
"""


def _sources(found: dict) -> str:
    return f"""
## Data on disk

Peak resident set, in MB, of a process that trains a small network on rows of 64 x 64 x 3 bytes at B = 256. One run
each, on two busy cores. `{found["command"]}`

{sources.table(found)}
"""


def _low_precision(found: dict) -> str:
    (low,) = found["table"]
    plain = json.loads((RESULTS / "dpsgd_low_float32.json").read_text())
    (full,) = plain["table"]
    return f"""
## Low precision

DP-SGD on MNIST at epsilon {low["epsilon"]:g} (delta {found["delta"]:g}), with the network and settings of
[DP-SGD](#dp-sgd), {low["runs"]} seeds: {100 * full["accuracy"]:.2f} % (sd {100 * full["deviation"]:.2f}) in float32 and
{100 * low["accuracy"]:.2f} % ({100 * low["deviation"]:.2f}) under `mixed_bfloat16`.
`{found["command"]}`, and the same with `--policy float32`
"""


def _allocation(found: dict) -> str:
    return f"""
## Random allocation

Epsilon at noise multiplier {found["noise_multiplier"]:g}, with {found["updates"]} updates per epoch, {found["epochs"]}
epochs and delta {found["delta"]:g}: the bound that the accountant computes, beside an estimate by simulation
({found["samples"]:,} draws, seed {found["seed"]}). `{found["command"]}`

{allocation.table(found)}
"""


def _accounting(found: dict) -> str:
    return f"""
## Accounting

Seconds of CPU time from a cold start, median of {_runs(found)} runs of lipdp, beside dp-accounting
{found["versions"]["dp-accounting"]} as it is. The noise is for delta = {found["delta"]:g}, the groups for delta = 1e-6,
which dp-accounting computes on a grid of 1e-3. Both agree within 1e-4. `{found["command"]}`

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

`lipdp train --dataset mnist`, `fashion_mnist` or `cifar10`: a small network, trained by DP-SGD on fixed features that
are normalized by private moments, at delta = 1e-5, without public data. The features are those of `Scattering2D` and
`PatchFeatures2D`, on CIFAR-10 also of `EncoderFeatures2D`. Digits are deskewed first and use `Scattering2D` alone.
"clipless" is `--front-end accurate`: one layer on all of these features. Accuracy is on the test set, mean over
seeds. Seconds are those of `fit`, on one or two cores beside other work; computing the features takes some minutes
more. This copy of CIFAR-10 was re-encoded as JPEG, that of the published figures was not. *Published*: Tramer & Boneh
2021; R+R: the reproduction of ACSAC 2024; De et al. 2022. `python benchmarks/scattered.py`

{scattered.table(found["runs"])}

Settings were chosen on held-out training images of CIFAR-10 and Fashion-MNIST; those of "clipless" on Fashion-MNIST
alone; how far channels are decorrelated at epsilon 1, one seed; deskewing, and the rate with it, on held-out digits,
one seed. What had been seen on the test sets before:

- Wavelets alone, before `PatchFeatures2D` (5 seeds): CIFAR-10 {before("cifar10", "patches=0")};
  Fashion-MNIST {before("fashion_mnist", "patches=0")}.
- CIFAR-10 before features were scaled by random images: {before("cifar10", "scaled=False encoded=False")};
  clipless {before("cifar10", "scaled=False encoded=False", "clipless")};
  DPIS {before("cifar10", "scaled=False encoded=False", "dpis")}.
- CIFAR-10 before the encoder, and before channels were decorrelated: the runs of [earlier
  recipes](#earlier-recipes-for-cifar-10), and one with features scaled in another way (68.16 % at epsilon 1).
- MNIST without deskewing: {before("mnist", "deskewed=False")}.

**What the encoder is.** It has learned in seven minutes on one H200 that two views of a random image belong together.
There is no public data in it: its 300,000 images are of random networks, and of shapes that cover one another, drawn by
`benchmarks/random_images.py`. The idea is that of DP-RandP (Tang et al. 2023: 72.3 % at epsilon 1), whose encoder goes
on learning in private; this one does not. `KERAS_BACKEND=jax python benchmarks/encoder.py --seconds 430 --output
runs/encoder`

What the encoder adds, before channels were decorrelated:

{scattered.gain(found["runs"], f"{scattered.BEFORE} encoded=False", scattered.BEFORE)}

What decorrelating the channels adds:

{scattered.gain(found["runs"], scattered.BEFORE)}
"""


def _earlier_recipes(found: dict) -> str:
    return f"""
## Earlier recipes for CIFAR-10

These runs are older, and this version does not repeat them. When each channel of the features was scaled by itself:

{scattered.table(found["runs"], scattered.BEFORE)}

The same on wavelets and patches alone, without the encoder:

{scattered.table(found["runs"], f"{scattered.BEFORE} encoded=False")}
"""


def _transfer(found: dict) -> str:
    return f"""
## Fine-tuning from public weights

A convolutional network has learned five classes of CIFAR-10 without privacy, and learns the other five by DP-SGD from
25,000 private images, at delta = 1e-5. What trains is a new head, the head and LoRA of rank 8 on the hidden layer, or
all weights, beside all weights from scratch. Accuracy is on the test set, mean over seeds. Rates were chosen once for
each way, on held-out training images at epsilon 2. This copy of CIFAR-10 was re-encoded as JPEG. Seconds are those of
`fit`, beside other work. `python benchmarks/transfer.py`

{transfer.table(found["runs"])}
"""


def _heads(found: dict) -> str:
    return f"""
## Heads on public features

The default head (`lipdp.recipe(style="head")`, `lipdp train --backbone`) on the features of two networks that have
learned five classes of CIFAR-10 without privacy. It is trained by DP-SGD on the first rows of the other five classes,
at delta = 1e-5, beside a clipless head of Lipschitz layers, which is certified in the space of features. `hidden` is
the width of the hidden layer. Accuracy is on the test set, mean over seeds. Settings of the head were chosen on
held-out training images and on features of texts. This copy of CIFAR-10 was re-encoded as JPEG. Seconds are those of
`fit`, beside other work. `python benchmarks/heads.py`

{heads.table(found["runs"])}
"""


def _few_images(found: dict) -> str:
    return f"""
## Few images

The default recipe on the first images of a training set, at epsilon = {found["epsilon"]:g} and delta = 1e-5, beside
clipless training on pixels and the [robust recipe](howto/certified.md). Accuracy is on the test set, mean over seeds.
`python benchmarks/few_images.py`; 16,000 images: `--dataset cifar10 --way default --rows 16000`

Learning rates grow with the number of images, up to 16,384 (50,000 for digits and for images in color), 8000 and 50,000
for the three columns. This was chosen on the last training images, with one to three seeds
(`benchmarks/few_images.py --held-out`).

{few_images.table(found["runs"])}
"""


def _certified(found: dict) -> str:
    return f"""
## Private and certified

The share of the test set that is proved to be classified correctly under any change of the pixels up to a radius (L2
norm, pixels in [0, 1]), with the recipe of `lipdp train --recipe robust`: see [train for
certificates](howto/certified.md). Mean over seeds; delta = 1e-5. Settings were chosen on held-out training images of
MNIST, and adapted to the size of the other data sets. This copy of CIFAR-10 was re-encoded as JPEG. Seconds are beside
other work. `python benchmarks/certified.py`

{certified.table(found["runs"])}
"""


def _audits(found: dict) -> str:
    known = found["summary"]
    return f"""
## Audits

Lower bounds on epsilon by white-box audits (`lipdp.audit.white_box`: 256 canaries, 4 updates, sampling probability 0.5,
delta = 1e-5, 300 runs; for DPIS 2048 canaries and 12 updates), each at 95 % confidence by itself, TensorFlow / JAX.
`{found["command"]}` with each backend

{known["flagged"]} of {known["audits"]} audits are above the stated epsilon. By chance up to one in 20 might be; the
way the bounds are computed makes it near 0.3 %. Some are low because the accounting is not tight there: shuffled
batches are charged without amplification, and batches of constant size, and random allocation at epsilon 10, by
bounds that are not tight. Persons have four rows each, of which two are in an update.
[DPIS](howto/audit.md#samplers-persons-dpis) has fewer trials. Faults and tightness are on the page [audit a
run](howto/audit.md#it-catches-faults).

{audits.table(found["runs"])}
"""


# The order of the page, and the file of results that each part reads; a benchmark without results has no table.
SECTIONS = [
    ("mnist", _mnist),
    ("scattered", _scattered),
    ("few_images", _few_images),
    ("certified", _certified),
    ("frontend", _frontend),
    ("images", _images),
    ("tabular", _tabular),
    ("unseen_tables", _unseen_tables),
    ("regression", _regression),
    ("dpsgd", _dpsgd),
    ("adaclip", _adaclip),
    ("dpis", _dpis),
    ("regimes", _regimes),
    ("persons", _persons),
    ("diffusion", _diffusion),
    ("step_cost", _step_cost),
    ("per_example", _per_example),
    ("finetune", _finetune),
    ("transfer", _transfer),
    ("heads", _heads),
    ("finetune_peers", _finetune_peers),
    ("peers", _peers),
    ("fit_cost", _fit_cost),
    ("start_cost", _start_cost),
    ("own_layers", _own_layers),
    ("fixed_features", _fixed_features),
    ("gpu_steps", _gpu),
    ("sources", _sources),
    ("dpsgd_low_mixed_bfloat16", _low_precision),
    ("accounting", _accounting),
    ("allocation", _allocation),
    ("audits", _audits),
    ("scattered", _earlier_recipes),
]


def render() -> str:
    texts = [f"## At a glance\n\n{short().strip()}"]
    for name, section in SECTIONS:
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
