"""One of the processes that train together: `python -m tests.devices.process RANK COUNT PORT '{"strategy": ...}'`."""

import contextlib
import hashlib
import json
import os
import signal
import sys
import warnings


def main() -> None:
    rank, count, port, case = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={case.get('devices', 2)}"
    warnings.simplefilter("ignore")
    import jax
    import keras
    import numpy as np
    from jax._src.distributed import global_state

    # `keras.distribution.initialize` waits longer for a process that is silent.
    jax.distributed.initialize(f"127.0.0.1:{port}", count, rank, heartbeat_timeout_seconds=10)
    from lipdp import callbacks
    from tests.devices import worker

    if case.get("distribution", True):
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    case |= case.get("of", {}).get(str(rank), {})
    more = []
    if "checkpoint" in case:
        more.append(callbacks.Checkpoint(case["checkpoint"], case.get("every", "epoch")))
    if "killed" in case:

        class Kill(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if rank == case["killed"] and self._model.run.ledger.updates == case["at"]:
                    os.kill(os.getpid(), signal.SIGKILL)

        more.append(Kill())
    if case.get("fails") == rank:

        class Fail(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if self._model.run.ledger.updates == case["at"]:
                    raise OSError("a callback")

        more.append(Fail())
    if case.get("stops") == rank:

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = self._model.run.ledger.updates == case["at"]

        more.append(Stop())
    try:
        model, history = worker.trained(case, more)
        weights = [np.asarray(w) for w in model.get_weights()]
        found = {
            "digest": hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest(),
            "weights": [w.tolist() for w in weights],
            "history": history,
            "ledger": model.run.ledger.to_json(),
            "updates": model.run.ledger.updates,
            "made": int(model.optimizer.iterations.numpy()),
            "key": np.asarray(model.optimizer.noise_key).tolist(),
        }
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("FOUND " + json.dumps(found) + "\n")
    sys.stdout.flush()
    if "error" not in found:
        jax.distributed.shutdown()
    elif "killed" not in case and "fails" not in case:
        # Who ends first takes the others down, perhaps before they have said what they found.
        with contextlib.suppress(Exception):
            global_state.client.wait_at_barrier("said", 20_000)
    os._exit(0)  # not JAX's own barrier, which waits for a process that was killed


if __name__ == "__main__":
    main()
