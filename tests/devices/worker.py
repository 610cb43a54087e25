"""Trains on virtual devices, in a process of its own: `python -m tests.devices.worker 8 '[{"strategy": "dpsgd"}]'`.

For each case it prints one line of JSON: how far the weights are from those of one device, what was charged, the
collective operations of the compiled step.
"""

import json
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import warnings

_COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
STRATEGIES = ("clipless", "dpsgd", "quantile", "adaclip", "dpis")


def trained(case, callbacks=()):
    """Returns a model after a short `fit`, on the devices of the present distribution, and its history."""
    import keras
    import numpy as np

    import lipdp
    from lipdp import diffusion, layers, losses, strategies
    from lipdp.diffusion import toy

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 12)).astype("float32"), rng.integers(0, 3, 300)
    x, y = x[: case.get("rows", 300)] + case.get("shift", 0.0), y[: case.get("rows", 300)]
    kind, more = case["strategy"], {}
    keras.utils.set_random_seed(0)
    if kind == "diffusion":
        model = diffusion.DiffusionModel(toy.point_network(width=8, depth=1), noise_multiplicity=2)
        model.compile(keras.optimizers.Adam(0.01))
        data = (x[:, :2],)
    else:
        if kind == "clipless":
            stack = [
                layers.BoundedInput((12,), norm=2.0),
                layers.SpectralDense(16, name="first"),
                layers.Abs(),
                layers.SpectralDense(3, name="last"),
            ]
            loss = losses.SparseCategoricalCrossentropy(temperature=4.0)
        else:
            penalty = {"kernel_regularizer": "l2"} if case.get("penalty") else {}
            first = keras.layers.Dense(16, activation="relu", name="first", **penalty)
            stack = [keras.Input((12,)), first, keras.layers.Dense(3, name="last")]
            if case.get("moments"):
                stack[1:1] = [layers.LayerCentering(), layers.PrivateNormalization(4.0)]
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if case.get("words"):
            x = rng.integers(0, case["words"], x.shape).astype("int32")
            words = [keras.layers.Embedding(case["words"], 12, name="words"), keras.layers.GlobalAveragePooling1D()]
            stack[:1] = [keras.Input((12,), dtype="int32"), *words]
        model = lipdp.DP_Sequential(stack)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss=loss, metrics=["accuracy"])
        chosen = {"quantile": strategies.DPSGD(quantile=0.5), "dpis": strategies.DPIS(clip_norm=1.0)}
        data = x, y
        more = {"strategy": chosen.get(kind, kind), "validation_data": (x[:101], y[:101])}
    if most := case.get("rows_per_person"):
        # Some persons have more rows than take part, some fewer.
        more |= {"person_ids": np.random.default_rng(1).integers(0, 80, len(x)), "rows_per_person": most}
    history = model.fit(
        *data, batch_size=48, epochs=2, steps_per_epoch=3, epsilon=case.get("epsilon", 3.0), delta=1e-3,
        seed=case.get("seed", 7), verbose=0, callbacks=list(callbacks),
        sampling=case.get("sampling", "poisson"), microbatch_size=case.get("microbatch"),
        noise_generator=case.get("generator", "threefry"), **more,
    )  # fmt: skip
    return model, history.history


