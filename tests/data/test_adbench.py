"""ADBench's tables: from the folder in LIPDP_DATA, with public ranges."""

import numpy as np
import pytest

from lipdp import data
from lipdp.data import adbench

pytestmark = pytest.mark.backend_free


def _write(folder, name, rows=None, columns=None):
    table = adbench.TABLES[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows or table.rows, columns or table.columns))
    (folder / "adbench").mkdir(exist_ok=True)
    np.savez(folder / "adbench" / f"{name}.npz", X=x, y=(rng.random(len(x)) < 0.3).astype("int64"))
    return x


def test_a_table_is_read_from_the_folder_as_it_is(tmp_path, monkeypatch):
    x = _write(tmp_path, "yeast")
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    found = data.load("adbench/yeast")
    assert found.x_train == pytest.approx(x, rel=1e-6) and found.x_train.dtype == np.float32
    assert found.is_table and found.classes == (0, 1) and found.x_test is None
    assert found.name == "adbench/yeast" and len(found.columns) == 8


def test_public_ranges_cover_every_column_and_do_not_look_at_the_rows(tmp_path, monkeypatch):
    x = _write(tmp_path, "yeast")
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    found = data.load("adbench/yeast")
    scaled = data.scale(found, adbench.ranges(found))
    assert scaled.x_train == pytest.approx(np.clip(x / 3.0, -1.0, 1.0), abs=1e-6)
    assert set(adbench.ranges(found)) == set(found.columns)


def test_another_table_under_the_name_is_refused(tmp_path, monkeypatch):
    _write(tmp_path, "yeast", rows=20)
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"yeast.npz is not ADBench's table. Received: shape \(20, 8\)"):
        data.load("adbench/yeast")


def test_a_folder_without_the_table_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no adbench/donors.npz. Received: LIPDP_DATA="):
        data.load("adbench/donors")


def test_a_failed_download_says_what_to_do(monkeypatch):
    import keras

    seen = []

    def fail(name, url, **arguments):
        seen.append(url)
        raise Exception("URL fetch failure")

    monkeypatch.delenv("LIPDP_DATA", raising=False)
    monkeypatch.setattr(keras.utils, "get_file", fail)
    with pytest.raises(ConnectionError, match="adbench/magic.gamma could not be downloaded.*LIPDP_DATA"):
        data.load("adbench/magic.gamma")
    assert seen[0].endswith("/22_magic.gamma.npz")


def test_unknown_tables_get_a_hint():
    with pytest.raises(ValueError, match="Did you mean 'adbench/donors'"):
        data.load("adbench/donor")
