"""Where AdaCliP and DPIS help, and where not: regimes that theory names, with paired tests against DP-SGD.

    python benchmarks/regimes.py --held-out                # chooses settings: results/regimes_choice.json
    python benchmarks/regimes.py                           # the settings chosen, on test rows: results/regimes.json
    python benchmarks/regimes.py --regime categories --epsilon 1 --seeds 0

Regimes are made from a seed ("categories", "scales", "imbalance") or of public data: paragraphs of the docstrings of
scipy and scikit-learn as installed ("documentation"), the table magic.gamma of ADBench in the units of its authors
("magic"), Fashion-MNIST at half the side ("fashion"). Beside the strategies stands what else is at hand: "normalized",
DP-SGD behind `PrivateNormalization`; "scaled", DP-SGD on words weighted by public frequencies; "larger batches", DP-SGD
with as many updates on eight times the batch.

Settings are chosen for each regime, budget and way from the same number of rates and clip norms: each is run with one
seed, the best two with another one. Made regimes draw other data for that, the others hold out a fifth of the training
rows; test rows are scored only by the setting chosen. The cost of the choice is not part of epsilon. delta = 1e-5. Runs
are added to the result files one by one, and one that is there is not repeated. Needs `fashion_mnist.npz` and
`adbench/magic.gamma.npz` in the folder named by LIPDP_DATA, or the network.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable

import numpy as np
import regimes_data as rows
from common import Series, p_text, p_value

DELTA = 1e-5
PLACE = ("regime", "epsilon", "method", "seed", "rate", "clip_norm")


@dataclasses.dataclass(frozen=True)
class Regime:
    """One regime.

    Args:
        source: function of a seed that makes rows, or of nothing that gives parts of public data.
        title: what the table says of it.
        methods: ways to learn.
        batch: expected batch size.
        updates: number of updates, about.
        norm: public norm of a row for `PrivateNormalization`.
        made: whether the rows come from a seed.
        metric: "AUROC", "average precision" or "accuracy".
        blocks: columns of each layer of logits; the logits are their sum. None: one layer.
        hidden: units of a hidden layer of tanh; 0 for none.
        adam: whether by Adam in the place of stochastic gradient descent with momentum.
        rates: that are tried: of gradients over the clip norm, or of Adam.
    """

    source: Callable
    title: str
    methods: tuple[str, ...]
    batch: int = 1024
    updates: int = 200
    norm: float = 4.0
    made: bool = True
    metric: str = "AUROC"
    blocks: tuple[int, ...] | None = None
    hidden: int = 0
    adam: bool = False
    rates: tuple[float, ...] = (0.4, 1.6, 6.4)


REGIMES = {
    "categories": Regime(
        rows.categories,
        "10 numbers and a category of 300 rare values, each in a layer of its own",
        ("dpsgd", "adaclip", "normalized"),
        batch=2048,
        blocks=(10, 300),
    ),
    "documentation": Regime(
        rows.documentation,
        "words of paragraphs, in a layer each for the 50, 250 and 1,700 next common ones",
        ("dpsgd", "adaclip", "scaled"),
        batch=2048,
        made=False,
        blocks=(50, 250, 1700),
    ),
    "scales": Regime(
        rows.scales,
        "40 columns of scales 0.02 to 2, one layer",
        ("dpsgd", "adaclip", "normalized"),
        norm=5.0,
        adam=True,
        rates=(0.04, 0.16, 0.64),
    ),
    "magic": Regime(
        rows.magic,
        "magic.gamma in its units, one layer",
        ("dpsgd", "adaclip", "normalized"),
        norm=2.5,
        made=False,
        adam=True,
        rates=(0.04, 0.16, 0.64),
    ),
    "imbalance": Regime(
        rows.imbalance,
        "2 % of the rows in the second class, one layer",
        ("dpsgd", "dpis", "larger batches"),
        batch=128,
        updates=900,
        rates=(0.1, 0.4, 1.6),
        metric="average precision",
    ),
    "fashion": Regime(
        rows.fashion,
        "Fashion-MNIST, 14 x 14, a hidden layer",
        ("dpsgd", "dpis", "larger batches"),
        batch=128,
        updates=900,
        rates=(0.1, 0.4, 1.6),
        made=False,
        metric="accuracy",
        hidden=64,
    ),
}
EPSILONS = (1.0, 4.0)
CLIP_NORMS = (0.4, 1.6)


def parts(name: str, seed: int, held_out: bool) -> tuple:
    """Training rows and what scores them."""
    regime = REGIMES[name]
    if regime.made:
        return rows.cut(*regime.source(seed + 1000 if held_out else seed), rows.TESTED)
    x, y, *test = regime.source()
    return rows.cut(x, y, len(x) // 5) if held_out else (x, y, *test)


def network(regime: Regime, columns: int, classes: int, moments_noise: float | None):
    """The model; with a noise multiplier of moments, behind private normalization."""
    import keras

    import lipdp
    from lipdp import layers

    inputs = found = keras.Input((columns,))
    if moments_noise:
        found = layers.PrivateNormalization(regime.norm, moments_noise)(found)
    if regime.hidden:
        found = keras.layers.Dense(regime.hidden, activation="tanh")(found)
    if regime.blocks is None:
        return lipdp.DP_Model(inputs, keras.layers.Dense(classes, kernel_initializer="zeros")(found))
    ends = list(itertools.accumulate(regime.blocks))
    logits = [
        keras.layers.Dense(classes, use_bias=begin == 0, kernel_initializer="zeros")(found[:, begin:end])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    return lipdp.DP_Model(inputs, keras.layers.Add()(logits))


def run(name: str, epsilon: float, method: str, seed: int, rate: float, clip_norm: float, held_out: bool) -> dict:
    """One training run and its score."""
    import keras

    from lipdp import strategies

    regime = REGIMES[name]
    x, y, x_test, y_test = parts(name, seed, held_out)
    if method == "scaled":
        x, x_test = x * rows.word_weights(), x_test * rows.word_weights()
    keras.utils.set_random_seed(seed)
    batch = min(len(x) // 2, regime.batch * (8 if method == "larger batches" else 1))
    epochs = max(1, round(regime.updates * batch / len(x)))
    moments_noise = max(8.0, 24.0 / epsilon) if method == "normalized" else None
    model = network(regime, x.shape[1], int(y.max()) + 1, moments_noise)
    start = rate if regime.adam else rate / clip_norm
    schedule = keras.optimizers.schedules.PolynomialDecay(start, epochs * -(-len(x) // batch), 0.0)
    optimizer = keras.optimizers.Adam(schedule) if regime.adam else keras.optimizers.SGD(schedule, momentum=0.9)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if method == "adaclip":
        granularity = "layer" if regime.blocks else "coordinate"
        strategy = strategies.AdaCliP(clip_norm, granularity, variance_momentum=0.97)
    elif method == "dpis":
        strategy = strategies.DPIS(clip_norm, growth=3.0, first_phase=0.15)
    else:
        strategy = strategies.DPSGD(clip_norm)
    begin = time.perf_counter()
    model.fit(
        x,
        y,
        batch_size=batch,
        epochs=epochs,
        epsilon=epsilon,
        delta=DELTA,
        strategy=strategy,
        training_metrics=False,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin
    score = scored(regime.metric, y_test, keras.ops.convert_to_numpy(model(x_test, training=False)))
    noise = [entry.noise_multiplier for entry in model.run.ledger.entries if entry.kind == "gradient"]
    spent, updates = model.privacy.epsilon(), model.privacy.updates
    keras.backend.clear_session()
    return {
        "regime": name,
        "epsilon": epsilon,
        "method": method,
        "seed": seed,
        "rate": rate,
        "clip_norm": clip_norm,
        "score": round(score, 5),
        "spent": spent,
        "batch": batch,
        "updates": updates,
        "noise_multiplier": noise[-1],
        "rows": len(x),
        "seconds": round(seconds, 1),
    }


def scored(metric: str, y, logits) -> float:
    from sklearn.metrics import average_precision_score, roc_auc_score

    if metric == "accuracy":
        return float(np.mean(logits.argmax(1) == y))
    function = roc_auc_score if metric == "AUROC" else average_precision_score
    return float(function(y, logits[:, 1] - logits[:, 0]))


def choose(series: Series, name: str, epsilon: float, method: str) -> None:
    """Runs every setting of the grid with one seed, and the best two with another one."""

    def tried(seed: int, rate: float, clip_norm: float) -> None:
        if series.missing(name, epsilon, method, seed, rate, clip_norm):
            found = run(name, epsilon, method, seed, rate, clip_norm, True)
            series.add(found, evaluated_on="held-out rows", delta=DELTA)
            print({key: found[key] for key in (*PLACE, "score", "seconds")}, flush=True)

    for rate, clip_norm in itertools.product(REGIMES[name].rates, CLIP_NORMS):
        tried(0, rate, clip_norm)
    first = [one for one in of(series.runs, name, epsilon, method) if one["seed"] == 0]
    for one in sorted(first, key=lambda one: -one["score"])[:2]:
        tried(1, one["rate"], one["clip_norm"])


def of(runs: list[dict], *place) -> list[dict]:
    """The runs of a regime, a budget and a way."""
    return [one for one in runs if (one["regime"], one["epsilon"], one["method"]) == place]


def chosen(runs: list[dict], *place) -> tuple[float, float] | None:
    """Rate and clip norm with the best mean, of those with two seeds; None where nothing was tried."""
    found: dict = {}
    for one in of(runs, *place):
        found.setdefault((one["rate"], one["clip_norm"]), []).append(one["score"])
    found = {setting: np.mean(scores) for setting, scores in found.items() if len(scores) > 1}
    return max(found, key=found.__getitem__) if found else None


def table(runs: list[dict]) -> str:
    """The results as a Markdown table: means over seeds, and paired tests against DP-SGD."""
    lines = [
        "| regime | rows | B | epsilon | score | DP-SGD (sd) | beside it | its score (sd) | difference | p | seeds "
        "| seconds, DP-SGD / beside it |",
        "|---" * 12 + "|",
    ]
    names = {"adaclip": "AdaCliP", "dpis": "DPIS", "scaled": "DP-SGD, words weighted by public frequencies"}
    names |= {"normalized": "DP-SGD, normalized", "larger batches": "DP-SGD, larger batches"}
    for name, regime in REGIMES.items():
        for epsilon, method in itertools.product(EPSILONS, regime.methods[1:]):
            first = {one["seed"]: one for one in of(runs, name, epsilon, "dpsgd")}
            other = {one["seed"]: one for one in of(runs, name, epsilon, method)}
            seeds = sorted(first.keys() & other.keys())
            if len(seeds) < 2:
                continue
            both = [np.array([side[seed]["score"] for seed in seeds]) for side in (first, other)]
            p = p_text(p_value(*(list(side.values()) for side in (first, other)), "score"))
            cells = [f"{scores.mean():.4f} ({scores.std(ddof=1):.4f})" for scores in both]
            seconds = [np.median([side[seed]["seconds"] for seed in seeds]) for side in (first, other)]
            lines.append(
                f"| {regime.title} | {first[seeds[0]]['rows']} | {other[seeds[0]]['batch']} | {epsilon:g} | "
                f"{regime.metric} | {cells[0]} | {names[method]} | {cells[1]} | {both[1].mean() - both[0].mean():+.4f} "
                f"| {p} | {len(seeds)} | {seconds[0]:.1f} / {seconds[1]:.1f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regime", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(10)))
    parser.add_argument("--held-out", action="store_true", help="choose settings")
    parser.add_argument("--name", default="regimes", help="name of the result file")
    options = parser.parse_args()
    choice = Series(f"{options.name}_choice", PLACE)
    series = Series(options.name, PLACE)
    for name, epsilon in itertools.product(options.regime, options.epsilon):
        if options.held_out:
            for method in REGIMES[name].methods:
                choose(choice, name, epsilon, method)
            continue
        # Seed by seed, so that a series that is cut short stays paired.
        for seed, method in itertools.product(options.seeds, REGIMES[name].methods):
            setting = chosen(choice.runs, name, epsilon, method)
            if setting is None:
                print(f"no settings for {name}, epsilon {epsilon:g}, {method}: run with --held-out first", flush=True)
            elif series.missing(name, epsilon, method, seed, *setting):
                found = run(name, epsilon, method, seed, *setting, False)
                series.add(found, evaluated_on="test rows", delta=DELTA)
                print({key: found[key] for key in (*PLACE, "score", "seconds")}, flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
