"""Diffusion models: noise levels, networks, samplers, evaluation."""

from lipdp._deprecated import renamed_attributes
from lipdp.diffusion.denoisers import EDM, VE, VP, Denoiser, VPrediction, noise_level_importance
from lipdp.diffusion.evaluate import classifier_features, downstream_accuracy, frechet_distance, inception_distance
from lipdp.diffusion.model import DiffusionModel
from lipdp.diffusion.noising import DenoisingLoss, Noising
from lipdp.diffusion.noisy import NoisyBatches
from lipdp.diffusion.pictures import image_grid, nearest_neighbors, neighbor_panel
from lipdp.diffusion.recipes import Recipe, make_sampler, recipe
from lipdp.diffusion.samplers import DDIM, Churn, Sampler, generate, sample
from lipdp.diffusion.unet import preset, unet

__all__ = [
    "Churn",
    "DDIM",
    "Denoiser",
    "DenoisingLoss",
    "DiffusionModel",
    "EDM",
    "Noising",
    "NoisyBatches",
    "Recipe",
    "Sampler",
    "VE",
    "VP",
    "VPrediction",
    "classifier_features",
    "downstream_accuracy",
    "frechet_distance",
    "generate",
    "image_grid",
    "inception_distance",
    "make_sampler",
    "nearest_neighbors",
    "neighbor_panel",
    "noise_level_importance",
    "preset",
    "recipe",
    "sample",
    "unet",
]

__getattr__ = renamed_attributes(
    __name__,
    importance="noise_level_importance",
    nearest_neighbours="nearest_neighbors",
    neighbour_panel="neighbor_panel",
)
