import keras
import pytest

import lipdp
from lipdp import certify, layers, losses
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
