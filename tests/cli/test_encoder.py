"""`lipdp train --task text --backbone`: a head on what a frozen encoder makes of texts."""

import csv
import re
import shutil

import keras
import numpy as np
import pytest

from lipdp import callbacks, data
from lipdp.cli import encoder, main
from lipdp.report import folder as folders
from tests.helpers.commands import refusal

hub = pytest.importorskip("keras_hub")

WORDS = "this film is very good bad and not long dull".split()


def write(path, rows=400):
    rng = np.random.default_rng(0)
    lines = ["said,mood,author"]
    for i, kind in enumerate(rng.integers(0, 2, rows)):
        words = [*rng.choice(WORDS[:4], rng.integers(2, 6)), "good" if kind else "bad"]
        lines.append(f"{' '.join(rng.permutation(words))},{'glad' if kind else 'sad'},p{i // 2}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets") / "tiny"
    keras.utils.set_random_seed(0)
    tokenizer = hub.models.BertTokenizer(vocabulary=["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "max_sequence_length": 12}
    hub.models.BertBackbone(vocabulary_size=15, **sizes).save_to_preset(folder)
    hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12).save_to_preset(folder)
    return folder


def train(file, folder, preset, *words):
    own = ["--task", "text", "--dataset", str(file), "--text", "said", "--label", "mood", "--classes", "sad", "glad"]
    return main(["train", *own, "--backbone", str(preset), "--output", str(folder), "--verbose", "0", *words])


@pytest.fixture(scope="module")
def run(preset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    words = ["--epsilon", "8", "--validation-split", "0.25", "--seed", "1"]
    assert train(write(folder / "said.csv"), folder / "run", preset, *words) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_row_of_features_is_of_its_own_text(preset):
    found = encoder.load(str(preset), 8)
    texts = ["this film is very good", "bad", "not long and not very dull and not very bad", "good good"]
    tokens = found.tokenizer(texts)
    assert (
        tokens.shape == (4, 8) and np.count_nonzero(tokens[1]) == 3 and tokens.max() < found.tokenizer.vocabulary_size
    )
    together = found.rows(tokens)
    assert np.allclose(found.rows(found.tokenizer(texts[1:2]))[0], together[1], atol=1e-4)
    longer = encoder.load(str(preset), 12)
    assert np.allclose(longer.rows(longer.tokenizer(texts[:2])), together[:2], atol=1e-4)  # padding is nothing
    assert np.allclose(together.mean(axis=1), 0.0, atol=1e-5) and together.shape == (4, 16)
    assert found.digest == longer.digest


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_head_learns_and_predicts_raw_texts(run, tmp_path, capsys):
    content = folders.read(run)
    settings = content.run["settings"]
    assert content.results["held_out"]["accuracy"] > 0.75 and content.privacy["epsilon"] <= 8.0
    assert settings["input_shape"] == [16] and settings["length"] == 12
    assert not settings["standardized"]  # the features are
    assert "first 12 tokens" in " ".join(content.statement.split()) and not (run / folders.TEXTS).exists()
    (tmp_path / "new.csv").write_text("said\ngood good good\nbad bad bad\n")
    words = ["predict", str(run), "--data", str(tmp_path / "new.csv"), "--output", str(tmp_path / "classes.csv")]
    assert main(words) == 0
    rows = list(csv.DictReader((tmp_path / "classes.csv").read_text().splitlines()))
    assert [row["class"] for row in rows] == ["glad", "sad"] and "radius" not in rows[0]
    capsys.readouterr()
    assert main(["export", str(run), "--output", str(tmp_path / "out")]) == 0
    assert "Its inputs are features of" in capsys.readouterr().out
    assert "no certificates" in refusal(capsys, "certify", run)


@pytest.mark.slow
@pytest.mark.backend_free
def test_another_encoder_is_refused(run, preset, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(preset, other)
    vocabulary = next(other.rglob("vocabulary.txt"))
    vocabulary.write_text(vocabulary.read_text().replace("good", "fine"))
    (tmp_path / "new.csv").write_text("said\nthis film is good\n")
    words = ["predict", run, "--data", tmp_path / "new.csv", "--output", tmp_path / "classes.csv", "--backbone"]
    assert "Pass that one as --backbone" in refusal(capsys, *words, other)
    assert "cannot be loaded" in refusal(capsys, *words, tmp_path / "none")


def replaced(preset, folder, file, *changes):
    """A copy of a preset with other settings in one of its files."""
    shutil.copytree(preset, folder)
    content = (folder / file).read_text()
    for old, new in changes:
        assert old in content
        content = content.replace(old, new)
    (folder / file).write_text(content)
    return encoder.load(str(folder), 8).digest


@pytest.mark.slow
@pytest.mark.backend_free
def test_settings_that_shape_no_weight_are_part_of_an_encoder(preset, tmp_path):
    own = encoder.load(str(preset), 8).digest
    assert replaced(preset, tmp_path / "moved", "config.json") == own
    # Keras numbers the models of a process.
    found = re.search(r'"name": "bert_backbone\w*"', (preset / "config.json").read_text())
    names = [(found.group(), '"name": "other"')]
    assert replaced(preset, tmp_path / "named", "config.json", *names) == own
    both = "preprocessor.json"  # it holds the tokenizer too
    others = {
        replaced(preset, tmp_path / "lower", both, ('"lowercase": false', '"lowercase": true')),
        replaced(preset, tmp_path / "accents", both, ('"strip_accents": false', '"strip_accents": true')),
        replaced(preset, tmp_path / "dropout", "config.json", ('"dropout": 0.1', '"dropout": 0.2')),
        replaced(preset, tmp_path / "cut", both, ('"round_robin"', '"waterfall"')),
    }
    assert len(others - {own}) == 4


@pytest.mark.backend_free
def test_merges_are_part_of_an_encoder():
    network = hub.models.RobertaBackbone(9, 1, 2, 16, 32, max_sequence_length=12)
    vocabulary = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", "<mask>", "a", "b", "c", "ab", "bc"])}

    def digest(merges, **settings):
        tokenizer = hub.models.RobertaTokenizer(vocabulary=vocabulary, merges=merges, **settings)
        return encoder._digest(network, hub.models.RobertaTextClassifierPreprocessor(tokenizer, sequence_length=8))

    own = digest(["a b", "b c"])
    assert digest(["a b", "b c"]) == own
    assert len({own, digest(["b c", "a b"]), digest(["a b", "b c"], add_prefix_space=True)}) == 3


@pytest.mark.backend_free
def test_settings_are_the_same_in_each_process():
    class Layer:
        def get_config(self):
            return {"name": "layer_3", "trainable": True, "activation": np.tanh, "epsilon": np.float32(0.5)}

    once, again = (encoder._plain({"layer": Layer(), "of": {"b", "a"}, "what": object(), "x": b"1"}) for _ in range(2))
    assert once == again and "0x" not in str(once) and "layer_3" not in str(once) and "0.5" in str(once)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_of_persons_goes_on_behind_the_same_encoder(preset, tmp_path, monkeypatch, capsys):
    def stop(self, batch, logs=None):
        if self._model.run.ledger.updates == 2:
            raise KeyboardInterrupt

    words = ["--noise-multiplier", "2", "--epochs", "2", "--person-column", "author"]
    preset = shutil.copytree(preset, tmp_path / "preset")
    with monkeypatch.context() as patched:
        patched.setattr(callbacks.Checkpoint, "on_train_batch_end", stop)
        assert train(write(tmp_path / "said.csv", 80), tmp_path / "run", preset, *words) == 130
    settings = preset / "preprocessor.json"
    before = settings.read_text()
    settings.write_text(before.replace('"lowercase": false', '"lowercase": true'))
    line = refusal(capsys, "train", "--resume", tmp_path / "run")
    assert "goes on with the backbone it began with" in line and line.count("SHA-256") == line.count("preset, ") == 2
    settings.write_text(before)
    assert main(["train", "--resume", str(tmp_path / "run"), "--verbose", "0"]) == 0
    content = folders.read(tmp_path / "run")
    assert content.privacy["updates"] == content.run["settings"]["updates"] > 2
    assert "The unit is one person" in content.statement


@pytest.mark.backend_free
def test_presets_that_do_not_fit(preset, tmp_path, capsys, monkeypatch):
    file = write(tmp_path / "said.csv", 20)
    own = ["train", "--task", "text", "--dataset", file, "--text", "said", "--label", "mood", "--epsilon", "2"]
    assert "a network alone" in refusal(capsys, *own, "--backbone", "public.keras")
    images = hub.models.ResNetBackbone([64], [1], [64], [1], [1], "basic_block", image_shape=(8, 8, 1))
    images.save_to_preset(tmp_path / "images")
    assert "no preprocessor of texts" in refusal(capsys, *own, "--backbone", tmp_path / "images")
    assert "from 3 to 12 tokens" in refusal(capsys, *own, "--backbone", preset, "--length", "13")
    assert "Leave one out" in refusal(capsys, *own, "--backbone", preset, "--recipe", "linear")
    assert "Leave one out" in refusal(capsys, *own, "--backbone", preset, "--vocabulary", "words.txt")
    monkeypatch.setitem(__import__("sys").modules, "keras_hub", None)
    assert "Install keras-hub" in refusal(capsys, *own, "--backbone", "bert_base_en")


@pytest.mark.backend_free
def test_tokens_that_hang_on_other_texts_are_refused():
    class Mixing:
        def __call__(self, texts):
            ids = np.full((len(texts), 4), len(texts))
            return {"token_ids": ids, "padding_mask": ids > 0}

    with pytest.raises(ValueError, match="depend on that text alone"):
        encoder.PresetTokenizer(Mixing(), 4)(["a", "b"])
    assert encoder.PresetTokenizer(Mixing(), 4)([]).shape == (0, 4)
    assert data.TextColumns(text="said", tokenizer=encoder.PresetTokenizer(Mixing(), 4)).text == "said"
