"""Seeds, so that a failure repeats; what makes many small compilations fast."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest

# Before JAX is imported: equal programs are compiled once per process, in a folder that ends with the run.
CACHE = "JAX_COMPILATION_CACHE_DIR"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ[CACHE] = os.path.join(os.environ[CACHE], os.environ["PYTEST_XDIST_WORKER"])
elif CACHE not in os.environ:
    os.environ[CACHE] = tempfile.mkdtemp(prefix="lipdp-tests-")
    atexit.register(shutil.rmtree, os.environ[CACHE], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True)
def _seeds():
    import keras  # not in the process that only hands out tests

    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _freeze():
    """What outlives a test module is never garbage: each `fit` would search it again."""
    gc.collect()
    gc.freeze()
