"""The best denoiser of a mixture of normal distributions for each class, as a layer that is not trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from lipdp import _keras, checks
from lipdp.diffusion import denoisers
from lipdp.layers.frequencies import cosines

if TYPE_CHECKING:
    from lipdp.diffusion.class_moments import Mixtures


@_keras.serializable
class ClassMixture(keras.layers.Layer):
    """What a network would return if the images of each class were a mixture of normal distributions.

    Added to the output of a network it leaves to `fit` what such a mixture does not know of the images.
    `DiffusionModel.learn_moments` sets it, from noisy sums; until then it returns zeros. It has constants, and no
    weights that are trained. Call it on the inputs of the network.

    Args:
        num_classes: Number of classes C, or None for a network without labels.
        components: Number of normal distributions for each class. They vary alike around means of their own. 1 for an
            epsilon near 1, about 32 for one near 10.
        frequencies: How many low frequencies are kept along each side. What they do not show is taken for noise.
        center: Public constant, near the mean of all entries.
        floor: Standard deviation of that noise in each entry, above 0. Networks that are barely trained draw it.
        denoiser: That of the model, a `Denoiser` or its name.

    Call arguments:
        inputs: What the network takes: `[x, c_noise]`, or `[x, c_noise, label]` with classes. The label C stands for
            any class: all images are one normal distribution then, as if all classes were equally frequent.

    Returns:
        Tensor of the shape of x.

    Raises:
        ValueError: An argument is out of its range, the input is not one of images, or as many tensors.

    Example:
        >>> import keras
        >>> from lipdp import diffusion
        >>> network = diffusion.unet((8, 8, 1), num_classes=2, channels=8, multipliers=(1,), blocks=1, slim=True)
        >>> mixture = diffusion.ClassMixture(2, components=4, frequencies=4)
        >>> output = keras.layers.Add()([network.output, mixture(network.inputs)])
        >>> model = diffusion.DiffusionModel(keras.Model(network.inputs, output), num_classes=2)

    **Guarantee.** Row i of the output is a function of row i of the inputs and of the constants, which are computed
    from what `learn_moments` released: they cost nothing more. It gives exactly the mean of the clean image, given the
    noisy one, under the mixture. Not covered: how near that mixture is to the images.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        components: int = 1,
        frequencies: int = 12,
        center: float = -0.6,
        floor: float = 0.1,
        denoiser: Any = "edm",
        **kwargs: Any,
    ):
        super().__init__(**{"autocast": False, **kwargs})
        if isinstance(denoiser, dict):
            denoiser = keras.saving.deserialize_keras_object(denoiser)
        self.num_classes = checks.integer("num_classes", num_classes, minimum=1, optional=True)
        self.components = checks.integer("components", components, minimum=1)
        self.frequencies = checks.integer("frequencies", frequencies, minimum=1)
        self.center = checks.between("center", center, -1e6, 1e6)
        self.floor = checks.positive("floor", floor)
        self.denoiser = denoisers.get(denoiser)
        self.image_shape: tuple[int, ...] | None = None  # until it is built
        if type(self.denoiser) not in denoisers.DENOISERS.values():
            raise ValueError(
                "A mixture has to find the noise level that c_noise stands for. Received: denoiser="
                f"{type(self.denoiser).__name__}. Use one of {sorted(denoisers.DENOISERS)}."
            )

    def build(self, input_shape: list) -> None:
        self.compute_output_shape(input_shape)
        self.image_shape = height, width, channels = tuple(input_shape[0][1:])
        rows, columns = min(self.frequencies, height), min(self.frequencies, width)
        # One more for "any class".
        kinds, size = (self.num_classes or 0) + 1, rows * columns * channels
        self._cosines = cosines(rows, height), cosines(columns, width)

        def constant(name, *shape):
            return self.add_weight(name=name, shape=shape, initializer="zeros", trainable=False, dtype="float32")

        self.known = constant("known")
        self.axes = constant("axes", kinds, size, size)
        self.variances = constant("variances", kinds, size)
        self.centers = constant("centers", kinds, self.components, size)
        self.log_shares = constant("log_shares", kinds, self.components)

    def learn(self, found: Mixtures) -> None:
        """Takes mixtures for its own.

        Args:
            found: As many components for each class as this layer has, of as many frequencies.
        """
        norm, kinds = found.moments.norm, self.log_shares.shape[0]
        means = np.einsum("cm,cmd->cd", found.shares, found.centers)
        around = found.centers - means.mean(axis=0)
        # The second moment of all classes together, about their mean.
        spread = np.einsum("cm,cmd,cme->de", found.shares, around, around)
        spread += np.einsum("cd,cdi,cdj->ij", found.variances, found.axes, found.axes)
        values, vectors = np.linalg.eigh(spread / len(means))

        def with_any(of_classes, of_any):
            return np.concatenate([of_classes, of_any[None]])[:kinds]

        axes = with_any(found.axes, vectors.T)
        centers = with_any(found.centers, np.broadcast_to(means.mean(axis=0), found.centers.shape[1:]))
        shares = with_any(found.shares, np.full(self.components, 1.0 / self.components))
        self.axes.assign(axes)
        self.variances.assign(norm**2 * with_any(found.variances, np.maximum(values, 0.0)))
        self.centers.assign(norm * np.einsum("kij,kmj->kmi", axes, centers))
        self.log_shares.assign(np.log(shares))
        self.known.assign(1.0)

    def understands(self, denoiser: denoisers.Denoiser) -> bool:
        """Returns whether the inputs and outputs of a network mean the same to this layer and to `denoiser`."""
        sigma = ops.convert_to_tensor(np.geomspace(0.01, 50.0, 8), "float32")
        mine, others = (np.array([*map(ops.convert_to_numpy, of.scalings(sigma))]) for of in (self.denoiser, denoiser))
        return np.allclose(mine, others, rtol=1e-4)

    def call(self, inputs: Any) -> Any:
        x, c_noise, *labels = inputs
        kinds, size = self.variances.shape
        sigma = self.denoiser.level(ops.cast(c_noise, "float32"))
        c_skip, c_out, c_in, _ = (ops.expand_dims(each, -1) for each in self.denoiser.scalings(sigma))
        variance = ops.expand_dims(ops.square(sigma), -1)
        noisy = ops.reshape(ops.cast(x, "float32"), (-1, math.prod(x.shape[1:]))) / c_in - self.center
        label = ops.cast(labels[0], "int32") if labels else ops.zeros_like(c_noise, dtype="int32")
        mine = ops.one_hot(label, kinds, dtype="float32")

        axes = ops.reshape(self.axes, (kinds * size, size))
        # Along the axes of each class: one product, which is cheaper than a matrix for each row.
        along = ops.matmul(self._frequencies_of(noisy, x.shape), ops.transpose(axes))
        along = ops.einsum("bk,bkd->bd", mine, ops.reshape(along, (-1, kinds, size)))
        spread = ops.matmul(mine, self.variances) + self.floor**2
        centers = ops.matmul(mine, ops.reshape(self.centers, (kinds, self.components * size)))
        centers = ops.reshape(centers, (-1, self.components, size))
        center = self._expected(along, centers, spread + variance, mine)
        # Outside of the low frequencies the floor is all that is known; inside, what differs from that is added.
        share = self.floor**2 / (self.floor**2 + variance)
        more = center + spread / (spread + variance) * (along - center) - share * along
        more = ops.reshape(ops.expand_dims(mine, -1) * ops.expand_dims(more, 1), (-1, kinds * size))
        more = ops.matmul(more, axes)
        clean = self.center + share * noisy + self._entries_of(more, x.shape)
        found = (clean - c_skip * (noisy + self.center)) / c_out
        return ops.cast(self.known * ops.reshape(found, (-1, *x.shape[1:])), self.compute_dtype)

    def _expected(self, along, centers, total, mine):
        """The mean of the centers, each as likely as the noisy image makes it."""
        if self.components == 1:
            return ops.squeeze(centers, 1)
        apart = ops.square(ops.expand_dims(along, 1) - centers) / ops.expand_dims(total, 1)
        likely = ops.softmax(ops.matmul(mine, self.log_shares) - 0.5 * ops.sum(apart, axis=-1), axis=-1)
        return ops.einsum("bm,bmd->bd", likely, centers)

    def _frequencies_of(self, entries, shape):
        rows, columns = map(ops.convert_to_tensor, self._cosines)
        height, width, channels = shape[1:]
        found = ops.matmul(rows, ops.reshape(entries, (-1, height, width * channels)))
        found = ops.matmul(columns, ops.reshape(found, (-1, width, channels)))
        return ops.reshape(found, (-1, self.variances.shape[1]))

    def _entries_of(self, frequencies, shape):
        rows, columns = map(ops.convert_to_tensor, self._cosines)
        channels = shape[-1]
        found = ops.reshape(frequencies, (-1, rows.shape[0], columns.shape[0] * channels))
        found = ops.matmul(ops.transpose(rows), found)
        found = ops.matmul(ops.transpose(columns), ops.reshape(found, (-1, columns.shape[0], channels)))
        return ops.reshape(found, (-1, math.prod(shape[1:])))

    def compute_output_shape(self, input_shape: list) -> tuple[int | None, ...]:
        several = 2 if self.num_classes is None else 3
        if len(input_shape) != several or len(input_shape[0]) != 4 or None in input_shape[0][1:]:
            raise ValueError(
                f"Layer '{self.name}' takes what the network of a diffusion model takes: [x, c_noise], and labels with "
                "classes, where x are images of known size. Received: input shapes "
                f"{[tuple(shape) for shape in input_shape]}, num_classes={self.num_classes!r}."
            )
        return tuple(input_shape[0])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_classes": self.num_classes,
            "components": self.components,
            "frequencies": self.frequencies,
            "center": self.center,
            "floor": self.floor,
            "denoiser": keras.saving.serialize_keras_object(self.denoiser),
        }
