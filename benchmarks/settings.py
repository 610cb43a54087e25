"""What a learning rate, a temperature and a clip norm do on MNIST, for the pages in `docs/howto`.

    python benchmarks/settings.py             # seed 0, epsilon 2, delta 1e-5
    python benchmarks/settings.py --render    # renews the tables of the pages only

Fit on about 50,000 training images, scored on the others, never on the test set. Finished runs are kept in the result
file. Needs `mnist.npz` in the folder named by LIPDP_DATA, or the network.
"""

import argparse
import json
import pathlib
import re
import time

from common import RESULTS, Series

PAGES = pathlib.Path(__file__).parent.parent / "docs" / "howto"
RATES = (0.01, 0.1, 1.0, 2.0, 4.0)
TEMPERATURES = (4.0, 8.0, 17.0, 64.0)
RADII = (0.1, 0.2, 0.3)
CLIP_NORMS = (0.01, 0.1, 1.0, 10.0, 100.0)
ADAM_RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
BATCH_SIZES = (8192, 512)
BUDGET = {"epsilon": 2.0, "delta": 1e-5, "epochs": 10, "training_metrics": False, "verbose": 0}


def clipless(data, seed, learning_rate, temperature):
    """The network of the tutorial."""
    import keras

    import lipdp
    from lipdp import layers, losses, strategies

    model = lipdp.DP_Sequential(
        [
            layers.BoundedInput((28, 28, 1), norm=7.0),
            layers.SpectralConv2D(16, 5, strides=2),
            layers.Abs(),
            layers.MaxPooling2D(2),
            layers.BoundedInput(norm=2.3),
            layers.Flatten(),
            layers.SpectralDense(64),
            layers.Abs(),
            layers.SpectralDense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=losses.SparseCategoricalCrossentropy(temperature=temperature, clip=0.2),
    )
    strategy = strategies.Clipless(noise="per_layer")
    model.fit(data.x_train, data.y_train, batch_size=4096, strategy=strategy, seed=seed, **BUDGET)
    return lipdp.certify.certified_accuracy(model, data.x_test, data.y_test, at=(0.0, *RADII))


def dpsgd(data, seed, learning_rate, clip_norm, clipping):
    """One dense layer."""
    import keras

    import lipdp

    network = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    model = lipdp.DP_Model.from_keras(network)
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    strategy = lipdp.strategies.DPSGD(clip_norm=clip_norm, clipping=clipping)
    model.fit(data.x_train, data.y_train, batch_size=1024, strategy=strategy, seed=seed, **BUDGET)
    logits = model.predict(data.x_test, batch_size=1024, verbose=0)
    return {0.0: float((logits.argmax(1) == data.y_test).mean())}


def adam(data, seed, learning_rate, batch_size):
    """A hidden layer, trained by Adam: with larger batches in fewer updates."""
    import keras

    import lipdp

    network = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="tanh"),
            keras.layers.Dense(10),
        ]
    )
    model = lipdp.DP_Model.from_keras(network)
    model.compile(
        keras.optimizers.Adam(learning_rate), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(data.x_train, data.y_train, batch_size=batch_size, strategy="dpsgd", seed=seed, **BUDGET)
    logits = model.predict(data.x_test, batch_size=1024, verbose=0)
    return {0.0: float((logits.argmax(1) == data.y_test).mean())}


def cases():
    """Method and settings of each run."""
    yield from (("clipless", rate, 17.0, "") for rate in RATES)
    yield from (("clipless", 2.0, temperature, "") for temperature in TEMPERATURES if temperature != 17.0)
    for clip_norm in CLIP_NORMS:
        yield from (("dpsgd", rate, clip_norm, "flat") for rate in dict.fromkeys((0.1, kept_product(clip_norm))))
    yield from (("dpsgd", rate, 1.0, "automatic") for rate in (0.1, 0.3))
    yield from (("adam", rate, size, "flat") for size in BATCH_SIZES for rate in ADAM_RATES)


def kept_product(clip_norm):
    return float(f"{0.3 / clip_norm:.6g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--again", action="store_true", help="repeat runs that the result file holds")
    parser.add_argument("--render", action="store_true", help="renew the tables only")
    arguments = parser.parse_args()
    if not arguments.render:
        measure(arguments.seeds, arguments.again)
    for path in PAGES.glob("*.md"):
        path.write_text(update(path.read_text()))


def measure(seeds, again) -> None:
    import keras

    from lipdp.data import load

    data = load("mnist").held_out(1 / 6)
    place = ("method", "learning_rate", "value", "clipping", "seed")
    series = Series("settings", place, again)
    for seed in seeds:
        for case in cases():
            if series.missing(*case, seed):
                keras.utils.set_random_seed(seed)
                method, rate, value, clipping = case
                start = time.perf_counter()
                if method == "clipless":
                    shares = clipless(data, seed, rate, value)
                elif method == "adam":
                    shares = adam(data, seed, rate, value)
                else:
                    shares = dpsgd(data, seed, rate, value, clipping)
                seconds = round(time.perf_counter() - start)
                shares = {f"{radius:g}": round(share, 4) for radius, share in shares.items()}
                run = dict(zip(place, (*case, seed), strict=True)) | {"certified": shares, "seconds": seconds}
                series.add(run, evaluated_on="a sixth of the training images")
                print(run, flush=True)


def tables() -> dict[str, str]:
    """Returns the tables of the pages by their names."""
    runs = json.loads((RESULTS / "settings.json").read_text())["runs"]

    def percent(radius, *case):
        found = [r["certified"][f"{radius:g}"] for r in runs if case == tuple(r[k] for k in _CASE)]
        return f"{100 * sum(found) / len(found):.1f} %" if found else "-"

    rates = [(f"{rate:g}", percent(0.0, "clipless", rate, 17.0, "")) for rate in RATES]
    temperatures = [
        (f"{t:g}", f"{2.3 * t:.0f}", *(percent(radius, "clipless", 2.0, t, "") for radius in (0.0, *RADII)))
        for t in TEMPERATURES
    ]
    norms = [
        (c, f"{n:g}", percent(0.0, "dpsgd", 0.1, n, c), percent(0.0, "dpsgd", kept_product(n), n, c))
        for c, n in (*(("flat", n) for n in CLIP_NORMS), ("automatic", 1.0))
    ]
    adam_rates = [
        (f"{rate:g}", *(percent(0.0, "adam", rate, size, "flat") for size in BATCH_SIZES)) for rate in ADAM_RATES
    ]
    certified = [f"certified at {RADII[0]:g}", *(f"{radius:g}" for radius in RADII[1:])]
    return {
        "adam": _table(("rate", *(f"B = {size}" for size in BATCH_SIZES)), adam_rates),
        "rates": _table(("rate", "accuracy"), rates),
        "temperatures": _table(("temperature", "times norm", "accuracy", *certified), temperatures),
        "norms": _table(("clipping", "C", "rate 0.1", "rate 0.3 / C"), norms),
    }


_CASE = ("method", "learning_rate", "value", "clipping")


def _table(names, rows) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows)).replace(" --- ", "---")


def update(text: str) -> str:
    """Returns a page with its tables renewed."""
    found = tables()
    pattern = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \w+:end -->)", re.DOTALL)

    def table(match: re.Match) -> str:
        rows = found.get(match[2])
        return match[0] if rows is None else f"{match[1]}{rows}\n{match[3]}"  # that of `tables.py`

    return pattern.sub(table, text)


if __name__ == "__main__":
    main()
