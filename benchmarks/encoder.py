"""An encoder of images that has seen images of random processes only, trained on a GPU.

    KERAS_BACKEND=jax python benchmarks/encoder.py --seconds 430 --output runs/encoder      # on one H200
    KERAS_BACKEND=jax python benchmarks/encoder.py --seconds 60 --leaves 0.5 --images 100000 --output runs/leaves

After DP-RandP (Tang et al. 2023): two random views of one drawn image (`random_images.py`) have features that are
close, and those of other images are far (InfoNCE, Chen et al. 2020). No real image is used, so no privacy is spent and
nothing public is needed. The file is what `layers.EncoderFeatures2D` reads: `lipdp/layers/encoder.npz` is one of them,
and `results/encoder.json` its record. `--probe FILE` scores the features by ridge regression on training images of
CIFAR-10, for the choice of settings: 40,000 to fit, 10,000 to score. What they are worth under privacy: `scattered.py`.
"""

import argparse
import functools
import io
import json
import pathlib
import time

import numpy as np

SIDE = 32


def head(filters: int):
    """What is left away after training: the features are those before it."""
    import keras
    from keras import layers as L

    hidden = [L.GlobalAveragePooling2D(), L.Dense(2 * filters, "relu"), L.Dense(128, dtype="float32")]
    return keras.Sequential([keras.Input((None, None, filters)), *hidden])


def views(key, images):
    """Random views of images: cut out, mirrored, in other colors, some gray."""
    import jax
    import jax.numpy as jnp

    count, whole = images.shape[:2]
    keys = jax.random.split(key, 10)
    area = jax.random.uniform(keys[0], (count,), minval=0.08, maxval=1.0)
    aspect = jnp.exp(jax.random.uniform(keys[1], (count,), minval=-0.288, maxval=0.288))
    mirrored = jax.random.bernoulli(keys[2], shape=(count,))

    def cut(key, side, flipped):
        # Each pixel of the view is a triangle over pixels of the image, wide enough for views of less resolution.
        side = jnp.minimum(side, 1.0) * whole
        start = jax.random.uniform(key, (count,)) * (whole - side)
        places = (jnp.arange(SIDE) + 0.5) / SIDE
        places = jnp.where(flipped[:, None], 1 - places, places)
        middle = start[:, None] + side[:, None] * places
        reach = jnp.maximum(side / SIDE, 1.0)[:, None, None]
        weights = jnp.maximum(1 - jnp.abs(jnp.arange(whole) + 0.5 - middle[..., None]) / reach, 0)
        return weights / weights.sum(-1, keepdims=True)

    down = cut(keys[3], jnp.sqrt(area / aspect), jnp.zeros(count, bool))
    across = cut(keys[4], jnp.sqrt(area * aspect), mirrored)
    found = jnp.einsum("bij,bjkc->bikc", down, images.astype("float32") / 255)
    found = jnp.einsum("blk,bikc->bilc", across, found)

    def factor(key):
        return jax.random.uniform(key, (count, 1, 1, 1), minval=0.6, maxval=1.4)

    found = jnp.clip(found * factor(keys[5]), 0, 1)
    middle = found.mean((1, 2, 3), keepdims=True)
    found = jnp.clip(middle + factor(keys[6]) * (found - middle), 0, 1)
    gray = found @ jnp.array([[0.299], [0.587], [0.114]])
    colors = factor(keys[7]) * (found - gray)
    # Turned about the axis of grays.
    angle = 0.8 * np.pi * jax.random.uniform(keys[8], (count, 1, 1, 1), minval=-0.5, maxval=0.5)
    turned = (jnp.roll(colors, 1, -1) - jnp.roll(colors, -1, -1)) / np.sqrt(3)
    mean = colors.mean(-1, keepdims=True)
    colors = mean + jnp.cos(angle) * (colors - mean) + jnp.sin(angle) * turned
    plain = jax.random.bernoulli(keys[9], 0.2, (count, 1, 1, 1))
    return jnp.clip(gray + jnp.where(plain, 0.0, colors), 0, 1)


