"""The few functions that differ between frameworks, for the backend Keras was configured with.

This package is the only place where a framework is imported, and it imports the active one only.
"""

import importlib

import keras

_NAME = keras.backend.backend()
if _NAME not in ("tensorflow", "jax"):
    raise ImportError(
        f"lipdp runs on the TensorFlow and JAX backends of Keras, and Keras is configured with {_NAME!r}. Set the "
        "environment variable KERAS_BACKEND to 'tensorflow' or 'jax' before the first import of keras."
    )
_steps = importlib.import_module(f"lipdp.backend.{_NAME}")
_capture = importlib.import_module(f"lipdp.backend.capture_{_NAME}")
_devices = importlib.import_module(f"lipdp.backend.devices_{_NAME}")
_importance = importlib.import_module(f"lipdp.backend.importance_{_NAME}")

Forward = _steps.Forward
compiled = _steps.compiled
compiles = _steps.compiles
concrete = _steps.concrete
cpu_threads = _steps.cpu_threads
feed = _steps.feed
full_precision = _steps.full_precision
gradient_norms = _steps.gradient_norms
in_tiles = _steps.in_tiles
rows_alike = _steps.rows_alike
large_products = _steps.large_products
loss_gradient = _steps.loss_gradient
metrics_written = _steps.metrics_written
microbatch_bytes = _steps.microbatch_bytes
mixed_products = _steps.mixed_products
normal = _steps.normal
normal_at = _steps.normal_at
private_train_step = _steps.private_train_step
pullback = _steps.pullback
ratchet = _steps.ratchet
release_programs = _steps.release_programs
subkey = _steps.subkey
train_function = _steps.train_function
untracked = _steps.untracked
untuned = _steps.untuned
value_of = _steps.value_of
weights_kept = _steps.weights_kept
apart = _devices.apart
idle_devices = _devices.idle_devices
left_out = _devices.left_out
misplaced = _devices.misplaced
of_each = _devices.of_each
of_first = _devices.of_first
own_rows = _devices.own_rows
parted = _devices.parted
places = _devices.places
processes = _devices.processes
replicas = _devices.replicas
row_shards = _devices.row_shards
scattered = _devices.scattered
set_here = _devices.set_here
uneven = _devices.uneven
contract = _capture.contract
cotangents = _capture.cotangents
gram = _capture.gram
in_turn = _capture.in_turn
made_once = _capture.made_once
local_gradients = _capture.local_gradients
probe = _capture.probe
row_by_row = _capture.row_by_row
segment_sums = _capture.segment_sums
ImportanceStep = _importance.ImportanceStep

__all__ = sorted(name for name, value in globals().items() if callable(value))
