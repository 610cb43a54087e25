"""`lipdp images`: folders of image files as a data set."""

import csv
import json

import numpy as np
import pytest

from lipdp import data
from lipdp.cli import main
from tests.helpers.commands import refusal

pytest.importorskip("PIL")
from PIL import Image  # noqa: E402

pytestmark = pytest.mark.backend_free
SHADES = {"dark": 40, "bright": 200}


def write(path, shade, size=(12, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade,) * 3).save(path)


@pytest.fixture
def folder(tmp_path):
    for kind, shade in SHADES.items():
        for i in range(12):
            name = f"{i}.{'jpg' if i % 2 else 'PNG'}"
            write(tmp_path / "photos" / kind / name, shade, (9 + i, 10), "RGB" if i % 3 else "L")
        (tmp_path / "photos" / kind / "Thumbs.db").write_bytes(b"no image")
    write(tmp_path / "photos" / "other" / "0.png", 99)
    return tmp_path / "photos"


def words(folder, *more, name="images.npz"):
    return ["images", str(folder), "--size", "8", "6", "--output", str(folder.parent / name), *more]


def test_folders_become_a_data_set_of_public_classes(folder, capsys):
    assert main(words(folder, "--classes", "dark", "bright")) == 0
    out = capsys.readouterr().out
    assert "24 images of 8 x 6 pixels, in color" in out and "of other kinds or in other folders: 3." in out
    found = data.load(str(folder.parent / "images.npz"))
    assert found.x_train.shape == (24, 8, 6, 3) and found.classes == ("dark", "bright") and found.uncharged == ()
    expected = np.array(list(SHADES.values()))[found.y_train] / 255.0
    np.testing.assert_allclose(found.x_train, expected[:, None, None, None] * np.ones((1, 8, 6, 3)), atol=0.02)


def test_files_that_cannot_be_read_are_named_or_left_out(folder, capsys):
    (folder / "dark" / "a.jpg").write_bytes(b"no image")
    whole = (folder / "dark" / "1.jpg").read_bytes()
    (folder / "dark" / "b.jpg").write_bytes(whole[: len(whole) // 2])
    error = refusal(capsys, *words(folder, "--classes", "dark", "bright"))
    assert "2 of 26 files" in error and "a.jpg" in error and "b.jpg" in error and "--skip-broken" in error
    given = words(folder, "--classes", "dark", "bright", "--skip-broken", "--json", "--color", "grayscale")
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["broken"] == 2
    with np.load(folder.parent / "images.npz") as content:
        assert content["x"].shape == (24, 8, 6, 1) and content["x"].dtype == np.uint8
        assert (content["y"] == "dark").sum() == 12


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--classes", "dark", "cat"), ("'cat'", "bright, dark, empty, other")),
        (("--classes", "dark"), ("two or more",)),
        (("--classes", "dark", "dark"), ("each once",)),
        (("--classes", "dark", ".."), ("'..'",)),
        (("--classes", "dark", "empty"), ("no images in a folder", "empty", ".png")),
    ],
)
def test_classes_are_folders(folder, more, told, capsys):
    (folder / "empty").mkdir()
    error = refusal(capsys, *words(folder, *more))
    assert all(text in error for text in told)


def test_what_cannot_be_is_refused(folder, capsys):
    assert "no such folder" in refusal(capsys, *words(folder / "none"))
    assert ".npz" in refusal(capsys, *words(folder, name="images.csv"))
    assert "--size" in refusal(capsys, "images", folder, "--size", "0", "--output", folder.parent / "a.npz")
    assert main(words(folder)) == 0
    assert "--overwrite" in refusal(capsys, *words(folder))


@pytest.mark.slow
def test_from_folders_to_classes_of_new_images(folder, tmp_path, capsys):
    given = ["images", str(folder), "--size", "16", "--output", str(tmp_path / "images.npz"), "--classes", *SHADES]
    assert main(given) == 0
    run = tmp_path / "run"
    terms = ["--epsilon", "50", "--epochs", "5", "--delta", "1e-2", "--verbose", "0"]
    assert main(["train", "--dataset", str(tmp_path / "images.npz"), *terms, "--output", str(run)]) == 0
    assert "classes: those that occur" not in (run / "privacy.txt").read_text()
    write(tmp_path / "new" / "b.png", 210)
    write(tmp_path / "new" / "a.jpg", 30)
    new = str(tmp_path / "new.npz")
    assert main(["images", str(tmp_path / "new"), "--size", "16", "--output", new]) == 0
    assert f"predict RUN --data {new} --keep files" in capsys.readouterr().out
    target = tmp_path / "classes.csv"
    assert main(["predict", str(run), "--data", new, "--keep", "files", "--output", str(target)]) == 0
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert [row["files"] for row in found] == ["a.jpg", "b.png"] and {row["class"] for row in found} <= set(SHADES)
    wrong = ["predict", run, "--data", new, "--keep", "name", "--output", tmp_path / "other.csv"]
    assert "--keep name" in refusal(capsys, *wrong)


@pytest.mark.parametrize("color", ["rgb", "grayscale"])
def test_gray_images_of_16_bits_are_refused(folder, capsys, color):
    deep = np.linspace(0, 65535, 64).astype("uint16").reshape(8, 8)
    Image.fromarray(deep).save(folder / "dark" / "deep.png")
    error = refusal(capsys, *words(folder, "--classes", "dark", "bright", "--color", color, "--skip-broken"))
    assert "1 of 25 files hold more than 8 bits" in error and "deep.png" in error and "Save them with 8 bits" in error
