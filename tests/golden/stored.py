"""Model files of 0.1.0: what wrote them, and what they hold when they are loaded."""

import keras
import numpy as np

import lipdp
from lipdp import diffusion, layers, losses, strategies
from lipdp.diffusion import toy
from tests.golden import cases
from tests.golden.cases import FILES, compiled, pictures, plain, same_start, shifted, spectral, train


def normalized():
    options = {"norm": 2.0, "name": "input_ball"}
    try:
        first = layers.BoundedInput((6,), mode="normalize", **options)
    except ValueError:  # the word of 0.1.0, which is in the file
        first = layers.BoundedInput((6,), mode="normalise", **options)
    parts = [first, layers.SpectralDense(8, name="first"), layers.GroupSort(name="sort")]
    parts += [layers.SpectralDense(3, name="last")]
    return compiled(same_start(lipdp.DP_Sequential(parts, name="normalized")))


def centered_pictures():
    """One of each layer that takes maps."""
    x = keras.Input((8, 8, 1), name="picture")
    h = layers.BoundedInput(norm=4.0, name="ball")(x)
    h = layers.SpectralConv2D(4, 3, name="conv")(h)
    h = layers.ResidualAverage(0.25, name="residual")([h, layers.SpectralDepthwiseConv2D(3, name="depthwise")(h)])
    h = layers.ClipGradient(0.5, name="clip")(layers.Bias(0.5, name="bias")(h))
    h = layers.GroupSort(name="sort")(layers.LayerCentering(name="centering")(h))
    h = layers.L2NormPooling2D(2, name="l2_pool")(h)
    h = layers.InvertibleDownSampling2D(2, name="down")(h)
    h = layers.InvertibleUpSampling2D(2, name="up")(h)
    h = layers.OrthogonalPatchConv2D(8, 2, name="patches")(h)
    h = layers.SpectralConv2DTranspose(4, 2, strides=2, name="transposed")(h)
    h = layers.ScaledAveragePooling2D(2, name="average_pool")(h)
    wavelets = layers.Scattering2D((0.5, 1.0, 1.0), scales=1, angles=2, name="scattering")(x)
    wavelets = layers.GlobalL2NormPooling2D(name="global_pool")(wavelets)
    h = layers.Householder(name="householder")(layers.Flatten(name="flat")(h))
    y = layers.SpectralDense(3, name="last")(layers.Concatenate(name="both")([h, wavelets]))
    loss = losses.SparseCategoricalCrossentropy(temperature=2.0)
    return compiled(same_start(lipdp.DP_Model(x, y, name="centered_pictures")), loss=loss)


def sentences():
    """One of each layer that takes sequences."""
    x = keras.Input((6,), dtype="int32", name="tokens")
    h = layers.BoundedEmbedding(9, 4, name="embedding")(x)
    h = layers.TokenMixing(6, name="mixing")(h)
    h = layers.SpectralConv1D(4, 3, name="conv")(h)
    h = layers.SpectralDepthwiseConv1D(3, name="depthwise")(h)
    h = layers.SpectralConv1DTranspose(2, 2, strides=2, name="transposed")(layers.Abs(name="abs")(h))
    y = layers.SpectralDense(3, name="last")(layers.Flatten(name="flat")(h))
    return compiled(same_start(lipdp.DP_Model(x, y, name="sentences")), loss=losses.MulticlassHinge())


def points():
    network = toy.point_network(width=16, depth=1)
    model = diffusion.DiffusionModel(network, noise_multiplicity=2, average=0.5, name="points")
    same_start(model.network)
    model.compile(keras.optimizers.Adam(0.01), jit_compile=keras.backend.backend() == "jax")
    return model


def adam():
    return plain(optimizer=keras.optimizers.Adam(0.05))


def quantile_views():
    return shifted(clip_norm=0.8, quantile=0.6)


def private_count():
    return strategies.DPIS(0.8, clip_scale=1.5, count_noise=8.0, norm_sum_noise=8.0)


NOISE = {"noise_multiplier": 1.0}

