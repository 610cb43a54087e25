"""What an update and a sampler of a private diffusion model cost; `benchmarks/diffusion.py --cost` runs it."""

import json
import time

from common import spread


def cost(options) -> dict:
    """Seconds of an update for several K as ratios to a plain step of the network, and images per second."""
    import keras
    import numpy as np

    from lipdp import diffusion, strategies
    from lipdp.diffusion import recipes

    size, channels = recipes.PRESETS[options.preset]["image_shape"][1:]
    batch, rng = options.cost_batch, np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20 * batch, size, size, channels)).astype("float32")
    y = rng.integers(0, 10, len(x)).astype("int32")

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds = time.perf_counter() - self._start

    def private(multiplicity):
        model = diffusion.DiffusionModel(
            diffusion.preset(options.preset), num_classes=10, noise_multiplicity=multiplicity, average=0.0
        )
        model.compile("adam")
        # As many rows at once for each K, with room for a Poisson sample of the batch.
        microbatch = max(1, int(options.microbatch or batch + 3 * batch**0.5) // multiplicity)

        def step():
            clock = Clock()
            model.fit(
                x,
                y,
                batch_size=batch,
                steps_per_epoch=1,
                noise_multiplier=1.0,
                strategy=strategies.DPSGD(1.0),
                microbatch_size=microbatch,
                training_metrics=False,
                callbacks=[clock],
                verbose=0,
            )
            return clock.seconds

        return step

    def plain():
        graph = diffusion.DiffusionModel(diffusion.preset(options.preset), num_classes=10)
        model = keras.Model(graph.inputs, graph.outputs)
        model.compile("adam", loss=diffusion.DenoisingLoss())

        def step():
            clock = Clock()
            rows = rng.integers(0, len(x), batch)
            clean = x[rows], y[rows].astype("float32")
            model.fit(clean, np.zeros((batch, 1), "float32"), batch_size=batch, callbacks=[clock], verbose=0)
            return clock.seconds

        return step

    steps = {"plain": plain(), **{f"K={k}": private(k) for k in options.multiplicities}}
    for step in steps.values():
        step()
    rounds = [{name: step() for name, step in steps.items()} for _ in range(options.rounds)]
    result = {
        "preset": options.preset,
        "batch": batch,
        "plain_ms_per_example": spread([1000 * one["plain"] / batch for one in rounds]),
        "ratio": {name: spread([one[name] / one["plain"] for one in rounds]) for name in steps if name != "plain"},
    }
    print(json.dumps(result), flush=True)
    network = diffusion.preset(options.preset)
    ways = {
        "DDIM": diffusion.DDIM(50),
        "DDIM, stochastic": diffusion.DDIM(50, eta=1.0),
        "Churn": diffusion.Churn(50, s_churn=10.0),
    }

    def draw(way, batches):
        start = time.perf_counter()
        diffusion.generate(network, batches * 250, "edm", way, num_classes=10, batch_size=250, seed=0)
        return time.perf_counter() - start

    def speed(way):
        # The first batch compiles.
        return 500 / max(draw(way, 3) - draw(way, 1), 1e-9)

    result["samples_per_second"] = {
        name: {"steps": way.steps, **spread([speed(way) for _ in range(3)])} for name, way in ways.items()
    }
    return result


def cost_table(content: dict) -> str:
    found = content["cost"]
    lines = ["| update, B = {batch} | over a plain step |".format(**found), "|---|---|"]
    lines += [f"| {name} | {_range(ratio)} |" for name, ratio in found["ratio"].items()]
    lines += ["", "| sampler | steps | images per second |", "|---|---|---|"]
    for name, row in found["samples_per_second"].items():
        lines.append(f"| {name} | {row['steps']} | {_range(row, 0)} |")
    return "\n".join(lines)


def _range(row: dict, digits: int = 2) -> str:
    median, low, high = (f"{row[key]:.{digits}f}" for key in ("median", "low", "high"))
    return f"{median} [{low}-{high}]"
