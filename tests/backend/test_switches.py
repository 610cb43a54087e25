import keras
import pytest

import lipdp
from lipdp import certify, layers, losses
from lipdp.backend import switches
from tests.helpers.models import DELTA, blobs


@pytest.mark.parametrize("flag", ["--xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math=true"])
@pytest.mark.parametrize("strategy", ["clipless", "dpsgd", "adaclip", "dpis"])
def test_fast_math_of_xla_is_refused(strategy, flag, monkeypatch):
    """Without NaN and infinity the tests that leave a row out of an update are gone, and one row ended the training."""
    x, y = blobs()
    head = keras.layers.Activation("tanh") if strategy != "clipless" else layers.GroupSort(2)
    model = lipdp.DP_Sequential([layers.BoundedInput(x.shape[1:], norm=5.0), head, layers.SpectralDense(3)])
    model.compile(keras.optimizers.SGD(0.1), losses.SparseCategoricalCrossentropy())
    monkeypatch.setenv("XLA_FLAGS", f"--xla_backend_optimization_level=0 {flag}")
    with pytest.raises(ValueError, match=r"NaN and infinity.*fast_math"):
        model.fit(x, y, strategy=strategy, noise_multiplier=1.0, batch_size=40, delta=DELTA, verbose=0)
    assert model.run.ledger.updates == 0
    with pytest.raises(ValueError, match=r"NaN and infinity.*fast_math"):
        certify.radii(model, x)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert certify.radii(model, x).shape == (len(x),)


@pytest.mark.parametrize("text", ["--xla_cpu_enable_fast_math='true'", '--xla_cpu_enable_fast_math="1"'])
@pytest.mark.parametrize("in_file", [False, True])
def test_fast_math_is_refused_in_quotes_and_in_a_file(in_file, text, monkeypatch, tmp_path):
    """XLA strips quotes around a value, and takes a text that is no flag as the path of a file of flags."""
    path = tmp_path / "flags.txt"
    path.write_text(f"--xla_backend_optimization_level=0\n{text}\n")
    monkeypatch.setenv("XLA_FLAGS", str(path) if in_file else text)
    with pytest.raises(ValueError, match=r"NaN and infinity.*fast_math"):
        switches.refuse_fast_math()
    path.write_text("--xla_cpu_enable_fast_math='false'")
    monkeypatch.setenv("XLA_FLAGS", str(path) if in_file else path.read_text())
    switches.refuse_fast_math()
