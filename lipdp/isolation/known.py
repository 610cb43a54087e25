"""Which operations are known to keep the rows of a batch apart; all others run one row at a time."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import layers as L
from keras import ops

from lipdp import _keras, checks
from lipdp.isolation.declared import declared, is_declared
from lipdp.isolation.rules import (
    LAYERS,
    attends_within,
    elsewhere,
    images,
    is_array,
    moments,
    numbers_are_numbers,
    operation_keeps_apart,
    scalar,
)

# Where users put functions into layers of Keras.
FUNCTIONS = ("activation", "recurrent_activation")
# Methods that Keras wraps, once for each layer.
_WRAPPED = ("build", "quantize")
# Activations along the last axis, which is the batch where there is no other.
_ALONG_LAST = ("softmax", "log_softmax", "glu", "sparsemax")
# Operations that users take for activations.
_OPS = ("elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus", "tanh")
# What works on weights, and sees no row.
_OF_WEIGHTS = (keras.Initializer, keras.Regularizer, keras.constraints.Constraint)
# Packages that are known by name, so that they need not be imported.
_FAMILIES: dict[str, tuple[frozenset, str]] = {}


def trust_family(package: str, names: Iterable[str], release: str = "") -> None:
    """Declares that some classes and functions of a package keep the rows apart.

    They do as long as the layers inside of them do, and the functions that they hold are activations of Keras.

    Args:
        package: Its name.
        names: Their names within the package, as "src.layers.Block", or the last part alone, "Block".
        release: How the versions of the package begin in which this is known.
    """
    _FAMILIES[package] = frozenset(names), release


def root(thing: Any) -> str:
    """Returns the name of the package that a class or function comes from."""
    return str(getattr(thing, "__module__", None)).split(".")[0]


def stock_activation(activation: Callable | None) -> bool:
    """Whether it is one of Keras' own, which work on one example; a function of the user's may mix them."""
    name = getattr(activation, "__name__", None)
    return activation is None or (name in vars(keras.activations) and keras.activations.get(name) is activation)


def foreign(model: keras.Model) -> list:
    """Returns the operations of a model that are not known to keep the rows of a batch apart, with their calls.

    Returns:
        Pairs of an operation and a list of its nodes in the graph. A layer that holds such a layer is one itself, and
        what is inside of it is not listed; so is a model with a `call` of its own.
    """
    found: dict[int, tuple] = {}

    def visit(model):
        graph = _keras.graph(model)
        if graph is None or not _follows_graph(model):
            found.setdefault(id(model), (model, []))
            return
        for node in _keras.nodes(graph):
            operation = node.operation
            if isinstance(operation, keras.Model):
                visit(operation)
                continue
            ranks = frozenset(len(use.inputs[0]) for use in _keras.uses(operation) if use.inputs)
            if not _keeps_apart(operation, node, ranks):
                found.setdefault(id(operation), (operation, []))[1].append(node)

    visit(model)
    return list(found.values())


def suspects(model: keras.Model) -> str:
    """Returns names and types of the layers that may mix rows, for messages; "" where there are none."""
    return ", ".join(f"'{operation.name}' ({type(operation).__name__})" for operation, _ in foreign(model))


def advice(operation: Any) -> str:
    """Returns what to do about images without channels and masks for all rows of a batch at once, and "" else."""
    if LAYERS.get(type(operation)) is attends_within:
        masks = [tuple(mask.shape) for mask in _keras.passed(operation, "attention_mask")]
        flat = next((shape[1:] for shape in masks if len(shape) == 2), None)
        if flat is None:
            return ""
        return (
            f"Layer '{operation.name}' ({type(operation).__name__}) takes a mask of two axes for one that all rows of "
            f"the batch share. Received: a mask with rows of shape {flat}. Give each row its own, (queries, keys): "
            "attention_mask=mask[:, None, :] hides keys."
        )
    shapes = [use.inputs[0] for use in _keras.uses(operation)] if LAYERS.get(type(operation)) is images else []
    found = next((shape[1:] for shape in shapes if len(shape) == 3), None)
    if found is None:
        return ""
    return (
        f"Layer '{operation.name}' ({type(operation).__name__}) takes images with channels; without, it takes a whole "
        f"batch for one image. Received: rows of shape {found}. Add an axis: keras.layers.Reshape({(*found, 1)}) in "
        f"front of it, or keras.Input({(*found, 1)})."
    )


def at_once(layer: keras.Layer) -> str:
    """Returns what to use in place of a layer that draws changes for a batch as a whole, or mixes it, and "" else."""
    if type(layer) not in (L.AugMix, L.CutMix, L.MixUp, L.RandAugment):
        return ""
    kind = type(layer).__name__
    return (
        f"Layer '{layer.name}' ({kind}) draws changes for all rows of a batch together, or mixes them. Received: "
        f"{kind}. Use random layers that draw for each row, such as RandomFlip, RandomRotation and RandomColorJitter, "
        "in a model or in keras.layers.Pipeline; or DPSGD(augmentation_multiplicity=4, "
        "augmentation=strategies.RandomShift(4))."
    )


def used(model: keras.Model, *others: Any) -> tuple[str, ...]:
    """Returns the names of all that a model, and objects or functions beside it, use and that was declared."""
    operations = _keras.walk(model, include_self=True)
    for layer in list(operations):
        graph = _keras.graph(layer) if isinstance(layer, keras.Model) else None
        operations += [node.operation for node in _keras.nodes(graph)] if graph is not None else []
    names = (*FUNCTIONS, "function", "mask")
    functions = [getattr(operation, name, None) for operation in operations for name in names]
    return declared([*map(type, operations), *functions, *others, *map(type, others)])


def _follows_graph(model) -> bool:
    """Whether a model computes what its graph says."""
    own = [name for name in ("__call__", "compute_mask") if _defined_by_user(model, name)]
    policy = root(type(model.dtype_policy)) != "keras"
    return not (_keras.has_own_call(model) or own or policy)


def _defined_by_user(operation, name: str) -> bool:
    source = next((c for c in type(operation).__mro__ if name in vars(c)), object)
    return source is not object and (root(source) not in ("keras", "lipdp") or name in checks.replaced_in(source))


def _keeps_apart(operation, node=None, ranks=frozenset()) -> bool:
    """Whether row i of what an operation returns is known to depend on row i of its inputs only.

    `ranks` are those of its first input, in all of its calls. Inside of another layer they are rarely known: none.
    """
    if isinstance(operation, keras.Model):
        return not foreign(operation)
    kind, name = type(operation), _keras.operation_name(operation)
    if "call" in vars(operation):
        return False
    if name is not None:
        return node is not None and not checks.replaced(operation) and operation_keeps_apart(name, operation, node)
    if not isinstance(operation, keras.Layer):
        return is_declared(kind)  # an operation of the user's
    inner, less = _keras.walk(operation, deep=False), int(kind is L.TimeDistributed)
    within = frozenset(r - less for r in ranks if less or kind in (L.RandomColorJitter, L.Pipeline))
    if not all(_keeps_apart(layer, None, within) for layer in inner):
        return False
    if is_declared(kind):
        return True
    if root(kind) != "lipdp" and not _rule(operation, kind, ranks):
        return False
    own = root(kind) == "lipdp"
    if not (own or numbers_are_numbers(operation)):
        return False
    # Of these the shapes are looked at, or were when the layer was read.
    held, arrays = _held(operation), own or _of_family(kind) or LAYERS.get(kind) in (moments, scalar)
    return not _shadows(operation) and all(
        _is_harmless(part, inner) and (arrays or not is_array(part)) for part in held
    )


def _rule(layer, kind, ranks) -> bool:
    """Whether the type of a layer is known, and its configuration keeps rows apart."""
    if _of_family(kind):
        axes = [getattr(layer, name, 1) for name in ("axis", "feature_axis", "sequence_axis")]
        if kind.__name__ == "DeiTEncoder" and any(len(use.inputs) > 1 for use in _keras.uses(layer)):
            return False  # it takes the masks of block i from place i, where rows are
        above = [LAYERS[c] for c in kind.__mro__ if c in LAYERS]
        return elsewhere(axes, ranks) and all(rule(layer, ranks) for rule in above)
    return kind in LAYERS and LAYERS[kind](layer, ranks) and all(_function(layer, name) for name in FUNCTIONS)


def _shadows(layer) -> bool:
    """Whether a method was replaced on the object alone."""
    return not set(checks.replaced(layer)) <= set(_WRAPPED)


def _held(layer) -> list:
    """Returns what a layer holds, out of lists and dictionaries, but for the functions that its rule looks at."""
    seen = (*_WRAPPED, *(() if _of_family(type(layer)) else (*FUNCTIONS, "function", "mask")))
    left, found = [value for name, value in vars(layer).items() if name not in seen], []
    while left:
        value = left.pop()
        if isinstance(value, (list, tuple, set, dict)):
            left.extend(value.values() if isinstance(value, dict) else value)
        else:
            found.append(value)
    return found


def _is_harmless(part, inner) -> bool:
    """Whether what a layer holds is no code, or known code: it may be called on the rows of a batch."""
    if isinstance(part, keras.Layer):
        return any(part is layer for layer in inner)
    if isinstance(part, keras.Operation):
        return False
    if isinstance(part, keras.DTypePolicy) or hasattr(part, "convert_input"):
        return root(type(part)) == "keras"  # it converts the inputs of a layer
    if type(part) is keras.quantizers.AbsMaxQuantizer:
        # Each row has a scale of its own where the layer says along which axes, or they leave the batch out.
        axes = part.axis if isinstance(part.axis, (list, tuple)) else (part.axis,)
        return all(axis is None or axis == -1 or axis > 0 for axis in axes)
    return not callable(part) or isinstance(part, _OF_WEIGHTS) or _entrywise(part)


def _function(layer, attribute: str) -> bool:
    """Whether a function that a layer of Keras calls keeps rows apart."""
    function = getattr(layer, attribute, None)
    if is_declared(function) or _entrywise(function):
        return True
    if isinstance(function, L.Softmax) and _keras.is_masked(layer):
        return False  # it reads the mask off its input
    several = 1 not in [len(u.outputs[0]) for u in _keras.uses(layer)]
    return several and (_keeps_apart(function) if isinstance(function, keras.Operation) else stock_activation(function))


def _entrywise(function) -> bool:
    """Whether a function is known to work on each entry alone."""
    name = getattr(function, "__name__", None)
    if name in _ALONG_LAST:
        return False
    return stock_activation(function) or _of_family(function) or name in _OPS and getattr(ops, name) is function


def _of_family(thing) -> bool:
    """Whether a class or function is a listed one of a family: the very one of its module, whatever it is called."""
    module, name = str(getattr(thing, "__module__", None)), getattr(thing, "__name__", None)
    if name is None or getattr(sys.modules.get(module), name, None) is not thing:
        return False
    for package, (names, release) in _FAMILIES.items():
        if module.startswith(package + ".") and {name, f"{module}.{name}"[len(package) + 1 :]} & names:
            return str(getattr(sys.modules.get(package), "__version__", "")).startswith(release)
    return False
