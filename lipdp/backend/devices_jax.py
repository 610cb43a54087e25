"""Over which devices and processes a step runs, for JAX."""

import contextlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.experimental import multihost_utils


def replicas(model) -> int:
    """Returns how many copies of a step run, each of which would draw noise of its own: one, on any number of devices.

    A step is one program for all devices. The key of the noise is one value in all of them.
    """
    return 1


def row_shards() -> tuple[int, tuple[int, ...]]:
    """Returns among how many groups of devices the rows of a batch are shared, and which of them this process feeds."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1, (0,)
    groups, here = _groups(distribution), jax.process_index()
    return len(groups), tuple(i for i, group in enumerate(groups) if any(d.process_index == here for d in group))


def _groups(distribution):
    mesh = distribution.device_mesh.backend_mesh
    axis = mesh.axis_names.index(distribution.batch_dim_name)
    return np.moveaxis(mesh.devices, axis, 0).reshape(mesh.devices.shape[axis], -1)


def uneven() -> bool:
    """Returns whether processes feed shares that JAX cannot put together: as many rows from each, or the same ones."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return False
    groups, fed = _groups(distribution), {}
    for number, group in enumerate(groups):
        for device in group:
            fed.setdefault(device.process_index, set()).add(number)
    shares = set(map(frozenset, fed.values()))
    return len(set(map(len, shares))) > 1 or sum(map(len, shares)) != len(groups)


def shared_out(data):
    """Returns a tree of arrays with their rows on the devices of the present distribution."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return data
    return jax.tree.map(lambda t: jax.device_put(t, distribution.get_data_layout(t.shape).backend_layout), data)


def idle_devices() -> int:
    """Returns how many visible devices `fit` leaves unused."""
    return jax.device_count() - len(_devices())


def misplaced(model) -> str | None:
    """Returns the path of a weight that does not lie on the devices of the present distribution, or None."""
    devices = _devices() if keras.distribution.distribution() is not None else None
    for variable in model.variables:
        found = variable.value.sharding.device_set
        if len(found) > 1 if devices is None else found != devices:
            return variable.path
    return None


def parted(variable) -> bool:
    """Returns whether a variable is parted among devices by the present distribution."""
    sharding = None if variable is None else _sharding(variable)
    return sharding is not None and not sharding.is_fully_replicated


def places(variable, shape, start: int):
    """Returns the numbers from `start` on, as uint32 in a shape, on the devices that hold this part of a variable."""
    found, stride = jnp.full(shape, start, "uint32"), 1
    for axis in reversed(range(len(shape))):
        found = found + jnp.uint32(stride) * jax.lax.broadcasted_iota("uint32", tuple(shape), axis)
        stride *= shape[axis]
    if not parted(variable):
        return found
    return jax.lax.with_sharding_constraint(found, _sharding(variable))


def _sharding(variable):
    """Returns how the present distribution, if there is one, parts a variable."""
    distribution = keras.distribution.distribution()
    layout = None if distribution is None else distribution.get_variable_layout(variable)
    # A variable may be given JAX's own layout, and Keras 3.12 keeps no other.
    return getattr(layout, "backend_layout", layout)


def processes() -> tuple[int, int]:
    """Returns the number of this process, and how many there are that train together."""
    return jax.process_index(), jax.process_count()


def left_out() -> bool:
    """Returns whether some process has no device among those that train: it would train a model of its own."""
    return {device.process_index for device in _devices()} != set(range(jax.process_count()))


def of_first(secret: bytes) -> bytes:
    """Returns the bytes that the first process has passed; all processes of a distribution call this."""
    if jax.process_count() == 1 or keras.distribution.distribution() is None:
        return secret
    return bytes(multihost_utils.broadcast_one_to_all(np.frombuffer(secret, "uint8")))


def of_each(digest: bytes) -> list[bytes]:
    """Returns the bytes that each process has passed, as many from each; all processes call this."""
    if jax.process_count() == 1:
        return [digest]
    return [bytes(row) for row in multihost_utils.process_allgather(np.frombuffer(digest, "uint8"))]


def set_here(variable, value) -> None:
    """Sets a variable in this process alone: JAX asks all of them for the value, and waits for one that has failed."""
    distribution = keras.distribution.distribution()
    if distribution is not None and jax.process_count() > 1:
        whole = np.asarray(value, variable.dtype)
        value = jax.make_array_from_callback(whole.shape, _sharding(variable), lambda index: whole[index])
    variable.assign(value)


@contextlib.contextmanager
def own_rows():
    """A context in which Keras takes the batches of a process as its share of the rows, and does not cut them again."""
    distribution = keras.distribution.distribution()
    if distribution is None or jax.process_count() == 1:
        yield
        return
    before = distribution.auto_shard_dataset
    distribution.auto_shard_dataset = False
    try:
        yield
    finally:
        distribution.auto_shard_dataset = before


@contextlib.contextmanager
def apart():
    """A context in which a process does what the others do not: variables made there are its own."""
    distribution = keras.distribution.distribution()
    if distribution is None or jax.process_count() == 1:
        yield
        return
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


def scattered(model) -> str | None:
    """Returns the path of a weight of which no process has all parts, or None."""
    for variable in model.variables:
        if not variable.value.is_fully_addressable and not variable.value.is_fully_replicated:
            return variable.path
    return None


def _devices():
    distribution = keras.distribution.distribution()
    return set(jax.devices()[:1] if distribution is None else distribution.device_mesh.backend_mesh.devices.flat)
