"""What `fit` refuses before anything is planned or changed: arguments, data and models that cannot be trained on."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from lipdp import _keras, backend, checks, isolation, losses
from lipdp.bounds.registry import lipschitz_by_construction
from lipdp.layers.released import ReleasedConstants
from lipdp.optimizer import PrivateOptimizer
from lipdp.privacy import provenance
from lipdp.sampling.columns import Column


def refuse_unsupported(fit: Callable, unknown: dict, *, shuffle: Any) -> None:
    """Refuses what Keras' `fit` knows and a private one, `fit`, cannot do, and what nobody knows."""
    for name in unknown:
        known = [p for p in inspect.signature(fit).parameters if p not in ("self", "unknown")]
        raise checks.unexpected("fit", name, known)
    if shuffle is not None:
        raise ValueError(
            "`shuffle` has no meaning here: who is in a batch is what the accountant charges for. Received: "
            f"shuffle={shuffle!r}. Leave it out for Poisson samples; `sampling='shuffle'` shuffles, at its price."
        )


def check_weighting(strategy: Any, name: str) -> None:
    """Refuses weights of classes or of examples, an argument of `fit`, where a strategy does not know what to do."""
    automatic = getattr(strategy, "clipping", None) == "automatic"
    if automatic or not strategy.weighs_losses:
        told = f"{strategy.name}, clipping=automatic" if automatic else strategy.name
        raise ValueError(
            (
                "Automatic clipping gives all gradients nearly the same length, so weights have next to no effect."
                if automatic
                else "The bounds of this strategy know nothing of weights, which would multiply what one example "
                "contributes."
            )
            + f" Received: {name} with strategy={told!r}. Use fit(strategy='dpsgd'), whose flat clipping is of "
            "the weighted gradient; clipless training has lipdp.losses.MulticlassKR and MulticlassHKR, with "
            "class_priors. See docs/howto/weights.md."
        )


def check_sample_weight(strategy: Any, class_weight: Any) -> None:
    """Refuses weights of examples where a strategy does not know what to do with them, or classes have weights too."""
    check_weighting(strategy, "sample_weight")
    if class_weight is not None:
        raise ValueError(
            "As in Keras, either classes or examples have weights. Received: class_weight and sample_weight. Multiply "
            "the weight of each example by that of its class, and leave class_weight out."
        )


def check_class_weight(model: keras.Model, strategy: Any, y: Any) -> None:
    """Refuses weights of classes where a strategy or the labels do not know what to do with them."""
    check_weighting(strategy, "class_weight")
    outputs = model.output_shape if len(model.outputs) == 1 else None
    losses.check_weighted_labels(outputs, y)


def check_policy(policy: Any) -> None:
    """Refuses a dtype policy in which gradients, norms and noise would not be float32."""
    if policy.name not in ("float32", "mixed_bfloat16"):
        raise ValueError(
            f"Gradients, norms and noise are float32. Received: dtype policy {policy.name!r}. Use "
            "keras.config.set_dtype_policy('float32'), or 'mixed_bfloat16' with a strategy that clips."
        )


def warn_of_reduction(model: keras.Model, loss: Any) -> None:
    """Says that the batch is summed in one way only, where a user may expect another one."""
    shape = getattr(model, "output_shape", None) if model.built else None
    if getattr(loss, "reduction", None) == "sum" and isinstance(shape, tuple) and len(shape) == 2:
        warnings.warn(
            "`reduction='sum'` has no effect in `fit`: the gradient is the sum over a batch, divided by the expected "
            f"batch size. Received: loss={type(loss).__name__}(reduction='sum'). Leave it out, and multiply the "
            "learning rate by the batch size to train as with the sum.",
            stacklevel=checks.users_line(),
        )


def build(model: keras.Model, x: Any) -> None:
    """Builds a Sequential model that does not know its input yet, for rows like those of `x`, as Keras' `fit` does."""
    if not isinstance(model, keras.Sequential) or _keras.graph(model) is not None:
        return
    received = f"type {type(x).__name__}"
    advice = "Start it with lipdp.layers.BoundedInput(shape), or keras.Input(shape)"
    shape = getattr(x, "shape", None)
    if shape is None or len(shape) < 2:
        raise ValueError(
            f"Sequential model '{model.name}' does not know its input shape. Received: x of "
            f"{received if shape is None else f'shape {tuple(shape)}'}. {advice}, or pass an array with one row per "
            "example."
        )
    try:
        model.build((None, *shape[1:]))
    except Exception as error:
        raise ValueError(
            f"Sequential model '{model.name}' cannot be built for x. Received: shape {tuple(shape)}; {error} {advice}."
        ) from error


