"""Learning rate and clip norm of the default recipes under strategies that clip, chosen on held-out training images.

    python benchmarks/recipes.py                     # MNIST and digits, the grid, seed 0
    python benchmarks/recipes.py --dataset mnist --method dpsgd --factor 0.25 0.5

The recipe of `models.classifier_recipe` for clipless training, with its rate times a factor and another clip norm, on
the first five sixths of the training images, scored on the others: never on the test set. epsilon = 2 for MNIST and 4
for digits, delta = 1e-5. Runs are added to `results/recipes.json` one by one.
"""

import argparse
import dataclasses
import itertools
import time

from common import Series

DATASETS = {"mnist": 2.0, "digits": 4.0}
METHODS = ("dpsgd", "adaclip", "dpis")
FACTORS, CLIP_NORMS = (0.25, 0.5, 1.0), (0.5, 1.0)


def run(dataset: str, method: str, factor: float, clip_norm: float, seed: int) -> dict:
    """One run and the accuracy on what it did not train on."""
    import keras

    import lipdp
    from lipdp.data import load

    data, epsilon = load(dataset), DATASETS[dataset]
    x, y, cut = data.x_train, data.y_train, data.num_examples - data.num_examples // 6
    shape = data.input_shape, data.num_classes, cut, epsilon
    recipe = lipdp.recipe(*shape, method="clipless")
    rate = factor * recipe.learning_rate
    recipe = dataclasses.replace(recipe, method=method, learning_rate=rate, clip_norm=clip_norm)
    keras.utils.set_random_seed(seed)
    begin = time.perf_counter()
    model = recipe.fit(x[:cut], y[:cut], epsilon=epsilon, delta=1e-5, training_metrics=False, seed=seed, verbose=0)
    seconds = time.perf_counter() - begin
    accuracy = model.evaluate(x[cut:], y[cut:], batch_size=500, verbose=0, return_dict=True)["accuracy"]
    return {
        "dataset": dataset,
        "method": method,
        "factor": factor,
        "clip_norm": clip_norm,
        "seed": seed,
        "epsilon": epsilon,
        "learning_rate": rate,
        "accuracy": round(accuracy, 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--method", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--factor", nargs="+", type=float, default=list(FACTORS))
    parser.add_argument("--clip-norm", nargs="+", type=float, default=list(CLIP_NORMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    series = Series("recipes", ("dataset", "method", "factor", "clip_norm", "seed"))
    places = (options.dataset, options.method, options.factor, options.clip_norm, options.seeds)
    for place in itertools.product(*places):
        if series.missing(*place):
            series.add(run(*place), delta=1e-5, evaluated_on="the last sixth of the training images")
            print(place, flush=True)
    for one in series.runs:
        print(f"{one['dataset']} {one['method']} rate x {one['factor']:g} C = {one['clip_norm']:g}: {one['accuracy']}")


if __name__ == "__main__":
    main()
