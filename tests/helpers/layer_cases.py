"""Every layer that may stand in a private model, in the configurations that are hardest for its bounds."""

from keras import layers as stock

from lipdp import layers
from lipdp.bounds import stock as registered


class Case:
    """A layer, the shapes of its inputs, and the bounds that the search must reach to 90 % or more."""

    def __init__(self, name, make, *shapes, tight=(), reach=None, stock=False, dtype="float32"):
        self.name, self.make, self.shapes, self.tight, self.stock = name, make, shapes, tight, stock
        self.dtype = dtype
        self.reach = {"gradient": 0.9, "jacobian": 0.999, "output": 0.999, **(reach or {})}


def _conv(tight=(), reach=None, shape=(5, 5, 1), filters=9, kernel=3, **kwargs):
    name = "-".join([f"conv{kernel}", *(f"{k}{v}" for k, v in kwargs.items()), "x".join(map(str, shape))])
    return Case(
        name.replace(" ", ""),
        lambda: layers.SpectralConv2D(filters, kernel, **kwargs),
        shape,
        tight=tight,
        reach=reach,
    )


_ALL = ("output", "jacobian", "gradient")
OWN = [
    Case("bounded_input", lambda: layers.BoundedInput(norm=0.7), (3, 3, 2), tight=("output", "jacobian")),
    Case("dense_wide", lambda: layers.SpectralDense(9), (5,), tight=_ALL, reach={"gradient": 0.999}),
    Case("dense_narrow", lambda: layers.SpectralDense(3), (7,), tight=_ALL, reach={"gradient": 0.999}),
    Case("dense_one", lambda: layers.SpectralDense(1), (6,), tight=_ALL, reach={"gradient": 0.999}),
    Case("dense_tokens", lambda: layers.SpectralDense(4), (5, 4), tight=_ALL, reach={"gradient": 0.999}),
    _conv(_ALL, reach={"gradient": 0.65}),
    _conv(_ALL, shape=(5, 5, 2), filters=3, reach={"gradient": 0.65, "output": 0.6, "jacobian": 0.6}),
    _conv(_ALL, padding="valid", shape=(6, 6, 1), reach={"gradient": 0.65}),
    _conv(("jacobian",), strides=2, shape=(6, 6, 1)),
    _conv(("jacobian",), strides=2, shape=(7, 7, 1), padding="valid"),
    _conv(("jacobian",), strides=3, shape=(6, 6, 1)),
    _conv(("jacobian",), strides=(1, 2), shape=(5, 6, 1)),
    _conv((), dilation_rate=2, shape=(6, 6, 1)),
    _conv((), dilation_rate=2, shape=(7, 7, 1), padding="valid"),
    _conv(("jacobian",), dilation_rate=(1, 2), shape=(5, 9, 1), padding="same"),
    _conv((), kernel=5, filters=25, shape=(3, 3, 1)),
    _conv((), kernel=5, filters=2, strides=3, shape=(2, 4, 2)),
    _conv(_ALL, kernel=1, filters=4, shape=(3, 3, 4), reach={"gradient": 0.999}),
    _conv(("jacobian",), kernel=(1, 4), filters=4, strides=(2, 3), shape=(4, 7, 1)),
    Case("bias_vector", lambda: layers.Bias(0.5), (6,), tight=_ALL, reach={"gradient": 0.9999}),
    Case("bias_map", lambda: layers.Bias(0.5), (6, 6, 2), tight=_ALL, reach={"gradient": 0.999}),
    Case("bias_tokens", lambda: layers.Bias(2.0), (7, 3), tight=_ALL, reach={"gradient": 0.999}),
    Case("scattering_rgb", lambda: layers.Scattering2D((0.5, 1.0, 2.0), scales=1, angles=4), (5, 6, 2)),
    Case("scattering", lambda: layers.Scattering2D("robust"), (8, 8, 1), tight=("jacobian",), reach={"jacobian": 0.8}),
    Case("scattering_mirrored", lambda: layers.Scattering2D("robust", mirrored=True), (8, 8, 1)),
    Case("low_frequencies", lambda: layers.LowFrequencies2D((2, 3)), (4, 5, 2), tight=("output", "jacobian")),
    Case("all_frequencies", lambda: layers.LowFrequencies2D(3), (3, 3, 1), tight=("output", "jacobian")),
    Case("abs", layers.Abs, (6,), tight=("output", "jacobian")),
    Case("groupsort", layers.GroupSort, (8,), tight=("output", "jacobian")),
    Case("groupsort_map", layers.GroupSort, (3, 3, 4), tight=("output", "jacobian")),
    Case("l2_pool", lambda: layers.L2NormPooling2D(2), (4, 4, 2), tight=("output", "jacobian")),
    Case("l2_pool_overlap", lambda: layers.L2NormPooling2D(3, 1), (5, 5, 1), tight=("jacobian",)),
    Case("l2_pool_cut", lambda: layers.L2NormPooling2D((2, 3), (1, 2)), (5, 6, 1)),
    Case("l2_pool_global", layers.GlobalL2NormPooling2D, (4, 3, 2), tight=("output", "jacobian")),
    Case("average_scaled", lambda: layers.ScaledAveragePooling2D(2), (4, 4, 2), tight=("output", "jacobian")),
    Case("average_scaled_cut", lambda: layers.ScaledAveragePooling2D((2, 3)), (5, 5, 1)),
    Case("centering_map", layers.LayerCentering, (3, 3, 2), tight=("output", "jacobian")),
    Case("centering_vector", layers.LayerCentering, (6,), tight=("output", "jacobian")),
    Case("centering_last", lambda: layers.LayerCentering(axis=-1), (4, 3), tight=("output", "jacobian")),
]


