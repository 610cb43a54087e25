"""jax_privacy: `clipped_grad` over the whole batch at once (the default), or one example after the other."""

import itertools

import protocol


def parameters_of(name: str) -> list:
    """Pairs (kernel, bias) of the convolutions, then of the dense layers."""
    import jax

    shapes, channels, side = [], 1, 28
    for filters in protocol.FILTERS[name]:
        shapes.append((3, 3, channels, filters))
        channels, side = filters, side // 2
    width = channels * side * side
    for units in protocol.UNITS[name]:
        shapes.append((width, units))
        width = units
    start = jax.nn.initializers.glorot_uniform()
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [(start(key, shape), jax.numpy.zeros(shape[-1])) for key, shape in zip(keys, shapes, strict=True)]


def logits_of(parameters, x):
    import jax
    from jax import lax

    *hidden, last = parameters
    for kernel, bias in hidden:
        if kernel.ndim == 4:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + bias)
            x = lax.reduce_window(x, -jax.numpy.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ kernel + bias)
    kernel, bias = last
    return x @ kernel + bias


def make(method: str, network: str, batch: int) -> dict:
    import jax
    import optax
    from jax_privacy import clipped_grad
    from jax_privacy.noise_addition import gaussian_privatizer

    data = [tuple(jax.numpy.asarray(part) for part in pair) for pair in protocol.batches(batch)]
    sgd = optax.sgd(protocol.LEARNING_RATE)

    def loss(parameters, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(logits_of(parameters, x), y).mean()

    clipped = clipped_grad(
        loss,
        l2_clip_norm=protocol.CLIP_NORM,
        normalize_by=batch,
        batch_argnums=(1, 2),
        microbatch_size={"vmap": None, "microbatch_size=1": 1}[method],
    )
    stddev = protocol.NOISE_MULTIPLIER * clipped.sensitivity()
    privatizer = gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(1))

    def plain(state, x, y):
        parameters, _, inner = state
        updates, inner = sgd.update(jax.grad(loss)(parameters, x, y), inner)
        return optax.apply_updates(parameters, updates), (), inner

    def private(state, x, y):
        parameters, noise, inner = state
        gradients, noise = privatizer.update(clipped(parameters, x, y), noise)
        updates, inner = sgd.update(gradients, inner)
        return optax.apply_updates(parameters, updates), noise, inner

    def stepper(function, with_noise):
        parameters = parameters_of(network)
        state = parameters, privatizer.init(parameters) if with_noise else (), sgd.init(parameters)
        compiled, feed = jax.jit(function), itertools.cycle(data)

        def step():
            nonlocal state
            state = jax.block_until_ready(compiled(state, *next(feed)))

        return step

    return {"plain": stepper(plain, False), "private": stepper(private, True)}


if __name__ == "__main__":
    packages = ("jax_privacy", "jax", "optax", "numpy")
    protocol.run("jax_privacy", packages, ("microbatch_size=1", "vmap"), make)
