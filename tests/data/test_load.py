"""Loading: the standard sets, the folder in LIPDP_DATA, and the user's own files."""

import numpy as np
import pytest

from lipdp import data
from lipdp.cli import datasets, parser
from lipdp.data.files import read_examples

pytestmark = [pytest.mark.backend_free, pytest.mark.filterwarnings("ignore::lipdp.data.UnchargedWarning")]


def test_digits_need_no_network_and_split_the_same_way_each_time():
    first, second = data.load("digits"), data.load("digits")
    assert first.x_train.shape == (1437, 8, 8, 1) and first.x_test.shape == (360, 8, 8, 1)
    assert first.x_train.dtype == np.float32 and first.y_train.dtype == np.int32
    assert 0.0 <= first.x_train.min() and first.x_train.max() == 1.0
    assert np.array_equal(first.x_train, second.x_train)
    assert set(first.y_test) == set(range(10)) and first.num_classes == 10
    assert not first.is_table and first.input_shape == (8, 8, 1)


def _image_file(folder, name="mnist", shape=(28, 28)):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (30, *shape), "uint8"),
        "y_train": np.arange(30, dtype="uint8") % 10,
        "x_test": rng.integers(0, 256, (10, *shape), "uint8"),
        "y_test": np.arange(10, dtype="uint8").reshape(10, 1),
    }
    np.savez(folder / f"{name}.npz", **arrays)
    return arrays


@pytest.mark.parametrize(
    ("name", "shape"), [("mnist", (28, 28)), ("fashion_mnist", (28, 28)), ("cifar10", (32, 32, 3))]
)
def test_image_sets_come_from_the_folder_in_the_environment(tmp_path, monkeypatch, name, shape):
    arrays = _image_file(tmp_path, name, shape)
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    found = data.load(name)
    assert found.name == name and found.num_classes == 10
    assert found.x_train.shape == (30, *shape[:2], shape[2] if len(shape) == 3 else 1)
    assert found.x_train[3].ravel() == pytest.approx(arrays["x_train"][3].ravel() / 255.0)
    assert found.y_test.tolist() == list(range(10))
    assert found.handwritten == found.held_out(0.5).handwritten == (name == "mnist")


def test_a_folder_without_the_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no cifar10.npz. Received: LIPDP_DATA="):
        data.load("cifar10")


def test_a_failed_download_says_what_to_do(monkeypatch):
    import keras

    def fail():
        raise Exception("URL fetch failure on some address")

    monkeypatch.delenv("LIPDP_DATA", raising=False)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    with pytest.raises(ConnectionError, match="mnist could not be downloaded: URL fetch failure.*LIPDP_DATA"):
        data.load("mnist")


def test_npz_of_the_users_own(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 3))
    np.savez(tmp_path / "mine.npz", x=x, y=np.array(["b", "a"] * 3))
    found = data.load(str(tmp_path / "mine.npz"))
    assert found.x_train == pytest.approx(x, rel=1e-6) and found.x_test is None
    assert found.classes == ("a", "b") and found.y_train.tolist() == [1, 0] * 3
    assert found.is_table and found.columns == ("0", "1", "2") and found.name == "mine"


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "int64"])
def test_images_of_another_type_than_uint8_are_taken_as_they_are(dtype, tmp_path, capsys):
    x = np.arange(40)[:, None, None] + np.full((6, 6), 216)  # not all alike: parts go by their contents
    np.savez(tmp_path / "mine.npz", x=x.astype(dtype), y=np.arange(40) % 2)
    found = data.load(str(tmp_path / "mine.npz"))
    assert found.x_train.max() == (1.0 if dtype == "uint8" else 255.0) and found.unscaled == (dtype != "uint8")
    assert found.held_out(0.5).unscaled == found.unscaled
    options = parser.parse(["train", "--dataset", str(tmp_path / "mine.npz"), "--epsilon", "1"])
    datasets.tell(options, found)
    said = "images of another type than uint8 are taken as they are, and the settings are for images in [0, 1]"
    assert (said in capsys.readouterr().err) == found.unscaled
    options.backbone = "public.keras"  # which may take them
    datasets.tell(options, found)
    assert said not in capsys.readouterr().err


