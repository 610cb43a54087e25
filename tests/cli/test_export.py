"""`lipdp export` of a model file, without the folder of its run."""

import json

import keras
import pytest

from lipdp.cli import main
from lipdp.report import folder as folders
from tests.helpers.models import DELTA, blobs, mlp

pytestmark = pytest.mark.backend_free


def exported(model, folder):
    model.save(folder / "m.keras")
    assert main(["export", str(folder / "m.keras"), "--output", str(folder / "out")]) == 0
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 3])
def test_the_export_of_a_file_has_the_statement_of_the_model_in_it(seed, tmp_path):
    model = mlp()
    model.fit(*blobs(), batch_size=40, steps_per_epoch=2, noise_multiplier=2.0, delta=DELTA, seed=seed, verbose=0)
    out = exported(model, tmp_path)
    assert {path.name for path in out.iterdir()} == {folders.MODEL, folders.PRIVACY, folders.STATEMENT}
    assert json.loads((out / folders.PRIVACY).read_text()) == json.loads(json.dumps(model.privacy.to_dict()))
    assert (out / folders.STATEMENT).read_text() == model.privacy.statement()
    for name in (folders.PRIVACY, folders.STATEMENT):
        others = (out / name).stat().st_mode & 0o077
        assert (others == 0) == (seed is not None)  # it names a seed


def test_a_plain_model_has_nothing_to_state(tmp_path):
    plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    assert {path.name for path in exported(plain, tmp_path).iterdir()} == {folders.MODEL}