def trainer(encoder, ending, optimizer, temperature: float):
    """One compiled step of contrastive training, and the state that it takes and returns."""
    import jax
    import jax.numpy as jnp

    count = len(encoder.trainable_variables)
    fixed = [v.value for v in encoder.non_trainable_variables], [v.value for v in ending.non_trainable_variables]
    variables = [*encoder.trainable_variables, *ending.trainable_variables]
    optimizer.build(variables)

    def loss(values, a, b):
        (_, found), _ = encoder.stateless_call(values[:count], fixed[0], jnp.concatenate([a, b]), training=True)
        found, _ = ending.stateless_call(values[count:], fixed[1], found, training=True)
        found = found.astype("float32")
        found /= jnp.linalg.norm(found, axis=1, keepdims=True) + 1e-6
        half = len(found) // 2
        similar = jnp.matmul(found, found.T) / temperature
        similar = jnp.where(jnp.eye(len(found), dtype=bool), -1e9, similar)
        pairs = jnp.concatenate([jnp.arange(half) + half, jnp.arange(half)])
        logits = jnp.take_along_axis(similar, pairs[:, None], 1)[:, 0]
        hits = (similar.argmax(1) == pairs).mean()
        return (jax.nn.logsumexp(similar, axis=1) - logits).mean(), hits

    @functools.partial(jax.jit, donate_argnums=0, static_argnums=4)
    def step(state, key, images, rate, size):
        values, inner = state
        key, chosen, one, other = jax.random.split(key, 4)
        batch = images[jax.random.randint(chosen, (size,), 0, len(images))]
        (value, hits), gradients = jax.value_and_grad(loss, has_aux=True)(
            values, views(one, batch), views(other, batch)
        )
        # The rate is a variable of the optimizer, the second one.
        inner = [inner[0], jnp.asarray(rate, "float32"), *inner[2:]]
        values, inner = optimizer.stateless_apply(inner, gradients, values)
        return (values, inner), key, value, hits

    return step, ([v.value for v in variables], [v.value for v in optimizer.variables])


def cifar(path: pathlib.Path):
    """Training images of CIFAR-10: from the file of `load`, or from one of JPEG."""
    with np.load(path) as found:
        if "x_train" in found:
            return found["x_train"], found["y_train"].ravel()
        from PIL import Image

        data, offset = found["train_jpeg"].tobytes(), found["train_offset"]
        images = [np.asarray(Image.open(io.BytesIO(data[a:b]))) for a, b in zip(offset[:-1], offset[1:], strict=True)]
        return np.stack(images), found["y_train"].ravel()


