"""How a model gets into files and out of them: whole or not at all, and only what was written."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import zipfile
from typing import Any

import h5py
import numpy as np

from lipdp import _keras, backend
from lipdp.accounting import Sampling
from lipdp.privacy import Ledger, Release, files, provenance
from lipdp.training import low_rank, model_checks, seeding
from lipdp.training.state import Forgets

# The attribute of a weight file that holds a digest of all the rest. `.keras` files have the checksums of a zip.
_SEAL = "lipdp_sha256"
# The same for the bytes, behind what HDF5 reads: a wrong bit can keep its library busy for ever.
_TRAILER = b"lipdp_sha256:"
_TRAILER_BYTES = len(_TRAILER) + 2 * hashlib.sha256().digest_size
# Formats by which `load_own_variables` is called. Keras sets weights past it from others: its old one and Orbax.
_WITH_LEDGER = (".keras", ".weights.h5", ".weights.json")


class Saving:
    """What every private model does about files. Keras' own callbacks, such as `ModelCheckpoint`, save by it."""

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **kwargs: Any) -> None:
        """Saves the model as a `.keras` file, or as a folder, whole or not at all.

        Args:
            filepath: Path of the file, which ends in `.keras`.
            overwrite: Whether to replace a file without asking.
            zipped: As in Keras; False writes a folder.
            **kwargs: As in Keras.

        Raises:
            ValueError: a format that has no place for the ledger, or that Keras does not know.
            OSError: the file cannot be written; an earlier one of that name is as it was.

        Guarantee:
            See `files.replacing`. A file of a run with a fixed seed, which holds the state of the generator, can be
            read by its owner only. Not covered: paths that are not on this machine, and `keras.saving.save_model`.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "Keras' old format for whole models has no place for the privacy ledger. Received: "
                f"filepath={str(filepath)!r}. Save the model as a .keras file, or call `save_weights`."
            )
        if not _is_local(filepath) or (zipped is not False and not str(filepath).endswith(".keras")):
            super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)
        elif overwrite or _keras.may_replace(filepath):
            with backend.apart(), files.replacing(filepath, private=self.run.ledger.seeded) as path:
                super().save(path, overwrite=True, zipped=zipped, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves weights, optimizer state and ledger as a `.weights.h5` file, whole or not at all.

        Args:
            filepath: Path of the file, which ends in `.weights.h5`.
            overwrite: Whether to replace a file without asking.
            **kwargs: As in Keras.

        Raises:
            OSError: the file cannot be written; an earlier one of that name is as it was.

        Guarantee:
            See `save`. The file holds a digest of its content, which `load_weights` checks. Not covered: weights in
            several files (`max_shard_size`), which are written in place and have no digest.
        """
        sharded = kwargs.get("max_shard_size") is not None
        if sharded or not _is_local(filepath) or not str(filepath).endswith(".weights.h5"):
            super().save_weights(filepath, overwrite=overwrite, **kwargs)
        elif overwrite or _keras.may_replace(filepath):
            with backend.apart(), files.replacing(filepath, private=self.run.ledger.seeded) as path:
                super().save_weights(path, overwrite=True, **kwargs)
                with h5py.File(path, "r+") as file:
                    file.attrs[_SEAL] = _content(file)
                with open(path, "r+b") as raw:
                    digest = _bytes(raw, os.path.getsize(path))
                    raw.write(_TRAILER + digest)

    def load_weights(self, filepath: Any, **kwargs: Any) -> None:
        """Loads weights, optimizer state and ledger; all of it or, after an error, nothing.

        Raises:
            ValueError: `fit` is running, the file or its format has no ledger, or its ledger would make this model
                forget releases: that of another model, or of a copy of this one that went on by itself.
        """
        if self.run.armed:
            raise self._refuse_while_fitting()
        if not str(filepath).endswith(_WITH_LEDGER):
            raise ValueError(
                "Weights must come from a file with the privacy ledger that says what they cost: .keras, .weights.h5 "
                f"or .weights.json. Received: filepath={str(filepath)!r}. Save the model that made them in one of "
                "these; weights that cost nothing go into a plain Keras model first, and then into `from_keras`."
            )
        if _is_local(filepath) and not os.path.exists(filepath):
            raise FileNotFoundError(errno.ENOENT, f"There is no such file{files.home_hint(filepath)}", str(filepath))
        if self.compiled:
            self.optimizer.build(self.trainable_variables)
        variables = [*self.weights, *(self.optimizer.variables if self.compiled else ())]
        before = [v.numpy() for v in variables]
        run, ledger, held = self.run, self.run.ledger.copy(), dict(vars(self.run))
        run.load_error, run.loaded = None, False
        if _is_local(filepath) and os.path.isfile(filepath):
            _check_content(filepath)
        try:
            run.rolls_back = True
            super().load_weights(filepath, **kwargs)
            if not run.loaded:
                received = "a file from which Keras did not load the model itself"
                raise run.load_error or _no_ledger(self.name, received)
            model_checks.check_ledger(self)
        except BaseException:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            vars(run).update({**held, "load_error": run.load_error})
            run.ledger.become(ledger)
            if self.run.load_error is not None:
                raise self.run.load_error from None
            raise
        finally:
            run.rolls_back = False

    def save_own_variables(self, store: dict[str, Any]) -> None:
        super().save_own_variables(store)
        store["lipdp"] = self.run.to_array()
        for name, state in self._random_states().items() if self.run.repeatable else ():
            store[name] = np.asarray(state.numpy(), "int64")
        for name, value in low_rank.values(self).items():
            store[name] = value

    def load_own_variables(self, store: dict[str, Any]) -> None:
        try:
            if "lipdp" not in store.keys():
                raise _no_ledger(self.name, "a file that lipdp did not write")
            self.run.restore(store["lipdp"][...])
            self.run.loaded = True
        except ValueError as error:
            if self.run.armed:  # past `load_weights`, by a function of Keras
                raise self._refuse_while_fitting() from error
            # Keras may swallow errors of single objects; `load_weights` must not.
            self.run.load_error = error
            if not self.run.rolls_back and not isinstance(error, Forgets):  # whose cost is known
                provenance.attribute(self, [_of_unknown_cost()])
            raise
        states = self._random_states()
        for name in set(states) & set(store.keys()):
            states[name].assign(store[name][...].astype(states[name].dtype))
        low_rank.restore(self, store)
        rest = {key: store[key] for key in store.keys() if key not in ("lipdp", *states)}
        super().load_own_variables({key: value for key, value in rest.items() if not key.startswith(low_rank.PREFIX)})

    def _refuse_while_fitting(self) -> ValueError:
        return ValueError(
            "A file brings its own noise, which the present plan does not charge. Received: load_weights while "
            "`fit` runs, by a callback. Load it before `fit`, which goes on from there."
        )

    def _random_states(self) -> dict[str, Any]:
        """Returns the states of Keras' random layers by name; a file holds them after a `fit` with a seed only."""
        stock = [seeds for _, seeds in seeding.generators(self) if not hasattr(seeds, "reseed")]
        return {f"random_{i}": seeds.state for i, seeds in enumerate(stock)}


