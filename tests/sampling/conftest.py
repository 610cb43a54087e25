"""What tests of `tf.data` pipelines begin with."""

import pytest

from tests.helpers.pipelines import X, Y


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def base(tf):
    return tf.data.Dataset.from_tensor_slices((X, Y))
