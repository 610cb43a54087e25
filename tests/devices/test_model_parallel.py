"""`fit` with `keras.distribution.ModelParallel`: kernels, their optimizer state and their noise are parted."""

import keras
import pytest

from tests.devices import test_data_parallel
from tests.devices.worker import STRATEGIES

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow trains on one device")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_parted_model_trains_as_a_whole_one(strategy):
    cases = [{"strategy": strategy, "columns": columns, "microbatch": m} for columns, m in ((4, None), (2, 18))]
    cases.append({"strategy": strategy, "columns": 4, "generator": "chacha20"})
    test_data_parallel.check(8, cases)


@pytest.mark.slow
def test_a_layout_may_part_all_kernels():
    case = {"strategy": "dpsgd", "columns": 2, "all_kernels": True, "penalty": True}
    test_data_parallel.check(4, [case, {**case, "columns": 1}])


@pytest.mark.slow
def test_each_device_holds_a_part_of_kernel_state_and_noise():
    (found,) = test_data_parallel.run(8, [{"width": 2048, "columns": 4}])
    (arguments, rest), (parted_arguments, parted_rest) = found["alone"], found["parted"]
    assert parted_arguments < 0.3 * arguments
    # Gradient, noise and what is made of them; the batch of one device is larger than that of eight.
    assert parted_rest < 0.4 * rest
