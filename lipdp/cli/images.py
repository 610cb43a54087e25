"""`lipdp images`: image files in folders as one .npz file, which `lipdp train` and `lipdp predict` read."""

import argparse
import math
import pathlib
import shlex
from typing import Any

import numpy as np

from lipdp.cli import output
from lipdp.privacy import files

# What Keras reads, by the end of the name.
_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
_NAMED = 3  # files of an error


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes all images at one size, and the class of each, which is the folder that it lies in."""
    folder, target = pathlib.Path(options.folder), pathlib.Path(options.output)
    if target.suffix != ".npz":
        raise ValueError(f"Images are written to .npz files. Received: --output {target}. Pass images.npz.")
    output.check_place(target, options.overwrite)
    if len(options.size) > 2 or min(options.size) < 1:
        raise ValueError(f"A size is one number, or height and width. Received: --size {options.size}.")
    size = (options.size * 2)[:2]
    found, others = _files(folder, options.classes)
    read, broken, deep = _read([path for path, _ in found], size, options.color)
    if deep:
        raise ValueError(
            f"{len(deep)} of {len(found)} files hold more than 8 bits for a pixel. Received: {_some(found, deep)}. "
            "Save them with 8 bits, by a scale that is the same for all and public."
        )
    if broken and not options.skip_broken:
        raise ValueError(
            f"{len(broken)} of {len(found)} files are no images that can be read. Received: {_some(found, broken)}. "
            "Remove them, or pass --skip-broken, which leaves them out."
        )
    if not len(read):
        raise ValueError(f"No file is an image that can be read. Received: {folder}.")
    left = [pair for i, pair in enumerate(found) if i not in set(broken)]
    arrays: dict[str, Any] = {"x": read}
    if options.classes is None:
        arrays["files"] = np.array([str(path.relative_to(folder)) for path, _ in left])
    else:
        arrays |= {"y": np.array([kind for _, kind in left]), "classes": np.array(options.classes)}
    with files.replacing(target, private=True) as path, open(path, "wb") as file:
        np.savez(file, **arrays)
    if options.json:
        output.write_json({"output": str(target), "shape": read.shape, "broken": len(broken), "others": others})
        return
    name = shlex.quote(str(target))
    labeled = f"lipdp train --dataset {name} --epsilon 2 --validation-split 0.2"
    notes = [f"Left out, as they cannot be read: {len(broken)}."] if broken else []
    notes += [f"Left out, as they are of other kinds or in other folders: {others}."] if others else []
    output.write(
        f"{len(read)} images of {size[0]} x {size[1]} pixels, in {'color' if options.color == 'rgb' else 'gray'}.",
        *notes,
        f"Written to {target}, which is as private as the images.",
        f"Then: {labeled if options.classes else f'lipdp predict RUN --data {name} --keep files --output classes.csv'}",
    )


def _files(folder: pathlib.Path, classes: list[str] | None) -> tuple[list[tuple[pathlib.Path, str]], int]:
    """Returns the files of images, each with its class, and how many others there are."""
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no such folder. Received: {str(folder)!r}. Pass a folder of images.")
    repeated = [kind for kind in classes or () if (classes or []).count(kind) > 1]
    missing = [kind for kind in classes or () if not (folder / kind).is_dir() or kind in ("", ".", "..")]
    if repeated or missing or (classes is not None and len(classes) < 2):
        there = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())) or "none"
        what = f"{missing[0]!r}, which is no folder in it" if missing else " ".join(classes or ())
        raise ValueError(
            f"--classes names the folders in {folder}, two or more of them, each once. Received: {what}. Its folders "
            f"are: {there}."
        )
    every = sorted(path for path in folder.rglob("*") if path.is_file())
    kinds = {kind: folder / kind for kind in classes or ()}
    found = []
    for path in every:
        kind = next((kind for kind, inside in kinds.items() if inside in path.parents), None)
        if path.suffix.lower() in _ENDINGS and not path.name.startswith(".") and (kind is not None or classes is None):
            found.append((path, kind or ""))
    empty = [kind for kind in kinds if all(kind != other for _, other in found)]
    if empty or not found:
        raise ValueError(
            f"There are no images in a folder. Received: {kinds[empty[0]] if empty else folder}. Files must end in "
            f"{', '.join(_ENDINGS)}."
        )
    return found, len(every) - len(found)


def _some(found: list[tuple[pathlib.Path, str]], places: list[int]) -> str:
    """Returns the names of a few files."""
    return ", ".join(str(found[i][0]) for i in places[:_NAMED]) + (", ..." if len(places) > _NAMED else "")


def _read(paths: list[pathlib.Path], size: list[int], color: str) -> tuple[np.ndarray, list[int], list[int]]:
    """Returns the images as one array of uint8, and the places of files that cannot be read, or that hold more."""
    import keras

    channels = 3 if color == "rgb" else 1
    read = np.zeros((len(paths), math.prod(size) * channels), np.uint8)
    broken: list[int] = []
    deep: list[int] = []
    for i, path in enumerate(paths):
        try:
            if _is_deep(path):
                deep.append(i)
                continue
            image = keras.utils.load_img(path, color_mode=color, target_size=tuple(size), interpolation="bilinear")
            read[i] = np.asarray(image).ravel()
        except ImportError as error:  # Keras reads images by Pillow
            raise ImportError("Pillow reads the images. Received: no such package. pip install pillow.") from error
        except Exception:  # of Pillow: other files, those that end too early, and those that are too large to be safe
            broken.append(i)
    whole = np.delete(read, broken, axis=0) if broken else read
    return whole.reshape(len(whole), *size, channels), broken, deep


def _is_deep(path: pathlib.Path) -> bool:
    """Whether an image is gray with more than 8 bits: of these Pillow or NumPy would keep the wrong ones."""
    from PIL import Image

    with Image.open(path) as image:
        return image.mode.startswith(("I", "F"))
