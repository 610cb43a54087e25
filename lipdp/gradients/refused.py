"""Which layers have no per-example gradients, and what to use in their place."""

import keras

from lipdp import _keras, isolation
from lipdp.losses import penalties


def refusal(layer) -> str:
    """Returns why a layer cannot be trained privately, and what to do about it; "" where it can."""
    try:
        refuse(layer)
    except ValueError as error:
        return str(error)
    return ""


def refuse_untrainable(model) -> None:
    """Refuses a model without trainable weights."""
    if not model.trainable_variables:
        raise ValueError(
            f"Model '{model.name}' has no trainable weights, so there is nothing to train. Set `trainable = True` on "
            "the layers to train."
        )


def refuse(layer) -> None:
    """Refuses a layer by what it is and how it is set, and names what to use in its place."""
    name = f"Layer '{layer.name}' ({type(layer).__name__})"
    if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
        raise ValueError(
            f"{name} mixes the examples of a batch: its mean and variance are those of the batch, so no example has a "
            "gradient of its own. lipdp.fix(model) returns a copy with GroupNormalization in its place; or freeze it "
            "with `trainable = False`."
        )
    if isolation.at_once(layer):
        raise ValueError(isolation.at_once(layer))
    if isinstance(layer, keras.layers.SpectralNormalization):
        raise ValueError(
            f"{name} changes its weights in the forward pass. Use a layer of lipdp.layers with a spectral bound, or "
            "the layer inside it alone, as in the copy that lipdp.fix(model) returns."
        )
    if getattr(layer, "stateful", False):
        raise ValueError(
            f"{name} carries states from one batch to the next, so examples mix. Received: stateful=True. "
            "Use stateful=False, as lipdp.fix(model) does in a copy."
        )
    if getattr(layer, "activity_regularizer", None) is not None or isinstance(
        layer, keras.layers.ActivityRegularization
    ):
        raise ValueError(
            f"{name} adds a loss of its own (activity regularization) that is not part of the per-example loss. "
            "Leave it out, as lipdp.fix(model) does in a copy, or put the term into the loss."
        )
    for variable in _keras.own_variables(layer):
        penalties.check(variable)
    own = [v.dtype for v in _keras.own_variables(layer)]
    held = [layer.variable_dtype, *own]
    for dtype in held if layer.compute_dtype == "bfloat16" else [layer.compute_dtype, *held]:
        if keras.backend.is_float_dtype(dtype) and dtype != "float32":
            raise ValueError(
                f"{name} has values in {dtype}. Gradients, their norms and the noise are float32, where other types "
                "do not fit or understate a norm. Use float32: keras.config.set_dtype_policy('float32'), or "
                "'mixed_bfloat16' to compute activations in bfloat16."
            )
    if getattr(layer, "quantization_mode", None) is not None and layer.trainable_variables:
        raise ValueError(
            f"{name} is quantized. Received: quantization_mode={layer.quantization_mode!r}. Train the layer before it "
            "is quantized, or freeze it."
        )
    if getattr(layer, "quantization_mode", None) == "float8":
        raise ValueError(
            f"{name} keeps a history of its inputs, which the forward pass changes in training. Received: "
            "quantization_mode='float8'. Quantize it after training, or to 'int8' while it is frozen."
        )
    if _keras.rematerialized(layer):
        raise ValueError(
            f"{name} was built in a RematScope, where nothing can be recorded. Build the model outside of it and use "
            "`fit(microbatch_size=...)` to save memory."
        )


def refuse_random(layer) -> None:
    """Refuses a layer that draws random numbers and has no rule of its own, by which they could be drawn again."""
    drawing = [inner for inner in _keras.walk(layer, include_self=True) if _keras.seed_generators(inner)]
    rates = [[getattr(inner, name, None) for name in ("rate", "dropout", "recurrent_dropout")] for inner in drawing]
    # Dropout of rate 0 draws nothing.
    if any(any(known) or not known for known in ([r for r in some if r is not None] for some in rates)):
        raise ValueError(
            f"Layer '{layer.name}' ({type(layer).__name__}) has no rule of its own and draws random numbers, which "
            "cannot be repeated for its per-example gradients. Put the random part (such as Dropout) into a layer "
            "beside it."
        )
