"""Which models have per-example gradients, and what to use in place of layers that do not."""

import keras
import numpy as np
from keras import ops, tree

from lipdp import backend
from lipdp.gradients import rules
from lipdp.gradients.capture import capture
from lipdp.gradients.leaves import leaves


def supported(model, probe: bool = True) -> None:
    """Refuses a model whose per-example gradients do not exist or cannot be had.

    Args:
        model: A built Keras model.
        probe: Whether to run the model on three random rows as well (see Guarantee). Where an inner size of the
            input is not known 8 is tried, and the probe is left out if the model cannot run on it.

    Raises:
        ValueError: names the layer and what to use in its place.

    Guarantee:
        Layers of Keras that mix the examples of a batch are refused by type. For layers of your own the probe runs
        the engine on random inputs and compares: the gradient norms of one example must not move when the others are
        replaced, and the sum of all gradients must be the ordinary gradient. This finds layers that mix examples or
        reorder the rows of a batch, and weights that are used where they cannot be seen. Not covered: layers that do
        so for some inputs only.

    Example:
        >>> import keras
        >>> from lipdp import gradients
        >>> gradients.supported(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    """
    if not model.built:
        raise ValueError(f"Model '{model.name}' has no weights yet. Build it, or give it an `Input`.")
    refuse_untrainable(model)
    for layer in [model, *model._flatten_layers(include_self=False)]:
        _refuse(layer)
    for tensor in tree.flatten(getattr(model, "inputs", None) or []):
        if getattr(tensor, "ragged", False) or getattr(tensor, "sparse", False):
            raise ValueError(
                f"Input '{tensor.name}' is ragged or sparse. Received: shape {tuple(tensor.shape)}. Pad it to a fixed "
                "size and let `Embedding(mask_zero=True)` or `Masking` hide the padding."
            )
    for layer, rule in leaves(model):
        if rule is rules.fallback:
            _refuse_random(layer)
    if probe:
        _probe(model)


def refuse_untrainable(model) -> None:
    """Refuses a model without trainable weights."""
    if not model.trainable_variables:
        raise ValueError(
            f"Model '{model.name}' has no trainable weights, so there is nothing to train. Set `trainable = True` on "
            "the layers to train."
        )


def _refuse(layer) -> None:
    name = f"Layer '{layer.name}' ({type(layer).__name__})"
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
        raise ValueError(
            f"{name} mixes the examples of a batch: its mean and variance are those of the batch, so no example has a "
            "gradient of its own. Use GroupNormalization or LayerNormalization, or freeze it with `trainable = False`."
        )
    if isinstance(layer, keras.layers.SpectralNormalization):
        raise ValueError(
            f"{name} changes its weights in the forward pass. Use a layer of lipdp.layers with a spectral bound, or "
            "the layer inside it alone."
        )
    if getattr(layer, "stateful", False):
        raise ValueError(
            f"{name} carries states from one batch to the next, so examples mix. Received: stateful=True. "
            "Use stateful=False."
        )
    if getattr(layer, "activity_regularizer", None) is not None or isinstance(
        layer, keras.layers.ActivityRegularization
    ):
        raise ValueError(
            f"{name} adds a loss of its own (activity regularisation) that is not part of the per-example loss. "
            "Leave it out, or put the term into the loss."
        )
    for variable in layer._trainable_variables:
        if variable.trainable and variable.regularizer is not None:
            raise ValueError(
                f"Weight '{variable.path}' has a regulariser, which is not part of the per-example loss. Received: "
                f"{variable.regularizer!r}. Use `weight_decay` of the optimizer."
            )
    own = [v.dtype for v in layer._trainable_variables]
    for dtype in [layer.compute_dtype, layer.variable_dtype, *own]:
        if keras.backend.is_float_dtype(dtype) and dtype != "float32":
            raise ValueError(
                f"{name} has values in {dtype}. Gradients, their norms and the noise are float32, where other types "
                "do not fit or understate a norm. Use float32: keras.config.set_dtype_policy('float32')."
            )
    if getattr(layer, "quantization_mode", None) is not None and layer.trainable_variables:
        raise ValueError(
            f"{name} is quantised. Received: quantization_mode={layer.quantization_mode!r}. Train the layer before it "
            "is quantised, or freeze it."
        )
    if getattr(layer, "_remat_mode", None) is not None:
        raise ValueError(
            f"{name} was built in a RematScope, where nothing can be recorded. Build the model outside of it and use "
            "`fit(physical_batch_size=...)` to save memory."
        )


def _refuse_random(layer) -> None:
    inner = [layer, *layer._flatten_layers(include_self=False)]
    if any(part._seed_generators for part in inner):
        raise ValueError(
            f"Layer '{layer.name}' ({type(layer).__name__}) has no rule of its own and draws random numbers, which "
            "cannot be repeated for its per-example gradients. Put the random part (such as Dropout) into a layer "
            "beside it."
        )


def _probe(model) -> None:
    structure = getattr(model, "_functional", None) or model
    structure = getattr(structure, "_inputs_struct", None)
    if structure is None:
        return
    unknown = any(None in t.shape[1:] for t in tree.flatten(structure))
    rng = np.random.default_rng(0)

    def draw(tensor):
        shape = (3, *(8 if size is None else size for size in tensor.shape[1:]))
        if keras.backend.is_float_dtype(tensor.dtype):
            return rng.normal(size=shape).astype(tensor.dtype)
        return rng.integers(0, 2, shape).astype(tensor.dtype)

    first = tree.map_structure(draw, structure)
    second = tree.map_structure(lambda t: np.concatenate([t[:1], _other(rng, t[1:])]), first)
    try:
        (norms, sums, ordinary), (others, _, _) = backend.probe(model, [first, second], _loss, capture)
    except Exception:
        if unknown:
            return
        raise
    scale = max(float(np.sqrt(max(np.max(n) for n in norms))), 1e-12)
    for variable, a, b, total, expected in zip(model.trainable_variables, norms, others, sums, ordinary, strict=True):
        if abs(np.sqrt(a[0]) - np.sqrt(b[0])) > 1e-3 * scale:
            raise ValueError(
                f"The gradient of weight '{variable.path}' for one example depends on the other examples of the batch: "
                "a layer mixes examples or reorders the rows of the batch. Use layers that treat each row alone."
            )
        if np.max(np.abs(total - expected)) > 1e-3 * scale:
            raise ValueError(
                f"Weight '{variable.path}' is used outside of the `call` of the layers that own it, where its "
                "per-example gradients cannot be seen. Give the layer that uses it an attribute that holds it."
            )


def _other(rng, array):
    """Other values of the same kind: integers are the other ones of 0 and 1."""
    if keras.backend.is_float_dtype(array.dtype.name):
        return rng.normal(size=array.shape).astype(array.dtype)
    return 1 - array


def _loss(y, y_pred):
    total = 0.0
    for k, output in enumerate(tree.flatten(y_pred)):
        flat = ops.reshape(ops.cast(output, "float32"), (ops.shape(output)[0], -1))
        ramp = ops.cast(ops.arange(1, ops.shape(flat)[1] + 1), "float32") / ops.cast(ops.shape(flat)[1], "float32")
        total = total + ops.mean(ops.square(flat - ramp - k), axis=1)
    return total
