"""Diffusion models: noise levels, networks, samplers, evaluation."""

from lipdp.diffusion.denoisers import EDM, VE, VP, Denoiser, VPrediction, importance
from lipdp.diffusion.evaluate import classifier_features, downstream_accuracy, frechet_distance, inception_distance
from lipdp.diffusion.model import DiffusionModel
from lipdp.diffusion.noising import DenoisingLoss, Noising
from lipdp.diffusion.noisy import NoisyBatches
from lipdp.diffusion.pictures import image_grid, nearest_neighbours, neighbour_panel
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
    "importance",
    "inception_distance",
    "make_sampler",
    "nearest_neighbours",
    "neighbour_panel",
    "preset",
    "recipe",
    "sample",
    "unet",
]
