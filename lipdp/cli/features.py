"""`lipdp features`: what a frozen network makes of a data set, once, as a file that `lipdp train` reads."""

import argparse
import pathlib

import numpy as np

from lipdp.cli import backbone, datasets, output
from lipdp.privacy import files


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the features of all rows, and their labels."""
    target = pathlib.Path(options.output)
    if target.suffix != ".npz":
        raise ValueError(f"Features are written to .npz files. Received: --output {target}. Pass features.npz.")
    output.check_place(target, options.overwrite)
    dataset = datasets.read(options)
    network = backbone.load(options.backbone)
    classes, shown = np.asarray(dataset.classes), output.verbosity(options)
    arrays = {"x_train": network.features(dataset.x_train, verbose=shown), "y_train": classes[dataset.y_train]}
    if dataset.x_test is not None:
        arrays |= {"x_test": network.features(dataset.x_test, verbose=shown), "y_test": classes[dataset.y_test]}
    with files.replacing(target, private=True) as path, open(path, "wb") as file:
        np.savez(file, **arrays)
    shape = arrays["x_train"].shape
    if options.json:
        output.write_json({"output": str(target), "shape": shape, "backbone": network.name, "sha256": network.digest})
        return
    output.write(
        f"{shape[1]} features of each of {len(arrays['x_train'])} training rows, by {network.name} (SHA-256 "
        f"{network.digest}). They cost no privacy, and the file is as private as the rows.",
        f"Written to {target}",
    )
