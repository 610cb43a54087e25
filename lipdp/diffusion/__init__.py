"""Diffusion models: noise levels, networks, samplers, evaluation."""

from lipdp._deprecated import renamed_attributes
from lipdp.diffusion.denoisers import EDM as EDM
from lipdp.diffusion.denoisers import VE as VE
from lipdp.diffusion.denoisers import VP as VP
from lipdp.diffusion.denoisers import Denoiser as Denoiser
from lipdp.diffusion.denoisers import VPrediction as VPrediction
from lipdp.diffusion.denoisers import noise_level_importance as noise_level_importance
from lipdp.diffusion.evaluate import classifier_features as classifier_features
from lipdp.diffusion.evaluate import downstream_accuracy as downstream_accuracy
from lipdp.diffusion.evaluate import frechet_distance as frechet_distance
from lipdp.diffusion.evaluate import inception_distance as inception_distance
from lipdp.diffusion.model import DiffusionModel as DiffusionModel
from lipdp.diffusion.noising import DenoisingLoss as DenoisingLoss
from lipdp.diffusion.noising import Noising as Noising
from lipdp.diffusion.noisy import NoisyBatches as NoisyBatches
from lipdp.diffusion.pictures import image_grid as image_grid
from lipdp.diffusion.pictures import nearest_neighbors as nearest_neighbors
from lipdp.diffusion.pictures import neighbor_panel as neighbor_panel
from lipdp.diffusion.recipes import Recipe as Recipe
from lipdp.diffusion.recipes import make_sampler as make_sampler
from lipdp.diffusion.recipes import recipe as recipe
from lipdp.diffusion.samplers import DDIM as DDIM
from lipdp.diffusion.samplers import Churn as Churn
from lipdp.diffusion.samplers import Sampler as Sampler
from lipdp.diffusion.samplers import generate as generate
from lipdp.diffusion.samplers import sample as sample
from lipdp.diffusion.unet import preset as preset
from lipdp.diffusion.unet import unet as unet

__getattr__ = renamed_attributes(
    __name__,
    importance="noise_level_importance",
    nearest_neighbours="nearest_neighbors",
    neighbour_panel="neighbor_panel",
)
