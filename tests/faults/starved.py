"""A process that trains and may run out of memory: `python -m tests.faults.starved FOLDER [UPDATE]`.

With an update it takes no more memory from the system after that one, as under a limit of a container.
"""

import hashlib
import resource
import sys
from pathlib import Path

import keras
import numpy as np

import lipdp
from lipdp import callbacks

UPDATES = 6


class Log(keras.callbacks.Callback):
    """Writes down each update, and after one of them sets the limit."""

    def __init__(self, folder, last):
        super().__init__()
        self.file, self.last = folder / "log", last

    def on_train_batch_end(self, batch, logs=None):
        updates = self._model.run.ledger.updates
        with open(self.file, "a") as file:
            file.write(f"{updates}\n")
        if updates == self.last:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))


def main(folder: Path, last: int | None) -> None:
    keras.utils.set_random_seed(0)
    # Activations of 60 MB: memory is taken anew in each update.
    wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(250_000, "tanh"), keras.layers.Dense(1)])
    model = lipdp.DP_Model.from_keras(wide)
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 4)).astype("float32"), rng.normal(size=(120, 1)).astype("float32")
    keep = callbacks.Checkpoint(folder / "c.weights.h5", every=1)
    model.fit(
        x, y, batch_size=60, steps_per_epoch=UPDATES, noise_multiplier=1.0, delta=1e-3, strategy="dpsgd", seed=1,
        verbose=0,
        callbacks=[Log(folder, last), keep],
    )  # fmt: skip
    state = hashlib.sha256()
    for value in model.get_weights():
        state.update(value.tobytes())
    sys.stdout.write(f"{model.privacy.updates} {model.privacy.spent():.12g} {state.hexdigest()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
