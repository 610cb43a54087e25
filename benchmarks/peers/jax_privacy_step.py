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


def transformer(what: str) -> tuple:
    """Weights of the network of finetune.py that train, and those that are frozen."""
    import jax
    from jax import numpy as jnp

    t = protocol.TRANSFORMER
    width, heads, rank = t["width"], t["heads"], t["rank"]
    start, keys = jax.nn.initializers.glorot_uniform(), iter(jax.random.split(jax.random.key(0), 256))

    def dense(inputs, outputs):
        return {"kernel": start(next(keys), (inputs, outputs)), "bias": jnp.zeros(outputs)}

    def norm():
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    def block():
        attention = {name: dense(width, width) for name in ("query", "key", "value", "out")}
        hidden = {"up": dense(width, 4 * width), "down": dense(4 * width, width)}
        return {**attention, **hidden, "normed": norm(), "normed_again": norm()}

    def addition():
        # As Keras makes it for a kernel of heads: thin matrices of a rank of their own for each head.
        return {
            "a": start(next(keys), (width, heads, rank)),
            "b": jnp.zeros((rank, width // heads)),
        }

    body = {
        "words": 0.05 * jax.random.normal(next(keys), (t["words"], width)),
        "places": 0.05 * jax.random.normal(next(keys), (t["length"], width)),
        "blocks": [block() for _ in range(t["blocks"])],
        "last": norm(),
    }
    head = dense(width, t["classes"])
    if what == "full":
        return {"head": head, "body": body}, {}
    additions = [{"query": addition(), "value": addition()} for _ in range(t["blocks"])]
    return {"head": head, "additions": additions}, {"body": body}


def transformer_logits(trained, frozen, tokens):
    import jax
    from jax import numpy as jnp

    heads = protocol.TRANSFORMER["heads"]

    def dense(weights, x):
        return x @ weights["kernel"] + weights["bias"]

    def norm(weights, x):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-3) * weights["scale"] + weights["bias"]

    def projected(weights, x, addition):
        x_of_heads = dense(weights, x).reshape(*x.shape[:2], heads, -1)
        if addition is None:
            return x_of_heads
        return x_of_heads + jnp.einsum("blhr,rd->blhd", jnp.einsum("blw,whr->blhr", x, addition["a"]), addition["b"])

    body = {**trained, **frozen}["body"]
    h = body["words"][tokens] + body["places"]
    for place, block in enumerate(body["blocks"]):
        added = trained["additions"][place] if "additions" in trained else {}
        x = norm(block["normed"], h)
        q, k, v = (projected(block[name], x, added.get(name)) for name in ("query", "key", "value"))
        h = h + dense(block["out"], jax.nn.dot_product_attention(q, k, v).reshape(x.shape))
        x = jax.nn.gelu(dense(block["up"], norm(block["normed_again"], h)), approximate=False)
        h = h + dense(block["down"], x)
    return dense(trained["head"], norm(body["last"], h).mean(1))


def make(method: str, network: str, batch: int) -> dict:
    import jax
    import optax
    from jax_privacy import clipped_grad
    from jax_privacy.noise_addition import gaussian_privatizer

    data = [tuple(jax.numpy.asarray(part) for part in pair) for pair in protocol.batches(batch, network)]
    sgd = optax.sgd(protocol.LEARNING_RATE)
    known = network in protocol.UNITS

    def fresh():
        return (parameters_of(network), ()) if known else transformer(network.removeprefix("transformer-"))

    def loss(parameters, frozen, x, y):
        logits = logits_of(parameters, x) if known else transformer_logits(parameters, frozen, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    clipped = clipped_grad(
        loss,
        l2_clip_norm=protocol.CLIP_NORM,
        normalize_by=batch,
        batch_argnums=(2, 3),
        microbatch_size={"vmap": None, "microbatch_size=1": 1}[method],
    )
    stddev = protocol.NOISE_MULTIPLIER * clipped.sensitivity()
    privatizer = gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(1))

    def plain(state, frozen, x, y):
        parameters, _, inner = state
        updates, inner = sgd.update(jax.grad(loss)(parameters, frozen, x, y), inner)
        return optax.apply_updates(parameters, updates), (), inner

    def private(state, frozen, x, y):
        parameters, noise, inner = state
        gradients, noise = privatizer.update(clipped(parameters, frozen, x, y), noise)
        updates, inner = sgd.update(gradients, inner)
        return optax.apply_updates(parameters, updates), noise, inner

    def stepper(function, with_noise):
        parameters, frozen = fresh()
        state = parameters, privatizer.init(parameters) if with_noise else (), sgd.init(parameters)
        compiled, feed = jax.jit(function), itertools.cycle(data)

        def step():
            nonlocal state
            state = jax.block_until_ready(compiled(state, frozen, *next(feed)))

        step.trainable = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        return step

    return {"plain": stepper(plain, False), "private": stepper(private, True)}


if __name__ == "__main__":
    packages = ("jax_privacy", "jax", "optax", "numpy")
    protocol.run("jax_privacy", packages, ("microbatch_size=1", "vmap"), make)
