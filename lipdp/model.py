"""Keras models whose `fit` trains with differential privacy."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

from lipdp import _keras, backend, losses, training
from lipdp.backend.unread import step_of, unread, writing_metrics
from lipdp.bounds import summary
from lipdp.layers import BoundedInput
from lipdp.losses import penalties
from lipdp.optimizer import as_private
from lipdp.privacy import Privacy
from lipdp.strategies.clipping import row_weights
from lipdp.training import compiling, model_checks

_THROUGH_FIT = "Training goes through `fit`, which calibrates the noise and keeps the ledger."


def _like_that_of_keras(constructor: Callable) -> Callable:
    """Returns the constructor of a functional model, without arguments to be seen where that of Keras shows none.

    Before 3.15 it does not, and files hold the layers of a class only if both show the same.
    """
    if inspect.getfullargspec(_keras.Functional.__init__).args:
        return constructor

    def construct(self, *args, **kwargs):
        constructor(self, *args, **kwargs)

    return construct


class _PrivateTraining(training.FromTask, training.Fitting, training.Saving):
    """What `DP_Model` and `DP_Sequential` share: everything that training with privacy changes."""

    # The mean loss of each output, where there are several.
    _output_losses: tuple[keras.metrics.Mean, ...] = ()
    # The objects that `compile` was given: Keras knows some of them after the first batch only.
    given_metrics: tuple[keras.metrics.Metric, ...] = ()

    @property
    def run(self) -> training.Run:
        """The plan, the ledger and the settings of the last `fit`."""
        if "_run" not in self.__dict__:
            # Past Keras' attribute tracking: this is neither a layer nor a variable.
            object.__setattr__(self, "_run", training.Run(self))
        return self.__dict__["_run"]

    @property
    def privacy(self) -> Privacy:
        """What has been released so far and what it costs: `epsilon()`, `statement()`, `to_dict()`."""
        model_checks.check_ledger(self)
        return self.run.privacy()

    def compile(
        self,
        optimizer: Any = "sgd",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configures the model, as in Keras.

        Args:
            optimizer: Name or instance of a Keras optimizer; default: SGD, where Keras has RMSprop. A private one is
                copied from it: to change the learning rate later, set `model.optimizer.learning_rate`. The object that
                was passed has no effect any more.
            loss: A `lipdp.losses` loss or its name, on logits. Strategies that clip also take a loss of Keras: an
                object, or a name that lipdp does not have or, where the output ends in softmax or sigmoid, that of
                a cross-entropy. For several outputs one for each, as a list or a dictionary, or one for all.
            loss_weights: Factors of the losses of several outputs, as a list or a dictionary.
            metrics: Metrics; padding rows never count. For several outputs a list or a dictionary of them.
            weighted_metrics: Metrics that `sample_weight` and `class_weight` weight, in the same form.
            **kwargs: `run_eagerly`, `steps_per_execution`, `jit_compile`, as in Keras.

        Raises:
            ValueError: an unknown loss, not one for each output, an optimizer that would change the noise, or
                float16.
        """
        model_checks.check_policy(self.dtype_policy)
        kwargs["auto_scale_loss"] = False
        loss = compiling.compiled_loss(self, loss, loss_weights)
        metrics = compiling.compiled_metrics(self, "metrics", metrics, loss)
        weighted_metrics = compiling.compiled_metrics(self, "weighted_metrics", weighted_metrics, loss)
        given = tree.flatten([metrics, weighted_metrics])
        compiling.check_compile(given, kwargs)
        model_checks.warn_of_reduction(self, loss)
        # Past Keras' attribute tracking, so that no file holds them.
        object.__setattr__(self, "_output_losses", compiling.loss_trackers(loss))
        object.__setattr__(self, "given_metrics", tuple(m for m in given if isinstance(m, keras.metrics.Metric)))
        super().compile(
            optimizer=as_private(optimizer),
            loss=loss,
            metrics=metrics or None,
            weighted_metrics=weighted_metrics or None,
            **kwargs,
        )

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            # The file holds the optimizer's variables as well.
            self.optimizer.build(self.trainable_variables)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "`train_on_batch` chooses its own batch, which no accountant covers. Use `fit`; for a custom loop, "
            "call `fit` with `epochs` and callbacks."
        )

    @unread
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    @unread
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Returns, in training, the weighted sum over the expected batch size, a constant; otherwise the mean."""
        penalties.refuse_additional(self, self.losses)
        values = losses.example_values(self.loss, y, y_pred)
        penalty = 0.0 if training else sum(self.losses)  # in training its gradient comes after the noise
        if sample_weight is None:
            return ops.mean(values) + penalty
        if not training:
            return compiling.weighted_mean(self.loss, y, y_pred, sample_weight) + penalty
        weights = ops.cast(ops.reshape(sample_weight, ops.shape(values)), values.dtype)
        return ops.sum(values * weights) / self.run.driver.plan.sampling.batch_size

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        if self.run.tracing and not self.run.driver.request.training_metrics:
            # Keras needs some log; `fit` takes it out again.
            return {"updates": ops.zeros(())}
        if self.run.tracing:  # weights of the user come with the labels, and `sample_weight` says who is there
            weight, y = row_weights(self, y)
            there, weights = sample_weight, sample_weight if weight is None else sample_weight * weight
            compiling.track(self._output_losses, self.loss, y, y_pred, weight, there)
        else:
            there, weights = compiling.in_data(sample_weight), sample_weight
            compiling.track(self._output_losses, self.loss, y, y_pred, weights)
        with writing_metrics(), backend.metrics_written(self):
            compiling.add_to_metrics(self, y, y_pred, there, weights)
        return self.get_metrics_result()

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [*super().metrics, *self._output_losses]

    def get_metrics_result(self) -> dict[str, Any]:
        if self.run.tracing and not self.run.driver.request.training_metrics:
            return {"updates": ops.zeros(())}
        # Without training metrics Keras asks before the first validation has built them.
        if _keras.metrics_wait(self):
            return {}
        return super().get_metrics_result()

    def make_train_function(self, force: bool = False) -> None:
        if not getattr(self.optimizer, "armed", False):  # Keras' own `fit`
            raise ValueError(_THROUGH_FIT)
        present = self.train_function
        own = None if self.run.driver is None else self.run.driver.train_function(present, force)
        if own is None:
            super().make_train_function(force)
            if self.train_function is not present:
                self.train_function = backend.train_function(self, self.train_function)
        else:
            self.train_function = own

    def train_step(self, *state_and_data: Any) -> Any:
        if self.run.driver is None:
            raise ValueError(_THROUGH_FIT)
        with self.run.step_traced(), step_of(self):
            return self.run.driver.step(state_and_data, super().train_step)

    def summary_bounds(self, x: Any = None, y: Any = None, print_fn: Any = None) -> list[dict]:
        """Prints and returns, per layer: input bound, Lipschitz constant, gradient bound, noise, tightness.

        Args:
            x, y: A PUBLIC or consented sample, as for `fit`, to measure how tight the bounds are on it;
                about a millisecond per example. What is measured is not private: never pass data that the
                model must protect.
            print_fn: Receives the table as text; default: standard output.

        Returns:
            One dictionary per use of a layer. `noise_std` is that of the last `fit`, for the averaged
            gradient; None before the first. With a sample, `measured` is the largest norm of one
            example's gradient and `tightness` that over the bound, for all uses of the layer together;
            `lipdp.report.plot_tightness` draws them.

        Raises:
            ValueError: the model is not compiled, or x and y do not fit.
            RuntimeError: a measured gradient exceeds its bound.
        """
        return summary.summary_bounds(self, x, y, print_fn)


@keras.saving.register_keras_serializable(package="lipdp")
class DP_Model(_PrivateTraining, keras.Model):
    """A functional Keras model that trains with differential privacy.

    Args:
        inputs: Keras inputs.
        outputs: One output tensor of shape `(batch, num_outputs)`, or for strategies that clip several ones.

    Guarantee:
        See `fit`. For clipless training every layer between the first trainable one and the output must have bounds;
        `fit` refuses what has none.

    Example:
        >>> import keras
        >>> import lipdp
        >>> from lipdp import layers
        >>> inputs = keras.Input((4,))
        >>> x = layers.SpectralDense(8)(layers.BoundedInput(norm=1.0)(inputs))
        >>> model = lipdp.DP_Model(inputs, layers.SpectralDense(3)(layers.Abs()(x)))
        >>> model.privacy.epsilon()
        0.0
    """

    @_like_that_of_keras
    def __init__(self, inputs: Any = None, outputs: Any = None, name: str | None = None, **kwargs: Any):
        model_checks.check_inputs(inputs, outputs, "DP_Model")
        super().__init__(inputs, outputs, name=name, **kwargs)

    @classmethod
    def from_keras(cls, model: keras.Model) -> "DP_Model":
        """A private model that shares the layers of a Keras model; `fit` trains ordinary networks with DP-SGD.

        Args:
            model: A functional model, a Sequential one whose input shape is known, or a task of keras_hub:
                its preprocessor takes the rows given to `fit`, `evaluate` and `predict`.

        Returns:
            A `DP_Model` with the same layers: training it trains those of `model`. Compile it. Certificates need
            layers with bounds. What cannot be trained privately `lipdp.fix` replaces. It is a functional model, whose
            `layers` begin with that of the input; `DP_Sequential.from_keras` keeps the numbers of a Sequential one.

        Raises:
            ValueError: a subclassed or unbuilt model, whose graph of layers is not known.

        Example:
            >>> import keras
            >>> import lipdp
            >>> plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            >>> model = lipdp.DP_Model.from_keras(plain)
            >>> model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            >>> model.output_shape
            (None, 3)
        """
        tensors = model_checks.tensors_of(model_checks.graph_of(model, _PrivateTraining))
        return training.of_task(cls(*tensors, name=model.name), model)


@keras.saving.register_keras_serializable(package="lipdp")
class DP_Sequential(_PrivateTraining, keras.Sequential):
    """A Sequential Keras model that trains with differential privacy.

    Args:
        layers: List of layers. `BoundedInput(shape, norm)` in front also declares the input's shape.

    Guarantee:
        See `DP_Model`.

    Example:
        >>> import lipdp
        >>> from lipdp import layers
        >>> model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
        >>> model.output_shape
        (None, 3)
    """

    def __init__(self, layers: list | None = None, trainable: bool = True, name: str | None = None):
        model_checks.check_layers(layers)
        super().__init__(layers, trainable=trainable, name=name)

    @classmethod
    def from_keras(cls, model: keras.Sequential) -> "DP_Sequential":
        """A private Sequential model that shares the layers of a Keras one; see `DP_Model.from_keras`.

        Args:
            model: A Sequential model whose input shape is known.

        Returns:
            A `DP_Sequential` with the same layers: training it trains those of `model`. Compile it.

        Raises:
            ValueError: a functional, subclassed or unbuilt model.

        Example:
            >>> import keras
            >>> import lipdp
            >>> plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            >>> lipdp.DP_Sequential.from_keras(plain).output_shape
            (None, 3)
        """
        graph = model_checks.graph_of(model, _PrivateTraining)
        if not isinstance(model, keras.Sequential):
            raise ValueError(
                f"`DP_Sequential.from_keras` takes a Sequential model. Received: the functional model '{model.name}'. "
                "Write DP_Model.from_keras(model)."
            )
        (start,) = graph.inputs
        start = keras.Input(batch_shape=start.shape, dtype=start.dtype, name=start.name)
        return cls([start, *model.layers], name=model.name)

    def add(self, layer: keras.layers.Layer, rebuild: bool = True) -> None:
        if _keras.is_empty(self) and isinstance(layer, BoundedInput) and layer.shape is not None:
            super().add(keras.Input(layer.shape), rebuild=False)
        super().add(layer, rebuild=rebuild)