def _armed(layer, channels):
    """As `fit` leaves it for a batch of one."""
    layer.build((None, channels))
    layer.scale.assign(1.0)
    return layer


def _spectral(kind, shape, *args, tight=("jacobian",), reach=None, **kwargs):
    name = "-".join([kind, *map(str, args), *(f"{k}{v}" for k, v in kwargs.items())]).replace(" ", "")
    return Case(name, lambda: getattr(layers, kind)(*args, **kwargs), shape, tight=tight, reach=reach)


def _orthogonal(shape, *args, **kwargs):
    case = _spectral("OrthogonalConv2D", shape, *args, **kwargs)
    # It has several matrices: tests of the one kernel of a layer pick by "conv".
    case.name = case.name.replace("OrthogonalConv2D", "factors_" + "x".join(map(str, shape)))
    return case


_LOOSE = {"gradient": 0.6, "jacobian": 0.6, "output": 0.6}
OWN += [
    _spectral("SpectralConv1D", (7, 1), 3, 3, tight=_ALL, reach={"gradient": 0.8}),
    _spectral("SpectralConv1D", (8, 2), 4, 4, strides=2, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv1D", (9, 1), 2, 2, strides=3, padding="valid"),
    _spectral("SpectralConv1D", (9, 3), 2, 3, dilation_rate=2, padding="valid", tight=()),
    _spectral("SpectralConv1D", (6, 4), 6, 3, groups=2, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv2D", (3, 4, 2), 4, 2, groups=2, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv2D", (4, 5, 3), 3, 2, groups=3, strides=2, padding="valid", tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv3D", (3, 3, 3, 1), 2, 2, tight=_ALL, reach={**_LOOSE, "jacobian": 0.5, "output": 0.5}),
    _spectral("SpectralConv3D", (4, 4, 4, 1), 8, 2, strides=2, padding="valid", tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv3D", (3, 4, 5, 2), 2, (1, 2, 3), strides=(1, 1, 2), tight=()),
    _spectral("SpectralDepthwiseConv1D", (7, 3), 3, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralDepthwiseConv1D", (7, 2), 3, strides=2, padding="valid", depth_multiplier=2, tight=()),
    _spectral("SpectralDepthwiseConv2D", (4, 5, 2), 3, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralDepthwiseConv2D", (4, 4, 2), 2, strides=2, depth_multiplier=4, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralDepthwiseConv2D", (6, 6, 1), (2, 3), dilation_rate=2, tight=()),
    _spectral("SpectralConv1DTranspose", (4, 2), 1, 3, strides=2, tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv1DTranspose", (4, 1), 2, 2, strides=3, padding="valid", tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv2DTranspose", (3, 3, 4), 1, 2, strides=2, tight=_ALL, reach={"gradient": 0.9}),
    _spectral("SpectralConv2DTranspose", (4, 1, 2), 1, (2, 3), strides=(1, 2), tight=()),
    _spectral("SpectralConv2DTranspose", (3, 3, 2), 2, 3, padding="valid", tight=_ALL, reach=_LOOSE),
    _spectral("SpectralConv3DTranspose", (2, 2, 2, 8), 1, 2, strides=2, tight=_ALL, reach={"gradient": 0.9}),
    _spectral("OrthogonalPatchConv2D", (4, 4, 2), 8, 2, tight=_ALL, reach={"gradient": 0.999}),
    _spectral("OrthogonalPatchConv2D", (4, 6, 1), 3, (2, 3), tight=_ALL, reach={"gradient": 0.999}),
    _orthogonal((4, 5, 2), 4, 3, tight=_ALL, reach={"gradient": 0.6, "jacobian": 0.95, "output": 0.9}),
    _orthogonal((3, 4, 2), 4, (2, 3), padding="circular", tight=_ALL, reach={"gradient": 0.8}),
    _orthogonal((4, 3, 4), 2, (3, 2), padding="circular", tight=("jacobian",)),
    _orthogonal((4, 5, 1), 3, (2, 4), padding="valid", tight=()),
    _orthogonal((2, 3, 3), 3, 5, tight=()),
    _spectral("InvertibleDownSampling2D", (4, 6, 2), (2, 3), tight=("output", "jacobian")),
    _spectral("InvertibleUpSampling2D", (2, 2, 12), (2, 3), tight=("output", "jacobian")),
    _spectral("TokenMixing", (4, 3), 6, tight=_ALL, reach={"gradient": 0.999}),
    _spectral("TokenMixing", (5, 3), 2, tight=_ALL, reach={"gradient": 0.999}),
    _spectral("Householder", (6,), tight=_ALL, reach={"gradient": 0.9}),
    _spectral("Householder", (3, 4), tight=_ALL, reach={"gradient": 0.7}),
    Case("clip_gradient", lambda: _armed(layers.ClipGradient(1.0), 4), (4,), tight=("output", "jacobian")),
]


def _pool(name, make, *shape, tight=()):
    return Case(name, make, shape, tight=tight, stock=True)


_BOTH = ("output", "jacobian")
STOCK = [
    _pool("max2", lambda: stock.MaxPooling2D(2), 4, 4, 2, tight=_BOTH),
    _pool("max2_same", lambda: stock.MaxPooling2D(2, padding="same"), 5, 5, 1, tight=_BOTH),
    _pool("max3_overlap", lambda: stock.MaxPooling2D(3, strides=1), 5, 5, 1, tight=("jacobian",)),
    _pool("max3_overlap_same", lambda: stock.MaxPooling2D(3, strides=2, padding="same"), 5, 5, 2),
    _pool("max_larger_than_image", lambda: stock.MaxPooling2D(5, strides=2, padding="same"), 3, 3, 1),
    _pool("max1d", lambda: stock.MaxPooling1D(3, strides=2), 7, 2),
    _pool("max3d", lambda: stock.MaxPooling3D(2, strides=1), 3, 3, 3, 1),
    _pool("average2", lambda: stock.AveragePooling2D(2), 4, 4, 2, tight=_BOTH),
    _pool("average3_overlap", lambda: stock.AveragePooling2D(3, strides=1), 6, 6, 1),
    _pool("average_cut", lambda: stock.AveragePooling2D((2, 3), strides=(1, 2)), 5, 5, 1),
    _pool("average1d", lambda: stock.AveragePooling1D(2), 6, 2, tight=_BOTH),
    _pool("average3d", lambda: stock.AveragePooling3D(2), 2, 2, 2, 2, tight=_BOTH),
    _pool("global_max", stock.GlobalMaxPooling2D, 4, 4, 2, tight=_BOTH),
    _pool("global_max1d", stock.GlobalMaxPooling1D, 5, 2, tight=_BOTH),
    _pool("global_average", stock.GlobalAveragePooling2D, 4, 3, 2, tight=_BOTH),
    _pool("global_average1d", stock.GlobalAveragePooling1D, 5, 2, tight=_BOTH),
    _pool("global_average3d", stock.GlobalAveragePooling3D, 2, 2, 3, 1, tight=_BOTH),
    _pool(
        "global_average_channels_first",
        lambda: stock.GlobalAveragePooling2D(data_format="channels_first"),
        2,
        3,
        4,
        tight=_BOTH,
    ),
    _pool("relu", stock.ReLU, 6, tight=_BOTH),
    _pool("relu_max", lambda: stock.ReLU(max_value=0.2), 6, tight=("jacobian",)),
    _pool("relu_slope", lambda: stock.ReLU(negative_slope=3.0), 6, tight=_BOTH),
    _pool("relu_slope_max", lambda: stock.ReLU(max_value=0.2, negative_slope=3.0), 6, tight=_BOTH),
    _pool("leaky", lambda: stock.LeakyReLU(0.3), 6, tight=_BOTH),
    _pool("leaky_steep", lambda: stock.LeakyReLU(2.0), 6, tight=_BOTH),
    _pool("elu", stock.ELU, 6, tight=_BOTH),
    _pool("elu_steep", lambda: stock.ELU(alpha=2.0), 6, tight=("jacobian",)),
    _pool("flatten", stock.Flatten, 3, 3, 2, tight=_BOTH),
    _pool("flatten_first", lambda: stock.Flatten(data_format="channels_first"), 3, 3, 2, tight=_BOTH),
    _pool("reshape", lambda: stock.Reshape((-1, 3)), 3, 4, tight=_BOTH),
    _pool("permute", lambda: stock.Permute((2, 1)), 3, 4, tight=_BOTH),
    _pool("identity", stock.Identity, 3, tight=_BOTH),
    _pool("pad1d", lambda: stock.ZeroPadding1D(1), 3, 2, tight=_BOTH),
    _pool("pad2d", lambda: stock.ZeroPadding2D(((1, 0), (2, 1))), 3, 3, 1, tight=_BOTH),
    _pool("pad3d", lambda: stock.ZeroPadding3D(1), 2, 2, 1, 1, tight=_BOTH),
    _pool("crop1d", lambda: stock.Cropping1D(1), 4, 2, tight=_BOTH),
    _pool("crop2d", lambda: stock.Cropping2D(((1, 0), (0, 1))), 4, 4, 1, tight=_BOTH),
    _pool("crop3d", lambda: stock.Cropping3D(1), 3, 3, 3, 1, tight=("jacobian",)),
    _pool("rescaling", lambda: stock.Rescaling(-1.5), 5, tight=_BOTH),
    _pool("rescaling_offset", lambda: stock.Rescaling(2.0, offset=-0.5), 5, tight=_BOTH),
    _pool("upsampling1d", lambda: stock.UpSampling1D(3), 3, 2, tight=_BOTH),
    _pool("upsampling2d", lambda: stock.UpSampling2D((2, 3)), 2, 2, 2, tight=_BOTH),
    _pool("upsampling3d", lambda: stock.UpSampling3D(2), 2, 1, 2, 1, tight=_BOTH),
    *(
        _pool(
            f"activation_{name}",
            lambda name=name: stock.Activation(name),
            6,
            tight=("jacobian",) if slope in (1.0, 0.25) and name != "softplus" else (),
        )
        for name, (slope, _) in registered._ACTIVATIONS.items()
    ),
]


def _merge(name, make, *shapes, tight=_BOTH):
    return Case(name, make, *shapes, tight=tight, stock=True)


MERGES = [
    _merge("add", stock.Add, (3, 2), (3, 2)),
    _merge("add_three", stock.Add, (4,), (4,), (4,)),
    _merge("subtract", stock.Subtract, (4,), (4,)),
    _merge("average", stock.Average, (4,), (4,), (4,)),
    _merge("concatenate", stock.Concatenate, (2, 3), (2, 1)),
    _merge("concatenate_axis1", lambda: stock.Concatenate(axis=1), (2, 3), (4, 3)),
    _merge("maximum", stock.Maximum, (4,), (4,), (4,), tight=("jacobian",)),
    _merge("residual", lambda: layers.ResidualAverage(0.3), (3, 2), (3, 2)),
    _merge("minimum", stock.Minimum, (4,), (4,), tight=("jacobian",)),
]


# Integers: not searched along their inputs.
TOKENS = [Case("embedding", lambda: layers.BoundedEmbedding(2, 2), (6,), dtype="int32")]

ALL = [*OWN, *STOCK, *MERGES]
