"""The secret of a run: what it derives from, and when a fit goes on with it."""

from __future__ import annotations

import dataclasses
import json
import numbers
from typing import Any

import keras
import numpy as np

from lipdp import _keras, backend
from lipdp.losses import penalties
from lipdp.sampling import columns, randomness
from lipdp.training import processes, weights


@dataclasses.dataclass
class Secret:
    """What is left of the secret of a run once its noise has begun.

    Args:
        draws: 32 bytes that batches and released sums are drawn from. They do not give the noise, whose key stands in
            the optimizer.
        basis: Digest of the call of `fit` and of its data, or None without a seed: then no file holds any of this.
        stand: Digest of weights and optimizer at the end of the present or last `fit`, or None while it is not known.
    """

    draws: bytes
    basis: str | None = None
    stand: str | None = None

    def to_list(self) -> list | None:
        """Returns what a file holds."""
        return None if self.basis is None else [self.draws.hex(), self.basis, self.stand]

    @classmethod
    def from_list(cls, values: Any) -> Secret | None:
        """Returns what `to_list` wrote."""
        if values is None:
            return None
        if not (isinstance(values, list) and len(values) == 3 and all(isinstance(v, str) for v in values[:2])):
            raise TypeError("not a secret")
        draws, basis, stand = values
        if len(draws) != 64 or not set(draws) <= set("0123456789abcdef"):
            raise TypeError("not a secret of 256 bits")
        return cls(bytes.fromhex(draws), basis, None if stand is None else str(stand))


def begin(driver: Any) -> np.ndarray | None:
    """Gives the run of a driver its secret, before the first update.

    Returns:
        The key of the noise, eight uint32 words; None where this `fit` goes on with the present stream.

    **Guarantee.**
    Without a seed the secret is 32 bytes from the operating system, new for each `fit`. With a seed it is a
    cryptographic hash (BLAKE2b) of: the seed; the plan; what `fit` was asked for, strategy included; configuration of
    model, loss and optimizer, and code of the user's in them (`bodies.digest`); epsilon and floatx of Keras; the
    ledger; all weights and the state of the optimizer; all bytes of the data, but of a source its length, types and
    shapes, and a fixed sample of its rows; where layers draw random numbers also what decides about these: backend,
    XLA, devices and microbatches. Two fits that differ in one of these have independent noise, batches and noisings;
    two whose sources differ in other rows alone share noise, which the statement says. A `fit` goes on with the stream
    of the one before it only if it goes on with its plan, under the same seed, model, strategy and data, from exactly
    the weights and the state that the stream has led to, and not within an epoch of DPIS, as no file holds the norms
    that were seen; or if it would begin the very stream that a file holds, of which nothing was drawn before the file
    was written. Masks of dropout and random changes of images come from the same secret; the generators of Keras'
    layers take 64 bits of it, and files hold their state only after a `fit` with a seed.
    Not covered: callbacks of the user's that change the training; what `bodies.digest` does not see; a seed
    that can be guessed, by people who know all of the above. The same call on other hardware, another backend or in
    other microbatches has the same noise, if no layer draws, and may differ by rounding.
    """
    run, model, request = driver.run, driver.model, driver.request
    optimizer, before = model.optimizer, run.secret
    if backend.processes()[1] > 1:
        # Other noise or other layers in one of them would go unseen: each takes its own part of one program.
        network = json.dumps(described(model), sort_keys=True)
        processes.compare({"the network": network, "the weights": str(stand_of(model, secrets=False))})
        run.join()
    if request.seed is None:
        root, basis = backend.of_first(randomness.fresh()), None
    else:
        basis, stand = _basis(driver), stand_of(model)
        # Processes with other rows would have other keys, and errors of JAX show both.
        seen = None if before is None else before.to_list()
        processes.compare({"the data": basis, "the earlier `fit`s": str([seen, stand])})
        known = before is not None and driver.continued and stand is not None
        known = known and (before.basis, before.stand) == (basis, stand) and driver.repeats_from_here()
        if known and run.ledger.updates == int(optimizer.iterations.numpy()) and optimizer.noise_key.numpy().any():
            return None
        plan = json.dumps([driver.plan.to_dict(), driver.details()], sort_keys=True)
        start = stand_of(model, secrets=False)
        root = randomness.from_seed(request.seed, basis, plan, run.ledger.to_json(), str(start))
    run.secret = Secret(randomness.derive(root, "draws"), basis)
    for place, seeds in generators(model):
        words = randomness.words(root, "layer", *place)
        if hasattr(seeds, "reseed"):
            seeds.reseed(words)
        else:
            seeds.state.assign(words[:2].astype(seeds.state.dtype))
    key = randomness.words(root, "noise")
    # The present stream, of which nothing was drawn: one of the two moves on with each release.
    same = before is not None and before.draws == run.secret.draws and np.array_equal(optimizer.noise_key.numpy(), key)
    return None if same else key


def end(model: keras.Model, secret: Secret) -> None:
    """Forgets what the layers of a model have drawn from, unless files are to hold it.

    **Guarantee.** After a `fit` without a seed no state of the model tells masks that were drawn, in whatever format
    somebody saves it. Not covered: what a callback saves while `fit` runs, past `save` and `save_weights`.
    """
    if secret.basis is not None:
        return
    for place, seeds in generators(model):
        if not hasattr(seeds, "reseed"):  # these tell nothing of what is over
            # From the secret: the same in processes that train together.
            words = randomness.words(secret.draws, "layer, afterwards", *place)[:2]
            seeds.state.assign(words.astype(seeds.state.dtype))


