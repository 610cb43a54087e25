"""Diffusion models that train with differential privacy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike

from lipdp import backend, checks, strategies
from lipdp.diffusion import class_moments, denoisers, samplers
from lipdp.diffusion.average import Average, Averaged
from lipdp.diffusion.examples import OfCleanExamples, refuse_moved
from lipdp.diffusion.labels import check_trained, frozen, refuse_weights
from lipdp.diffusion.lesson import Lesson
from lipdp.diffusion.noising import DenoisingLoss, Noising, with_copies
from lipdp.model import DP_Model
from lipdp.privacy import provenance
from lipdp.sampling import columns, persons
from lipdp.sampling import schemes as sampling_schemes
from lipdp.training import budget, model_checks
from lipdp.training.exclusive import exclusive
from lipdp.training.validation import check_callbacks, computed_from


@keras.saving.register_keras_serializable(package="lipdp")
class DiffusionModel(OfCleanExamples, Averaged, DP_Model):
    """A generative model of private examples: `fit` trains the network, `sample` draws examples.

    Args:
        network: a `keras.Model` of `[x, c_noise]`, or with `num_classes` of `[x, c_noise, label]`, to the shape of x,
            such as `unet` returns. It is trained in place.
        denoiser: `"edm"`, `"v"`, `"vp"`, `"ve"` or a `Denoiser`.
        num_classes: number of classes C, or None. The network must know the label C: "no label".
        noise_multiplicity: number K of noise levels and noises per example and update; their losses are averaged
            before the gradient is clipped. Compute grows with K, epsilon does not.
        label_dropout: probability that a label is hidden in training, for guidance.
        average: momentum in [0, 1) of the moving average of the weights, which `sample` uses; 0: none.
        classifier: None, or a network of what `sample` draws to one logit for each class, such as a model that `fit`
            has trained on the same examples: `classify` asks it. It is copied, with the ledger of what it has cost;
            `fit` plans for what is left.

    **Guarantee.** See `DP_Model.fit`. The loss of an example is the mean over its K noisy copies, a function of the
    example and of secret randomness that is independent of all others: its gradient is clipped once, so the sensitivity
    is the clip norm whatever K (Dockhorn et al. 2023, theorem 1). The moving average is computed from released weights.
    Samples, and their labels by the classifier, are post-processing, and cost nothing as long as labels are not drawn
    with the frequencies of private data. Not covered: distances, accuracies and pictures that use private examples, and
    a `denoiser` that was chosen with them.

    Example:
        >>> from lipdp import diffusion
        >>> network = diffusion.unet((8, 8, 1), num_classes=10, channels=8, multipliers=(1,), blocks=1, slim=True)
        >>> model = diffusion.DiffusionModel(network, num_classes=10, noise_multiplicity=4)
        >>> model.compile("adam")
        >>> model.sample(3, sampler=diffusion.DDIM(4), seed=0).shape
        (3, 8, 8, 1)
    """

    def __init__(
        self,
        network: keras.Model,
        denoiser: Any = "edm",
        num_classes: int | None = None,
        noise_multiplicity: int = 1,
        label_dropout: float = 0.1,
        average: float = 0.999,
        classifier: keras.Model | None = None,
        **kwargs: Any,
    ):
        if len(network.inputs) != (2 if num_classes is None else 3):
            raise ValueError(
                "The network must take [x, c_noise], and labels when there are classes. Received: "
                f"{len(network.inputs)} inputs with num_classes={num_classes!r}."
            )
        taken, made = tuple(network.inputs[0].shape[1:]), [tuple(tensor.shape[1:]) for tensor in network.outputs]
        if len(made) != 1 or (None not in made[0] + taken and made[0] != taken):
            raise ValueError(  # the difference to x would be broadcast
                "The network must return one tensor, of the shape of x. Received: outputs of shape "
                f"{', '.join(map(str, made))} for x of shape {taken}. Let its last layer make as many entries."
            )
        noise_multiplicity = checks.integer("noise_multiplicity", noise_multiplicity, minimum=1)
        average = checks.below_one("average", average)
        denoiser = denoisers.get(denoiser)
        model_checks.check_policy(keras.dtype_policies.get(kwargs.get("dtype")))
        inputs = clean = keras.Input(network.inputs[0].shape[1:], name="clean", dtype="float32")
        if num_classes is not None:
            inputs = (clean, keras.Input((), name="label", dtype="float32"))
        noising = Noising(denoiser, num_classes, label_dropout, name="noising")
        x, c_noise, target, *labels = noising(inputs)
        error = keras.layers.Subtract(dtype="float32")([network([x, c_noise, *labels]), target])
        super().__init__(inputs, error, **kwargs)
        self.network, self.noising, self.denoiser = network, noising, denoiser
        self.num_classes, self.noise_multiplicity, self.average = num_classes, noise_multiplicity, average
        self._classifier = None if classifier is None else frozen(classifier, clean.shape[1:], num_classes)
        self._hold(None)

    def compile(self, optimizer: Any = "adam", loss: Any = None, **kwargs: Any) -> None:
        """Configures the model; the loss is the denoiser's.

        Args:
            optimizer: see `DP_Model.compile`.
            loss: leave it out.
            **kwargs: `run_eagerly`, `steps_per_execution`, `jit_compile`, as in Keras.
        """
        if loss is not None and not isinstance(loss, (DenoisingLoss, dict)):
            raise ValueError(f"The loss of a diffusion model is its denoiser's. Received: loss={loss!r}. Leave it out.")
        super().compile(optimizer, loss=DenoisingLoss(), **kwargs)

    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        strategy: Any = "dpsgd",
        validation_data: Any = None,
        callbacks: list | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains with differential privacy; see `DP_Model.fit` for the other arguments.

        Args:
            x: clean examples `(N, ...)`, entries of order one, of images in [-1, 1]; or a source of them alone; or a
                dataset of them and their class ids, which is read into memory; see `DP_Model.fit`.
            y: class ids `(N,)` of a model with classes, or their name in a dictionary or file of h5py or zarr.
            strategy: `"dpsgd"`, `"adaclip"` or an object of `lipdp.strategies` that clips; its `views` become
                `noise_multiplicity`.
            validation_data: `(x, y)`, or `(x,)` without classes, or a dataset.
            callbacks: as in Keras.
            seed: see `DP_Model.fit`.
            **kwargs: `epochs`, `batch_size`, `epsilon`, `delta`, `microbatch_size`, ...

        Returns:
            A `History`.

        Raises:
            ValueError: see `DP_Model.fit`; labels that do not fit.
        """
        if self.classifier is not None:
            self.classifier.trainable = False  # whatever was asked of the whole model
        if class_moments.learned(self.run.total):
            class_moments.refuse_split(kwargs.get("validation_split"))
        refuse_weights(kwargs)
        kwargs, given = self._of_dataset(x, kwargs), (x, validation_data)
        x, y = self._data(x, y)
        validation_data = self._validation(validation_data)
        callbacks = check_callbacks(callbacks)
        if self.average:
            # First: a callback that saves the model finds the average of the same update.
            callbacks.insert(0, Average(self))
        strategy = with_copies(strategies.get(strategy), self.noise_multiplicity)
        if not self.compiled:
            raise ValueError(
                'A diffusion model needs an optimizer. Received: one that is not compiled. Call `compile("adam")` '
                "before `fit`: the loss is the denoiser's."
            )
        with computed_from(*given):
            return super().fit(
                x, y, strategy=strategy, validation_data=validation_data, callbacks=callbacks, seed=seed, **kwargs
            )

    def learn_moments(
        self,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        noise_multiplier: float = 8.0,
        norm: float | None = None,
        center: float | None = None,
        frequencies: int | None = None,
        rounds: int = 2,
        num_images: int = 20000,
        epochs: int = 20,
        batch_size: int = 128,
        learning_rate: float = 2e-3,
        sampling: Any = "poisson",
        examples_per_person: int = 1,
        person_ids: Any = None,
        rows_per_person: int = 8,
        seed: int | None = None,
        verbose: Any = "auto",
    ) -> keras.callbacks.History:
        """Has the network know noisy moments of the images of each class before `fit`.

        One Gaussian query releases, for each class, how many images it has, the mean of their low frequencies and how
        these vary together. What it costs is charged to the model's ledger, and `fit(epsilon=...)` plans its updates
        for what is left. A network with a `ClassMixture` takes mixtures of normal distributions for constants, whose
        means further queries find. Any other one learns images that a normal distribution for each class draws, as
        often as it takes: that costs no more.

        Args:
            x: Clean images `(N, height, width, channels)`, entries in [-1, 1]; or a source of such rows.
            y: Class ids `(N,)` of a model with classes.
            noise_multiplier: Noise standard deviation over sensitivity, of each query. With 8 the updates of a budget
                of 1 get a tenth more noise for one query, 60 % more for three. Recipes take what alone costs
                about half of epsilon: from 2 on the updates then get about a tenth more noise.
            norm: L2 norm to which the low frequencies of an image, less `center`, are clipped; a public constant, near
                that of most images. Default: 0.6 times the root of the number of entries.
            center: Public constant that is subtracted from each entry, near their mean. Default: that of the
                `ClassMixture`, -0.6 without one.
            frequencies: How many low frequencies are kept along each side. The number of products grows with its fourth
                power, and with the square of the channels. Default: those of the `ClassMixture`, 12 without one.
            rounds: How many further queries a `ClassMixture` of several components gets, each at the same noise; at
                least 1.
            num_images: How many images are drawn to learn from. A `ClassMixture` needs none: this and the next three
                have no use then.
            epochs, batch_size: Passes over these, and how many of them make a step.
            learning_rate: Of Adam, at the start; it falls to zero.
            sampling, examples_per_person: What `fit` will be given: they say how neighbors differ, and whose epsilon
                `privacy` states until then.
            person_ids, rows_per_person: As in `DP_Model.fit`, which must be given the same; all rows of a person count
                1 together.
            seed: See `DP_Model.fit`.
            verbose: As in Keras.

        Returns:
            The `History` of learning from drawn images; an empty one with a `ClassMixture`.

        Raises:
            ValueError: an argument is out of range, labels that do not fit, a model that is not of images, is being
                trained, or was trained for another unit.

        Example:
            >>> import numpy as np
            >>> from lipdp import diffusion
            >>> network = diffusion.unet((8, 8, 1), num_classes=2, channels=8, multipliers=(1,), blocks=1, slim=True)
            >>> model = diffusion.DiffusionModel(network, num_classes=2)
            >>> x, y = np.random.default_rng(0).uniform(-1, 1, (500, 8, 8, 1)), np.arange(500) % 2
            >>> _ = model.learn_moments(x, y, frequencies=4, num_images=256, epochs=1, verbose=0)
            >>> [entry.kind for entry in model.run.ledger.entries]
            ['moments']

        **Guarantee.** Conditions: `norm`, `center`, `frequencies` and the other arguments do not follow from the data.
        Bound: in each query an image adds `(1/4, f/2, products of f)` to the sums of its class alone, and of the one
        center of it that is nearest, with frequencies f over `norm`, clipped to 1: at most `sqrt(1/16 + 1/4 + 1)`, to
        which the noise is in proportion, and so do all images of a person together. All queries are charged before the
        first is drawn; centers and all else are computed from what they gave. Not covered: as in
        `DP_Model.fit`; other `person_ids` than those of `fit`, of which only the number of persons is compared. Source:
        after the mean images of DP-FETA (Li et al. 2025), with second moments in place of many means.
        """
        shape = self.network.inputs[0].shape[1:]
        if len(shape) != 3:
            raise ValueError(f"Low frequencies are those of images. Received: a network of rows of shape {shape}.")
        if backend.processes()[1] > 1:
            raise ValueError(
                f"Moments are released by one process, which reads all rows. Received: {backend.processes()[1]} "
                "processes. Call learn_moments in one process, and save the model."
            )
        lesson = Lesson(num_images=num_images, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        refuse_moved(x, {"person_ids": person_ids, "sampling": sampling})
        rows, nothing = self._data(x, y)
        rows, labels = (rows, np.zeros(len(nothing), "int32")) if self.num_classes is None else rows
        rows, _ = columns.as_rows(rows, nothing, 4)
        if getattr(rows, "shape", (0,))[1:] != tuple(shape):
            what = f"shape {rows.shape[1:]}" if hasattr(rows, "shape") else f"a {type(rows).__name__}"
            raise ValueError(f"The images do not fit the network. Received: {what}. Pass images of {tuple(shape)}.")
        mixture, moments, rounds = class_moments.asked(self, frequencies, center, norm, rounds)
        owners = None
        if person_ids is not None:
            owners = persons.Persons(persons.checked_ids(person_ids, len(labels)), rows_per_person)
        scheme = sampling_schemes.get(sampling).bind(
            len(labels) if owners is None else owners.count, 1, examples_per_person
        )
        release = class_moments.release(moments, noise_multiplier, scheme, None if owners is None else rows_per_person)
        labels = np.asarray(labels, "int32")
        run, deviation = self.run, release.noise_multiplier * release.sensitivity
        with exclusive(self), provenance.beside(self, x, y):
            budget.check_moments(run, release, 1 + rounds, scheme.group_size)
            known = columns.digest((rows, labels))
            queries = (mixture.components, rounds) if rounds else ()
            secret = class_moments.secret_of(
                seed, moments, release.noise_multiplier, known, run.ledger.to_json(), queries
            )
            # All weights: a lesson also moves statistics, which are not trainable.
            run.attribute((self.network if mixture is None else mixture).weights)
            run.request = None  # no plan goes on that did not know of them
            run.ledger.examples_per_person = max(run.examples_per_person, scheme.group_size)
            run.charge(release, 1 + rounds)
            run.ledger.seeded = run.ledger.seeded or seed is not None
            by_sample = seed is not None and bool(columns.columns_of(rows))
            run.ledger.seeded_by_sample = run.ledger.seeded_by_sample or by_sample
            shares = None if owners is None else owners.shares()
            found = class_moments.released(moments, rows, labels, shares, deviation, secret, *queries)
            history = keras.callbacks.History()
            if mixture is None:
                history = lesson.learn(self, found, secret, verbose)
            else:
                mixture.learn(found)
        self._hold(None)
        return history

    def sample(
        self,
        num_samples: int,
        labels: np.ndarray | None = None,
        sampler: Any = "ddim",
        guidance: float = 0.0,
        batch_size: int = 256,
        seed: int | None = None,
        verbose: int = 0,
        averaged: bool = True,
    ) -> np.ndarray:
        """Draws examples; see `lipdp.diffusion.generate`.

        Args:
            num_samples, labels, sampler, guidance, batch_size, seed, verbose: see `generate`.
            averaged: whether to use the moving average of the weights, once there is one.

        Returns:
            Float32 array `(num_samples, ...)`, of images about in [-1, 1]: clip what goes beyond.

        Raises:
            ValueError: guidance of a model that has never learned without labels.
        """
        if guidance and self.num_classes is not None and not self.noising.label_dropout:
            raise ValueError(
                "Guidance needs a network that has learned from images without labels. Received: guidance="
                f"{guidance!r} of a model with label_dropout=0. Leave it out, or train with label_dropout=0.1."
            )
        network = self.averaged_network() if averaged else self.network
        return samplers.generate(
            network, num_samples, self.denoiser, sampler, labels, self.num_classes, guidance, batch_size, seed, verbose
        )

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "A diffusion model predicts nothing of an example. Draw examples with `sample`, ask for labels of drawn "
            "ones with `classify`, and for the denoising loss of held-out ones with `evaluate`."
        )

    @property
    def classifier(self) -> keras.Model | None:
        """Returns the copy of the classifier; files that Keras makes of it alone have no ledger."""
        return self._classifier

    def classify(self, images: np.ndarray, batch_size: int = 256) -> np.ndarray:
        """Returns the labels that the classifier gives to examples, drawn ones above all.

        They are more often right than those which examples were drawn for, so a classifier that learns from drawn
        examples should learn these.

        Args:
            images: examples as `sample` returns them, `(N, ...)`.
            batch_size: examples at once.

        Returns:
            Class ids `(N,)`.

        Raises:
            ValueError: the model has no classifier, or one that was not trained.
        """
        if self.classifier is None:
            raise ValueError(
                "This model has no classifier. Received: DiffusionModel(classifier=None). Pass one, see "
                "`DiffusionModel`, or take the labels that were drawn for."
            )
        check_trained(self.classifier)
        if not len(images):
            return np.zeros(0, "int32")
        logits = self.classifier.predict(images, batch_size=batch_size, verbose=0)
        return logits.argmax(axis=-1).astype("int32")

    def get_config(self) -> dict[str, Any]:
        return {
            "network": keras.saving.serialize_keras_object(self.network),
            "denoiser": keras.saving.serialize_keras_object(self.denoiser),
            "num_classes": self.num_classes,
            "noise_multiplicity": self.noise_multiplicity,
            "label_dropout": self.noising.label_dropout,
            "average": self.average,
            "classifier": self.classifier and keras.saving.serialize_keras_object(self.classifier),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> DiffusionModel:
        config = dict(config)
        for key in ("network", "denoiser", "classifier"):
            # Files of earlier versions have no classifier.
            config[key] = keras.saving.deserialize_keras_object(config.get(key), custom_objects)
        return cls(**config)
