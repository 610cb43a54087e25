"""Diffusion models: noise levels, networks, samplers, evaluation."""

from lipdp.diffusion.denoisers import EDM as EDM
from lipdp.diffusion.denoisers import VE as VE
from lipdp.diffusion.denoisers import VP as VP
from lipdp.diffusion.denoisers import Denoiser as Denoiser
from lipdp.diffusion.denoisers import VPrediction as VPrediction
from lipdp.diffusion.denoisers import importance as importance
from lipdp.diffusion.samplers import DDIM as DDIM
from lipdp.diffusion.samplers import Churn as Churn
from lipdp.diffusion.samplers import Sampler as Sampler
from lipdp.diffusion.samplers import generate as generate
from lipdp.diffusion.samplers import sample as sample
from lipdp.diffusion.unet import preset as preset
from lipdp.diffusion.unet import unet as unet
