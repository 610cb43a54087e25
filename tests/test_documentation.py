"""Docstrings run, notebooks run, and the pages say what the code does."""

import ast
import doctest
import functools
import importlib
import os
import pathlib
import pkgutil
import re
import shlex
import types

import numpy as np
import pytest

import lipdp

ROOT = pathlib.Path(__file__).parent.parent
OTHER_BACKEND = {"tensorflow": "lipdp.backend.jax", "jax": "lipdp.backend.tensorflow"}


SLOW_EXAMPLES = [
    *(f"lipdp.models.{name}" for name in ("classifier", "text")),
    *(f"lipdp.audit.{name}" for name in ("one_run", "white_box")),
    "lipdp.diffusion.model",
]


def modules():
    import keras

    skipped = OTHER_BACKEND[keras.backend.backend()]
    for found in pkgutil.walk_packages(lipdp.__path__, "lipdp."):
        if found.name != skipped and not found.name.endswith("__main__"):
            yield found.name


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(m, marks=[pytest.mark.slow] * (m in SLOW_EXAMPLES)) for m in sorted(modules())]
)
def test_examples_run(name):
    module = importlib.import_module(name)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "package",
    ["layers", "losses", "models", "bounds", "accounting", "strategies", "sampling", "norms", "diffusion"],
)
def test_public_names_are_documented(package):
    module = importlib.import_module(f"lipdp.{package}")
    for name in vars(module):
        value = getattr(module, name)
        if not name.startswith("_") and callable(value) and value.__module__.startswith("lipdp"):
            assert value.__doc__, f"lipdp.{package}.{name} has no docstring"


@pytest.mark.backend_free
def test_layers_and_losses_state_their_guarantee():
    for module in (lipdp.layers, lipdp.losses):
        for name, value in vars(module).items():
            own = isinstance(value, type) and value.__module__.startswith("lipdp")
            if own:
                assert "Guarantee" in value.__doc__, name


@pytest.mark.backend_free
@pytest.mark.parametrize(("page", "count"), [("docs/accounting.md", 9)])
def test_numbers_in_comments(page, count):
    found = re.findall(
        r"^((?:accounting|risk)\.\w+.*?)\s+# ([\d.]+)(?:: .*)?$", (ROOT / page).read_text(), flags=re.MULTILINE
    )
    assert len(found) == count
    q = 256 / 60000
    names = {"accounting": lipdp.accounting, "q": q}
    names["risk"] = lipdp.accounting.risk(noise_multiplier=1.1, sampling_probability=q, updates=2350)
    for call, expected in found:
        ast.parse(call, mode="eval")
        value = eval(call, names)
        assert value == pytest.approx(float(expected), abs=6e-4), call


# Data of the size that the pages print would take minutes.
SHORTER = {
    r"\b(epochs|steps_per_epoch)=\d+": r"\1=1",
    r"\b(runs|shadow_models)=\d+": r"\1=16",
    r"\bcanaries=\d{3,}": "canaries=40",
    r"\bbatch_size=\d{3,}": "batch_size=64",
    "num_examples=60000, eps": "num_examples=256, eps",
}


def data():
    """What the pages take for given: images, labels, a plain model."""
    import keras

    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(256, 28, 28, 1)).astype("float32"), rng.integers(10, size=256)
    plain = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
    return {"x": x, "y": y, "x_test": x, "y_test": y, "keras_model": plain, "images": x[:, ::2, ::2], "labels": y}


