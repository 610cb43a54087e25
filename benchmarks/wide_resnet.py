"""CIFAR-10 from scratch by DP-SGD: `lipdp.recipe(style="wrn")`, on a GPU.

    KERAS_BACKEND=jax python benchmarks/wide_resnet.py --epsilon 8
    KERAS_BACKEND=jax python benchmarks/wide_resnet.py --epsilon 8 --held-out --views 4 --updates 600

What is not given is that of the recipe. `--held-out` trains on the first 40,000 images and scores on the other 10,000.
delta = 1e-5. Figures are added to `results/wide_resnet.json` run by run.
"""

import argparse
import dataclasses
import math
import time

from common import Series, device

DELTA = 1e-5
# Settings of the recipe by the name of the option.
SETTINGS = {
    "depth": "depth",
    "width": "width",
    "batch": "batch_size",
    "microbatch": "microbatch_size",
    "views": "augmentation_multiplicity",
    "learning_rate": "learning_rate",
    "clip_norm": "clip_norm",
    "average": "ema_momentum",
    "standardized": "standardized",
}


def images(held_out: bool):
    """Training and test images, in [0, 1]."""
    from lipdp.data import load

    data = load("cifar10")
    if held_out:
        return (data.x_train[:40000], data.y_train[:40000]), (data.x_train[40000:], data.y_train[40000:])
    return (data.x_train, data.y_train), (data.x_test, data.y_test)


def recipe_of(options, num_examples: int):
    """The recipe, with what was chosen in its place."""
    import lipdp

    recipe = lipdp.recipe((32, 32, 3), 10, num_examples, options.epsilon, style="wrn")
    chosen = {setting: getattr(options, name) for name, setting in SETTINGS.items()}
    recipe = dataclasses.replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
    if options.updates is None:
        return recipe
    return dataclasses.replace(
        recipe, epochs=max(1, round(options.updates / math.ceil(num_examples / recipe.batch_size)))
    )


def run(options) -> dict:
    """One training run and its figures."""
    import keras

    (x, y), (x_test, y_test) = images(options.held_out)
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.dtype_policy)
    recipe = recipe_of(options, len(x))

    class Report(keras.callbacks.Callback):
        """Says how far training is, and keeps the weights of the last update."""

        last = None

        def on_epoch_end(self, epoch, logs=None):
            if (epoch + 1) % 5 == 0:
                print(f"epoch {epoch + 1} of {recipe.epochs}: {time.perf_counter() - begin:.0f} s", flush=True)
            if epoch + 1 == recipe.epochs:
                self.last = self.model.get_weights()

    begin, report = time.perf_counter(), Report()
    model = recipe.fit(
        x,
        y,
        epsilon=options.epsilon,
        delta=DELTA,
        training_metrics=False,
        callbacks=[report],
        seed=options.seed,
        verbose=0,
    )
    seconds = time.perf_counter() - begin

    def accuracy() -> float:
        return round(model.evaluate(x_test, y_test, batch_size=1000, verbose=0, return_dict=True)["accuracy"], 4)

    found = {
        "dataset": "cifar10",
        "network": f"WRN-{recipe.depth}-{recipe.width}",
        "epsilon": options.epsilon,
        "seed": options.seed,
        "evaluated_on": "held-out training images" if options.held_out else "test set",
        "accuracy": accuracy(),
        "spent": model.privacy.epsilon(),
        "noise_multiplier": model.run.plan.noise_multiplier,
        "updates": recipe.updates(len(x)),
        "views": recipe.augmentation_multiplicity,
        "ema_momentum": recipe.momentum_of_averages(len(x)),
        **{name: getattr(recipe, name) for name in ("batch_size", "microbatch_size", "learning_rate", "clip_norm")},
        "standardized": recipe.standardized,
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "device": device(),
        "dtype_policy": options.dtype_policy,
    }
    model.set_weights(report.last)
    return found | {"accuracy_of_last_weights": accuracy()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--microbatch", type=int, help="images at once, with all their views")
    parser.add_argument("--views", type=int)
    parser.add_argument("--updates", type=int, help="about so many: whole epochs are trained")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--clip-norm", type=float)
    parser.add_argument("--average", type=float, help="momentum of the average of the weights")
    parser.add_argument("--dtype-policy", default="float32", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--standardized", action=argparse.BooleanOptionalAction, help="weight standardization")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--name", default="wide_resnet", help="name of the result file")
    options = parser.parse_args()
    series = Series(options.name, ("dataset", "network", "epsilon", "views", "updates", "seed", "evaluated_on"), True)
    found = run(options)
    print(found, flush=True)
    series.add(found, delta=DELTA)


if __name__ == "__main__":
    main()