def probe(encoder, x, y, score: int = 10000) -> dict:
    """Accuracy of ridge regression on features, averaged over the whole image and over its quarters."""
    import jax
    import jax.numpy as jnp

    variables = [v.value for v in encoder.trainable_variables], [v.value for v in encoder.non_trainable_variables]

    @jax.jit
    def features(x):
        (_, found), _ = encoder.stateless_call(*variables, x.astype("float32") / 255, training=False)
        return found.astype("float32").reshape(len(x), 2, found.shape[1] // 2, 2, -1, found.shape[-1]).mean((2, 4))

    found = jnp.concatenate([features(jnp.asarray(x[i : i + 1000])) for i in range(0, len(x), 1000)])
    scores = {}
    for name, f in (("whole", found.mean((1, 2))), ("quarters", found.reshape(len(x), -1))):
        a, b = f[:-score], f[-score:]
        mean, deviation = a.mean(0), a.std(0) + 1e-6
        a, b = (a - mean) / deviation, (b - mean) / deviation
        gram = a.T @ a + 1e-3 * len(a) * jnp.eye(a.shape[1])
        weights = jnp.linalg.solve(gram, a.T @ (jax.nn.one_hot(y[:-score], 10) - 0.1))
        scores[name] = round(float(((b @ weights).argmax(1) == y[-score:]).mean()), 4)
    return scores


def save(encoder, used: list, path: pathlib.Path) -> None:
    """Writes the weights in the order of use, and what the features are on random images.

    Kernels are in 8 bits with a scale for each filter, the rest in half precision. From then on the network has these.
    """
    from lipdp.layers import dead_leaves, encoder_features

    found = {}
    for i, variable in enumerate(used):
        value = np.asarray(variable.value, "float32")
        if value.ndim == 4:
            scale = (np.abs(value).max((0, 1, 2)) / 127).astype("float16")
            kernel = np.round(value / scale.astype("float32")).clip(-127, 127).astype("int8")
            found |= {f"kernel_{i}": kernel, f"scale_{i}": scale}
            variable.assign(kernel.astype("float32") * scale.astype("float32"))
        else:
            found[f"vector_{i}"] = value.astype("float16")
            variable.assign(found[f"vector_{i}"].astype("float32"))
    public = dead_leaves.images(256, (SIDE, SIDE, 3), seed=1)
    features = np.asarray(encoder_features.read(*encoder.predict(public, verbose=0)), "float32")
    variance = features.var((0, 1, 2))
    found[f"vector_{len(used)}"] = features.mean((0, 1, 2))
    # A channel that is nearly constant there may be none on photographs.
    found[f"vector_{len(used) + 1}"] = np.sqrt(variance + np.median(variance))
    np.savez_compressed(path, **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=500.0, help="of training, without drawing and compiling")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--images", type=int, default=300_000)
    parser.add_argument("--leaves", type=float, default=0.2, help="share of images of leaves")
    parser.add_argument("--each", type=int, default=256, help="images of one random network")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="mixed_bfloat16")
    parser.add_argument("--probe", type=pathlib.Path, help="file of CIFAR-10, whose training images score the features")
    options = parser.parse_args()
    import jax
    import keras
    import random_images

    from lipdp.layers import encoder_features

    begin = time.perf_counter()
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.policy)
    images = random_images.draw(options.images, options.seed, options.leaves, options.each)
    jax.block_until_ready(images)
    print(f"drawn: {time.perf_counter() - begin:.0f} s", flush=True)
    encoder, used = encoder_features.network()
    ending = head(encoder.outputs[-1].shape[-1])
    optimizer = keras.optimizers.AdamW(options.rate, weight_decay=1e-4)
    step, state = trainer(encoder, ending, optimizer, options.temperature)
    key, updates, start, told = jax.random.key(options.seed), 0, None, 0.0
    passed = 0.0
    while passed < 1.0:
        rate = options.rate * min(1.0, (updates + 1) / 300) * 0.5 * (1 + np.cos(np.pi * passed))
        state, key, value, hits = step(state, key, images, rate, options.batch)
        updates += 1
        if updates % 10 == 0:
            jax.block_until_ready(value)
            # The first steps compile.
            start = time.perf_counter() if start is None else start
            passed = (time.perf_counter() - start) / options.seconds
            if passed - told > 0.1 or updates == 10:
                told = passed
                print(
                    f"update {updates}: loss {value:.3f}, hits {hits:.3f}, {time.perf_counter() - begin:.0f} s",
                    flush=True,
                )
    for variable, found in zip([*encoder.trainable_variables, *ending.trainable_variables], state[0], strict=True):
        variable.assign(found)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    save(encoder, used, options.output.with_suffix(".npz"))
    report = {
        "images": options.images,
        "leaves": options.leaves,
        "batch": options.batch,
        "updates": updates,
        "rate": options.rate,
        "temperature": options.temperature,
        "seed": options.seed,
        "parameters": encoder.count_params(),
        "loss": float(value),
        "seconds": round(time.perf_counter() - begin),
        "device": jax.devices()[0].device_kind,
    }
    if options.probe is not None:
        report["probe"] = probe(encoder, *cifar(options.probe))
    options.output.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    print(report, flush=True)


if __name__ == "__main__":
    main()
