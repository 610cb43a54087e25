"""Batches for training without privacy: complete, fresh and repeatable."""

import numpy as np
import pytest

from lipdp import diffusion

pytestmark = pytest.mark.backend_free

X = np.linspace(-1, 1, 12).reshape(6, 2)
Y = np.arange(6)


def clean(batches, index):
    """The clean examples behind a batch: those of the noise that EDM's target and input imply."""
    (x, c_noise, *_), target = batches[index]
    sigma, data = np.exp(4 * c_noise)[:, None], diffusion.EDM().sigma_data
    root = np.hypot(sigma, data)
    return data**2 / root * x + sigma * data / root * target


def test_an_epoch_holds_every_example_once():
    batches = diffusion.NoisyBatches(X, Y, batch_size=2, seed=0)
    for _ in range(2):
        found = np.concatenate([clean(batches, i) for i in range(len(batches))])
        labels = np.concatenate([batches[i][0][2] for i in range(len(batches))])
        np.testing.assert_allclose(found, X[labels], atol=1e-4)
        np.testing.assert_array_equal(np.sort(labels), Y)
        batches.on_epoch_end()


def test_noise_is_fresh_and_seeds_repeat_it():
    first, second = (diffusion.NoisyBatches(X, batch_size=3, seed=0) for _ in range(2))
    np.testing.assert_array_equal(first[0][0][0], second[0][0][0])
    before = first[0][0][1]
    assert np.all(first[1][0][1] != before)
    first.on_epoch_end()
    assert np.all(first[0][0][1] != before)
    assert np.all(diffusion.NoisyBatches(X, batch_size=3, seed=1)[0][0][1] != before)


def test_labels_are_dropped_at_their_rate():
    batches = diffusion.NoisyBatches(np.zeros((4000, 1)), np.ones(4000), label_dropout=0.2, no_label=7, batch_size=4000)
    labels = batches[0][0][2]
    assert set(np.unique(labels)) == {1, 7} and np.mean(labels == 7) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [1]}, "One label per example"),
        ({"batch_size": 7}, "`batch_size` must be at most 6"),
        ({"label_dropout": 0.1, "labels": Y}, "needs `labels` and `no_label`"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        diffusion.NoisyBatches(X, **{"batch_size": 2, **options})
