"""Networks as plain functions that return Keras models, as `keras.applications` does, and default settings."""

from lipdp.models.classifier import ClassifierRecipe as ClassifierRecipe
from lipdp.models.classifier import classifier_recipe as classifier_recipe
from lipdp.models.lenet import lenet as lenet
from lipdp.models.mlp_mixer import mlp_mixer as mlp_mixer
from lipdp.models.plain import bidirectional_lstm as bidirectional_lstm
from lipdp.models.plain import small_cnn as small_cnn
from lipdp.models.resnet import resnet as resnet
from lipdp.models.vgg import vgg as vgg
