"""The shape of the library: floors, sizes, and names that may stand in one place only. Nothing is imported here."""

import ast
import functools
import pathlib

import pytest

pytestmark = pytest.mark.backend_free

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "lipdp"

# docs/architecture.md draws them; a room uses floors below it and its own.
FLOORS = (
    ("backend", "checks", "_keras", "_deprecated"),
    ("isolation", "layers", "losses", "norms"),
    ("accounting", "sampling", "bounds", "gradients"),
    ("privacy",),
    ("strategies", "optimizer"),
    ("training", "callbacks", "model", "models", "diffusion", "certify", "exporting", "_register"),
    ("audit", "data", "report", "cli"),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# (module, imported room): the reason why it may look up.
UPWARD: dict[tuple[str, str], str] = {}

FRAMEWORKS = ("tensorflow", "jax", "torch")
LONGEST = 400
TOP_LEVEL_MODULES = 8


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Syntax trees by path below `lipdp/`."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def room(path: str) -> str:
    return pathlib.PurePath(path).parts[0].removesuffix(".py")


def module(path: str) -> str:
    return "lipdp." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports(path: str, tree: ast.Module) -> set[str]:
    """Dotted names of all that a module imports, also inside of functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module(path).split(".")
                package = package if path.endswith("__init__.py") else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _called(node) == "import_module" and node.args:
            if isinstance(node.args[0], ast.Constant):
                names.add(str(node.args[0].value))
    return names


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def rooms_used(path: str, tree: ast.Module) -> set[str]:
    return {name.split(".")[1] for name in imports(path, tree) if name.startswith("lipdp.")}


def test_every_room_has_a_floor():
    for path in sources():
        if path not in ("__init__.py", "__main__.py"):
            assert room(path) in FLOOR, f"{path} stands on no floor"


def test_no_room_uses_a_higher_floor():
    upward = {
        (module(path), used)
        for path, tree in sources().items()
        if path not in ("__init__.py", "__main__.py")
        for used in rooms_used(path, tree)
        if FLOOR.get(used, -1) > FLOOR[room(path)]
    }
    assert upward == set(UPWARD)


def test_rooms_do_not_use_each_other_in_a_circle():
    uses = {}
    for path, tree in sources().items():
        if path not in ("__init__.py", "__main__.py"):
            uses.setdefault(room(path), set()).update(rooms_used(path, tree) & set(FLOOR) - {room(path)})
    while free := {name for name, used in uses.items() if not used & set(uses)}:
        uses = {name: used for name, used in uses.items() if name not in free}
    assert uses == {}


def test_no_framework_outside_of_the_backend():
    for path, tree in sources().items():
        for name in imports(path, tree):
            assert room(path) == "backend" or name.split(".")[0] not in FRAMEWORKS, f"{path} imports {name}"


def test_accounting_needs_no_framework():
    seen, waiting = set(), [path for path in sources() if room(path) == "accounting"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for name in imports(path, sources()[path]):
            assert name.split(".")[0] not in ("keras", *FRAMEWORKS), f"accounting imports {name} through {path}"
            waiting += [other for other in sources() if _meant(name, other) and other not in seen]


def _meant(name: str, path: str) -> bool:
    """Whether importing `name`, a module or something in one, runs the file `path`."""
    return path != "__init__.py" and (name == module(path) or name.startswith(module(path) + "."))


def test_files_are_short():
    lengths = {path: len((PACKAGE / path).read_text().splitlines()) for path in sources()}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


def test_few_modules_beside_the_packages():
    modules = [path for path in sources() if "/" not in path and path not in ("__init__.py", "__main__.py")]
    assert len(modules) <= TOP_LEVEL_MODULES, modules


def test_a_sampler_is_named_in_few_files():
    holders = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.suffix in (".py", ".json")]
    holders = [path.name for path in holders if "truncated_poisson" in path.read_text()]
    assert len(holders) <= 4, holders


def test_names_with_settings_are_parsed_in_one_place():
    parsers = [
        path
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in ("split", "rsplit", "partition", "rpartition")
        if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == ":"
    ]
    assert len(parsers) <= 1, parsers


@functools.cache
def private_keras_names() -> frozenset[str]:
    """Names with one underscore that objects of Keras have."""
    import keras

    image = keras.Input((8, 8, 1))
    graph = keras.Model(image, keras.layers.Dense(1)(keras.layers.Flatten()(image)))
    stack = keras.Sequential([keras.Input((3, 2)), keras.layers.LSTM(2), keras.layers.Dropout(0.1)])
    stack.compile("sgd", "mse")
    rest = [keras.losses.MeanSquaredError(), keras.metrics.Mean(), image, stack.optimizer, graph.weights[0]]
    graph_node = graph.layers[-1]._inbound_nodes[0]
    objects = [graph, stack, *graph.layers, *stack.layers, stack._functional, graph_node, *rest]
    names = {name for thing in objects for name in dir(thing)}
    return frozenset(name for name in names if name.startswith("_") and not name.startswith("__"))


@pytest.mark.slow
def test_private_names_of_keras_stand_in_one_file():
    found = set()
    for path, tree in sources().items():
        if path == "_keras.py":
            continue
        found |= {f"{path}: {name}" for name in imports(path, tree) if name.startswith("keras.src")}
        own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
        }
        for node in ast.walk(tree):
            name = (
                node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else ""
            )
            if name in private_keras_names() and name not in own:
                found.add(f"{path}: {name}")
    assert not found, "\n".join(sorted(found))


def _is_self(node) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