# Its pages go on from each other.
TUTORIAL = " ".join(f"docs/tutorial/{name}.md" for name in ("first-model", "epsilon-delta", "certificates", "save"))
SNIPPETS = [
    "README.md",
    "docs/accounting.md",
    "docs/one-person.md",
    "docs/training.md",
    "docs/howto/large-data.md",
    "docs/howto/statement.md",
    "docs/howto/temperature.md",
]
SLOW_SNIPPETS = [
    TUTORIAL,
    "docs/README.md",
    "docs/strategies.md",
    "docs/diffusion.md",
    *(f"docs/howto/{name}.md" for name in ("batch-size", "certificates", "certified", "clip-norm")),
    *(f"docs/howto/{name}.md" for name in ("epsilon-delta", "images")),
    *(
        f"docs/howto/{name}.md"
        for name in ("learning-rate", "pairs", "regression", "save", "strategy", "tables", "weights")
    ),
    "docs/howto/devices.md",
    "docs/howto/finetune.md",
    "docs/howto/text.md",
    "docs/howto/audit.md",
    "docs/howto/time-series.md",
    *(f"docs/migrate/{name}.md" for name in ("deel-lip", "jax-privacy", "opacus", "tensorflow-privacy")),
]


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "pages",
    [
        *SNIPPETS,
        *(pytest.param(pages, marks=pytest.mark.slow, id=pages.partition("/first")[0]) for pages in SLOW_SNIPPETS),
    ],
)
def test_snippets_run(pages, monkeypatch, tmp_path):
    import keras

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIPDP_DATA", raising=False)
    names = data()
    digits = (np.uint8(255 * names["x"][..., 0]), names["y"])
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: (digits, digits))
    for page in pages.split():
        blocks = python_blocks(ROOT / page)
        assert blocks
        for block in blocks:
            for pattern, shorter in SHORTER.items():
                block = re.sub(pattern, shorter, block)
            exec(compile(block, page, "exec"), names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif("LIPDP_DATA" not in os.environ, reason="needs MNIST in the folder that LIPDP_DATA names")
def test_the_readme_reaches_its_figures(monkeypatch, tmp_path):
    import keras

    monkeypatch.chdir(tmp_path)
    mnist = np.load(pathlib.Path(os.environ["LIPDP_DATA"]) / "mnist.npz")
    parts = [tuple(mnist[f"{kind}_{part}"] for kind in "xy") for part in ("train", "test")]
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: parts)
    text, names = (ROOT / "README.md").read_text(), {}
    recipe, by_hand = (float(re.search(p, text)[1]) for p in (r"reaches ([\d.]+) %", r"val_accuracy: 0\.(\d\d)"))
    first, second, *_ = python_blocks(ROOT / "README.md")
    for block, printed in ((first, recipe), (second, by_hand)):
        exec(compile(block, "README.md", "exec"), names)
        reached = 100 * names["model"].history.history["val_accuracy"][-1]
        assert reached == pytest.approx(printed, abs=1.5)
        assert names["model"].privacy.epsilon() <= 1.0