# Name -> (model, the calls of `fit`, update at which the last one was stopped or None).
CASES = {
    "clipless_done": (spectral, [{"epsilon": 2.0}], None),
    "clipless_unfitted": (spectral, [], None),
    "clipless_unseeded": (spectral, [{"epsilon": 2.0, "seed": None}], None),
    "clipless_stopped": (spectral, [{"epsilon": 2.0, "training_metrics": False}], 4),
    "clipless_quantile": (
        spectral,
        [{**NOISE, "strategy": lambda: strategies.Clipless("per_layer", quantile=0.5), "physical_batch_size": 8}],
        2,
    ),
    "dpsgd_views": (pictures, [{"epsilon": 3.0, "strategy": quantile_views, "physical_batch_size": 8}], 2),
    "adaclip_adam": (adam, [{**NOISE, "strategy": lambda: strategies.AdaCliP(granularity="layer")}], 5),
    "dpis": (plain, [{"epsilon": 4.0, "strategy": lambda: strategies.DPIS(clip_norm=0.8)}], 2),
    "dpis_count": (
        plain,
        [{"epsilon": 6.0, "strategy": private_count}],
        4,
    ),
    "shuffle": (spectral, [{**NOISE, "sampling": "shuffle"}], 3),
    "fixed_order": (spectral, [{**NOISE, "sampling": "fixed_order"}], 3),
    "fixed_size": (spectral, [{**NOISE, "sampling": "fixed_size"}], 3),
    "truncated_poisson": (spectral, [{**NOISE, "sampling": "truncated_poisson"}], 3),
    "filter": (spectral, [{"epsilon": 3.0, "accountant": "filter"}], 4),
    "persons": (spectral, [{"epsilon": 6.0, "examples_per_person": 3}], 4),
    "two_plans": (spectral, [NOISE, {"noise_multiplier": 2.0, "sampling": "shuffle", "seed": 4}], 8),
    "dpis_after_dpsgd": (
        plain,
        [
            {"noise_multiplier": 2.0, "strategy": "dpsgd"},
            {"epsilon": 8.0, "strategy": lambda: strategies.DPIS(clip_norm=0.8)},
        ],
        8,
    ),
    "normalized": (normalized, [{"epsilon": 2.0}], 4),
    "centered_pictures": (centered_pictures, [], None),
    "sentences": (sentences, [], None),
    "diffusion": (points, [{"epsilon": 3.0, "strategy": "dpsgd"}], 4),
    # Written on JAX.
    "clipless_jax": (spectral, [{"epsilon": 2.0}], 4),
    "dpsgd_jax": (plain, [{"epsilon": 2.0, "strategy": "dpsgd"}], 4),
}
# Saved with `save_weights` as well.
WEIGHT_FILES = ("clipless_stopped", "dpis", "dpsgd_views")


def fit(model, arguments, **more):
    arguments = {k: v() if k == "strategy" and callable(v) else v for k, v in arguments.items()}
    data = (cases.rows(shape=(2,))[0], None) if isinstance(model, diffusion.DiffusionModel) else None
    return train(model, data, **arguments, **more)


def write_files(names) -> None:
    FILES.mkdir(exist_ok=True)
    for name in names:
        make, fits, stop = CASES[name]
        keras.utils.set_random_seed(0)
        model = make()
        for arguments in fits:
            last = arguments is fits[-1] and stop is not None
            fit(model, arguments, callbacks=cases.stop_at(model, stop) if last else None)
        model.save(FILES / f"{name}.keras")
        if name in WEIGHT_FILES:
            model.save_weights(FILES / f"{name}.weights.h5")


def load(name: str, weights: bool = False):
    if not weights:
        return keras.saving.load_model(FILES / f"{name}.keras")
    model = CASES[name][0]()
    model.load_weights(FILES / f"{name}.weights.h5")
    return model


def outputs(model) -> list:
    """Outputs on fixed inputs."""
    if isinstance(model, diffusion.DiffusionModel):
        x = [cases.rows(shape=(2,))[0][:4], np.linspace(-1.0, 1.0, 4, dtype="float32")]
        return [np.array(each(x)).tolist() for each in (model.network, model.averaged_network())]
    shape = tuple(model.input_shape[1:])
    x = cases.rows(shape=shape)[0][:4]
    if "int" in model.inputs[0].dtype:
        x = np.arange(24).reshape(4, 6) % 9
    return np.array(model(x)).tolist()


def held(model) -> dict:
    """What a model that was just loaded holds and states."""
    return {
        "digest": cases.digest(model.get_weights()),
        "outputs": outputs(model),
        "epsilon": model.privacy.epsilon(),
        "spent": model.privacy.spent(),
        "statement": model.privacy.statement(),
        "privacy": model.privacy.to_dict(),
        "compiled": model.compiled,
    }


def continued(name: str) -> dict:
    """What the same `fit` makes of a file that was saved in mid-plan, when it goes on to the end."""
    model = load(name)
    history = fit(model, CASES[name][1][-1])
    return cases.result(model, history)


STOPPED = tuple(name for name, (_, _, stop) in CASES.items() if stop is not None)
