"""How a model gets into files and out of them: whole or not at all, and only what was written."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from typing import Any

import h5py
import numpy as np

from lipdp import _keras, files
from lipdp.training import model_checks

# The attribute of a weight file that holds a digest of all the rest. `.keras` files have the checksums of a zip.
_SEAL = "lipdp_sha256"


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
            super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)  # type: ignore[misc]
        elif overwrite or _keras.may_replace(filepath):
            with files.replacing(filepath, private=self.run.seeded) as path:  # type: ignore[attr-defined]
                super().save(path, overwrite=True, zipped=zipped, **kwargs)  # type: ignore[misc]

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
            super().save_weights(filepath, overwrite=overwrite, **kwargs)  # type: ignore[misc]
        elif overwrite or _keras.may_replace(filepath):
            with files.replacing(filepath, private=self.run.seeded) as path:  # type: ignore[attr-defined]
                super().save_weights(path, overwrite=True, **kwargs)  # type: ignore[misc]
                with h5py.File(path, "r+") as file:
                    file.attrs[_SEAL] = _content(file)

    def load_weights(self, filepath: Any, **kwargs: Any) -> None:
        """Loads what `save_weights` wrote, after a look at whether it still is that."""
        if _is_local(filepath) and os.path.isfile(filepath):
            _check_content(filepath)
        run = self.run  # type: ignore[attr-defined]
        before = dict(vars(run))
        super().load_weights(filepath, **kwargs)  # type: ignore[misc]
        try:
            model_checks.check_ledger(self)
        except ValueError:
            vars(run).update(before)
            raise


def _is_local(path: Any) -> bool:
    return not isinstance(path, io.IOBase) and "://" not in str(path)


def _check_content(path: Any) -> None:
    """Refuses a file that is not what was written; weight files of version 0.1.0 have no digest."""
    try:
        if str(path).endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                whole = archive.testzip() is None  # Keras reads parts of it, past the checksums
        elif str(path).endswith(".weights.h5"):
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
