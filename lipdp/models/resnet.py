"""ResNet."""

from lipdp import layers
from lipdp._deprecated import renamed_arguments
from lipdp.model import DP_Model
from lipdp.models.parts import add_bias, conv, image_input, inner_ball, logits_model


@renamed_arguments(centred="centered")
def resnet(
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    *,
    input_norm: float = 10.0,
    inner_norm: float | None = None,
    filters: tuple[int, ...] = (32, 64),
    blocks: int = 1,
    stem_size: int = 5,
    residual_weight: float = 0.5,
    centered: bool = True,
    bias: bool = False,
    name: str = "resnet",
) -> DP_Model:
    """A ResNet of averaging residual blocks, 1-Lipschitz from image to logits.

    Args:
        input_shape: Shape of one image, `(height, width, channels)`.
        classes: Number of outputs, logits.
        input_norm: Radius of the ball that images are clipped to; a public constant.
        inner_norm: Radius of a ball after the first layer, or None. A smaller one means less noise in the layers
            after it, and clips features.
        filters: Width of each stage; between stages the image is halved by pooling.
        blocks: Residual blocks per stage, of two 3x3 convolutions each.
        stem_size: Kernel size of the first convolution, which has stride 2.
        residual_weight: w in `(1 - w) x + w f(x)`.
        centered: Whether the mean of each channel of an image is removed first.
        bias: Whether biases are trained.
        name: Name of the model.

    Returns:
        A `DP_Model`, to be compiled.

    Example:
        >>> from lipdp import models
        >>> models.resnet((8, 8, 3), filters=(4, 8)).output_shape
        (None, 10)

    **Guarantee.** Each layer is 1-Lipschitz and a block averages x and f(x), so the model is 1-Lipschitz. A plain sum
    would double the constant with every block.
    """
    inputs, x = image_input(input_shape, input_norm, centered)
    x = inner_ball(conv(x, filters[0], stem_size, bias, strides=2), inner_norm)
    for stage, width in enumerate(filters):
        if stage:
            x = conv(layers.MaxPooling2D(2)(x), width, 1, bias)
        for _ in range(blocks):
            branch = add_bias(layers.SpectralConv2D(width, 3)(conv(x, width, 3, bias)), bias)
            x = layers.Abs()(layers.ResidualAverage(residual_weight)([x, branch]))
    x = layers.Flatten()(layers.MaxPooling2D(2)(x))
    return logits_model(inputs, x, classes, bias, name)
