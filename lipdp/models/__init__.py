"""Networks as plain functions that return Keras models, as `keras.applications` does, and default settings."""

from lipdp.models.attention import causal_attention, text_attention
from lipdp.models.classifier import ClassifierRecipe, classifier_recipe
from lipdp.models.head import head_recipe
from lipdp.models.language import LanguageRecipe, bits_per_token, language_recipe
from lipdp.models.lenet import lenet
from lipdp.models.mlp_mixer import mlp_mixer
from lipdp.models.plain import bidirectional_lstm, small_cnn
from lipdp.models.regression import RegressionRecipe, regression_recipe
from lipdp.models.resnet import resnet
from lipdp.models.scattered import ScatteredRecipe, scattered_recipe
from lipdp.models.table import TableRecipe, table_recipe
from lipdp.models.text import TextRecipe, bag_of_tokens, text_recipe
from lipdp.models.token_crossentropy import TokenCrossentropy
from lipdp.models.vgg import vgg
from lipdp.models.wide_resnet import WideResNetRecipe, wide_resnet, wide_resnet_recipe
from lipdp.models.writing import write

__all__ = ["ClassifierRecipe", "LanguageRecipe", "ScatteredRecipe", "TableRecipe", "TextRecipe", "WideResNetRecipe"]
__all__ += ["TokenCrossentropy", "classifier_recipe", "head_recipe", "language_recipe", "scattered_recipe"]
__all__ += ["RegressionRecipe", "regression_recipe", "table_recipe", "text_recipe", "wide_resnet_recipe"]
__all__ += ["bag_of_tokens", "bidirectional_lstm", "causal_attention", "lenet", "mlp_mixer", "resnet", "small_cnn"]
__all__ += ["bits_per_token", "text_attention", "vgg", "wide_resnet", "write"]
