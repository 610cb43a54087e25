"""Seeds, so that a failure repeats; what makes many small compilations fast."""

import atexit
import gc
import os
import shutil
import tempfile

# Before JAX is imported: equal programs are compiled once, in a folder that ends with this process.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="lipdp-tests-")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import pytest


@pytest.fixture(autouse=True)
def _seeds():
    import keras  # not in the process that only hands out tests

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _freeze():
    """What outlives a test module is never garbage: each `fit` would search it again."""
    gc.collect()
    gc.freeze()
