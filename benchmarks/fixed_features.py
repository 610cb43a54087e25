"""Time of the fixed layers of the default recipe on images, beside an ordinary network of Keras on the same images.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/fixed_features.py
    OMP_NUM_THREADS=1 KERAS_BACKEND=jax taskset -c 0 python benchmarks/fixed_features.py --name fixed_features_jax

Features of random images by `lipdp.features`, 32 x 32 in color as in CIFAR-10 and 28 x 28 in gray as in MNIST, and by
turns in the same process the outputs of Keras' ResNet50 without its head, by `predict`, random weights: of the same
images in color, of so many of 32 x 32 for the gray ones. Both see as many images at once as in the recipe. A round is
the processor time of both, over all threads.
"""

import argparse
import time

import numpy as np
from common import spread, write

SHAPES = ((32, 32, 3), (28, 28, 1))


def kinds(shape: tuple) -> list:
    """The fixed layers of the recipe for images of this shape."""
    from lipdp import layers

    mirrored = shape[-1] == 3
    chosen = [
        layers.Scattering2D("accurate", mirrored=mirrored),
        layers.PatchFeatures2D(512 if mirrored else 256, places=4, mirrored=mirrored),
    ]
    return [*chosen, layers.EncoderFeatures2D()] if mirrored else chosen


def seconds(call) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(layer, shape: tuple, images: int, rounds: int) -> dict:
    """Milliseconds for each image, and the ratio of paired rounds."""
    import keras

    import lipdp
    from lipdp.models import scattered

    rows = scattered.images_at_once()
    rng = np.random.default_rng(0)
    x = rng.random((images, *shape), dtype="float32")
    fixed = keras.Sequential([keras.Input(shape), layer])
    ordinary = keras.applications.ResNet50(include_top=False, weights=None, input_shape=(32, 32, 3))
    beside = x if shape[-1] == 3 else rng.random((images, 32, 32, 3), dtype="float32")

    def of_layer():
        lipdp.features(fixed, x, batch_size=rows, verbose=0)

    def of_network():
        ordinary.predict(beside, batch_size=rows, verbose=0)

    of_layer(), of_network()
    times = [(seconds(of_layer), seconds(of_network)) for _ in range(rounds)]
    return {
        "layer": type(layer).__name__,
        "shape": list(shape),
        "milliseconds": spread([1e3 * own / images for own, _ in times]),
        "network_milliseconds": spread([1e3 * other / images for _, other in times]),
        "ratio": spread([own / other for own, other in times]),
    }


def table(runs: dict) -> str:
    """Runs by backend as a Markdown table."""
    lines = ["| layer | images | backend | milliseconds | ratio to ResNet50 |", "|---" * 5 + "|"]
    for backend, found in runs.items():
        for run in found:
            ratio = run["ratio"]
            lines.append(
                f"| `{run['layer']}` | {' x '.join(map(str, run['shape']))} | {backend} | "
                f"{run['milliseconds']['median']:.1f} | "
                f"{ratio['median']:.2f} [{ratio['low']:.2f} - {ratio['high']:.2f}] |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="fixed_features", help="name of the result file")
    arguments = parser.parse_args()

    import keras

    runs = []
    for shape in SHAPES:
        for layer in kinds(shape):
            runs.append(measure(layer, shape, arguments.images, arguments.rounds))
            print(table({keras.backend.backend(): runs[-1:]}).splitlines()[-1], flush=True)
    write(arguments.name, {"backend": keras.backend.backend(), "images": arguments.images, "runs": runs})


if __name__ == "__main__":
    main()
