"""Configurations are what files hold: keys, their order and values are those of version 0.1.0."""

import json
import pathlib

import keras
import pytest

from lipdp import certify, diffusion, layers, losses, norms
from lipdp.diffusion.unet import SinusoidalEmbedding

pytestmark = pytest.mark.backend_free

CONFIGS = json.loads((pathlib.Path(__file__).parent / "configs.json").read_text())

CONV = {"padding": "valid", "kernel_initializer": "glorot_uniform", "projected": False}

MADE = {
    "Abs": lambda: layers.Abs(),
    "Bias": lambda: layers.Bias(0.5, trainable=False),
    "Weight": lambda: layers.Weight((2, 3), "ones"),
    "BoundedEmbedding": lambda: layers.BoundedEmbedding(7, 4, 0.5, keras.initializers.RandomNormal(0.0, 2.0)),
    "BoundedInput": lambda: layers.BoundedInput((None, 3), 2.0, "clip"),
    "ClipGradient": lambda: layers.ClipGradient(0.25),
    "Deskew2D": lambda: layers.Deskew2D(),
    "EncoderFeatures2D": lambda: layers.EncoderFeatures2D(),
    "GlobalL2NormPooling2D": lambda: layers.GlobalL2NormPooling2D(),
    "GroupSort": lambda: layers.GroupSort(),
    "Householder": lambda: layers.Householder(),
    "InvertibleDownSampling2D": lambda: layers.InvertibleDownSampling2D(3),
    "InvertibleUpSampling2D": lambda: layers.InvertibleUpSampling2D((2, 3)),
    "L2NormPooling2D": lambda: layers.L2NormPooling2D(3, 2),
    "LayerCentering": lambda: layers.LayerCentering([1, -2]),
    "LowFrequencies2D": lambda: layers.LowFrequencies2D((4, 3)),
    "OrthogonalConv2D": lambda: layers.OrthogonalConv2D(4, (3, 2), "circular"),
    "OrthogonalPatchConv2D": lambda: layers.OrthogonalPatchConv2D(4, (2, 3)),
    "PatchFeatures2D": lambda: layers.PatchFeatures2D(8, 3, 2, False, 5),
    "PrivateNormalization": lambda: layers.PrivateNormalization(2.0, 5.0, (1, 2)),
    "PrivateRescaling": lambda: layers.PrivateRescaling(5.0),
    "ResidualAverage": lambda: layers.ResidualAverage(0.25),
    "ScaledAveragePooling2D": lambda: layers.ScaledAveragePooling2D((2, 3)),
    "Scattering2D": lambda: layers.Scattering2D((1.0, 0.5, 0.25), scales=1, angles=3),
    "SpectralConv1D": lambda: layers.SpectralConv1D(4, 3, 2, groups=2, **CONV),
    "SpectralConv1DTranspose": lambda: layers.SpectralConv1DTranspose(4, 3, 2, **CONV),
    "SpectralConv2D": lambda: layers.SpectralConv2D(4, (3, 5), dilation_rate=2, **CONV),
    "SpectralConv2DTranspose": lambda: layers.SpectralConv2DTranspose(4, 3, (2, 1)),
    "SpectralConv3D": lambda: layers.SpectralConv3D(4, 3, groups=4, **CONV),
    "SpectralConv3DTranspose": lambda: layers.SpectralConv3DTranspose(4, 3),
    "SpectralDense": lambda: layers.SpectralDense(5, "he_normal", False),
    "SpectralDepthwiseConv1D": lambda: layers.SpectralDepthwiseConv1D(3, 2, depth_multiplier=3, **CONV),
    "SpectralDepthwiseConv2D": lambda: layers.SpectralDepthwiseConv2D(3, dilation_rate=(1, 2)),
    "TokenMixing": lambda: layers.TokenMixing(6),
    "BinaryCrossentropy": lambda: losses.BinaryCrossentropy(2.0, 0.5, name="own"),
    "CategoricalCrossentropy": lambda: losses.CategoricalCrossentropy(2.0, reduction="sum"),
    "CosineSimilarity": lambda: losses.CosineSimilarity(0.5, clip=2),
    "Huber": lambda: losses.Huber(0.5, dtype="float64"),
    "MeanAbsoluteError": lambda: losses.MeanAbsoluteError(clip=0.5),
    "MulticlassHKR": lambda: losses.MulticlassHKR(5.0, 0.5, [0.25, 0.75], clip=3.0),
    "MulticlassHinge": lambda: losses.MulticlassHinge(0.5),
    "MulticlassKR": lambda: losses.MulticlassKR((0.25, 0.75)),
    "SparseCategoricalCrossentropy": lambda: losses.SparseCategoricalCrossentropy(3, 0.5),
    "OutputLosses": lambda: losses.OutputLosses(
        [losses.Huber(0.5, name="a"), losses.MulticlassHinge(name="b")], [1, 0.5], ["a", "b"]
    ),
    "Untrained": lambda: losses.Untrained(),
    "CertifiedAccuracy": lambda: certify.CertifiedAccuracy(0.5, 2, dtype="float32"),
    "L2Ball": lambda: norms.L2Ball(0.5),
    "RowBall": lambda: norms.RowBall(0.5),
    "SpectralBall": lambda: norms.SpectralBall(2, 3),
    "EDM": lambda: diffusion.EDM(0.5, -1.0, 2),
    "VE": lambda: diffusion.VE(0.01, 10.0),
    "VP": lambda: diffusion.VP(10.0, 0.2, 1e-3, 100),
    "VPrediction": lambda: diffusion.VPrediction(-5.0, 5.0),
    "Churn": lambda: diffusion.Churn(10, 0.5, 0.1, 5, 1.1, 3.0, 0.01, 10.0),
    "DDIM": lambda: diffusion.DDIM(10, 0.5, 3.0, 0.01, 10.0),
    "ClassMixture": lambda: diffusion.ClassMixture(3, 4, 5, 0.1, 0.2, "v"),
    "DenoisingLoss": lambda: diffusion.DenoisingLoss(),
    "Noising": lambda: diffusion.Noising(diffusion.VP(), 3, 0.25),
    "SinusoidalEmbedding": lambda: SinusoidalEmbedding(8),
}


def config_of(name: str) -> dict:
    made = MADE[name]()
    config = made.get_config()
    # Keras numbers the names within a process.
    assert config.pop("name", None) == getattr(made, "name", None)
    return keras.saving.serialize_keras_object(config)


@pytest.mark.parametrize("name", MADE)
def test_a_config_is_that_of_the_first_version(name):
    assert json.dumps(config_of(name)) == json.dumps(CONFIGS[name])


@pytest.mark.parametrize("name", MADE)
def test_a_config_makes_the_same_object(name):
    made = MADE[name]()
    again = type(made).from_config(made.get_config())
    assert keras.saving.serialize_keras_object(again.get_config()) == keras.saving.serialize_keras_object(
        made.get_config()
    )


def test_every_public_class_is_here():
    rooms = (layers, losses, norms, diffusion)
    public = {name: getattr(room, name) for room in rooms for name in room.__all__}
    registered = {name for name, value in public.items() if keras.saving.get_registered_name(value) == f"lipdp>{name}"}
    others = {"Loss", "DiffusionModel", "StandardizedConv2D"}  # the config of the last is that of Keras' Conv2D
    assert registered - others <= MADE.keys()
