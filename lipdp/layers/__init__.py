"""1-Lipschitz layers. Keras' own parameter-free layers are bounded by `lipdp.bounds` and re-exported."""

from keras.layers import Activation as Activation
from keras.layers import Add as Add
from keras.layers import Average as Average
from keras.layers import AveragePooling2D as AveragePooling2D
from keras.layers import Concatenate as Concatenate
from keras.layers import Flatten as Flatten
from keras.layers import GlobalAveragePooling2D as GlobalAveragePooling2D
from keras.layers import GlobalMaxPooling2D as GlobalMaxPooling2D
from keras.layers import LeakyReLU as LeakyReLU
from keras.layers import MaxPooling2D as MaxPooling2D
from keras.layers import Permute as Permute
from keras.layers import ReLU as ReLU
from keras.layers import Reshape as Reshape
from keras.layers import ZeroPadding2D as ZeroPadding2D

from lipdp.layers.activations import Abs as Abs
from lipdp.layers.activations import GroupSort as GroupSort
from lipdp.layers.base import LipschitzLayer as LipschitzLayer
from lipdp.layers.bias import Bias as Bias
from lipdp.layers.bounded_input import BoundedInput as BoundedInput
from lipdp.layers.centering import LayerCentering as LayerCentering
from lipdp.layers.conv2d import SpectralConv2D as SpectralConv2D
from lipdp.layers.dense import SpectralDense as SpectralDense
from lipdp.layers.pooling import GlobalL2NormPooling2D as GlobalL2NormPooling2D
from lipdp.layers.pooling import L2NormPooling2D as L2NormPooling2D
from lipdp.layers.pooling import ScaledAveragePooling2D as ScaledAveragePooling2D
from lipdp.layers.scattering import Scattering2D as Scattering2D
