"""Every public function says the types of its arguments and of its result; mypy checks them in `make lint`."""

import ast
import inspect
import pathlib

import pytest

import lipdp

ROOT = pathlib.Path(lipdp.__file__).parent
# Not public: nearly all of their arguments are tensors of either framework.
INTERNAL = ("backend", "gradients")
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def missing(tree: ast.Module) -> list[str]:
    """Returns what lacks an annotation, as `line function: argument`."""
    return [text for name, node, method in _public(tree) for text in _gaps(name, node, method)]


def _public(node, prefix="", method=False):
    for child in ast.iter_child_nodes(node):
        # The methods of `_PrivateTraining` are those of the public models.
        if isinstance(child, ast.ClassDef) and (not child.name.startswith("_") or child.name == "_PrivateTraining"):
            yield from _public(child, f"{child.name}.", True)
        elif isinstance(child, ast.FunctionDef) and (child.name == "__init__" or not child.name.startswith("_")):
            yield prefix + child.name, child, method
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _public(child, prefix, method)


def _gaps(name, node, method):
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    every = [*node.args.posonlyargs, *node.args.args][1 if method and not static else 0 :]
    every += [*node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg))]
    yield from (f"{node.lineno} {name}: {each.arg}" for each in every if each.annotation is None)
    if node.returns is None and node.name != "__init__":
        yield f"{node.lineno} {name}: result"


@pytest.mark.backend_free
@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith(INTERNAL)])
def test_public_functions_are_annotated(file):
    assert missing(ast.parse((ROOT / file).read_text(encoding="utf-8"))) == []


@pytest.mark.backend_free
@pytest.mark.parametrize("module", [name for name in lipdp.__all__ if inspect.ismodule(getattr(lipdp, name))])
def test_help_shows_no_private_types_of_numpy(module):
    """`ArrayLike` took 240 characters."""
    found = [part for part in vars(getattr(lipdp, module)).values() if callable(part)]
    found += [each for kind in found if inspect.isclass(kind) for each in vars(kind).values() if callable(each)]
    lipdps = [part for part in found if str(getattr(part, "__module__", "")).startswith("lipdp")]
    assert not [part for part in lipdps if inspect.isfunction(part) and "_typing" in str(inspect.signature(part))]