def test_npz_with_a_test_part_shares_the_classes(tmp_path):
    file = tmp_path / "mine.npz"
    np.savez(file, x_train=np.zeros((2, 4)), y_train=[3, 9], x_test=np.zeros((1, 4)), y_test=[5])
    found = data.load(str(file))
    assert found.classes == (3, 5, 9)
    assert found.y_train.tolist() == [0, 2] and found.y_test.tolist() == [1]


def test_capital_letters_name_the_same_arrays(tmp_path):
    """As scikit-learn and ADBench write a matrix; an array of small letters goes before it."""
    x, y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
    np.savez(tmp_path / "a.npz", X=x, y=y)
    np.savez(tmp_path / "b.npz", X_train=x, Y_train=y)
    np.savez(tmp_path / "c.npz", X=x + 1, x=x, y=y)
    for name in ("a", "b", "c"):
        found = data.load(str(tmp_path / f"{name}.npz"))
        assert found.x_train.tolist() == x.tolist() and found.y_train.tolist() == [0, 1, 0]


def test_a_file_in_the_folder_of_data_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPDP_DATA", str(tmp_path))
    (tmp_path / "adbench").mkdir()
    np.savez(tmp_path / "adbench" / "other.npz", X=np.zeros((3, 2)), y=[0, 1, 0])
    with pytest.raises(ValueError, match=r"Received: 'adbench/other'. Did you mean '.*other.npz'"):
        data.load("adbench/other")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 3))}, "lacks the arrays of a data set. Received: images"),
        ({"x": np.zeros((2, 3)), "y": [0]}, "same length. Received: 2 and 1"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, "holds no example"),
        ({"x": np.zeros(3), "y": [0, 1, 0]}, r"Received: shape \(3,\)"),
        ({"x": np.array([["a"], ["b"]]), "y": [0, 1]}, "must hold numbers"),
        ({"x": np.array([[1.0], [np.nan]]), "y": [0, 1]}, "NaN or infinity in 1 of 2"),
        ({"x": np.array([[1.0], [1e300]]), "y": [0, 1]}, "numbers that float32 cannot hold in 1 of 2"),
        ({"x": np.array([[1], [None]]), "y": [0, 1]}, r"Python objects, not numbers: convert x by x.astype"),
        ({"x": np.zeros((3, 3)), "y": ["a", "nan", "b"]}, "1 of 3 labels in .*mine.npz are missing. Received: 'nan'"),
        ({"x": np.zeros((2, 3)), "y": np.array([b"a", b"\xff"])}, "texts in UTF-8. Received: .* in .*mine.npz"),
        ({"x_train": np.zeros((2, 3)), "y_train": [0, 1], "x_test": np.zeros((1, 3))}, "without the other"),
        (
            {"x_train": np.zeros((2, 3)), "y_train": [0, 1], "x_test": np.zeros((1, 4)), "y_test": [0]},
            "differ in shape",
        ),
    ],
)
def test_wrong_npz_files_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (7 * np.arange(300) % 707, "more than 100, or more than half as many as rows. Number classes from 0"),
        (np.arange(300).astype(str), "more than 100, or"),
        (np.arange(300), "Received: more than half as many as rows"),
        (np.arange(300) % 140, None),
        (5 * (np.arange(300) % 100), None),
    ],
)
def test_labels_that_are_hardly_classes_are_not_written_into_the_files_of_a_run(tmp_path, labels, message):
    """Numbers to predict were taken for classes, and their values stood in the run folder as public."""
    np.savez(tmp_path / "mine.npz", x=np.zeros((300, 3)), y=labels)
    if message is not None:
        with pytest.raises(ValueError, match=f"mine.npz holds too many values to take for public classes.*{message}"):
            data.load(str(tmp_path / "mine.npz"))
        return
    with pytest.warns(data.UnchargedWarning):
        assert data.load(str(tmp_path / "mine.npz")).num_classes in (100, 140)


