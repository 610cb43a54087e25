"""Images of random processes, drawn with JAX: no photograph, and no weight that has seen one.

Two kinds, half each by default. *Networks*: convolutional networks whose kernels are random sums of small edges, lines
and blobs, at five scales, with noise that is strong in some places and weak in others. *Leaves*: shapes of random size
that cover one another, each plain, shaded, or cut from an image of the first kind. The idea is that of Baradad et al.
2021, "Learning to see by looking at noise"; networks and leaves are our own.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

SIDE = 64
_CHANNELS = (64, 64, 64, 48, 32)
_LEAVES = 48


@functools.lru_cache
def wavelets() -> np.ndarray:
    """Kernels `(20, 3, 3)` of length 1: edges and lines of eight directions, and blobs."""
    y, x = np.mgrid[-1:2, -1:2].astype("float64")
    found = []
    for turn in np.pi * np.arange(8) / 8:
        along = np.cos(turn) * x + np.sin(turn) * y
        found += [np.sign(np.round(along, 6)) * np.minimum(abs(along), 1.0), 1.0 - 1.5 * np.minimum(abs(along), 1.0)]
    found += [x * 0 + (x**2 + y**2 == 0), np.exp(-(x**2) - y**2), (x**2 + y**2 == 0) - 1 / 9, x * 0 + 1.0]
    found = np.array(found)
    return found / np.linalg.norm(found, axis=(1, 2), keepdims=True)


def _kernels(key, inputs: int, outputs: int):
    """Kernels `(3, 3, inputs, outputs)`: each is one wavelet with a random weight, few of them large."""
    which, sign, size = jax.random.split(key, 3)
    bank = jnp.asarray(wavelets(), "float32")
    chosen = bank[jax.random.randint(which, (inputs, outputs), 0, len(bank))]
    # Heavy tails: each output is mostly that of a few inputs.
    weights = jax.random.normal(size, (inputs, outputs)) ** 3 * jax.random.rademacher(
        sign, (inputs, outputs), "float32"
    )
    kernels = chosen * weights[..., None, None]
    kernels /= jnp.sqrt(jnp.square(kernels).sum((0, 2, 3), keepdims=True))
    return kernels.transpose(2, 3, 0, 1)


def _pink(key, shape):
    """Noise `(n, side, side, channels)` whose spectrum falls with a power of the frequency, other for each image."""
    count, side = shape[:2]
    power, noise = jax.random.split(key)
    power = jax.random.uniform(power, (count, 1, 1, 1), minval=0.5, maxval=1.7)
    across, down = np.fft.rfftfreq(side), np.fft.fftfreq(side)
    radius = np.sqrt(across**2 + down[:, None] ** 2)
    radius[0, 0] = np.inf
    spectrum = jnp.fft.rfft2(jax.random.normal(noise, shape), axes=(1, 2))
    found = jnp.fft.irfft2(spectrum * (side * radius[..., None]) ** -power, s=(side, side), axes=(1, 2))
    return found / (found.std((1, 2), keepdims=True) + 1e-6)


def _larger(images, side: int):
    return jax.image.resize(images, (images.shape[0], side, side, images.shape[-1]), "linear")


def _natural(images, key):
    """Images in [0, 1] from numbers of any size: random contrast and brightness, channels that mostly go together."""
    contrast, bright, mixing = jax.random.split(key, 3)
    count = len(images)
    images = images - images.mean((1, 2), keepdims=True)
    images /= images.std((1, 2), keepdims=True) + 1e-4
    gray = images.mean(-1, keepdims=True)
    share = jax.random.uniform(mixing, (count, 1, 1, 1), minval=0.2, maxval=1.0)
    images = gray + share * (images - gray)
    spread = jax.random.uniform(contrast, (count, 1, 1, 1), minval=0.12, maxval=0.32)
    middle = 0.45 + 0.13 * jax.random.normal(bright, (count, 1, 1, 1))
    tint = 0.06 * jax.random.normal(jax.random.fold_in(bright, 1), (count, 1, 1, 3))
    return jnp.clip(middle + tint + spread * images, 0.0, 1.0)


@functools.partial(jax.jit, static_argnums=1)
def of_network(key, count: int):
    """Returns `count` images of one random network, `(count, 64, 64, 3)` in [0, 1]."""
    key, start = jax.random.split(key)
    side = SIDE >> (len(_CHANNELS) - 1)
    h = _pink(start, (count, side, side, _CHANNELS[0]))
    shown = jnp.zeros((count, side, side, 3))
    for channels in _CHANNELS:
        key, *keys = jax.random.split(key, 9)
        for k in keys[:2]:
            a, b, c, d = jax.random.split(k, 4)
            style = jnp.exp(0.7 * jax.random.normal(a, (count, 1, 1, h.shape[-1])))
            kernels = _kernels(b, h.shape[-1], channels)
            # Around the edges, so that no image has a frame.
            h = jnp.pad(h * style, ((0, 0), (1, 1), (1, 1), (0, 0)), "wrap")
            h = jax.lax.conv_general_dilated(h, kernels, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            h /= jnp.sqrt(jnp.square(h).mean((1, 2), keepdims=True)) + 1e-4
            envelope = jax.image.resize(jax.random.laplace(c, (count, 4, 4, 1)), (count, side, side, 1), "cubic")
            strength = 0.25 * jax.random.normal(d, (1, 1, 1, channels))
            h = h + strength * envelope * _pink(jax.random.fold_in(c, 1), (count, side, side, 1))
            h = jax.nn.leaky_relu(h + 0.5 * jax.random.normal(jax.random.fold_in(d, 1), (channels,)), 0.2)
        colors = jax.random.normal(keys[2], (channels, 3)) ** 3
        shown = shown + h @ (colors / jnp.linalg.norm(colors, axis=0))
        if side < SIDE:
            side *= 2
            h, shown = _larger(h, side), _larger(shown, side)
    return _natural(shown, key)


def _leaves(key, textures):
    """One image of leaves; `textures` are `(n, 64, 64, 3)`."""
    keys = jax.random.split(key, 12)
    count = _LEAVES
    smallest, largest = 2.5, 34.0
    uniform = jax.random.uniform(keys[0], (count,))
    # The density of radii falls with their third power, between that of small and of large leaves from image to image.
    steep = jax.random.uniform(keys[1], minval=0.6, maxval=2.2)
    radius = (smallest**-steep + uniform * (largest**-steep - smallest**-steep)) ** (-1 / steep)
    # The last one lies below all others and covers everything.
    radius = radius.at[-1].set(1e4)
    middle = jax.random.uniform(keys[2], (count, 2), maxval=float(SIDE))
    turn = jax.random.uniform(keys[3], (count,), maxval=np.pi)
    flat = jax.random.uniform(keys[4], (count,), minval=0.3)
    power = jnp.exp(jax.random.uniform(keys[5], (count,), minval=-0.2, maxval=2.2))
    y, x = jnp.mgrid[:SIDE, :SIDE].astype("float32")[:, None]
    dx, dy = x - middle[:, 0, None, None], y - middle[:, 1, None, None]
    cos, sin = jnp.cos(turn)[:, None, None], jnp.sin(turn)[:, None, None]
    along = (cos * dx + sin * dy) / radius[:, None, None]
    across = (cos * dy - sin * dx) / (radius * flat)[:, None, None]
    # Bent and tapered, so that not every leaf has two axes of symmetry.
    bend = 0.5 * jax.random.normal(keys[6], (count, 2, 1, 1))
    across = (across + bend[:, 0] * (along**2 - 0.3)) * (1 + 0.5 * jnp.tanh(bend[:, 1]) * along)
    p = power[:, None, None]
    inside = (jnp.abs(along) + 1e-6) ** p + (jnp.abs(across) + 1e-6) ** p < 1.0
    top = jnp.argmax(inside.at[-1].set(True), axis=0)
    colors = jax.random.uniform(keys[7], (count, 3))
    gray = jax.random.uniform(keys[8], (count, 1))
    colors = gray + jax.random.uniform(keys[9], (count, 1)) * (colors - gray)
    shade = 0.3 * jax.random.normal(keys[10], (count, 1))
    share = jax.random.uniform(keys[11], (count, 1)) ** 2
    which, zoom, shift = jax.random.split(jax.random.fold_in(key, 1), 3)
    texture = jax.random.randint(which, (count,), 0, len(textures))
    zoom = jnp.exp(jax.random.uniform(zoom, (count,), minval=-0.9, maxval=0.9))
    shift = jax.random.uniform(shift, (2, count), maxval=float(SIDE))

    def folded(t):
        t = jnp.abs(t) % (2 * SIDE - 2)
        return jnp.minimum(t, 2 * SIDE - 2 - t).astype(int)

    rows, columns = (folded(zoom[top] * a + shift[i][top]) for i, a in enumerate((y[0], x[0])))
    cut = textures[texture[top], rows, columns] - 0.45
    light = jnp.take_along_axis(jnp.clip(along, -1, 1), top[None], 0)[0][..., None]
    return jnp.clip(colors[top] + 2.0 * share[top] * cut + shade[top] * light, 0.0, 1.0)


@functools.partial(jax.jit, static_argnums=1)
def of_leaves(key, count: int, textures):
    """Returns `count` images of leaves, `(count, 64, 64, 3)` in [0, 1], cut from `textures` or plain."""
    keys, light = jax.random.split(key)
    images = jax.vmap(_leaves, (0, None))(jax.random.split(keys, count), textures)
    middle, spread = images.mean((1, 2, 3), keepdims=True), jax.random.uniform(light, (count, 1, 1, 1), minval=0.5)
    return jnp.clip(0.5 * middle + 0.22 + spread * (images - middle), 0.0, 1.0)


def draw(count: int, seed: int, leaves: float = 0.5, each: int = 256) -> jax.Array:
    """Returns random images `(count, 64, 64, 3)` as bytes.

    Args:
        count: number of images.
        seed: of everything.
        leaves: share of images of leaves.
        each: images of one network, and of leaves cut from it and from those before.
    """
    key, parts, found, textures = jax.random.key(seed), [], 0, []
    while found < count:
        key, network, leaf = jax.random.split(key, 3)
        images = jnp.round(255 * of_network(network, each)).astype("uint8")
        textures = [*textures[-7:], images]
        while len(textures) < 8:
            key, network = jax.random.split(key)
            textures.append(jnp.round(255 * of_network(network, each)).astype("uint8"))
        if leaves < 1:
            parts.append(images[: round(2 * each * (1 - leaves))])
            found += len(parts[-1])
        number = min(each, round(2 * each * leaves))
        if number:
            bank = jnp.concatenate([t[:32] for t in textures]).astype("float32") / 255
            parts.append(jnp.round(255 * of_leaves(leaf, number, bank)).astype("uint8"))
            found += number
    return jnp.concatenate(parts)[:count]
