"""The few functions that differ between frameworks, for the backend Keras was configured with.

This package is the only place where a framework is imported, and it imports the active one only.
"""

import keras

if keras.backend.backend() == "tensorflow":
    from lipdp.backend.capture_tensorflow import (
        contract,
        cotangents,
        gram,
        in_turn,
        local_gradients,
        probe,
    )
    from lipdp.backend.importance_tensorflow import ImportanceStep
    from lipdp.backend.tensorflow import (
        Forward,
        compiled,
        compiles,
        feed,
        full_precision,
        gradient_norms,
        microbatch_bytes,
        normal,
        private_train_step,
        pullback,
        ratchet,
        replicas,
    )
elif keras.backend.backend() == "jax":
    from lipdp.backend.capture_jax import (
        contract,
        cotangents,
        gram,
        in_turn,
        local_gradients,
        probe,
    )
    from lipdp.backend.importance_jax import ImportanceStep
    from lipdp.backend.jax import (
        Forward,
        compiled,
        compiles,
        feed,
        full_precision,
        gradient_norms,
        microbatch_bytes,
        normal,
        private_train_step,
        pullback,
        ratchet,
        replicas,
    )
else:
    raise ImportError(
        f"lipdp runs on the TensorFlow and JAX backends of Keras, and Keras is configured with "
        f"{keras.backend.backend()!r}. Set the environment variable KERAS_BACKEND to 'tensorflow' or 'jax' "
        "before the first import of keras."
    )

__all__ = [
    "Forward",
    "ImportanceStep",
    "compiled",
    "compiles",
    "contract",
    "cotangents",
    "feed",
    "full_precision",
    "gradient_norms",
    "gram",
    "in_turn",
    "local_gradients",
    "microbatch_bytes",
    "normal",
    "private_train_step",
    "probe",
    "pullback",
    "ratchet",
    "replicas",
]
