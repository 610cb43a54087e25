"""`lipdp export`: a trained model in stock layers, which loads without lipdp, and its statement."""

import argparse
import json
import pathlib
import shutil

from lipdp import report
from lipdp.cli import certify, diffusion, output, quiet
from lipdp.privacy import files
from lipdp.report import folder as folders
from lipdp.report import place

SAVED_MODEL = "saved_model"


def run(options: argparse.Namespace, argv: list[str]) -> None:
    """Writes the model, its privacy statement and the description of its table."""
    target = pathlib.Path(options.output)
    place.refuse_dangling(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"The output is not new or empty. Received: --output {target}. Pass a new folder.")
    path, recorded = certify.find(options.run)
    model = certify.load(path)
    diffusion.refuse(options.run, recorded, model, diffusion.NOT_STOCK)
    import lipdp

    plain = lipdp.export(model)
    target.mkdir(parents=True, exist_ok=True)
    if options.format == "keras":
        plain.save(target / folders.MODEL)
    else:
        _save(plain, target / SAVED_MODEL)
    if recorded is not None:
        source = path.parent
        private = folders.is_private(report.read(source))
        for name in (folders.PRIVACY, folders.STATEMENT, folders.TABLE, folders.TEXTS):
            if (source / name).is_file():
                files.write_text(target / name, (source / name).read_text(encoding="utf-8"), private)
    elif hasattr(model, "privacy"):
        _state(model.privacy, target)
    written = sorted(entry.name for entry in target.iterdir())
    if options.json:
        output.write_json({"output": str(target), "files": written})
        return
    frozen = (recorded or {}).get("backbone")
    behind = [] if frozen is None else [f"Its inputs are features of {frozen['name']}, each row standardized."]
    output.write(
        f"Written to {target}: {', '.join(written)}",
        *behind,
        "The model is made of Keras' own layers and loads without lipdp; training it further has no noise.",
    )


def _state(privacy, target: pathlib.Path) -> None:
    """Writes what a model file itself says: the folder it came from may be gone, or be that of another run."""
    facts = output.finite(privacy.to_dict())
    private = bool(facts.get("seed_fixed_by_user"))
    files.write_text(target / folders.PRIVACY, json.dumps(facts, indent=2, allow_nan=False) + "\n", private)
    files.write_text(target / folders.STATEMENT, privacy.statement(), private)


def _save(plain, path: pathlib.Path) -> None:
    try:
        with quiet.stderr():
            plain.export(path, format="tf_saved_model", verbose=False)
    except ImportError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise ValueError(
            f"A SavedModel needs TensorFlow. Received: --format saved_model; {error}. Install it, or leave it out."
        ) from error
