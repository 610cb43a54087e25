"""Known faults of private training, put into the library while a `with` block lasts, and the audits that see them."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

from keras import ops

from lipdp import audit, backend, checks, optimizer
from lipdp.layers import Bias, SpectralConv2D
from lipdp.sampling import EpochSampler, PoissonSampler, schemes
from lipdp.strategies import DPSGD
from lipdp.training import guards


@dataclasses.dataclass(frozen=True)
class AuditedFault:
    """A fault and the audit that must flag it.

    Args:
        name: What is wrong.
        inject: Returns the context manager that puts it in.
        arguments: Of `audit.white_box`.
        few: The same with fewer runs, for the tests.
    """

    name: str
    inject: Callable[[], Any]
    arguments: dict[str, Any]
    few: dict[str, Any]

    def audit(self, faulty: bool = True, quick: bool = False, **more: Any) -> audit.Audit:
        with self.inject() if faulty else contextlib.nullcontext():
            return audit.white_box(**(self.arguments | (self.few if quick else {}) | more))


def _less_noise():
    add = optimizer._add_noise
    return mock.patch.object(
        optimizer, "_add_noise", lambda gradients, stddevs, *rest: add(gradients, [0.7 * s for s in stddevs], *rest)
    )


@contextlib.contextmanager
def _in_layer(kind, name, wrong):
    """As if it stood in the source: a method that was replaced in a class takes its bounds away."""
    with mock.patch.object(kind, name, wrong), mock.patch.object(checks, "replaced", lambda thing: []):
        yield


def _averaged_taps():
    """The bound of a convolution is that of one tap, as if the taps shared it."""
    right = SpectralConv2D.parameter_bounds

    def wrong(self, *args):
        return tuple(bound / math.sqrt(math.prod(self.kernel_size)) for bound in right(self, *args))

    return _in_layer(SpectralConv2D, "parameter_bounds", wrong)


def _plain_bias():
    return _in_layer(Bias, "call", lambda self, inputs: inputs + self.bias)


def _shuffled():
    def shuffled(sampling, seed, key):
        return EpochSampler(sampling.num_examples, sampling.batch_size, schemes.epoch_key(seed) if key is None else key)

    return mock.patch.dict(schemes._MAKERS, {"poisson": shuffled})


def _realized_divisor():
    """Sums are divided by the number of drawn rows instead of the expected one."""
    right = DPSGD.microbatch

    def wrong(self, calibration, forward, state, index, secret, data, batch_size):
        (sums, *rest), seen, updated = right(self, calibration, forward, state, index, secret, data, batch_size)
        drawn = ops.maximum(ops.sum(data[2]), 1.0)
        return ([s * (batch_size / drawn) for s in sums], *rest), seen, updated

    return mock.patch.object(DPSGD, "microbatch", wrong)


def _noise_per_microbatch():
    """Each of four microbatches gets noise of its own, and their gradients are averaged."""
    add = optimizer._add_noise

    def wrong(gradients, stddevs, key, generator, variables):
        parts = [add(gradients, stddevs, backend.subkey(key, i), generator, variables) for i in range(4)]
        return [sum(part[1:], part[0]) / 4.0 for part in zip(*parts, strict=True)]

    return mock.patch.object(optimizer, "_add_noise", wrong)


@contextlib.contextmanager
def _reused_key():
    ratchet = backend.ratchet
    reused = mock.patch.object(backend, "ratchet", lambda key: (ratchet(key)[0], key))
    # Which would refuse the second update.
    unseen = mock.patch.object(guards.FreshNoise, "on_train_batch_begin", lambda *_, **__: None)
    with reused, unseen:
        yield


def _dropped_rows():
    """What does not fit into a batch of the expected size is dropped, and accounted as Poisson sampling."""

    def wrong(self, rng):
        return min(rng.binomial(self.num_examples, self.sampling_probability), 64)

    return mock.patch.object(PoissonSampler, "_size", wrong)


_FEW = {"runs": 60, "canaries": 128}
_CROWD = {"strategy": "dpsgd", "crowd": 400, "noise_multiplier": 1.5, "updates": 1, "runs": 4000}

FAULTS = (
    AuditedFault("noise of 0.7 times its size", _less_noise, {"strategy": "dpsgd", "epsilon": 4.0}, _FEW),
    AuditedFault(
        "averaged taps in a convolution",
        _averaged_taps,
        {"strategy": "clipless", "epsilon": 4.0, "network": "convolution", "canaries": 16, "runs": 600},
        {"runs": 200},
    ),
    AuditedFault(
        "bias of a feature map without its sqrt(HW)",
        _plain_bias,
        {"strategy": "clipless", "epsilon": 4.0, "network": "feature_map_bias", "canaries": 16, "runs": 600},
        {"runs": 100},
    ),
    AuditedFault(
        "batches shuffled, accounted as Poisson",
        _shuffled,
        {"strategy": "dpsgd", "noise_multiplier": 0.45, "sampling_probability": 0.25, "updates": 4},
        _FEW,
    ),
    AuditedFault("divisor that follows the number of rows", _realized_divisor, _CROWD, {"runs": 1500}),
    AuditedFault(
        "noise drawn for each microbatch, and averaged",
        _noise_per_microbatch,
        {"strategy": "dpsgd", "epsilon": 4.0},
        _FEW,
    ),
    AuditedFault("noise key used again", _reused_key, {"strategy": "dpsgd", "epsilon": 4.0}, _FEW),
    AuditedFault(
        "rows beyond the capacity dropped",
        _dropped_rows,
        {"strategy": "dpsgd", "crowd": 64, "sampling_probability": 1.0, "epsilon": 4.0, "updates": 2, "runs": 2000},
        {"runs": 800},
    ),
)