def check_inputs(inputs: Any, outputs: Any, kind: str) -> None:
    """Refuses to make a functional model of anything but tensors."""
    if isinstance(inputs, keras.Model):
        raise ValueError(
            f"`{kind}` takes input and output tensors. Received: the model '{inputs.name}'. Write "
            f"{kind}.from_keras(model)."
        )
    if inputs is None or outputs is None:
        raise ValueError(
            f"`{kind}` is a functional model: its layers are known from its tensors, which a subclass with a `call` of "
            f"its own does not show. Received: {'no inputs' if inputs is None else 'no outputs'}. Write {kind}(inputs, "
            f"outputs); or build the same as keras.Model(inputs, outputs) and pass that to {kind}.from_keras."
        )


def adapted(model: keras.Model, *data: Any) -> list[str]:
    """Returns the names of the layers that hold numbers or a vocabulary that `adapt` has read off data.

    Args:
        model: Its layers are looked at.
        data: What `fit` was given, whose functions may call further ones.
    """
    lookups = keras.layers.IntegerLookup, keras.layers.StringLookup
    return [
        layer.name
        for layer in provenance.layers_of(model, *data)
        if (isinstance(layer, keras.layers.Normalization) and layer.input_mean is None)
        or (isinstance(layer, keras.layers.Discretization) and layer.num_bins is not None)
        or (isinstance(layer, lookups) and layer.input_vocabulary is None)
    ]


def warn_of_adapted(model: keras.Model, *data: Any) -> list[str]:
    """Says that layers hold what `adapt` has read, and returns their names; see `adapted`."""
    if names := adapted(model, *data):
        warnings.warn(
            f"What `adapt` reads off private rows is a release that epsilon does not cover. Received: "
            f"{', '.join(names)}. Pass public constants (mean= and variance=, bin_boundaries=, vocabulary=), adapt to "
            "public data, or use lipdp.layers.PrivateNormalization or PrivateRescaling, whose cost is charged.",
            stacklevel=checks.users_line(),
        )
    return names


def warn_of_frozen_additions(model: keras.Model) -> None:
    """Says that the low-rank additions of a layer do not train, because it was frozen first."""
    names = [
        layer.name
        for layer in _keras.walk(model)
        if getattr(layer, "lora_enabled", False) and not layer.trainable_variables
    ]
    if names:
        warnings.warn(
            f"Layers with low-rank additions that are frozen train nothing. Received: {', '.join(names[:3])}"
            f"{', ...' if len(names) > 3 else ''} ({len(names)} in all). Call enable_lora on layers that "
            "are not frozen: it freezes their kernels by itself. Freeze the other layers only.",
            stacklevel=checks.users_line(),
        )


def warn_of_uncharged_moments(model: keras.Model) -> None:
    """Says that a layer holds private moments whose cost this model does not know of."""
    names = [layer.name for layer in _keras.walk(model) if isinstance(layer, ReleasedConstants) and layer.adapted]
    if names and not any(entry.kind == "moments" for entry in model.run.total.entries):
        warnings.warn(
            "Moments that a private `fit` has released came into this model by value, and what they cost is not in its "
            f"ledger. Received: {', '.join(names)}. Share the layer itself, or load the private model from its file.",
            stacklevel=checks.users_line(),
        )


def default_strategy(model: keras.Model) -> str:
    """Returns the strategy of `fit(strategy="auto")`: clipless where layers have bounds by construction."""
    return "clipless" if lipschitz_by_construction(model) else "dpsgd"


