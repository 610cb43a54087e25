"""Versions of the packages that a run depends on."""

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Returns the versions of Python, lipdp, Keras, its backend and the numerical packages; loads Keras."""
    import keras

    import lipdp

    backend = keras.backend.backend()
    packages = ("keras", backend, "numpy", "dp-accounting")
    return {
        "python": platform.python_version(),
        "lipdp": lipdp.__version__,
        "backend": backend,
        **{name: importlib.metadata.version(name) for name in packages},
    }
