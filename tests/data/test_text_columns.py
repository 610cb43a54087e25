"""Texts in files: what becomes of each of them alone, and what is refused."""

import csv
import json

import numpy as np
import pytest

from lipdp import data
from lipdp.data import tokenizers

pytestmark = pytest.mark.backend_free

SAID = ["Good film!", "bad", "ein überaus langer Satz, der nicht endet"]


NEW = [data.HashedWordTokenizer(5), data.RawByteTokenizer(9)]


def words(length=6):
    return data.WordTokenizer(["good", "bad", "play", "##ing", "##ed", "Film"], length)


@pytest.mark.parametrize("tokenizer", [data.ByteTokenizer(16), data.ByteTokenizer(16, 1, 256), words(), *NEW])
def test_a_row_is_a_function_of_its_own_text(tokenizer):
    together = tokenizer(SAID)
    assert together.dtype == np.int32 and together.shape == (3, tokenizer.length)
    assert 0 <= together.min() and together.max() < tokenizer.vocabulary_size
    for text, row in zip(SAID, together, strict=True):
        assert np.array_equal(tokenizer([text])[0], row)
    assert np.array_equal(tokenizers.from_dict(json.loads(json.dumps(tokenizer.to_dict())))(SAID), together)


def test_bytes():
    tokenizer = data.ByteTokenizer(8)
    assert np.array_equal(*tokenizer(["ABCDE", "abcde"])) and np.count_nonzero(tokenizer(["abcde"])) == 2
    assert np.count_nonzero(tokenizer(["a"])) == 1  # shorter than a run
    assert tokenizer(["abcdX"])[0, 0] == tokenizer(["abcdY"])[0, 0]
    for wrong in ({"length": 0}, {"run": 0}, {"numbers": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            data.ByteTokenizer(**wrong)


def test_words_and_their_parts(tmp_path):
    assert words()(["played bad, PLAYING", "Film film"]).tolist() == [[3, 5, 2, 3, 4, 0], [6, 0, 0, 0, 0, 0]]
    file = tmp_path / "vocabulary.txt"
    file.write_text("good\n\nbad\ngood\n")
    assert data.WordTokenizer.from_file(file, 3)(["bad day good"]).tolist() == [[2, 1, 0]]
    file.write_text("\n")
    with pytest.raises(ValueError, match="no word"):
        data.WordTokenizer.from_file(file)
    with pytest.raises(FileNotFoundError, match="no such vocabulary"):
        data.WordTokenizer.from_file(tmp_path / "none.txt")
    for wrong in ([], ["a", "a"], ["a", ""]):
        with pytest.raises(ValueError, match="distinct words"):
            data.WordTokenizer(wrong)
    with pytest.raises(ValueError, match="kind"):
        tokenizers.from_dict({"kind": "sounds"})


def test_hashed_words():
    tokenizer = data.HashedWordTokenizer(4)
    assert np.array_equal(*tokenizer(["Good film", "good FILM"])) and np.count_nonzero(tokenizer(["so, so"])) == 3
    assert tokenizer.tokens("a b")[::-1] == tokenizer.tokens("b a")
    for wrong in ({"length": 0}, {"numbers": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            data.HashedWordTokenizer(**wrong)


def test_raw_bytes_are_read_back():
    tokenizer = data.RawByteTokenizer(50)
    for text in [*SAID, "\x00\n", "日本"]:
        assert tokenizer.text(tokenizer([text])[0]) == text
    assert data.RawByteTokenizer(4).text(data.RawByteTokenizer(4)(["日本"])[0]) == "日\ufffd"  # cut within a sign
    assert tokenizer.vocabulary_size == 258 and max(tokenizer.tokens("ÿ")) < 258
    with pytest.raises(ValueError, match="length"):
        data.RawByteTokenizer(1)


def write(path, rows):
    if path.suffix == ".csv":
        path.write_text("id,said,mood\n" + "".join(f'{i},"{said}",{mood}\n' for i, (said, mood) in enumerate(rows)))
    else:
        path.write_text("\n".join(json.dumps({"said": said, "mood": mood}) for said, mood in rows) + "\n\n")
    return path


ROWS = [("so good", "glad"), ("so bad, so bad", "sad"), ("well", "glad")]


@pytest.mark.parametrize("name", ["said.csv", "said.jsonl"])
def test_both_kinds_of_files_hold_the_same(name, tmp_path):
    file = write(tmp_path / name, ROWS)
    found = data.load_text(file, "said", "mood", words(), classes=("sad", "glad"))
    assert found.x_train.tolist() == words()([said for said, _ in ROWS]).tolist()
    assert found.y_train.tolist() == [1, 0, 1] and found.classes == ("sad", "glad") and found.uncharged == ()
    assert not found.is_table and found.name == "said" and found.texts.cut(file) == 0
    found.texts.to_json(tmp_path / "texts.json")
    again = data.TextColumns.from_json(tmp_path / "texts.json")
    assert np.array_equal(again.encode(file), found.x_train) and np.array_equal(again.labels(file), found.y_train)
    assert data.load_text(file, "said", "mood", data.ByteTokenizer(3)).texts.cut(file) == 2


def test_classes_that_are_read_off_the_rows_are_named(tmp_path):
    found = data.load_text(write(tmp_path / "a.csv", ROWS), "said", "mood")
    assert found.classes == ("glad", "sad") and "those that occur in column 'mood'" in found.uncharged[0]
    numbers = data.load_text(write(tmp_path / "a.jsonl", [("a", 3), ("b", 1), ("c", "3")]), "said", "mood")
    assert numbers.classes == (1, 3) and numbers.y_train.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("content", "text", "label", "words"),
    [
        ("said,mood\na,b\nc,d\n", "siad", "mood", "no text column of that name. Received: 'siad'. Did you mean 'said'"),
        ("said,mood\na,b\nc,d\n", "said", "x", "no label column of that name. Received: 'x'. Its columns: said, mood"),
        ("said,mood\na,b\n ,d\n", "said", "mood", "no text in 1 of 2 rows, first in row 2"),
        ("said,mood\na,b\nc,\n", "said", "mood", "no class in 1 of 2 rows, first in row 2. Received: ''"),
        ("said,mood\na,b\nc,d\ne,?\n", "said", "mood", "no class in 1 of 3 rows, first in row 3. Received: '\\?'"),
        ("said,mood\na,b\nc,b\n", "said", "mood", "at least two classes"),
        ('{"said": "a", "mood": 1}\n[1]\n', "said", "mood", "Line 2 of .* not a JSON object"),
        ('{"said": "a", "mood": 1}\n{"mood": 0}\n', "said", "mood", "no text in 1 of 2 rows, first in row 2"),
        ('{"said": 3, "mood": 1}\n{"said": "a", "mood": 0}\n', "said", "mood", "Received: 3"),
        ("\n", "said", "mood", "no line"),
        ("", "said", "mood", "needs a header with the name of a column. Received: an empty file"),
        ("said,mood\na,b\nc,d\n", "said", "said", "must not be that of the texts. Received: 'said' for both"),
    ],
)
def test_refusals(tmp_path, content, text, label, words):
    file = tmp_path / ("a.csv" if content.startswith("said") or not content else "a.jsonl")
    file.write_text(content)
    with pytest.raises(ValueError, match=words):
        data.load_text(file, text, label)


def test_other_refusals(tmp_path):
    file = write(tmp_path / "a.csv", ROWS)
    with pytest.raises(ValueError, match="no class in 2 of 3 rows.*'glad'"):
        data.load_text(file, "said", "mood", classes=("sad", "merry"))
    with pytest.raises(ValueError, match="come from a file, .csv or .jsonl. Received: 'digits'. Pass the path"):
        data.load_text("digits", "said", "mood")
    for name in ("none.csv", "none.jsonl"):
        with pytest.raises(FileNotFoundError, match="no such file"):
            data.load_text(tmp_path / name, "said", "mood")
    for name in ("dir.csv", "dir.jsonl"):
        (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match="A folder is no file"):
            data.load_text(tmp_path / name, "said", "mood")
    with pytest.raises(ValueError, match="no label"):
        data.TextColumns(text="said", tokenizer=words()).labels(file)
    (tmp_path / "texts.json").write_text("{}")
    with pytest.raises(ValueError, match="does not describe texts"):
        data.TextColumns.from_json(tmp_path / "texts.json")


@pytest.mark.parametrize(("kinds", "rows"), [(101, 1000), (6, 11), (20, 20)])
def test_values_that_are_hardly_classes_are_refused(tmp_path, kinds, rows):
    file = write(tmp_path / "a.csv", [(f"text {i}", f"private {i % kinds}") for i in range(rows)])
    with pytest.raises(ValueError, match=r"too many values .*--classes \(in Python: classes=\)") as refused:
        data.load_text(file, "said", "mood")
    assert "private" not in str(refused.value)
    named = [f"private {i}" for i in range(kinds)]
    assert data.load_text(file, "said", "mood", classes=named).num_classes == kinds


def test_as_many_classes_as_may_be(tmp_path):
    for kinds, rows in ((100, 1000), (5, 5), (10, 20)):
        file = write(tmp_path / "a.csv", [(f"text {i}", f"kind {i % kinds}") for i in range(rows)])
        assert data.load_text(file, "said", "mood").num_classes == kinds


@pytest.mark.parametrize(("column", "called"), [("said", "Text column"), ("mood", "Label column"), ("who", "Column")])
def test_half_a_character_is_refused_on_reading(tmp_path, column, called):
    rows = [{"said": "a", "mood": "\U0001f600", "who": "x"}, {"said": "b", "mood": "sad", "who": "y"}]
    rows[1][column] = "private \ud83d"
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = rf"{called} '{column}' of .* half a character, first in row 2. Received: '\\ud83d'"
    with pytest.raises(ValueError, match=words) as refused:
        data.load_text(file, "said", "mood", person="who")
    assert "private" not in str(refused.value)
    if column != "mood":
        with pytest.raises(ValueError, match=words):
            data.load_language(file, "said", person="who")
    if column == "said":
        with pytest.raises(ValueError, match=words):
            data.TextColumns(text="said", tokenizer=data.ByteTokenizer()).encode(file)


def test_whose_texts_they_are(tmp_path):
    rows = [
        {"said": "a", "mood": 1, "who": 7},
        {"said": "b", "mood": 0, "who": "x"},
        {"said": "c", "mood": 0, "who": 7},
    ]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = data.load_text(file, "said", "mood", words(), person="who")
    assert found.person_ids.tolist() == ["7", "x", "7"] and found.num_persons == 2
    language = data.load_language(file, "said", 4, person="who")
    assert language.person_ids.tolist() == ["7", "x", "7"] and language.classes == ()
    assert found.texts.encode({"said": ["good"]}).shape == (1, 6)  # others need none
    part = data.load_text(file, "said", "mood", words(), person="who").held_out(0.5)
    assert not set(part.person_ids) & set(part.person_ids_test)
    for person, message in (("said", "must not be that of the texts"), ("mood", "must not be the label")):
        with pytest.raises(ValueError, match=message):
            data.load_text(file, "said", "mood", words(), person=person)
    with pytest.raises(ValueError, match="no column of persons of that name. Received: 'whose'. Did you mean 'who'"):
        data.load_language(file, "said", person="whose")
    file.write_text(json.dumps(rows[0]) + '\n{"said": "b", "mood": 0}\n')
    with pytest.raises(ValueError, match="has no id in 1 of 2 rows, first in row 2. Received: None"):
        data.load_text(file, "said", "mood", words(), person="who")


def test_what_a_language_model_learns(tmp_path):
    file = write(tmp_path / "a.csv", ROWS)
    found = data.load_language(file, "said", 6)
    assert np.array_equal(found.x_train[:, 1:], found.y_train[:, :-1]) and (found.x_train[:, 0] == 1).all()
    assert found.y_train[2].tolist() == [121, 103, 110, 110, 1, 0]  # "well", its end, padding
    assert 1 not in found.y_train[0] and found.texts.tokenizer.text(found.y_train[0]) == "so goo"
    again = data.load_language(write(tmp_path / "b.csv", ROWS[2:]), "said", 6)
    assert np.array_equal(again.y_train[0], found.y_train[2]) and found.y_train.dtype == np.int32


def test_a_file_may_hold_a_long_text(tmp_path):
    """Longer than the csv module allows by itself, whose limit other code goes on to have."""
    path, limit = tmp_path / "said.csv", csv.field_size_limit()
    path.write_text(f"said,mood\n{'long ' * limit},sad\nhi,glad\n")
    found = data.load_text(path, "said", "mood", data.ByteTokenizer(8), classes=("sad", "glad"))
    assert found.y_train.tolist() == [0, 1] and csv.field_size_limit() == limit
