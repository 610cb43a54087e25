"""Networks as plain functions that return Keras models, as `keras.applications` does, and default settings."""

from lipdp.models.classifier import ClassifierRecipe, classifier_recipe
from lipdp.models.lenet import lenet
from lipdp.models.mlp_mixer import mlp_mixer
from lipdp.models.plain import bidirectional_lstm, small_cnn
from lipdp.models.resnet import resnet
from lipdp.models.scattered import ScatteredRecipe, scattered_recipe
from lipdp.models.text import TextRecipe, bag_of_tokens, text_recipe
from lipdp.models.vgg import vgg

__all__ = ["ClassifierRecipe", "ScatteredRecipe", "TextRecipe"]
__all__ += ["classifier_recipe", "scattered_recipe", "text_recipe"]
__all__ += ["bag_of_tokens", "bidirectional_lstm", "lenet", "mlp_mixer", "resnet", "small_cnn", "vgg"]
