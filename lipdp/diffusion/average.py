"""The moving average of the weights of a diffusion model, and how it gets into files and out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from lipdp.diffusion.copies import copied
from lipdp.privacy import provenance

if TYPE_CHECKING:
    from lipdp.diffusion.model import DiffusionModel


class Averaged:
    """What a diffusion model does with the average, which no Keras variable holds."""

    def averaged_network(self) -> keras.Model:
        """Returns a copy of the network with the moving average of its weights; before training, the network."""
        if self._averaged is None:
            return self.network
        network = copied(self.network)
        for variable, value in zip(network.trainable_variables, self._averaged, strict=True):
            variable.assign(value)
        provenance.attribute(network, self.run.ledgers)
        return network

    def _hold(self, values: list[np.ndarray] | None) -> None:
        """Sets the average, past Keras' attribute tracking: host arrays, saved beside the ledger."""
        object.__setattr__(self, "_averaged", values)

    def load_weights(self, filepath: Any, **kwargs: Any) -> None:
        """Loads weights, their average, optimizer state and ledger, see `DP_Model`; after an error, nothing of them."""
        averaged, noising = self._averaged, self.noising.seeds.state.numpy()
        try:
            super().load_weights(filepath, **kwargs)
        except BaseException:
            self._hold(averaged)
            self.noising.seeds.state.assign(noising)
            raise

    def save_own_variables(self, store: dict[str, Any]) -> None:
        super().save_own_variables(store)
        for i, value in enumerate(self._averaged or ()):
            store[f"average_{i}"] = value
        if self.run.repeatable:
            # Files of runs without a seed hold no key, see `Noising`.
            store["noising"] = self.noising.seeds.state.numpy()

    def load_own_variables(self, store: dict[str, Any]) -> None:
        names = [key for key in store.keys() if key.startswith("average_")]
        averaged = [np.asarray(store[f"average_{i}"]) for i in range(len(names))]
        key_of_noise = np.asarray(store["noising"]) if "noising" in store.keys() else None
        names.append("noising")
        super().load_own_variables({key: store[key] for key in store.keys() if key not in names})
        if key_of_noise is not None and key_of_noise.shape == self.noising.seeds.state.shape:  # 0.1.0 had another one
            self.noising.seeds.state.assign(key_of_noise)
        self._hold(averaged or None)


class Average(keras.callbacks.Callback):
    """Moving average of the weights after each release, with a smaller momentum at first."""

    def __init__(self, diffusion: DiffusionModel):
        super().__init__()
        self._diffusion = diffusion

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._diffusion._averaged is None:
            self._diffusion._hold([np.array(v) for v in self._values()])

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # JAX keeps the values outside of the variables while it trains.
        getattr(self._diffusion, "jax_state_sync", lambda: None)()
        updates = self._diffusion.run.ledger.updates
        momentum = min(self._diffusion.average, (1.0 + updates) / (10.0 + updates))
        pairs = zip(self._diffusion._averaged, self._values(), strict=True)
        self._diffusion._hold([np.float32(momentum) * a + np.float32(1.0 - momentum) * w for a, w in pairs])

    def _values(self) -> list[np.ndarray]:
        return [keras.ops.convert_to_numpy(v) for v in self._diffusion.network.trainable_variables]