def test_files_that_are_no_npz_are_refused(tmp_path):
    file = tmp_path / "mine.npz"
    file.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match="cannot be read as a .npz"):
        data.load(str(file))
    with open(file, "wb") as opened:
        np.save(opened, np.zeros(3))
    with pytest.raises(ValueError, match="single array"):
        data.load(str(file))


def test_a_folder_is_no_file(tmp_path):
    for name in ("dir.csv", "dir.npz", "images"):
        (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match=f"A folder is not a data set. Received: .*{name}.*howto/images.md"):
            data.load(tmp_path / name)


def test_unknown_names_get_a_hint(tmp_path):
    with pytest.raises(ValueError, match="Received: 'mnits'. Did you mean 'mnist'"):
        data.load("mnits")
    with pytest.raises(ValueError, match="Pass one of digits, mnist"):
        data.load("zebra")
    with pytest.raises(FileNotFoundError, match="no such file. Received: 'none.csv'"):
        data.load("none.csv")
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(ValueError, match="Received: '.*a.tsv'. Save the file as comma-separated values"):
        data.load(tmp_path / "a.tsv")
    (tmp_path / "mine.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="Received: '.*mine'. Did you mean '.*mine.npz'"):
        data.load(tmp_path / "mine")
    with pytest.raises(ValueError, match="Only a .csv file has a label column"):
        data.load("digits", label="y")


def test_rows_in_the_place_of_a_path_are_not_repeated_in_the_message():
    with pytest.raises(
        TypeError, match="by the path of a file. Received: source of type ndarray. Table.encode"
    ) as raised:
        data.load(np.array([[12345.0]]))
    assert "12345" not in str(raised.value)


def test_the_path_of_a_description_is_to_be_read_first(tmp_path):
    with pytest.raises(TypeError, match=r"`table` must be a lipdp.data.Table. Received: str. Table.from_json\(path\)"):
        data.load(tmp_path / "people.csv", table="people.json")


def test_a_folder_of_examples_is_not_said_to_be_missing(tmp_path):
    with pytest.raises(ValueError, match=r"A folder is no file of examples.*Pass a \.npz"):
        read_examples(tmp_path)


def test_a_file_may_list_its_classes(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "mine.npz"
    x, y = rng.uniform(size=(8, 3)), np.array(["b", "a"] * 4)
    np.savez(path, x=x, y=y, classes=np.array(["b", "c", "a"]))
    found = data.load(str(path))
    assert found.classes == ("b", "c", "a") and found.y_train.tolist() == [0, 2] * 4 and found.uncharged == ()
    np.savez(path, x=x, y=np.arange(8) % 2 + 5, classes=np.array([5, 6, 7]))
    assert data.load(str(path)).y_train.tolist() == [0, 1] * 4
    for classes in (["a", "c"], ["a", "a", "b"], ["a"], [0.5, 1.5]):
        np.savez(path, x=x, y=y, classes=np.array(classes))
        with pytest.raises(ValueError, match="`classes`"):
            data.load(str(path))


@pytest.mark.parametrize("listed", [["a", "b", "none"], [b"b", b"a"]])
def test_labels_of_bytes_are_those_of_a_list(tmp_path, listed):
    path, x = tmp_path / "mine.npz", np.zeros((4, 3), "float32")
    np.savez(path, x=x, y=np.array([b"b", b"a"] * 2), classes=np.array(listed))
    found = data.load(str(path))
    assert [found.classes[i] for i in found.y_train] == ["b", "a"] * 2


def test_a_list_may_hold_a_class_without_rows_that_would_count_as_missing(tmp_path):
    path, x = tmp_path / "mine.npz", np.zeros((4, 3), "float32")
    np.savez(path, x=x, y=np.array(["b", "a"] * 2), classes=np.array(["a", "b", "nan"]))
    assert data.load(str(path)).classes == ("a", "b", "nan")
    np.savez(path, x=x, y=np.array(["b", "nan"] * 2), classes=np.array(["a", "b", "nan"]))
    with pytest.raises(ValueError, match="2 of 4 labels .* are missing"):
        data.load(str(path))
