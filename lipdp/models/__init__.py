"""Lipschitz networks as plain functions that return Keras graphs, as `keras.applications` does."""

from lipdp.models.lenet import lenet as lenet
from lipdp.models.mlp_mixer import mlp_mixer as mlp_mixer
from lipdp.models.resnet import resnet as resnet
from lipdp.models.vgg import vgg as vgg