def graph_of(model: Any, private: Any) -> Any:
    """Returns the graph of a Keras model for `from_keras`; refuses a model without one, or of the class `private`."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`from_keras` takes a Keras model. Received: {type(model).__name__}. Read a "
            "file with keras.saving.load_model first."
        )
    if isinstance(model, private):
        raise ValueError(
            f"Model '{model.name}' is private already, and its ledger must not be lost. Train it directly."
        )
    if isinstance(model, keras.Sequential) and not model.built:
        raise ValueError(
            f"Sequential model '{model.name}' does not know its input shape. Start it with keras.Input(shape)."
        )
    graph = None if _keras.has_own_call(model) else _keras.graph(model)
    for name in ("train_step", "compute_loss", "make_train_function", "compute_metrics"):
        owner = next(c for c in type(model).__mro__ if name in vars(c) or c is object)
        known = owner is object or isolation.root(owner) in ("keras", "keras_hub", "lipdp")
        if not known or name in vars(model):
            stock = "keras.Model(inputs, outputs)" if graph is None else "keras.Model(model.inputs, model.outputs)"
            raise ValueError(
                f"Model '{model.name}' has a `{name}` of its own, which private training does not call. Received: "
                f"{type(model).__name__}. Return what its loss needs as outputs, and give these losses: "
                "docs/training.md has a variational autoencoder and distillation, docs/howto/pairs.md siamese "
                f"networks. For training without it pass {stock}. Networks that train in turn, as in a GAN, do not "
                "fit into one `fit`: for private images there is lipdp.diffusion.DiffusionModel, see docs/diffusion.md."
            )
    if graph is None:
        raise ValueError(
            f"`from_keras` needs a graph of layers. Received: the subclassed model '{model.name}'. Build it as "
            "keras.Model(inputs, outputs); or pass lipdp.to_functional(keras.Model(inputs, model(inputs))), with "
            "inputs = keras.Input(shape). Without `to_functional` that trains more slowly, one row at a time."
        )
    return graph


def tensors_of(graph: Any) -> tuple[Any, Any]:
    """Returns the nests of inputs and outputs of a graph."""
    return _keras.structures(graph)


def check_layers(layers: Any) -> None:
    """Refuses what a Sequential model cannot be made of."""
    if layers is not None and not isinstance(layers, (list, tuple)):
        raise ValueError(
            f"`layers` must be a list of layers. Received: {type(layers).__name__}. Pass DP_Sequential([layer, ...])."
        )
    for layer in layers or ():
        if isinstance(layer, type):
            raise ValueError(
                f"`layers` must be layer objects. Received: the class {layer.__name__}. Make an object of it: its name "
                "followed by its arguments in ()."
            )


def check_model(model: keras.Model) -> None:
    """Refuses a model that is not compiled, trains by steps of its own, or would draw its noise several times."""
    if not model.compiled or model.loss is None:
        how = "is compiled without" if model.compiled else "is not compiled, as `from_keras` returns it"
        raise ValueError(
            f"A model needs a loss. Received: one that {how}. Call `compile(optimizer, loss=...)` before `fit`. "
            "Instead of `add_loss`, return what the term is computed from as an output with a loss (docs/training.md)."
        )
    refuse_own_steps(model)
    if not isinstance(model.optimizer, PrivateOptimizer):
        raise ValueError(
            "The optimizer adds the noise, so it must be the one that `compile` made private. Received: a "
            f"{type(model.optimizer).__name__} put in its place. Call `compile` with it; the ledger is kept."
        )
    model.optimizer.check()
    if backend.replicas(model) > 1:
        raise ValueError(
            "Noise would be drawn once per replica instead of once per update. Received: a distribution over "
            f"{backend.replicas(model)} devices on TensorFlow. Build and train the model without a distribution "
            "strategy, or on several devices with JAX: set KERAS_BACKEND=jax, and "
            "keras.distribution.set_distribution(keras.distribution.DataParallel()) before the model is built."
        )
    if backend.left_out():
        raise ValueError(
            "Processes that train together share one draw of batches and of noise. Received: "
            f"{backend.processes()[1]} processes, of which some have no device in the distribution. Set "
            "keras.distribution.set_distribution(keras.distribution.DataParallel()) in all of them before the model is "
            "built."
        )
    if backend.uneven():
        raise ValueError(
            "Processes that train together feed as many rows each. Received: a distribution with more devices of some "
            "processes than of others, or whose rows reach over different processes. Pass as many devices of each "
            "process, or none: keras.distribution.DataParallel() takes all."
        )
    if _values_are_lost(model):
        raise ValueError(
            "With JAX, an update that fails while it is executed takes the weights and the state of the optimizer with "
            f"it. Received: model '{model.name}' without values, after such an update. Build the model again, and load "
            "a file of it, such as that of a lipdp.callbacks.Checkpoint; the ledger is in it."
        )
    misplaced = backend.misplaced(model)
    if misplaced is not None:
        raise ValueError(
            "Weights lie on the devices of the distribution that was set when they were made. Received: weight "
            f"'{misplaced}' on other devices than those of the present distribution. Set the distribution before the "
            "model is built, keep it until `fit` has ended, and bring weights from elsewhere in a file."
        )
    scattered = backend.scattered(model)
    if scattered is not None:
        raise ValueError(
            "Weights may be parted among the devices of one process, not among processes: checks and files read them "
            f"whole. Received: weight '{scattered}', of which no process has all parts. Let each row of the mesh lie "
            "within one process."
        )


def refuse_own_steps(model: keras.Model) -> None:
    """Refuses a model whose noise and charge are not those of lipdp's own methods."""
    for name in (*_keras.STEP_METHODS, "compute_metrics"):
        source = next((c for c in type(model).__mro__ if name in vars(c)), keras.Model)
        if name in vars(model) or source.__module__.split(".")[0] not in ("lipdp", "keras"):
            raise ValueError(
                "The noise is calibrated for the loss given to `compile` and for lipdp's own training step, which logs "
                f"the metrics given to `compile`. Received: model '{model.name}' of {type(model).__name__}, with a "
                f"`{name}` of its own. Leave it out; put what it does into the loss, into layers or into metrics."
            )


