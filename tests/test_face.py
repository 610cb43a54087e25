"""`import lipdp`: what it shows, what it leaves alone, and that Keras finds its classes all the same."""

import subprocess
import sys
import types

import keras
import pytest

import lipdp
from lipdp import layers, losses

FRAMEWORKS = "keras", "tensorflow", "jax", "torch"
LOOK = f"import sys; sys.exit(', '.join(name for name in {FRAMEWORKS} if name in sys.modules) or 0)"


def python(code: str, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


def check(code: str) -> None:
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_dir_shows_the_public_names():
    assert dir(lipdp) == sorted(lipdp.__all__)
    assert not [name for name in dir(lipdp) if name.startswith("_") and name != "__version__"]
    for name in lipdp.__all__:
        assert getattr(lipdp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'DP_model'"):
        _ = lipdp.DP_model


@pytest.mark.parametrize("name", [name for name in lipdp.__all__ if isinstance(getattr(lipdp, name), types.ModuleType)])
def test_packages_list_their_public_names(name):
    package = getattr(lipdp, name)
    assert len(package.__all__) == len(set(package.__all__))
    assert all(hasattr(package, name) for name in package.__all__)


def test_a_moved_module_is_an_attribute_as_well():
    vars(lipdp).pop("plan", None)
    sys.modules.pop("lipdp.plan", None)
    with pytest.warns(DeprecationWarning, match="use `lipdp.privacy.plan`"):
        assert lipdp.plan.Plan is lipdp.privacy.Plan


@pytest.mark.slow
@pytest.mark.backend_free
def test_accounting_and_all_that_needs_no_model_import_no_framework():
    check(f"import lipdp; dir(lipdp); lipdp.accounting.dpis; import lipdp.privacy, lipdp.data, lipdp.report; {LOOK}")


_RUN = "--noise-multiplier 1 --batch-size 10 --num-examples 1000 --epochs 1"


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_commands_of_accounting_import_no_framework():
    commands = [
        f"epsilon {_RUN}",
        f"epsilon {_RUN} --sampler truncated_poisson",
        "calibrate --epsilon 2 --sampling-probability 0.01 --updates 10",
        "group 2 --noise-multiplier 1 --sampling-probability 0.01 --updates 10",
        f"plan {_RUN}",
    ]
    check(f"from lipdp.cli import main; assert not any(main(words.split()) for words in {commands}); {LOOK}")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A model file."""
    path = tmp_path_factory.mktemp("models") / "model.keras"
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    model.save(path)
    return str(path)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "imports",
    [
        "import lipdp; import keras",
        pytest.param("import keras; import lipdp", marks=pytest.mark.slow),
        pytest.param("from lipdp.layers import SpectralDense; import keras", marks=pytest.mark.slow),
        pytest.param("import lipdp.accounting; import keras.layers", marks=pytest.mark.slow),
        pytest.param("from lipdp.norms import exact; import keras", marks=pytest.mark.slow),
        pytest.param("import lipdp; lipdp.losses; import keras", marks=pytest.mark.slow),
        pytest.param("from lipdp import DP_Model; import keras", marks=pytest.mark.slow),
    ],
)
def test_model_files_are_read_after(imports, file):
    look = "import sys; keras.saving.load_model(sys.argv[1]); print(*keras.saving.get_custom_objects())"
    done = python(f"{imports}; {look}", file)
    assert done.returncode == 0, done.stderr
    assert {name for name, found in keras.saving.get_custom_objects().items() if _ours(found)} <= set(
        done.stdout.split()
    )


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_package_that_is_executed_by_other_means_is_left_to_finish():
    """As `pytest --doctest-modules` does."""
    check(
        "import importlib.util as util, pathlib, sys, lipdp; path = pathlib.Path(lipdp.__file__).parent / 'sampling';"
        "spec = util.spec_from_file_location('lipdp.sampling', path / '__init__.py');"
        "sys.modules['lipdp.sampling'] = module = util.module_from_spec(spec); spec.loader.exec_module(module)"
    )


def _ours(found) -> bool:
    return found.__module__.startswith("lipdp.") and vars(sys.modules[found.__module__]).get(found.__name__) is found


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_backend_without_support_is_refused_by_lipdp_and_not_by_keras():
    code = (
        "import os; os.environ['KERAS_BACKEND'] = 'numpy'; import lipdp.accounting, keras; print('both'); lipdp.layers"
    )
    done = python(code)
    assert done.stdout.split() == ["both"]
    assert "lipdp runs on the TensorFlow and JAX backends of Keras" in done.stderr
