"""A threshold that follows a private quantile of norms (Andrew et al. 2021)."""

from typing import Any

import numpy as np
from keras import ops

from lipdp import checks

# In the words of the statement.
FOLLOWING = "following a private quantile of the norms that is part of each release (sensitivity: at first)"


class FollowsQuantile:
    """A strategy whose clipping threshold `C = C_0 * s` follows a private quantile of norms, if asked to.

    Each update releases, beside the gradient, how many of its examples stay below C, less half of them, with
    noise of standard deviation `quantile_noise`; then `s` is multiplied by
    `exp(-quantile_rate * (fraction below - quantile))`.

    Attributes:
        quantile: Fraction in (0, 1) of examples that should stay below; None: C stays as it is.
        quantile_noise: Standard deviation of the noise on the count; None: B / 20.
        quantile_rate: Learning rate of log C, above 0.

    **Guarantee.** An example moves the centered count by 1/2, so a count alone is a Gaussian mechanism of multiplier
    `2 quantile_noise`; together with the gradient it is one of the plan's multiplier, see `Calibration.noise_stddevs`.
    C depends on released counts only.
    """

    quantile: float | None
    quantile_noise: float | None
    quantile_rate: float

    def _check_quantile(self) -> dict[str, float | None]:
        """Returns the three arguments in the form in which they were checked."""
        if self.quantile is None and self.quantile_noise is not None:
            received = f"quantile_noise={self.quantile_noise!r} without one"
            raise ValueError(f"`quantile_noise` belongs to a `quantile`. Received: {received}.")
        return {
            "quantile": checks.fraction("quantile", self.quantile, optional=True),
            "quantile_noise": checks.positive("quantile_noise", self.quantile_noise, optional=True),
            "quantile_rate": checks.positive("quantile_rate", self.quantile_rate),
        }

    def initial_state(self, variables: list) -> list:
        """Returns the factor s, or nothing."""
        return [] if self.quantile is None else [np.ones((), "float32")]

    def noise_scales(self, state: list) -> Any:
        """Returns s, in proportion to which the noise is; None without a quantile."""
        return state[0] if state else None

    def count_noise_std(self, batch_size: int) -> float | None:
        """Returns the standard deviation of the noise on the count; None without a quantile."""
        if self.quantile is None:
            return None
        return batch_size / 20.0 if self.quantile_noise is None else self.quantile_noise

    def counts(self, state: list, norms: Any, threshold: Any, weight: Any) -> list:
        """Returns the count to release: examples below the threshold, less half of all."""
        return [ops.sum(weight * (ops.cast(norms <= threshold, weight.dtype) - 0.5))] if state else []

    def next_factor(self, state: list, count: Any, batch_size: int, least: float, most: float) -> list:
        """Returns the next s, within `least` and `most`, from a released count."""
        if not state:
            return state
        fraction = count / batch_size + 0.5
        return [ops.clip(state[0] * ops.exp(-self.quantile_rate * (fraction - self.quantile)), least, most)]
