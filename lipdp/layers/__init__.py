"""1-Lipschitz layers. Keras' own parameter-free layers are bounded by `lipdp.bounds` and re-exported."""

from keras.layers import (
    Activation,
    Add,
    Average,
    AveragePooling2D,
    Concatenate,
    Flatten,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    LeakyReLU,
    MaxPooling2D,
    Permute,
    ReLU,
    Reshape,
    ZeroPadding2D,
)

from lipdp.layers.activations import Abs, GroupSort
from lipdp.layers.base import LipschitzLayer
from lipdp.layers.bias import Bias
from lipdp.layers.bounded_input import BoundedInput
from lipdp.layers.centering import LayerCentering
from lipdp.layers.clip_gradient import ClipGradient
from lipdp.layers.convolution import SpectralConv1D, SpectralConv2D, SpectralConv3D
from lipdp.layers.dense import SpectralDense
from lipdp.layers.depthwise import SpectralDepthwiseConv1D, SpectralDepthwiseConv2D
from lipdp.layers.deskew import Deskew2D
from lipdp.layers.embedding import BoundedEmbedding
from lipdp.layers.encoder_features import EncoderFeatures2D
from lipdp.layers.frequencies import LowFrequencies2D
from lipdp.layers.householder import Householder
from lipdp.layers.mixing import TokenMixing
from lipdp.layers.normalization import PrivateNormalization
from lipdp.layers.orthogonal_convolution import OrthogonalConv2D
from lipdp.layers.patch_features import PatchFeatures2D
from lipdp.layers.patches import OrthogonalPatchConv2D
from lipdp.layers.pooling import GlobalL2NormPooling2D, L2NormPooling2D, ScaledAveragePooling2D
from lipdp.layers.resampling import InvertibleDownSampling2D, InvertibleUpSampling2D
from lipdp.layers.rescaling import PrivateRescaling
from lipdp.layers.residual import ResidualAverage
from lipdp.layers.scattering import Scattering2D
from lipdp.layers.standardized import StandardizedConv2D
from lipdp.layers.transposed import SpectralConv1DTranspose, SpectralConv2DTranspose, SpectralConv3DTranspose
from lipdp.layers.weight import Weight

__all__ = ["Activation", "Add", "Average", "AveragePooling2D", "Concatenate", "Flatten", "GlobalAveragePooling2D"]
__all__ += ["GlobalMaxPooling2D", "LeakyReLU", "MaxPooling2D", "Permute", "ReLU", "Reshape", "ZeroPadding2D"]
__all__ += ["Abs", "Bias", "BoundedEmbedding", "BoundedInput", "ClipGradient", "GroupSort", "LayerCentering"]
__all__ += ["GlobalL2NormPooling2D", "InvertibleDownSampling2D", "InvertibleUpSampling2D", "L2NormPooling2D"]
__all__ += ["OrthogonalPatchConv2D", "ResidualAverage", "ScaledAveragePooling2D", "Scattering2D", "TokenMixing"]
__all__ += [
    "Householder",
    "LipschitzLayer",
    "LowFrequencies2D",
    "OrthogonalConv2D",
    "PrivateNormalization",
    "PrivateRescaling",
    "SpectralConv1D",
    "SpectralConv2D",
    "SpectralConv3D",
    "SpectralDense",
    "StandardizedConv2D",
    "Weight",
]
__all__ += ["SpectralConv1DTranspose", "SpectralConv2DTranspose", "SpectralConv3DTranspose"]
__all__ += ["Deskew2D", "EncoderFeatures2D", "PatchFeatures2D", "SpectralDepthwiseConv1D", "SpectralDepthwiseConv2D"]