def distribution(case):
    """Returns how the rows, or for a case of several columns the kernels as well, are parted among the devices."""
    import keras

    from lipdp.training import bodies

    columns = case.get("columns", 1)
    if columns == 1:
        return keras.distribution.DataParallel()
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((len(devices) // columns, columns), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    if case.get("all_kernels"):
        layout[".*kernel"] = ("model", None)
        bodies._of_every_layer.cache_clear()  # as in a process that has not trained yet
    else:
        layout[".*first/kernel"], layout[".*last/kernel"] = (None, "model"), ("model", None)
    return keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")


def memory(case) -> dict:
    """Returns the bytes that a step of DP-SGD on a wide network holds on one device, beside and for its arguments."""
    import jax
    import keras
    import numpy as np

    import lipdp
    from lipdp import training

    def measured(shared):
        width = case["width"]
        first = keras.layers.Dense(width, name="first")
        model = lipdp.DP_Sequential([keras.Input((width,)), first, keras.layers.Dense(3)])
        model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = np.zeros((64, width), "float32"), np.zeros(64, int)
        request = training.FitRequest.of(
            strategy="dpsgd", sampling="poisson", batch_size=16, examples_per_person=1, noise_multiplier=1.0, epochs=1
        )
        driver = training.prepare(model, x, y, 0.0, None, request)
        with driver.armed(0), driver.batches() as batches:
            data = next(iter(batches))
            model._symbolic_build(data_batch=data)
            names = ("trainable", "non_trainable", "optimizer", "metrics")
            state = model._get_jax_state(**{f"{name}_variables": True for name in names})
            more = {} if shared is None else {"out_shardings": (None, model._get_state_sharding_spec())}
            if shared is not None:
                data = jax.tree.map(lambda t: jax.device_put(t, shared.get_data_layout(t.shape).backend_layout), data)
            step = jax.jit(model.train_step, donate_argnums=0, **more)
            found = step.lower(state, data).compile().memory_analysis()
        return [found.argument_size_in_bytes, found.temp_size_in_bytes]

    alone, shared = measured(None), distribution(case)
    with shared.scope():
        return {"alone": alone, "parted": measured(shared)}


def compared(case) -> dict:
    """Trains on one device and on all, and returns what differs."""
    import keras
    import numpy as np

    if case.get("values"):
        with keras.distribution.DataParallel().scope():
            model, history = trained(case)
        return {"values": [w.tolist() for w in model.get_weights()], "history": history}
    one, before = trained(case)
    with distribution(case).scope():
        all_of_them, after = trained(case)
    names = [name for name in before if not name.startswith("loss")]
    return {
        "weights": max(
            float(np.abs(a - b).max()) for a, b in zip(one.get_weights(), all_of_them.get_weights(), strict=True)
        ),
        "logs": max(abs(a - b) for name in names for a, b in zip(before[name], after[name], strict=True)),
        "ledger": one.run.ledger.to_json() == all_of_them.run.ledger.to_json(),
        "spent": [model.privacy.spent() for model in (one, all_of_them)],
        "key": bool(np.array_equal(one.optimizer.noise_key, all_of_them.optimizer.noise_key)),
        "parts": [list(v.value.sharding.spec) for v in all_of_them.trainable_variables],
        "devices": len(all_of_them.trainable_variables[0].value.sharding.device_set),
    }


def collectives(case, folder: pathlib.Path) -> dict:
    """Returns the collective operations of each compiled step, with the number of values that they exchange."""
    import keras

    shutil.rmtree(folder, ignore_errors=True)
    with keras.distribution.DataParallel().scope():
        model, _ = trained(case)
    programs = []
    for path in folder.glob("*train_step*after_optimizations.txt"):
        program = []
        for line in path.read_text().splitlines():
            if found := _COLLECTIVE.search(line):
                shapes = re.findall(r"\w+\[([\d,]*)\]", found[1])
                program.append([found[2], sum(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)])
        programs.append(program)
    return {"parameters": sum(math.prod(v.shape) for v in model.trainable_variables), "programs": programs}


def main() -> None:
    count, cases = int(sys.argv[1]), json.loads(sys.argv[2])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="programs-"))
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    if any(case.get("program") for case in cases):
        os.environ["XLA_FLAGS"] += (
            f" --xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.*"
        )
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is found there leaves no text
    warnings.simplefilter("ignore")
    for case in cases:
        try:
            work = memory if "width" in case else compared
            found = collectives(case, folder) if case.get("program") else work(case)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write("CASE " + json.dumps(case | found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
