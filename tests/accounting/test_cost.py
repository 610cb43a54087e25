"""What every call of the PLD accountant may take, and that coarser grids stay upper bounds."""

import math
import time

import numpy as np
import pytest

from lipdp import accounting
from lipdp.accounting import Mechanism, fft_composition, gaussian, pld
from lipdp.accounting.pld import PldAccountant

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    ("q", "z", "updates", "delta", "exact"),
    [
        (1e-5, 0.8, 10**5, 1e-8, 0.02798),  # it took 12 s and 2 GB
        (1e-5, 0.8, 10, 1e-10, 0.00550),
        (1e-6, 0.4, 10**6, 1e-10, 4.727),
    ],
)
def test_rare_large_losses_take_no_time(q, z, updates, delta, exact, monkeypatch):
    sizes = []
    original = fft_composition.fft.rfft
    monkeypatch.setattr(fft_composition.fft, "rfft", lambda m, size: sizes.append(size) or original(m, size))
    start = time.process_time()
    found = accounting.epsilon(noise_multiplier=z, sampling_probability=q, updates=updates, delta=delta)
    assert time.process_time() - start < 6.0  # below 1 s on an idle core
    assert max(sizes) <= 1.01 * fft_composition.MOST
    assert found == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("factor", [2, 7, 64])
def test_a_coarser_grid_is_an_upper_bound(add, factor):
    fine = gaussian.loss_distribution(0.01, 0.9, 1e-3, add)
    coarse = fine.coarsened(factor)
    assert coarse.step == factor * fine.step
    assert np.sum(coarse.masses) == pytest.approx(np.sum(fine.masses), rel=1e-12)
    ratio = np.sum(fine.masses * np.exp(-fine.losses))
    assert np.sum(coarse.masses * np.exp(-coarse.losses)) == pytest.approx(ratio, rel=1e-12)
    for delta in (1e-3, 1e-5, 1e-8):
        assert (
            fine.epsilon(delta) * (1 - 1e-12) <= coarse.epsilon(delta) <= fine.epsilon(delta) + 2 * factor * fine.step
        )


def test_one_release_of_rare_large_losses_is_that_of_the_closed_form():
    """Long grids are looked at in few places; what they say of a release lies just above the exact curve."""
    for q, z in ((1e-6, 0.4), (1e-5, 0.8), (1e-4, 0.5)):
        for delta in (1e-7, 1e-9, 1e-10):
            found = accounting.epsilon(noise_multiplier=z, sampling_probability=q, updates=1, delta=delta)
            exact = max(
                gaussian.hockey_stick(
                    np.array([found * (1.0 + 1e-9)]), sampling_probability=q, noise_multiplier=z, add=add
                )[0]
                for add in (False, True)
            )
            assert exact <= delta * (1.0 + 1e-6)
            below = gaussian.hockey_stick(
                np.array([found * 0.995]), sampling_probability=q, noise_multiplier=z, add=False
            )[0]
            assert found == 0.0 or below > delta


@pytest.mark.parametrize("tilt", [0.0, 2.0])
def test_a_window_that_is_too_long_is_composed_on_a_coarser_grid(tilt):
    one = gaussian.loss_distribution(1e-4, 0.8, 2e-5, add=False)
    whole, _ = fft_composition.compose([one], [1000], tilt)
    short, _ = fft_composition.compose([one], [1000], tilt, 1 << 14)
    assert len(short.masses) <= 1 << 14 < len(whole.masses)
    for delta in (1e-4, 1e-6):
        tight = accounting.epsilon(noise_multiplier=0.8, sampling_probability=1e-4, updates=1000, delta=delta)
        assert tight * (1 - 1e-4) <= short.epsilon(delta) <= 1.5 * whole.epsilon(delta)


def test_absurd_counts_are_infinite_or_a_number():
    found = PldAccountant().epsilon((Mechanism(256 / 60000, 1.0, 235 * 10**9),), 1e-5)
    assert found > 1e4 and not math.isnan(found)


@pytest.mark.slow
def test_a_grid_of_plans_takes_no_second():
    rng = np.random.default_rng(3)
    worst, times = 0.0, []
    for _ in range(60):
        q, z = 10 ** rng.uniform(-6, 0), 10 ** rng.uniform(math.log10(0.4), math.log10(20))
        updates, delta = int(10 ** rng.uniform(0, 6)), 10 ** rng.uniform(-11, -3)
        pld._single.cache_clear()
        start = time.process_time()
        found = accounting.epsilon(noise_multiplier=z, sampling_probability=q, updates=updates, delta=delta)
        times.append(time.process_time() - start)
        rdp = accounting.epsilon(
            noise_multiplier=z, sampling_probability=q, updates=updates, delta=delta, accountant="rdp"
        )
        worst = max(worst, found / rdp if rdp > 1e-3 else 0.0)
    assert max(times) < 5.0
    assert worst <= 1.02
