"""LeNet."""

from lipdp import layers
from lipdp._deprecated import renamed_arguments
from lipdp.model import DP_Model
from lipdp.models.parts import conv, dense, image_input, inner_ball, logits_model


@renamed_arguments(centred="centered")
def lenet(
    input_shape: tuple[int, ...] = (28, 28, 1),
    classes: int = 10,
    *,
    input_norm: float = 7.0,
    inner_norm: float | None = None,
    filters: tuple[int, int] = (16, 32),
    hidden: tuple[int, ...] = (64,),
    strides: int = 1,
    centered: bool = True,
    bias: bool = False,
    name: str = "lenet",
) -> DP_Model:
    """A LeNet of two 5x5 convolutions with max pooling and a few dense layers, 1-Lipschitz from image to logits.

    Args:
        input_shape: Shape of one image, `(height, width, channels)`.
        classes: Number of outputs, logits.
        input_norm: Radius of the ball that images are clipped to; a public constant.
        inner_norm: Radius of a ball after the first layer, or None. A smaller one means less noise in the layers
            after it, and clips features.
        filters: Filters of the two convolutions.
        hidden: Widths of the dense layers in front of the logits.
        strides: Stride of the first convolution.
        centered: Whether the mean of each channel of an image is removed first.
        bias: Whether biases are trained.
        name: Name of the model.

    Returns:
        A `DP_Model`, to be compiled.

    Example:
        >>> from lipdp import models
        >>> models.lenet((16, 16, 1), hidden=(8,)).output_shape
        (None, 10)

    **Guarantee.** Each layer is 1-Lipschitz, so the model is.
    """
    inputs, x = image_input(input_shape, input_norm, centered)
    first, second = filters
    x = layers.MaxPooling2D(2)(conv(x, first, 5, bias, strides))
    x = layers.MaxPooling2D(2)(conv(inner_ball(x, inner_norm), second, 5, bias))
    x = layers.Flatten()(x)
    for units in hidden:
        x = dense(x, units, bias)
    return logits_model(inputs, x, classes, bias, name)
