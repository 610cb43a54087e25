"""Seeds, so that a failure repeats."""

import keras
import pytest


@pytest.fixture(autouse=True)
def _seeds():
    keras.utils.set_random_seed(0)