def refuse_several_outputs(model: keras.Model) -> None:
    """Refuses a model with several outputs where a strategy needs the bounds of one."""
    if len(model.outputs) != 1:
        raise ValueError(
            f"Training without clipping needs a model with one output. Received: model '{model.name}' with "
            f"{len(model.outputs)}. Train it as it is with fit(strategy='dpsgd'); or join the outputs "
            "(keras.layers.Concatenate) and read them apart in a loss of lipdp.losses."
        )


def refuse_averages(model: keras.Model, strategy: Any) -> None:
    """Refuses Keras' average of the weights where bounds of weights must hold: of the strategy, or of certificates."""
    held = any(hasattr(getattr(v, "constraint", None), "holds") for v in model.trainable_variables)
    if getattr(model.optimizer, "use_ema", False) and (held or not strategy.per_example):
        raise ValueError(
            "Keras' moving average of the weights reads them before they are projected, so the average breaks "
            "the norm bounds. Received: use_ema=True. Let the learning rate decay to zero instead, or train layers "
            "without bounds with a strategy that clips, such as strategy='dpsgd'."
        )


def output_shapes(model: keras.Model) -> Any:
    """Returns the shape of a model's output, or a list of the shapes of all."""
    shapes = [tuple(tensor.shape) for tensor in model.outputs]
    return shapes if isinstance(model.loss, losses.OutputLosses) else shapes[0]


def example_labels(model: keras.Model) -> Callable[[Any], Any] | None:
    """Returns what brings labels into the nest of a model's outputs, as pipelines and metrics of Keras take them.

    None for a model with one output.
    """
    loss = model.loss
    if not isinstance(loss, losses.OutputLosses):
        return None

    def arrange(y):
        parts = [labels if isinstance(labels, Column) else np.asarray(labels) for labels in loss.labels(y)]
        return _keras.packed_as_outputs(model, parts)

    return arrange


def check_weights(model: keras.Model) -> None:
    """Refuses weights that are not finite, and others than those the optimizer was built for."""
    optimizer = model.optimizer
    if optimizer.built and [id(v) for v in _keras.optimizer_variables(optimizer)] != [
        id(v) for v in model.trainable_variables
    ]:
        raise ValueError(
            "The trainable weights are not those the optimizer was built for: a layer was frozen, released or "
            "quantized since. Call `compile` again; the ledger is kept."
        )
    for variable in model.weights:
        if not np.isfinite(keras.ops.convert_to_numpy(variable)).all():
            raise ValueError(
                f"Weight '{variable.path}' holds NaN or infinity. Give the model finite weights, by `load_weights` or "
                "`set_weights`, and call `compile` with a lower learning rate if training brought them there."
            )
    broken = optimizer.not_finite()
    if broken is not None:
        raise ValueError(
            f"'{broken}' is not finite, or its squares are not. Received: a training that has diverged. Give "
            "the model other weights, and call `compile` again with a lower learning rate; the ledger is kept."
        )


def _values_are_lost(model: keras.Model) -> bool:
    """Returns whether variables have no values any more: JAX uses them up in an update that fails."""
    try:
        values = [variable.value for variable in (*model.weights, *model.optimizer.variables)]
    except Exception:  # Keras took them off, and would make new ones
        return True
    return any(getattr(value, "is_deleted", bool)() for value in values)


def check_ledger(model: Any) -> None:
    """Refuses a model whose optimizer has made more updates than its ledger holds."""
    optimizer = getattr(model, "optimizer", None)
    if model.run.armed or optimizer is None or not optimizer.built:
        return
    if _values_are_lost(model):
        return  # no weight is left that the ledger could say too little of
    made, charged = int(keras.ops.convert_to_numpy(optimizer.iterations)), model.run.ledger.updates
    if made > charged:
        raise ValueError(
            f"The ledger of model '{model.name}' lacks updates that its optimizer has made. Received: {charged} "
            f"updates in the ledger, {made} by the optimizer. Load a file that is not corrupt; where the count was set "
            "by hand, call `compile` with a new optimizer."
        )