def _no_ledger(model: str, received: str) -> ValueError:
    return ValueError(
        f"The file holds no privacy ledger for model '{model}', so nothing can be said about what its weights cost. "
        f"Received: {received}. Load it into a plain Keras model; `from_keras` of that trains public weights on."
    )


def _of_unknown_cost() -> Ledger:
    """Returns what stands for weights that Keras took from a file without its ledger: no epsilon bounds their cost."""
    ledger = Ledger()
    ledger.charge(
        Release(
            sampling=Sampling().bind(1, 1),
            noise_multiplier=0.0,
            sensitivity=1.0,
            strategy="a file whose ledger was not read",
            noise_allocation="unknown",
        )
    )
    return ledger


def _is_local(path: Any) -> bool:
    return not isinstance(path, io.IOBase) and "://" not in str(path)


def _check_content(path: Any) -> None:
    """Refuses a file that is not what was written; weight files of version 0.1.0 have no digest."""
    try:
        if str(path).endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                whole = archive.testzip() is None  # Keras reads parts of it, past the checksums
        elif str(path).endswith(".weights.h5"):
            if not _whole_bytes(path):
                raise ValueError("its bytes are not those that were written")
            with h5py.File(path, "r") as file:
                seal = file.attrs.get(_SEAL)
                whole = seal is None or seal == _content(file)
        else:
            return
    except Exception as error:  # zipfile, zlib and h5py each have their own
        raise ValueError(f"{path} is corrupt: {error}. Nothing was loaded. Take another copy.") from error
    if not whole:
        raise ValueError(
            f"{path} is corrupt: its weights are not those that were written. Nothing was loaded. Take another copy."
        )


def _whole_bytes(path: Any) -> bool:
    """Whether the bytes of a file are those that were written; files of earlier versions do not say."""
    size = os.path.getsize(path) - _TRAILER_BYTES
    if size < 0:
        return True
    with open(path, "rb") as raw:
        raw.seek(size)
        trailer = raw.read()
        raw.seek(0)
        return not trailer.startswith(_TRAILER) or trailer == _TRAILER + _bytes(raw, size)


def _bytes(raw: Any, size: int) -> bytes:
    """Returns the digest of the next `size` bytes, as text."""
    digest = hashlib.sha256()
    while size:
        part = raw.read(min(size, 2**20))
        if not part:
            break
        digest.update(part)
        size -= len(part)
    return digest.hexdigest().encode()


def _content(file: h5py.File) -> str:
    """Returns a digest of the names, types, shapes and values of all datasets in a file."""
    digest = hashlib.sha256()

    def add(name, item):
        for key in sorted(item.attrs):
            digest.update(f"{key}={item.attrs[key]!r} ".encode())
        if isinstance(item, h5py.Dataset):
            digest.update(f"{name} {item.dtype} {item.shape} ".encode())
            digest.update(np.ascontiguousarray(item[...]).tobytes())
        else:
            digest.update(f"{name}/ ".encode())

    file.visititems(add)
    return digest.hexdigest()
