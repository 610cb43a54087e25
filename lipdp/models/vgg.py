"""VGG."""

from lipdp import layers
from lipdp._deprecated import renamed_arguments
from lipdp.model import DP_Model
from lipdp.models.parts import conv, dense, image_input, inner_ball, logits_model


@renamed_arguments(centred="centered")
def vgg(
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    *,
    input_norm: float = 10.0,
    inner_norm: float | None = None,
    blocks: tuple[tuple[int, ...], ...] = ((32, 32), (64, 64)),
    hidden: tuple[int, ...] = (128,),
    centered: bool = True,
    bias: bool = False,
    name: str = "vgg",
) -> DP_Model:
    """A VGG: blocks of 3x3 convolutions, each followed by pooling by the L2 norm, 1-Lipschitz from image to logits.

    Args:
        input_shape: Shape of one image, `(height, width, channels)`.
        classes: Number of outputs, logits.
        input_norm: Radius of the ball that images are clipped to; a public constant.
        inner_norm: Radius of a ball after the first layer, or None. A smaller one means less noise in the layers
            after it, and clips features.
        blocks: Filters of the convolutions of each block.
        hidden: Widths of the dense layers in front of the logits.
        centered: Whether the mean of each channel of an image is removed first.
        bias: Whether biases are trained.
        name: Name of the model.

    Returns:
        A `DP_Model`, to be compiled.

    Example:
        >>> from lipdp import models
        >>> models.vgg((8, 8, 3), blocks=((4,), (8,)), hidden=(8,)).output_shape
        (None, 10)

    **Guarantee.** Each layer is 1-Lipschitz, so the model is.
    """
    inputs, x = image_input(input_shape, input_norm, centered)
    for index, block in enumerate(blocks):
        for filters in block:
            x = conv(x, filters, 3, bias)
        x = layers.L2NormPooling2D(2)(x)
        if index == 0:
            x = inner_ball(x, inner_norm)
    x = layers.Flatten()(x)
    for units in hidden:
        x = dense(x, units, bias)
    return logits_model(inputs, x, classes, bias, name)
