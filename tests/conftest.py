"""Seeds, so that a failure repeats; what makes many small compilations fast."""

import atexit
import gc
import hashlib
import os
import shutil
import tempfile
import types

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


def seed(name):
    """Gives the code that runs next the numbers that belong to this name, whatever ran before it in this process.

    Secrets of runs come from the operating system and are replaced here alone; other processes that a test starts keep
    theirs. LIPDP_TESTS_SECRETS gives all tests other ones.
    """
    import keras  # not in the process that only hands out tests

    from lipdp.sampling import randomness

    keras.utils.set_random_seed(0)
    stream = hashlib.shake_256(f"{os.environ.get('LIPDP_TESTS_SECRETS', '')} {name}".encode())
    drawn = 0

    def urandom(count):
        nonlocal drawn
        drawn += 1
        own = stream.copy()
        own.update(drawn.to_bytes(8, "big"))
        return own.digest(count)

    randomness.os = types.SimpleNamespace(urandom=urandom)


@pytest.fixture(autouse=True)
def _seeds(request):
    seed(request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope != "function":
        seed(f"{fixturedef.baseid} {fixturedef.argname} {getattr(request, 'param_index', 0)}")
    return (yield)


@pytest.fixture(autouse=True, scope="module")
def _freeze():
    """What outlives a test module is never garbage: each `fit` would search it again."""
    gc.collect()
    gc.freeze()
