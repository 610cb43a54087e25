"""How good synthetic images are: distance of their features to real ones, and what a classifier learns from them."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np
from numpy.typing import ArrayLike

from lipdp import checks
from lipdp.diffusion.pictures import applied

_ADAM_RATE = 3e-4
# Below this side the third convolution of the paper's network has nothing left to see without padding.
_SMALLEST_VALID = 20


def frechet_distance(
    real: ArrayLike,
    synthetic: ArrayLike,
    features: Callable[[np.ndarray], np.ndarray] | None = None,
    batch_size: int = 256,
) -> float:
    """Returns the squared Frechet distance between normal laws fitted to features of two sets.

    `|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2))`. It is NOT the "FID" of the literature, whose features come from one
    particular Inception network: values are comparable only between sets measured with the same features.

    Args:
        real: examples `(N, ...)`, or their features `(N, d)` when `features` is None; N above 1.
        synthetic: the same for the other set.
        features: a `keras.Model` or function from a batch of examples to `(batch, d)`, such as
            `classifier_features(...)` or a checkpoint of the user's; None: the arrays are features already.
        batch_size: examples at once.

    Returns:
        The distance, at least 0. The distance to private examples is not covered by epsilon.

    Raises:
        ValueError: when shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from lipdp import diffusion
        >>> points = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, -1.0]])
        >>> round(diffusion.frechet_distance(points, points + [3.0, 4.0]), 4)
        25.0
    """
    a, b = (_features(images, features, batch_size) for images in (real, synthetic))
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"Both sets need features of one size. Received: {a.shape[1]} and {b.shape[1]}.")
    difference = a.mean(0) - b.mean(0)
    first, second = np.atleast_2d(np.cov(a, rowvar=False)), np.atleast_2d(np.cov(b, rowvar=False))
    # The trace of the root of C1 C2 is that of the root of the symmetric C1^(1/2) C2 C1^(1/2).
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ second @ root), 0.0)).sum()
    return float(max(difference @ difference + np.trace(first) + np.trace(second) - 2.0 * cross, 0.0))


def inception_distance(
    real: ArrayLike, synthetic: ArrayLike, weights: str | pathlib.Path, batch_size: int = 64
) -> float:
    """Returns the Frechet distance on features of an Inception-v3 network whose weights the user has.

    Images are resized to 299 x 299 and gray ones repeated in three channels; features are the 2048 averages behind
    the last block. It comes closer to the "FID" of the literature than other features do, but is not it: that is
    defined by another file of weights and another resizing.

    Args:
        real: images `(N, height, width, 1 or 3)` in [-1, 1]; N above 1, and thousands for a stable value.
        synthetic: the same for the other set.
        weights: file of weights of `keras.applications.InceptionV3(include_top=False)`.
        batch_size: images at once.

    Returns:
        The distance, at least 0. The distance to private examples is not covered by epsilon.

    Raises:
        ValueError: when the file does not exist or holds other weights, or shapes do not fit.

    Example:
        `diffusion.inception_distance(x_test, samples, "inception_v3_notop.h5")`
    """
    return frechet_distance(real, synthetic, _inception(weights), batch_size)


def _inception(weights):
    """Inception features of a batch of images."""
    if not pathlib.Path(weights).is_file():
        raise ValueError(
            f"No file of Inception weights. Received: {str(weights)!r}. Give the file that "
            "keras.applications.InceptionV3(include_top=False) saves, or use frechet_distance with other features."
        )
    network = keras.applications.InceptionV3(include_top=False, weights=None, pooling="avg")
    try:
        with warnings.catch_warnings():
            # Keras only warns where a file lacks weights, and leaves fresh ones.
            warnings.simplefilter("error")
            network.load_weights(weights)
    except (ValueError, OSError, KeyError, UserWarning) as error:
        raise ValueError(
            f"{str(weights)!r} does not hold weights of keras.applications.InceptionV3(include_top=False): {error}"
        ) from error

    def features(images):
        if images.ndim != 4 or images.shape[-1] not in (1, 3):
            raise ValueError(f"Images must be (N, height, width, 1 or 3). Received: shape {images.shape}.")
        colors = np.repeat(images, 3 // images.shape[-1], axis=-1).astype("float32")
        resized = keras.ops.image.resize(colors, (299, 299), interpolation="bilinear", antialias=True)
        return keras.ops.convert_to_numpy(network(resized, training=False))

    return features


def classifier_features(x: np.ndarray, y: np.ndarray, num_classes: int, epochs: int = 5, seed: int = 0) -> keras.Model:
    """Returns the features of a convolutional classifier trained here, the input of its last layer.

    Args:
        x: images `(N, height, width, channels)` in [-1, 1]. Private ones make the network a release without
            privacy: use it to measure only.
        y: class ids `(N,)`.
        num_classes: number of classes.
        epochs: passes over the images.
        seed: non-negative integer that makes the training repeatable; it sets Keras' global seed.

    Returns:
        A `keras.Model` from images to `(batch, 128)`.
    """
    keras.utils.set_random_seed(seed)
    network = classifier("cnn", x.shape[1:], num_classes)
    _compile(network)
    network.fit(x, y, batch_size=128, epochs=epochs, verbose=0)
    return keras.Model(network.inputs[0], network.layers[-2].output)


def downstream_accuracy(
    synthetic: ArrayLike,
    synthetic_labels: ArrayLike,
    real: ArrayLike,
    real_labels: ArrayLike,
    classifiers: Sequence[str | keras.Model] = ("logistic_regression", "mlp", "cnn"),
    num_classes: int | None = None,
    epochs: int = 50,
    batch_size: int = 128,
    held_out: float = 0.1,
    seed: int = 0,
    verbose: int = 0,
) -> dict[str, float]:
    """Returns the accuracy on real images of classifiers that were trained on synthetic ones.

    The protocol of Dockhorn et al. 2023: Adam with rate 3e-4, 50 epochs, and the epoch is the one that is best on
    synthetic images that were held out, so no real image has a say. They draw 60000 images and test on the 10000
    of the test set.

    Args:
        synthetic: images `(N, height, width, channels)` in [-1, 1].
        synthetic_labels: class ids `(N,)`.
        real: images of the same shape and range.
        real_labels: class ids.
        classifiers: names, see `classifier`; "logistic_regression", "mlp", "cnn". Also Keras models of your own, from
            images in [-1, 1] to logits, untrained: they are trained in place, as they are compiled, with the metric
            "accuracy", or else as above.
        num_classes: number of classes; default: one more than the largest id.
        epochs: passes over the synthetic images.
        batch_size: images per step.
        held_out: fraction of the synthetic images that chooses the epoch, in (0, 1).
        seed: non-negative integer that makes the training repeatable; it sets Keras' global seed.
        verbose: 1 or 2 shows the training, as in Keras.

    Returns:
        Accuracy in [0, 1] by name, for models that of the model. For private real images it is not covered by epsilon.

    Raises:
        ValueError: when shapes or settings do not fit; two classifiers of one name; a model without accuracy.
    """
    synthetic, real = np.asarray(synthetic, "float32"), np.asarray(real, "float32")
    synthetic_labels, real_labels = np.asarray(synthetic_labels), np.asarray(real_labels)
    if synthetic.ndim != 4 or synthetic.shape[1:] != real.shape[1:]:
        raise ValueError(
            "Images must be (N, height, width, channels), of one size. Received: synthetic of shape "
            f"{synthetic.shape}, real of shape {real.shape}."
        )
    out = int(held_out * len(synthetic))
    if not 0.0 < held_out < 1.0 or out < 1 or out >= len(synthetic):
        raise ValueError(f"`held_out` must leave images on both sides. Received: {held_out!r} of {len(synthetic)}.")
    num_classes = num_classes or int(max(synthetic_labels.max(), real_labels.max())) + 1
    order = np.random.default_rng(seed).permutation(len(synthetic))
    chosen, rest = order[:out], order[out:]
    accuracies = {}
    for one in classifiers:
        keras.utils.set_random_seed(seed)
        network = classifier(one, synthetic.shape[1:], num_classes) if isinstance(one, str) else one
        name = network.name
        if name in accuracies:
            raise ValueError(
                f"Classifiers must have names of their own. Received: {name!r} twice. Pass `name` to a model."
            )
        if not network.compiled:
            _compile(network)
        elif "accuracy" not in network.evaluate(synthetic[:1], synthetic_labels[:1], verbose=0, return_dict=True):
            raise ValueError(f"The epoch is chosen by accuracy. Pass metrics=['accuracy'] to `compile` of {name!r}.")
        best = keras.callbacks.EarlyStopping(
            "val_accuracy", mode="max", patience=epochs, restore_best_weights=True, min_delta=0.0
        )
        network.fit(
            synthetic[rest],
            synthetic_labels[rest],
            batch_size=batch_size,
            epochs=epochs,
            validation_data=(synthetic[chosen], synthetic_labels[chosen]),
            validation_batch_size=1024,
            callbacks=[best],
            verbose=verbose,
        )
        accuracies[name] = float(network.evaluate(real, real_labels, 1024, verbose=0, return_dict=True)["accuracy"])
    return accuracies


def classifier(name: str, image_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Returns an untrained classifier of the paper's protocol: images in [-1, 1] to logits.

    Args:
        name: `"logistic_regression"`, `"mlp"` (100 hidden units) or `"cnn"` (three convolutions, dropout 1/2).
        image_shape: `(height, width, channels)`.
        num_classes: number of classes.

    Raises:
        ValueError: when the name is unknown.
    """
    from keras import layers

    checks.choice("name", name, ("logistic_regression", "mlp", "cnn"))
    if name == "logistic_regression":
        stack = [layers.Flatten()]
    elif name == "mlp":
        stack = [layers.Flatten(), layers.Dense(100, activation="relu")]
    else:
        padding = "valid" if min(image_shape[:2]) >= _SMALLEST_VALID else "same"
        stack = []
        for filters in (32, 64):
            stack += [layers.Conv2D(filters, 3, padding=padding), layers.MaxPooling2D(2), layers.ReLU()]
            stack.append(layers.Dropout(0.5))
        stack += [layers.Conv2D(128, 3, padding=padding, activation="relu"), layers.Flatten()]
        stack += [layers.Dense(128, activation="relu"), layers.Dropout(0.5)]
    return keras.Sequential([keras.Input(tuple(image_shape)), *stack, layers.Dense(num_classes)], name=name)


def _compile(network):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(_ADAM_RATE), loss, metrics=["accuracy"])


def _features(images, features, batch_size):
    images = np.asarray(images)
    if len(images) < 2:
        raise ValueError(f"A covariance needs at least two examples. Received: {len(images)}.")
    images = applied(features, images, batch_size)
    if images.ndim != 2:
        raise ValueError(
            f"Features must be (examples, d). Received: shape {images.shape}. Pass `features`, which makes them from "
            "images, such as that of diffusion.classifier_features(x, y, num_classes) of labeled images."
        )
    return images.astype(float)