def python_blocks(page):
    """Code of a page that a user of lipdp runs; code of other libraries is fenced as `py`."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.backend_free
def test_all_pages_with_code_are_run():
    elsewhere = {"docs/layers.md", "docs/extending.md"}  # test_the_layer_of_the_documents..., test_extending.py
    run = {page for pages in (*SNIPPETS, *SLOW_SNIPPETS) for page in pages.split()} | elsewhere
    pages = (page for page in PAGES if python_blocks(page))
    assert not {str(page.relative_to(ROOT)) for page in pages} - run


@pytest.mark.backend_free
def test_command_lines_are_understood():
    from lipdp.cli import parser

    lines = re.findall(r"^lipdp .*$", (ROOT / "docs" / "howto" / "command-line.md").read_text(), flags=re.MULTILINE)
    assert len(lines) == 29
    for line in lines:
        parser.parse(shlex.split(line, comments=True)[1:])


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.backend_free
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), f"{page.name} links to {target}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", other.read_text(), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
            assert heading in anchors, f"{page.name} links to {target}"


@pytest.mark.backend_free
def test_the_site_has_every_page():
    nav = re.findall(r"(\S+\.(?:md|ipynb))$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    of_hooks = {"overview.md", "contributing.md", "changelog.md"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.relative_to(ROOT).parts}
    pages |= {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert sorted(nav) == sorted(pages | of_hooks)


def public_names():
    """Dotted paths of all that the packages of `lipdp.__all__` call public."""
    for name in lipdp.__all__:
        value = getattr(lipdp, name)
        if isinstance(value, types.ModuleType):
            yield from (f"lipdp.{name}.{inner}" for inner in value.__all__)
        else:
            yield f"lipdp.{name}"


@pytest.mark.backend_free
def test_the_reference_has_every_public_name():
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    entries = set(re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE))
    # Of lipdp itself names stand at home, and constants and layers of Keras in a line of text.
    homes = {f"{home}.{name}": f"lipdp.{name}" for name, home in lipdp._HOMES.items()}
    homes["lipdp.isolation.row_wise"] = "lipdp.row_wise"
    found = {homes.get(entry, entry) for entry in entries} | set(re.findall(r"`(lipdp\.[\w.]+)`", text))
    missing = sorted(set(public_names()) - found)
    assert not missing, missing
    dead = sorted(entry for entry in entries if not exists(entry))
    assert not dead, dead


def exists(path):
    """Whether a dotted path leads to something."""
    for split in range(path.count("."), 0, -1):
        module, *names = path.rsplit(".", path.count(".") + 1 - split)
        try:
            value = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return functools.reduce(lambda value, name: getattr(value, name, None), names, value) is not None
    return False


@functools.cache
def defined(path):
    """Names that a file defines: functions, classes, their methods and attributes, as dotted paths."""

    def names(body, prefix=""):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield prefix + node.name
                yield from names(node.body, f"{prefix}{node.name}.")
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                if isinstance(target, ast.Name):
                    yield prefix + target.id

    return set(names(ast.parse(path.read_text()).body))


@pytest.mark.backend_free
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_functions_that_pages_name_exist(page):
    for name, function in re.findall(
        r"`([\w/.-]+\.(?:py|md|json|ipynb|yaml|cfg|toml))(?::([\w.]+))?`", page.read_text()
    ):
        paths = [root / name for root in (ROOT, ROOT / "lipdp", page.parent) if (root / name).is_file()]
        # A name without a folder may be a file that runs write.
        assert paths or "/" not in name, f"{page.name} names {name}"
        assert not function or function in defined(paths[0]), f"{page.name} names {name}:{function}"


def renames():
    """Old and new names that `lipdp/_deprecated.py` knows or is called with."""
    from lipdp import _deprecated

    yield from _deprecated.MOVED.items()
    for path in (ROOT / "lipdp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in HELPERS:
                given = [a.value for a in node.args if isinstance(a, ast.Constant)]
                new = [(k.arg, k.value.value) for k in node.keywords if isinstance(k.value, ast.Constant)]
                yield from new if new else [tuple(given[-2:])]


HELPERS = ("renamed_arguments", "renamed_attributes", "renamed_property", "renamed_value")


@pytest.mark.backend_free
def test_the_changelog_lists_every_renamed_name():
    text = (ROOT / "CHANGELOG.md").read_text()
    missing = [pair for pair in renames() if not all(f"`{name}`" in text for name in pair)]
    assert not missing, missing


# On JAX, and those that take longer, they run in `make test-all`.
@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
)
def test_notebook_runs(path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": ROOT}}).execute()


@pytest.mark.backend_free
def test_no_framework_outside_of_the_backend():
    for path in (ROOT / "lipdp").rglob("*.py"):
        if path.parent.name == "backend":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in ("tensorflow", "jax", "torch"), f"{path.name} imports {name}"


@pytest.mark.backend_free
def test_result_tables_come_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tables = importlib.import_module("tables")
    for page, rendered in ((ROOT / "README.md", tables.short()), (ROOT / "docs" / "results.md", tables.render())):
        text = page.read_text()
        assert rendered in text
        assert tables.update(text, rendered) == text


def test_the_layer_of_the_documents_holds_its_bounds():
    import keras
    import numpy as np

    from lipdp import bounds, layers, norms

    text = (ROOT / "docs" / "layers.md").read_text()
    (code,) = re.findall(r"```python\n(class .*?)```", text, re.DOTALL)
    names = {"bounds": bounds, "keras": keras, "layers": layers, "norms": norms, "np": np}
    exec(code, names)
    model = lipdp.DP_Sequential([layers.BoundedInput((4,)), names["Gains"]()])
    assert lipdp.export(model).count_params() == 16


@pytest.mark.backend_free
def test_layer_table_comes_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tightness = importlib.import_module("tightness")
    text = (ROOT / "docs" / "layers.md").read_text()
    assert tightness.update(text) == text


@pytest.mark.backend_free
def test_tables_of_audits_come_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    audits = importlib.import_module("audits")
    page = (ROOT / "docs" / "howto" / "audit.md").read_text()
    assert "faults:begin -->" in page and "tightness:begin -->" in page
    assert audits.update(page) == page


@pytest.mark.backend_free
def test_tables_of_settings_come_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    settings = importlib.import_module("settings")
    pages = [
        (ROOT / "docs" / "howto" / f"{name}.md").read_text() for name in ("learning-rate", "temperature", "clip-norm")
    ]
    for page in pages:
        assert ":begin -->" in page
        assert settings.update(page) == page
