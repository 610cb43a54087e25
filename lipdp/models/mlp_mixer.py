"""MLP-Mixer."""

from lipdp import layers
from lipdp._deprecated import renamed_arguments
from lipdp.model import DP_Model
from lipdp.models.parts import add_bias, dense, image_input, inner_ball, logits_model


@renamed_arguments(centred="centered")
def mlp_mixer(
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    *,
    input_norm: float = 10.0,
    inner_norm: float | None = None,
    patch_size: int = 4,
    width: int = 64,
    blocks: int = 2,
    token_width: int | None = None,
    channel_width: int | None = None,
    hidden: tuple[int, ...] = (),
    residual_weight: float = 0.5,
    centered: bool = True,
    bias: bool = False,
    name: str = "mlp_mixer",
) -> DP_Model:
    """An MLP-Mixer (Tolstikhin et al. 2021) with orthogonal patches, 1-Lipschitz from image to logits.

    Args:
        input_shape: Shape of one image, `(height, width, channels)`.
        classes: Number of outputs, logits.
        input_norm: Radius of the ball that images are clipped to; a public constant.
        inner_norm: Radius of a ball after the first layer, or None. A smaller one means less noise in the layers
            after it, and clips features.
        patch_size: Side of the patches; it must divide height and width.
        width: Channels of a token.
        blocks: Number of blocks of token mixing and channel mixing.
        token_width: Hidden width of the token mixing; default: the number of tokens.
        channel_width: Hidden width of the channel mixing; default: `width`.
        hidden: Widths of the dense layers in front of the logits.
        residual_weight: w in `(1 - w) x + w f(x)`.
        centered: Whether the mean of each channel of an image is removed first.
        bias: Whether biases are trained.
        name: Name of the model.

    Returns:
        A `DP_Model`, to be compiled.

    Example:
        >>> from lipdp import models
        >>> models.mlp_mixer((8, 8, 3), width=16, blocks=1).output_shape
        (None, 10)

    **Guarantee.** Patches are mapped orthogonally, both mixings are dense layers of norm at most 1 along one axis, and
    a block averages x and f(x): the model is 1-Lipschitz. The layer normalization of the original is left out: it has
    no Lipschitz constant.
    """
    inputs, x = image_input(input_shape, input_norm, centered)
    x = layers.OrthogonalPatchConv2D(width, patch_size)(x)
    tokens = x.shape[1] * x.shape[2]
    x = inner_ball(layers.Abs()(add_bias(layers.Reshape((tokens, width))(x), bias)), inner_norm)
    for _ in range(blocks):
        mixed = layers.Abs()(add_bias(layers.TokenMixing(token_width or tokens)(x), bias))
        x = layers.ResidualAverage(residual_weight)([x, layers.TokenMixing(tokens)(mixed)])
        mixed = dense(x, channel_width or width, bias)
        x = layers.ResidualAverage(residual_weight)([x, layers.SpectralDense(width)(mixed)])
    x = layers.Flatten()(x)
    for units in hidden:
        x = dense(x, units, bias)
    return logits_model(inputs, x, classes, bias, name)
