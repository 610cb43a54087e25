"""Reports: self-contained, escaped, and true to the files."""

import html.parser
import re
import xml.etree.ElementTree as ElementTree

import pytest

from lipdp import report
from lipdp.report import folder as folders
from lipdp.report import numbers, style
from lipdp.report.plots import plots

pytestmark = pytest.mark.backend_free

EVIL = "<script>alert('x')</script> & \"me\""


def made_up(**changes) -> report.RunFolder:
    values = {
        "run": {
            "command": f"lipdp train --dataset '{EVIL}'",
            "settings": {"dataset": EVIL, "epsilon": 2.0, "batch_size": 100, "classes": [EVIL, "b"], "seed": None},
            "versions": {"python": "3", "keras": EVIL},
            "started": "2026-01-01 00:00:00",
            "seconds": 3.0,
        },
        "results": {
            "held_out": {
                "examples": 50,
                "accuracy": 0.9599,
                "certified": [{"radius": 0.1, "accuracy": 0.5}],
                "curve": [[0.0, 0.9599], [0.2, 0.0]],
            },
            "bounds": [
                _row("input", "BoundedInput", None, None, None),
                _row("dense", "SpectralDense", 2.0, 0.4, 0.01),
            ],
        },
        "privacy": {"epsilon": 1.99991, "delta": 1e-5, "updates": 7},
        "statement": f"Privacy statement\n{EVIL}\n",
        "history": (
            {"epoch": 1.0, "epsilon": 1.0, "val_accuracy": 0.5},
            {"epoch": 2.0, "epsilon": 1.99991, "val_accuracy": 0.9599},
        ),
    }
    return report.RunFolder(**{**values, **changes})


def _row(layer, kind, bound, gradient, noise):
    row = {"layer": layer, "type": kind, "input_bound": bound, "lipschitz": 1.0, "cotangent_bound": 0.2}
    return {**row, "gradient_bound": gradient, "noise_std": noise}


class _Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_epsilon_by_delta_has_the_stated_pair():
    curves = {
        "right_guesses": 0.6,
        "deltas": [[1.5, 1e-3], [2.001, 1e-5], [2.4, 1e-7]],
        "trade_off": [[0.0, 1.0], [0.1, 0.7], [1.0, 0.0]],
    }
    text = report.to_markdown(made_up(privacy={**made_up().privacy, "risk": curves}))
    table = text.split("## Epsilon by delta")[1].split("##")[0]
    assert "| 2 | 1e-05 |" in table and "| 1.5 | 0.001 |" in table and "| 2.4 | 1e-07 |" in table
    assert "2.001" not in text


def test_the_report_is_one_sound_file_without_anything_from_elsewhere():
    text = report.to_html(made_up())
    reader = _Reader(text)
    assert not reader.open, "every tag is closed"
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)
    assert "http" not in text and "url(" not in text and "@import" not in text
    for tag, name, value in reader.attributes:
        if name in ("src", "href"):
            assert tag == "img" and value.startswith("data:image/svg+xml;base64,")
    alts = [value for tag, name, value in reader.attributes if tag == "img" and name == "alt"]
    assert len(alts) == reader.tags.count("img") == 4 and all(alts)
    assert ("html", "lang", "en") in reader.attributes
    assert reader.tags.count("h1") == reader.tags.count("title") == 1


@pytest.mark.slow
def test_it_begins_with_what_epsilon_means_and_explains_each_number():
    for text in (report.to_html(made_up()), report.to_markdown(made_up())):
        assert text.index("can tell whether that example was used in at most 88.1 of 100 cases") < text.index(
            "of a budget"
        )
        for words in (
            "bounds how much the weights can say about one example",
            "far below 1 / N",
            "whose class",
            "proven",
        ):
            assert words in text
    person = made_up(privacy={**made_up().privacy, "examples_per_person": 2})
    assert "say about one person" in report.to_html(person) and "the examples of one person" in report.to_html(person)
    endless = report.to_html(made_up(privacy={**made_up().privacy, "epsilon": None}))
    assert "There is no finite guarantee" in endless and "of 100 cases" not in endless


def test_dark_pages_have_plots_in_colors_of_their_own():
    text = report.to_html(made_up())
    assert "color-scheme: light dark" in text and "@media screen and (prefers-color-scheme: dark)" in text
    for _, _, svg in plots(made_up()):
        shown = style.dark(svg)
        assert ElementTree.fromstring(shown).tag.endswith("svg")
        # Every color that is drawn has one for dark pages.
        drawn = set(re.findall(r'style="[^"]*?(?:fill|stroke): (#[0-9a-f]{6})', svg)) - {"#ffffff", "#000000"}
        assert drawn and all(f"fill: {color}" in shown.split("<defs>")[0] for color in drawn), drawn


def test_strings_of_the_user_are_escaped():
    text = report.to_html(made_up())
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 5
    markdown = report.to_markdown(made_up())
    assert all(line.startswith("    ") or "\\<script" in line for line in markdown.split("\n") if "<script" in line)


