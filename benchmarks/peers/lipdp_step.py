"""The step of this project, with DP-SGD: the training step that `fit` runs, on Poisson batches as they are padded."""

import os

import protocol


def make(method: str, network: str, batch: int) -> dict:
    # Read when Keras is imported.
    os.environ["KERAS_BACKEND"] = method
    import per_example

    return {step: per_example.stepper(network, step, batch) for step in ("plain", "private")}


if __name__ == "__main__":
    protocol.run("lipdp", ("lipdp", "keras", "tensorflow", "jax", "numpy"), ("tensorflow", "jax"), make)
