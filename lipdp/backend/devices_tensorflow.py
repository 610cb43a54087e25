"""Over which devices the rows of a step are shared, for TensorFlow: one device only."""

import keras
import tensorflow as tf


def replicas(model) -> int:
    """Returns how many copies of a step run, each of which would draw noise of its own."""
    distribution = keras.distribution.distribution()
    mesh = 1 if distribution is None else distribution.device_mesh.devices.size
    return max(mesh, model.distribute_strategy.num_replicas_in_sync)


def row_shards() -> tuple[int, tuple[int, ...]]:
    """Returns among how many groups of devices the rows of a batch are shared, and which of them this process feeds."""
    return 1, (0,)


def idle_devices() -> int:
    """Returns how many visible devices `fit` leaves unused."""
    return max(0, len(tf.config.list_logical_devices("GPU")) - 1)


def misplaced(model) -> None:
    """Returns the path of a weight that lies on other devices than it should: there are no others."""
