"""The signal-to-noise ratio of a model is that of the noise that `fit` adds."""

import math

import numpy as np
import pytest

from lipdp.report.signal_to_noise import signal_to_noise
from lipdp.strategies import Clipless
from tests.helpers.models import blobs, mlp


@pytest.mark.backend_free
@pytest.mark.parametrize("noise", ["global", "per_layer", "optimal"])
def test_agrees_with_what_fit_adds(noise):
    model = mlp()
    found = signal_to_noise(model, noise_multiplier=1.5, batch_size=40, strategy=Clipless(noise))
    model.fit(*blobs(), batch_size=40, steps_per_epoch=1, noise_multiplier=1.5, delta=1e-4, strategy=Clipless(noise),
              verbose=0)  # fmt: skip
    np.testing.assert_allclose([row["noise_std"] for row in found["variables"]], model.run.noise_std, rtol=1e-9)
    assert found["independent"] == pytest.approx(found["aligned"] / math.sqrt(40))
    double = signal_to_noise(model, noise_multiplier=0.75, batch_size=80, strategy=Clipless(noise))
    assert double["aligned"] == pytest.approx(4.0 * found["aligned"])
    if noise == "global":  # one deviation everywhere: B / (z sqrt(d))
        size = sum(row["size"] for row in found["variables"])
        assert found["aligned"] == pytest.approx(40 / (1.5 * math.sqrt(size)), rel=1e-6)


@pytest.mark.slow
def test_refusals():
    with pytest.raises(ValueError, match="`noise_multiplier` must be a finite number above 0"):
        signal_to_noise(mlp(), noise_multiplier=0.0, batch_size=40)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        signal_to_noise(mlp(), noise_multiplier=1.0, batch_size=0)
    with pytest.raises(ValueError, match="Call `compile"):
        signal_to_noise(object(), noise_multiplier=1.0, batch_size=4)