def generators(model: keras.Model) -> list[tuple[tuple[int, ...], keras.random.SeedGenerator]]:
    """Returns what the layers of a model draw random numbers from, each with its place in the model."""
    return [
        ((number, k) if k else (number,), seeds)
        for number, layer in enumerate(_keras.walk(model))
        for k, seeds in enumerate(_keras.seed_generators(layer))
    ]


def stand_of(model: keras.Model, secrets: bool = True) -> str | None:
    """Returns a digest of weights, optimizer and random states, but for what `fit` sets itself.

    Args:
        model: The model.
        secrets: Whether to look at the states that `begin` sets, too.
    """
    optimizer = model.optimizer
    states = [seeds.state for _, seeds in generators(model)] if secrets else []
    own = (optimizer.noise_key, optimizer.noise_std, optimizer.budget)
    found = weights.fingerprint(model, states, without=own)
    return None if found is None else found.hex()


def _basis(driver: Any) -> str:
    """Returns a digest of what a stream of noise may be used for."""
    request, model = driver.request, driver.model
    # Rows whose random numbers come by their place are other rows in other microbatches, and on other devices.
    by_row = bool(generators(model)) or getattr(request.strategy, "augmentation", None) is not None
    asked = _plain(request.to_dict(), {})
    places = [driver.microbatch, backend.row_shards()[0], *_program(model)] if by_row else None
    parts = [asked, request.noise_generator, places, described(model)]
    parts += [] if model.run.bodies is None else [model.run.bodies]
    # Configurations name neither single weights that are frozen, nor layers inside of others, nor what has no decay.
    frozen = [number for number, variable in enumerate(model.weights) if not variable.trainable]
    parts += [frozen] if frozen else []
    undecayed = model.optimizer.undecayed(model.trainable_variables)
    parts += [["undecayed", undecayed]] if undecayed else []
    # Layers of a user's own need not say theirs.
    penalized = penalties.described(model)
    parts += [["penalized", penalized]] if penalized else []
    parts += everywhere()
    data = columns.digest((driver.x, driver.y))
    return randomness.from_seed(request.seed, "basis", json.dumps(parts, sort_keys=True), data).hex()


def everywhere() -> list:
    """Returns what losses and layers of Keras compute with wherever they are, where it is not the default."""
    set_by_user = keras.config.epsilon(), keras.config.floatx()
    return [] if set_by_user == (1e-7, "float32") else [list(set_by_user)]


def _program(model: keras.Model) -> list:
    """Returns what decides about the numbers that a generator gives: XLA gives others."""
    return [keras.backend.backend(), backend.compiles(model)]


def described(model: keras.Model) -> Any:
    """Returns model, loss and optimizer as JSON values that are the same for two models that were built alike."""
    loss, optimizer = model.loss, model.optimizer
    names: dict[str, str] = {}
    layers = [model, *_keras.walk(model)]
    # Operations as `h + x` are no layers.
    operations = [operation for layer in layers for operation in getattr(layer, "operations", ())]
    # Keras numbers the names that it gives, all through a process.
    for named in (*layers, loss, optimizer, *operations):
        names.setdefault(str(getattr(named, "name", named)), f"#{len(names)}")
    with _keras.not_importing_tensorflow():
        try:
            rates = optimizer.get_config()
        except NotImplementedError:  # of a schedule without one; what it is `bodies` tells
            rates = _keras.optimizer_config(optimizer)
        if isinstance(rates.get("learning_rate"), numbers.Number):
            del rates["learning_rate"]  # a variable of the optimizer, which callbacks may set
        parts = [_config(model), _config(loss), type(optimizer).__name__, rates]
        return _plain(parts, names)


def _config(described: Any) -> list:
    try:
        return [type(described).__name__, described.get_config()]
    except Exception:  # one that cannot be written: a subclassed model, a function
        inside = _keras.walk(described, deep=False) if isinstance(described, keras.Layer) else []
        return [_qualified(described), *map(_config, inside)]


def _qualified(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


# How objects are built and compiled follows from what they are, and is not in every state of a model.
_LEFT_OUT = ("build_config", "compile_config")
# Under these keys names of layers stand: elsewhere a text is an option, which may read like one.
_NAMED = ("name", "names", "keras_history", "input_layers", "output_layers")


def _plain(value: Any, names: dict[str, str], named: bool = False, node: bool = False) -> Any:
    """Returns configurations with `names` in the place of those that stand where names of layers do."""
    if isinstance(value, dict):
        alone = set(value) == {"name"} and not node  # that of a dtype policy, which is no node of a graph
        nodes = "inbound_nodes" in value
        return {
            str(k): _plain(v, names, k in _NAMED and not alone, nodes and k == "config")
            for k, v in value.items()
            if k not in _LEFT_OUT
        }
    if isinstance(value, (list, tuple)):
        return [_plain(v, names, named) for v in value]
    if isinstance(value, str):
        return names.get(value, value) if named else value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if hasattr(value, "get_config") and not isinstance(value, type):
        return _plain(_config(value), names, named)
    return _qualified(value)
