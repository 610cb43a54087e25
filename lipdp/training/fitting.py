"""The method `fit` of every private model."""

from typing import Any

import keras

from lipdp import backend, losses
from lipdp._deprecated import renamed_arguments
from lipdp.privacy import provenance
from lipdp.training import bodies, memory, model_checks, same_rows
from lipdp.training.callbacks import refuse_private_monitors
from lipdp.training.exclusive import exclusive
from lipdp.training.processes import together
from lipdp.training.request import FitRequest
from lipdp.training.resuming import checkpointed
from lipdp.training.session import expected_batch_size, prepare
from lipdp.training.validation import are_training_rows, check_callbacks, given

_ROWS_PER_PERSON = 8


class Fitting:
    """What every private model does when `fit` is called."""

    @renamed_arguments(physical_batch_size="microbatch_size")
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: list | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = None,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        strategy: Any = "auto",
        risk: dict[str, float] | None = None,
        accountant: str = "pld",
        microbatch_size: int | None = None,
        training_metrics: bool = True,
        seed: int | None = None,
        sampling: Any = "poisson",
        examples_per_person: int = 1,
        person_ids: Any = None,
        rows_per_person: int | None = None,
        allow_private_monitor: bool = False,
        noise_generator: str = "threefry",
        **unknown: Any,
    ) -> keras.callbacks.History:
        """Trains with differential privacy, until the epochs or the budget end, whichever is first.

        Args:
            x: Arrays `(N, ...)`; or a source, of which only drawn rows are read (`numpy.memmap`, h5py, zarr, what has
                `__len__` and `__getitem__`, see `lipdp.sampling.Source`); or a `tf.data.Dataset` of known size or a
                `keras.utils.PyDataset`, which are read into memory.
            y: Labels, where x does not bring them: arrays, a source, or the name of a column of x (a source,
                dictionary, DataFrame, .npz file, file of h5py or zarr, `tf.data.Dataset` of dictionaries).
            batch_size: EXPECTED batch size B, a public constant and the divisor of the gradient. Under
                Poisson sampling every example joins each update with probability B / N; the realised
                size varies. Default: 256, or that of the batches of a dataset.
            epochs, verbose, callbacks, validation_data, initial_epoch, validation_steps,
                validation_batch_size, validation_freq: As in Keras, but tried before anything is charged.
            validation_split: Expected fraction of the rows that are held out and not counted in N, a public number.
                A fixed hash of a row's contents decides about it, not its place as in Keras: a row more or less
                then changes no other row's part.
            class_weight: As in Keras, `{class id: weight}`, for strategies that clip. Public numbers: shares that were
                counted in the private data are a release that nothing charges.
            sample_weight: As in Keras, one finite number from 0 for each row, `(N,)`, for strategies that clip. It is a
                part of its row, as the label is: what follows from other rows as well is a release.
            steps_per_epoch: Updates per epoch; default: N / B, rounded up.
            epsilon: Budget for everything this model ever releases about its data. The noise is
                calibrated so that the planned updates spend it.
            noise_multiplier: Noise standard deviation over the sensitivity, instead of `epsilon`; with
                both, training stops when the budget is spent.
            risk: Instead of `epsilon`, what an attack on one example may reach at most with everything this model ever
                releases: `{"advantage": 0.1}`, the true positive rate less the false positive rate, or
                `{"tpr": 0.02, "fpr": 0.01}`, the true positive rate at this false positive rate.
            delta: Probability parameter of the guarantee; a warning says when it is not below 1 / N.
            strategy: `"clipless"`, `"dpsgd"`, `"adaclip"`, `"dpis"` or an object of `lipdp.strategies`. `"auto"`
                is clipless for models of Lipschitz layers, and DP-SGD for ordinary Keras networks.
            accountant: `"pld"`, `"rdp"`, `"autodp"` or `"filter"`, which also covers noise and length of
                later fits chosen while looking at earlier ones. Its budget, delta, `examples_per_person` and
                neighboring relation are those of the first fit.
            microbatch_size: Rows processed at once; a larger update is computed in several microbatches,
                with one draw of noise. Default: the whole update at once on a GPU, and as many rows as are fastest
                on a CPU.
            training_metrics: Whether to compute and log the loss and metrics on the private training
                data. They are outside the guarantee.
            seed: Integer from 0 with which this call repeats, and no other; as secret as the data, not for a release.
            sampling: `"poisson"`, `"truncated_poisson"`, `"fixed_size"`, `"random_allocation"` (each example in one
                update of each pass), `"shuffle"` or `"fixed_order"`, or a `lipdp.sampling.Sampling`. Each is charged
                as what it is, under its own neighboring relation; the last two are not amplified. A fit that goes on
                within a pass needs its rows in the order they had; from a file of a fit without a seed, which does not
                tell it, the next pass begins.
            examples_per_person: The most rows that one person has, where it is not known who has which. Budget and
                epsilon are then those of a person, and the noise is calibrated for groups of that size. A later `fit`
                of the same weights cannot have fewer.
            person_ids: `(N,)`, integers or texts: whose each row is. Persons are then drawn in the place of rows, and
                the gradients of a person's rows averaged: N, `batch_size` and epsilon are about persons. The ids are
                private; a file of a run without a seed does not tell them. Other ids than before give a warning, where
                they are known.
            rows_per_person: The most rows k, at least 1, that a person brings into an update, with `person_ids`, by
                default 8; of more rows k are chosen at random, afresh for each update. More cost time, not privacy.
            allow_private_monitor: Whether callbacks such as `EarlyStopping(monitor="loss")` may follow metrics on the
                training data. What they do is outside the guarantee, which the statement then says.
            noise_generator: `"threefry"`, or `"chacha20"`, which is cryptographic and slower.

        Returns:
            A `History`; `epsilon` is among its columns.

        Raises:
            ValueError: anything that would void the guarantee; nothing is then changed or charged.
            TypeError: a misspelt argument.

        Guarantee:
            All weights, optimizer states and averages after t updates are `(epsilon, delta)`-DP with the
            epsilon of `privacy.epsilon()`, for adding or removing one row of the data, with `person_ids` all rows of
            one person, or what else the sampler and `examples_per_person` say: the t updates are Gaussian mechanisms
            of the plan's noise multiplier on the drawn batches. Each is charged before it is executed. Not covered:
            see `privacy.statement()`.
        """
        model_checks.refuse_unsupported(Fitting.fit, unknown, shuffle=shuffle)
        if rows_per_person is not None and person_ids is None:
            raise ValueError(
                f"Whose rows are counted is not known. Received: rows_per_person={rows_per_person!r} without "
                "`person_ids`. Pass the ids as well."
            )
        request = FitRequest.of(
            strategy=model_checks.default_strategy(self) if strategy == "auto" else strategy,
            sampling=sampling,
            batch_size=expected_batch_size(self, x, person_ids) if batch_size is None else batch_size,
            examples_per_person=examples_per_person,
            rows_per_person=_ROWS_PER_PERSON if person_ids is not None and rows_per_person is None else rows_per_person,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            risk=risk,
            delta=delta,
            accountant=accountant,
            epochs=epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            microbatch_size=microbatch_size,
            training_metrics=training_metrics,
            seed=seed,
            noise_generator=noise_generator,
            class_weight=None if class_weight is None else losses.check_class_weight(class_weight),
        )
        callbacks = check_callbacks(callbacks)
        if not allow_private_monitor:
            refuse_private_monitors(callbacks, training_metrics, are_training_rows(x, validation_data))
        model_checks.build(self, x)
        model_checks.check_ledger(self)
        bodies.note(self, request, callbacks, validation_data)
        with (
            together(),
            checkpointed(self, callbacks) as checkpoint,
            exclusive(self),
            provenance.beside(self, request.strategy, *given(x, y)),
            memory.kept(),
            backend.untuned(),
        ):
            driver = prepare(
                self, x, y, validation_split, validation_data, request, checkpoint, person_ids, sample_weight
            )
            same_rows.note(self, *given(x, None))
            return driver.fit(
                super().fit,  # type: ignore[misc]
                callbacks,
                verbose,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size or 1024,
                validation_freq=validation_freq,
            )
