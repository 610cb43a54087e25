"""The step of this project, with DP-SGD: the training step that `fit` runs, on Poisson batches as they are padded."""

import math
import os

import protocol


def make(method: str, network: str, batch: int) -> dict:
    # Read when Keras is imported.
    os.environ["KERAS_BACKEND"] = method
    if network.startswith("transformer-"):
        import finetune

        what = network.removeprefix("transformer-")
        steps = {step: finetune.stepper(what, step, batch) for step in ("plain", "private")}
        steps["private"].trainable = sum(math.prod(v.shape) for v in steps["private"].model.trainable_variables)
        return steps
    import per_example

    return {step: per_example.stepper(network, step, batch) for step in ("plain", "private")}


if __name__ == "__main__":
    protocol.run("lipdp", ("lipdp", "keras", "tensorflow", "jax", "numpy"), ("tensorflow", "jax"), make)
