"""Wrote the files of this folder. It was run on lipdp 0.1.0, and is kept to show how they came about.

In a checkout of 0.1.0, with the folder above `tests` of this file in NEW:

    for part in files held continued seeded accounting; do
        PYTHONPATH=$PWD:$NEW KERAS_BACKEND=tensorflow python -m tests.golden.make $part
    done
    for part in files_of_jax continued seeded; do
        PYTHONPATH=$PWD:$NEW KERAS_BACKEND=jax python -m tests.golden.make $part
    done
    lipdp train --dataset digits --epsilon 4 --epochs 3 --batch-size 256 --seed 7 --verbose 0 --output run_0_1_0

(`files_of_jax` before `held`.) `other/dpsgd_split` was written anew when rows began to be held out by their contents.
`later_statements` was run on the versions that brought what it asks for.
Do not run the others on a later version: what changed since would become what is expected.
"""

import json
import sys

import keras

from tests.golden import cases, later, ledgers, stored

OF_JAX = ("clipless_jax", "dpsgd_jax")


def files() -> None:
    stored.write_files([name for name in stored.CASES if name not in OF_JAX])


def files_of_jax() -> None:
    stored.write_files(OF_JAX)


def held() -> None:
    write("held.json", {name: stored.held(stored.load(name)) for name in stored.CASES})


def continued() -> None:
    write(f"continued_{keras.backend.backend()}.json", {name: stored.continued(name) for name in stored.STOPPED})


def seeded() -> None:
    write(f"seeded_{keras.backend.backend()}.json", {name: cases.seeded(name) for name in cases.seeded_cases()})


def accounting() -> None:
    write("accounting.json", {name: ledgers.value(name) for name in ledgers.CALLS})
    write("statements.json", {n: ledgers.described(n, ledgers.charged(n)) for n in ledgers.LEDGERS})


def later_statements() -> None:
    write("later.json", {name: later.described(name) for name in later.CASES})


def write(name: str, values) -> None:
    # A line each, so that a difference shows.
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(values.items()))
    (cases.HERE / name).write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    {part.__name__: part for part in (files, files_of_jax, held, continued, seeded, accounting, later_statements)}[
        sys.argv[1]
    ]()
