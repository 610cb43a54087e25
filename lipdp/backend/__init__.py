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
    from lipdp.backend.importance_tensorflow import ConductedStep
    from lipdp.backend.tensorflow import (
        chunk_bytes,
        chunked_train_step,
        compiled,
        compiles,
        feed,
        full_precision,
        gradient,
        gradient_norms,
        normal,
        pullback,
        ratchet,
        replicas,
        strategy_train_step,
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
    from lipdp.backend.importance_jax import ConductedStep
    from lipdp.backend.jax import (
        chunk_bytes,
        chunked_train_step,
        compiled,
        compiles,
        feed,
        full_precision,
        gradient,
        gradient_norms,
        normal,
        pullback,
        ratchet,
        replicas,
        strategy_train_step,
    )
else:
    raise ImportError(
        f"lipdp runs on the TensorFlow and JAX backends of Keras, and Keras is configured with "
        f"{keras.backend.backend()!r}. Set the environment variable KERAS_BACKEND to 'tensorflow' or 'jax' "
        "before the first import of keras."
    )

__all__ = [
    "ConductedStep",
    "chunk_bytes",
    "chunked_train_step",
    "compiled",
    "compiles",
    "contract",
    "cotangents",
    "feed",
    "full_precision",
    "gradient",
    "gram",
    "in_turn",
    "local_gradients",
    "gradient_norms",
    "normal",
    "pullback",
    "probe",
    "strategy_train_step",
    "ratchet",
    "replicas",
]
