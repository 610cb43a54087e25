"""Diffusion models: noise levels, networks, samplers, evaluation."""

from lipdp._deprecated import renamed_attributes
from lipdp.diffusion.class_mixture import ClassMixture
from lipdp.diffusion.denoisers import EDM, VE, VP, Denoiser, VPrediction, noise_level_importance
from lipdp.diffusion.evaluate import classifier_features, downstream_accuracy, frechet_distance, inception_distance
from lipdp.diffusion.model import DiffusionModel
from lipdp.diffusion.noising import DenoisingLoss, Noising
from lipdp.diffusion.noisy import NoisyBatches
from lipdp.diffusion.pictures import image_grid, nearest_neighbors, neighbor_panel
from lipdp.diffusion.recipes import Recipe, make_sampler, recipe
from lipdp.diffusion.samplers import DDIM, Churn, Sampler, generate, sample
from lipdp.diffusion.unet import preset, unet

__all__ = ["DDIM", "Churn", "Sampler", "generate", "make_sampler", "sample"]
__all__ += ["Denoiser", "DenoisingLoss", "EDM", "Noising", "NoisyBatches", "VE", "VP", "VPrediction"]
__all__ += ["ClassMixture", "DiffusionModel", "Recipe", "preset", "recipe", "unet"]
__all__ += ["classifier_features", "downstream_accuracy", "frechet_distance", "inception_distance"]
__all__ += ["image_grid", "noise_level_importance", "nearest_neighbors", "neighbor_panel"]

__getattr__ = renamed_attributes(
    __name__,
    importance="noise_level_importance",
    nearest_neighbours="nearest_neighbors",
    neighbour_panel="neighbor_panel",
)
