"""Cost of private steps on a GPU, with JAX: beside stock Keras' ordinary network and jax_privacy, in turn.

    KERAS_BACKEND=jax python benchmarks/gpu.py                                  # or: make bench-gpu
    KERAS_BACKEND=jax python benchmarks/gpu.py --network cnn wrn --rounds 30

Each step is the compiled one that `fit` runs, on batches that are in the memory of the host: forward pass, backward
pass, clipping, noise and the update of SGD. Products of all steps run in the precision that the backend takes by
default, TF32 on recent GPUs; what the norms and the sums of clipped gradients need is computed in float32, and all of
a clipless step. The steps of a network are taken in turn, one process for each network; memory is the peak of a
process that takes one kind of step, as the allocator of the device reports it. With `--dtype-policy mixed_bfloat16`
all steps but the clipless ones run in that policy. Rows are written to `results/gpu_steps.json` one by one, in place of
earlier ones of the same kind. Without a GPU it runs too, and says so.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from common import Series, spread

# Network, batch size, `microbatch_size` of lipdp and of jax_privacy.
ROWS = (
    ("cnn", 1024, None, None),
    ("cnn", 8192, None, 2048),
    ("mlp", 1024, None, 1024),
    ("mlp", 8192, None, 1024),
    ("transformer", 512, None, 64),
    ("unet", 512, None, 64),
    ("wrn", 1024, 512, 128),
)
STEPS = ("ordinary", "clipless", "dpsgd", "jax_privacy")
LIPSCHITZ = ("cnn", "mlp")
POLICIES = ("float32", "mixed_bfloat16")


def build(network: str):
    """An ordinary Keras model and the data it reads, as (model, x, y, loss)."""
    import keras
    import numpy as np
    import per_example
    from keras import layers as L

    rng, examples = np.random.default_rng(0), 40000
    y = rng.integers(0, 10, examples).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if network == "wrn":
        import lipdp

        # An export has no constraints: jax_privacy would not apply them.
        network = lipdp.export(lipdp.models.wide_resnet((32, 32, 3), 10))
        return network, rng.random((examples, 32, 32, 3), dtype="float32"), y, loss
    if network == "transformer":
        x = rng.random((4000, 128, 512), dtype="float32")
        inputs = h = keras.Input((128, 512))
        for _ in range(4):
            normal = L.LayerNormalization()(h)
            h = h + L.MultiHeadAttention(8, 64)(normal, normal)
            h = h + L.Dense(512)(L.Dense(2048, "gelu")(L.LayerNormalization()(h)))
        return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling1D()(h))), x, y[:4000], loss
    if network == "unet":
        x, target = (rng.random((examples, 28, 28, 1), dtype="float32") for _ in range(2))
        return large_unet(), x, target, keras.losses.MeanSquaredError()
    model, _, _, loss = per_example.build(network)
    return model, rng.random((examples, 28, 28, 1), dtype="float32"), y, loss


def has(step: str, network: str, policy: str) -> bool:
    """Whether the network has this kind of step."""
    return step != "clipless" or (network in LIPSCHITZ and policy == "float32")


def large_unet():
    """The network of image diffusion for 28 x 28, of 1.75 million weights, at one noise level and without classes."""
    import keras
    from keras import layers as L

    from lipdp import diffusion

    network = diffusion.unet((28, 28, 1), attention=(7,))
    image = keras.Input((28, 28, 1))
    level = L.Reshape(())(L.Rescaling(0.0)(L.GlobalAveragePooling2D()(image)))
    return keras.Model(image, network([image, level]))


def stepper(network: str, step: str, batch: int, microbatch: int | None):
    """One kind of step of a network."""
    import keras
    import step_cost
    from stepping import Stepper

    import lipdp
    from lipdp import strategies

    model, x, y, loss = build(network)
    if step == "jax_privacy":
        return jax_privacy_stepper(model, x, y, loss, batch, microbatch)
    if step == "clipless":
        # Built before, so that data and ordinary network are the same for all.
        return Stepper(step_cost.build(network, "clipless"), x, y, batch, "clipless")
    strategy = strategies.DPSGD(clip_norm=1.0) if step == "dpsgd" else None
    if strategy is not None:
        model = lipdp.DP_Model.from_keras(model)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return Stepper(model, x, y, batch, strategy, microbatch)


def jax_privacy_stepper(model, x, y, loss, batch: int, microbatch: int | None):
    """`clipped_grad` of jax_privacy on the same Keras network."""
    import jax
    import numpy as np
    import optax
    from jax_privacy import clipped_grad
    from jax_privacy.noise_addition import gaussian_privatizer

    fixed = [v.value for v in model.non_trainable_variables]
    sgd = optax.sgd(0.1)

    def value(parameters, x, y):
        return loss(y, model.stateless_call(parameters, fixed, x, training=True)[0])

    clipped = clipped_grad(
        value, l2_clip_norm=1.0, normalize_by=batch, batch_argnums=(1, 2), microbatch_size=microbatch
    )
    privatizer = gaussian_privatizer(stddev=clipped.sensitivity(), prng_key=jax.random.key(1))

    @jax.jit
    def private(state, x, y):
        parameters, noise, inner = state
        gradients, noise = privatizer.update(clipped(parameters, x, y), noise)
        updates, inner = sgd.update(gradients, inner)
        return optax.apply_updates(parameters, updates), noise, inner

    parameters = [v.value for v in model.trainable_variables]
    state = parameters, privatizer.init(parameters), sgd.init(parameters)
    parts = [np.arange(i * batch, (i + 1) * batch) % len(x) for i in range(4)]
    feed = itertools.cycle([(jax.numpy.asarray(x[part]), jax.numpy.asarray(y[part])) for part in parts])

    def step() -> float:
        nonlocal state
        rows = next(feed)
        begin = time.perf_counter()
        state = jax.block_until_ready(private(state, *rows))
        return time.perf_counter() - begin

    return step


def device_peak() -> float | None:
    """MiB that the allocator of the device held at most; None where it does not say."""
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    peak = statistics.get("peak_bytes_in_use")
    return None if peak is None else round(peak / 2**20, 1)


def worker(options) -> dict:
    """What one process finds: the memory of one kind of step, or the times of all."""
    import jax
    import keras

    keras.config.set_dtype_policy(options.dtype_policy)
    network, batch, microbatch, theirs = options.row
    sizes = {"jax_privacy": theirs and min(theirs, batch)}
    device = jax.devices()[0].device_kind
    if options.step:
        step = stepper(network, options.step, batch, sizes.get(options.step, microbatch))
        first = [round(step(), 3) for _ in range(3)]
        return {"peak_mib": device_peak(), "first_call_seconds": first[0], "device": device}
    steps = {name: stepper(network, name, batch, sizes.get(name, microbatch)) for name in options.steps}
    for step in [*steps.values()] * 3:
        step()
    rounds = [{name: step() for name, step in steps.items()} for _ in range(options.rounds)]
    return {
        "milliseconds": {name: spread([1e3 * one[name] for one in rounds]) for name in steps},
        "over_ordinary": {
            name: spread([one[name] / one["ordinary"] for one in rounds]) for name in steps if name != "ordinary"
        },
        "examples_per_second": {
            name: round(batch / sorted(one[name] for one in rounds)[len(rounds) // 2]) for name in steps
        },
        "device": device,
    }


def child(row, options, **more) -> dict:
    """What a process of its own reports, or a note that says why it reports nothing."""
    task = {"row": row, "rounds": options.rounds, "step": None, "steps": [], **more}
    task["dtype_policy"] = options.dtype_policy
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--worker", json.dumps(task)]
    # Compiled programs are shared between the processes of a row.
    cache = os.path.join(tempfile.gettempdir(), "lipdp_gpu_programs")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.patience)
    except subprocess.TimeoutExpired:
        return {"note": f"no result within {options.patience:g} s"}
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr, flush=True)
        return {"note": (done.stderr.strip().splitlines() or ["failed without a message"])[-1][:300]}
    return json.loads(done.stdout.rsplit("FOUND ", 1)[1])


def measure(row, alone: dict, options) -> dict:
    """One row of the table, with what processes of one kind of step found."""
    network, batch, microbatch, theirs = row
    runs = [step for step in alone if "note" not in alone[step]]
    found = {"network": network, "batch": batch, "dtype_policy": options.dtype_policy}
    found["microbatch_size"] = {"lipdp": microbatch, "jax_privacy": theirs}
    found |= child(row, options, steps=runs) if "ordinary" in runs else {}
    found["peak_mib"] = {step: one.get("peak_mib") for step, one in alone.items()}
    notes = {step: one["note"] for step, one in alone.items() if "note" in one}
    return found | ({"notes": notes} if notes else {})


def table(rows: list[dict]) -> str:
    """The results as a Markdown table."""
    lines = ["| network | B | step | ms | over ordinary | examples per second | MiB |", "|" + "---|" * 7]
    for row in rows:
        name = row["network"] + (", bfloat16" if row["dtype_policy"] == "mixed_bfloat16" else "")
        for step, ms in row.get("milliseconds", {}).items():
            ratio = row["over_ordinary"].get(step)
            ratio = f"{ratio['median']:.2f} [{ratio['low']:.2f}-{ratio['high']:.2f}]" if ratio else "1"
            memory = row["peak_mib"].get(step)
            lines.append(
                f"| {name} | {row['batch']} | {step} | {ms['median']:.2f} | {ratio} | "
                f"{row['examples_per_second'][step]} | {'-' if memory is None else f'{memory:.0f}'} |"
            )
        for step, note in row.get("notes", {}).items():
            lines.append(f"| {name} | {row['batch']} | {step} | - | - | - | {note} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(row[0] for row in ROWS))
    parser.add_argument("--network", nargs="+", default=names, choices=names)
    parser.add_argument("--step", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--batch", type=int, help="one batch size in place of the usual ones")
    parser.add_argument("--dtype-policy", default="float32", choices=POLICIES)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, where memory is measured")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that one process may take")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="gpu_steps", help="name of the result file")
    options = parser.parse_args()
    if options.worker:
        found = worker(argparse.Namespace(**json.loads(options.worker)))
        print("FOUND " + json.dumps(found))
        return
    chosen = [row for row in ROWS if row[0] in options.network]
    if options.batch is not None:
        chosen = [(row[0], options.batch, *row[2:]) for row in chosen]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        alone = [
            {
                step: pool.submit(child, row, options, step=step)
                for step in options.step
                if has(step, row[0], options.dtype_policy)
            }
            for row in chosen
        ]
        alone = [{step: future.result() for step, future in one.items()} for one in alone]
    series = Series(options.name, ("network", "batch", "dtype_policy"), again=True)
    for row, one in zip(chosen, alone, strict=True):
        found = measure(row, one, options)
        series.add({**found, "command": f"python benchmarks/gpu.py {' '.join(sys.argv[1:])}"})
        print(table([found]), flush=True)
    print(table(series.runs))


if __name__ == "__main__":
    main()
