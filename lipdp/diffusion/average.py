"""The moving average of the weights of a diffusion model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

if TYPE_CHECKING:
    from lipdp.diffusion.model import DiffusionModel


class Average(keras.callbacks.Callback):
    """Moving average of the weights after each release, with a smaller momentum at first."""

    def __init__(self, diffusion: DiffusionModel):
        super().__init__()
        self._diffusion = diffusion

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._diffusion._averaged is None:
            self._hold([np.array(v) for v in self._values()])

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # JAX keeps the values outside of the variables while it trains.
        getattr(self._diffusion, "jax_state_sync", lambda: None)()
        updates = self._diffusion.run.ledger.updates
        momentum = min(self._diffusion.average, (1.0 + updates) / (10.0 + updates))
        pairs = zip(self._diffusion._averaged, self._values(), strict=True)
        self._hold([np.float32(momentum) * a + np.float32(1.0 - momentum) * w for a, w in pairs])

    def _values(self) -> list[np.ndarray]:
        return [keras.ops.convert_to_numpy(v) for v in self._diffusion.network.trainable_variables]

    def _hold(self, values: list[np.ndarray]) -> None:
        object.__setattr__(self._diffusion, "_averaged", values)