def test_the_headline_is_never_rounded_in_its_own_favour():
    tiles = {(name, remark): value for value, name, remark in report.html.tiles(made_up())}
    assert tiles["epsilon", "of a budget of 2"] == "2"
    assert tiles["accuracy", "held-out examples"] == "95.9 %"
    assert tiles["certified", "within L2 radius 0.1"] == "50.0 %"


def test_accuracy_stands_beside_what_a_guess_reaches():
    held_out = {**made_up().results["held_out"], "most_frequent_class": 0.98, "auc": 0.8339}
    run = made_up(results={**made_up().results, "held_out": held_out})
    tiles = {(name, remark): value for value, name, remark in report.html.tiles(run)}
    assert tiles["accuracy", "held-out examples; the most frequent class alone: 98.0 %"] == "95.9 %"
    assert tiles["area under the curve", "held-out examples; a guess: 0.5"] == "0.833"
    for text in (report.to_html(run), report.to_markdown(run)):
        assert "0.833" in text and "98.0 %" in text and "how well a model ranks" in text
    # Of a set of one class there is no area.
    run = made_up(results={**made_up().results, "held_out": {**held_out, "auc": None}})
    assert "area under the curve" not in report.to_html(run)


@pytest.mark.slow
def test_what_is_not_covered_is_said():
    text = report.to_html(made_up())
    assert "epsilon does not cover them" in text and "(not private)" not in text
    privacy = {**made_up().privacy, "training_metrics_outside_the_guarantee": ["loss"], "seed_fixed_by_user": True}
    history = tuple({**row, "accuracy" + folders.NOT_PRIVATE: 0.7} for row in made_up().history)
    marked = made_up(privacy=privacy, history=history)
    text = report.to_html(marked)
    assert "without noise" in text and "A fixed seed was used" in text
    assert "is not private" in dict((title, alt) for title, alt, _ in plots(marked))["Accuracy by epoch"]
    assert "training examples (not private)" in plots(marked)[0][2]


def test_a_run_without_held_out_examples_has_a_report():
    history = ({"epoch": 1.0, "epsilon": 1.0},)
    bare = made_up(results={**made_up().results, "held_out": None}, history=history)
    text = report.to_html(bare)
    assert "not measured" in text and "No examples were held out" in text
    assert [title for title, _, _ in plots(bare)] == ["Epsilon by epoch", "One example against the noise"]
    assert "not measured" in report.to_markdown(bare)


def test_an_infinite_epsilon_is_said():
    bare = made_up(privacy={**made_up().privacy, "epsilon": None}, history=({"epoch": 1.0},))
    assert ("infinite", "epsilon", "of a budget of 2") in report.html.tiles(bare)


def test_plots_are_drawings_and_do_not_change_from_run_to_run():
    first, second = plots(made_up()), plots(made_up())
    assert len(first) == 4 and first == second
    for _, description, svg in first:
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert description.endswith(".")


def test_a_folder_reads_back_what_was_written(tmp_path):
    report.write(tmp_path, made_up())
    assert report.read(tmp_path) == made_up()
    assert report.render(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.md").read_text().startswith("# Private training on")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "[]", "run.json is corrupt: it lacks one of command"),
        ("privacy.json", "{", "privacy.json is corrupt"),
        ("history.csv", "epoch,epsilon\n1,two\n", "history.csv is corrupt"),
        ("history.csv", "epoch,epsilon\n1,2,3\n", "history.csv is corrupt"),
    ],
)
def test_corrupt_folders_are_refused(tmp_path, name, text, message):
    report.write(tmp_path, made_up())
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        report.read(tmp_path)


def test_default_folders_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = report.claim(None, "toy"), report.claim(None, "toy")
    assert first != second and first.parent.name == "runs" and first.name.startswith("toy-")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        report.claim(str(tmp_path / "file"), "toy")


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    """With a file called "runs" the search for a name that is free went on for ever."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(FileExistsError, match="cannot be made. Received: 'runs': File exists. Pass --output"):
        report.claim(None, "toy")
    with pytest.raises(NotADirectoryError, match="Received: 'runs/one': Not a directory. Pass --output"):
        report.claim("runs/one", "toy")


@pytest.mark.parametrize("target", ["gone", "link"])
def test_a_link_that_leads_nowhere_is_no_folder(tmp_path, target):
    """The system said that the file exists, and of a link to itself Python ended with a traceback."""
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(NotADirectoryError, match="a link that leads nowhere.*Remove it"):
        report.claim(str(tmp_path / "link"), "toy")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.23400001, "1.235"), (9.9999999, "10"), (123456.0, "1.235e+05")]
)
def test_epsilon_is_rounded_up(value, text):
    assert numbers.epsilon(value) == text
    assert float(numbers.epsilon(value)) >= value
