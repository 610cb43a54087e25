"""Over which devices and processes a step runs, for TensorFlow: one device of one process."""

import contextlib

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


def parted(variable) -> bool:
    """Returns whether a variable is parted among devices: none is."""
    return False


def places(variable, shape, start: int):
    """Returns the numbers of the entries of a variable that is parted among devices: none is."""
    raise NotImplementedError("TensorFlow trains on one device.")


def processes() -> tuple[int, int]:
    """Returns the number of this process, and how many there are that train together."""
    return 0, 1


def left_out() -> bool:
    """Returns whether some process has no device among those that train."""
    return False


def uneven() -> bool:
    """Returns whether processes feed shares of different size: there is one process."""
    return False


def of_first(secret: bytes) -> bytes:
    """Returns the bytes that the first process has passed."""
    return secret


def of_each(digest: bytes) -> list[bytes]:
    """Returns the bytes that each process has passed."""
    return [digest]


def set_here(variable, value) -> None:
    """Sets a variable in this process alone: there is no other."""
    variable.assign(value)


def own_rows():
    """A context in which Keras takes the batches of a process as its share of the rows."""
    return contextlib.nullcontext()


def apart():
    """A context in which a process does what the others do not."""
    return contextlib.nullcontext()


def scattered(model) -> None:
    """Returns the path of a weight of which no process has all parts: there is none."""
