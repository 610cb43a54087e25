"""Argument checks of the whole library: NumPy scalars are numbers everywhere, `True` is a number nowhere."""

import difflib
import dis
import functools
import inspect
import math
import numbers
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Decorated = TypeVar("Decorated", bound=Callable)

# What Keras, Opacus, TensorFlow Privacy and papers call an argument, and its name here.
_NAMES_ELSEWHERE = {
    **dict.fromkeys(("max_grad_norm", "l2_norm_clip", "l2_clip_norm", "clipping_norm"), "clip_norm"),
    **dict.fromkeys(("target_epsilon", "eps"), "epsilon"),
    "target_delta": "delta",
    **dict.fromkeys(("noise", "noise_scale", "sigma"), "noise_multiplier"),
    **dict.fromkeys(("sample_rate", "sampling_rate", "sampling_prob", "q"), "sampling_probability"),
    **dict.fromkeys(("steps", "num_steps", "iterations", "num_iterations"), "updates"),
    **dict.fromkeys(("num_microbatches", "max_physical_batch_size", "microbatches"), "microbatch_size"),
    **dict.fromkeys(("nb_epoch", "num_epochs", "n_epochs"), "epochs"),
    "tau": "temperature",
    "upper_bound": "norm",
    **dict.fromkeys(("dataset_size", "number_of_examples", "train_size"), "num_examples"),
}
# What to do where nothing here has another name for it.
_CURES = {
    "clip_norm": "Pass strategy=lipdp.strategies.DPSGD(clip_norm=...) to `fit`.",
    "noise_multiplier": "Pass it to `fit`.",
    "microbatch_size": "Pass microbatch_size=... to `fit`.",
    "epsilon": "Pass epsilon=... to `fit`.",
    "delta": "Pass delta=... to `fit`.",
    **dict.fromkeys(("epochs", "batch_size"), "Pass it to `fit`; without a model accounting.solve takes it."),
    "num_examples": "Leave it out: `fit` counts the rows.",
    "learning_rate": "Pass an optimizer with this rate to `compile`.",
    "secure_mode": "Pass noise_generator='chacha20' to `fit`.",
    **dict.fromkeys(
        ("workers", "use_multiprocessing", "max_queue_size"),
        "Leave it out: in Keras 3 a keras.utils.PyDataset takes it.",
    ),
    "from_logits": "Losses of lipdp always take logits: leave it out, and end the model without softmax or sigmoid.",
}


def real(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number as a float.

    Args:
        name: name of the argument, used in the message.
        value: what the caller passed.
        optional: whether `None` is accepted, and returned.
        hint: a sentence on what to pass instead, appended to the message.

    Returns:
        A finite Python float, or `None`.

    Raises:
        ValueError: when `value` is not a real number, or NaN, or infinite.

    Example:
        >>> import numpy as np
        >>> real("rate", np.float32(0.5))
        0.5
    """
    return _number(name, value, "a finite number", math.isfinite, optional, hint)


def positive(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number above 0 as a float; ValueError otherwise."""
    return _number(name, value, "a finite number above 0", lambda v: 0.0 < v < math.inf, optional, hint)


def not_negative(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a finite number of at least 0 as a float; ValueError otherwise."""
    return _number(name, value, "a finite number of at least 0", lambda v: 0.0 <= v < math.inf, optional, hint)


def between(name: str, value: Any, low: float, high: float, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in [low, high] as a float; ValueError otherwise."""
    interval = f"[{low:g}, {high:g}]".replace("e-0", "e-").replace("e+0", "e")
    return _number(name, value, f"a number in {interval}", lambda v: low <= v <= high, optional, hint)


def fraction(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in (0, 1) as a float; ValueError otherwise."""
    return _number(name, value, "a number in (0, 1)", lambda v: 0.0 < v < 1.0, optional, hint)


def below_one(name: str, value: Any, optional: bool = False, hint: str = "") -> Any:
    """Returns a number in [0, 1) as a float; ValueError otherwise."""
    return _number(name, value, "a number in [0, 1)", lambda v: 0.0 <= v < 1.0, optional, hint)


def probability(name: str, value: Any) -> float:
    """Returns a sampling probability in (0, 1] as a float; ValueError otherwise."""
    hint = "Pass the expected batch size divided by the number of examples."
    return _number(name, value, "a number in (0, 1]", lambda v: 0.0 < v <= 1.0, False, hint)


def delta(value: Any, name: str = "delta") -> float:
    """Returns the delta of a privacy guarantee, in (0, 1), as a float; ValueError otherwise."""
    return fraction(name, value, hint="Pass a value well below 1 / number of examples, such as 1e-5.")


def budget(value: Any, optional: bool = False) -> Any:
    """Returns epsilon, a finite number above 0, as a float; ValueError otherwise."""
    return positive("epsilon", value, optional, "Pass a budget of the order of 1 to 10, such as epsilon=1.0.")


def integer(name: str, value: Any, minimum: int = 0, optional: bool = False, hint: str = "") -> Any:
    """Returns an integer of at least `minimum` as an int; ValueError otherwise, for 2.0 too."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        expected = {0: "a non-negative integer", 1: "a positive integer"}.get(
            minimum, f"an integer of at least {minimum}"
        )
        raise _refusal(name, value, expected, optional, hint)
    return int(value)


def choice(name: str, value: Any, allowed: Iterable[str], hint: str = "") -> str:
    """Returns one of the `allowed` strings; ValueError otherwise."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise _refusal(name, value, f"one of {', '.join(map(repr, allowed))}", False, hint)
    return value


def one_length(lengths: Iterable[int]) -> int:
    """Returns the length of inputs and labels, in this order; refuses several."""
    given = list(lengths)
    found = sorted(set(given))
    if len(found) == 1:
        return found[0]
    hint = " A list holds one array for each input of a model. Make sequences of several lengths one array, as by "
    hint = (
        f"{hint}keras.utils.pad_sequences, with a public `maxlen`."
        if len(found) > 2
        else " Pass one label for each example."
    )
    shown = f"{given}, inputs first" if len(given) < 9 else found if len(found) < 9 else f"{str(found[:8])[:-1]}, ...]"
    raise ValueError(f"Inputs and labels must have the same length. Received lengths: {shown}.{hint}")


def boolean(name: str, value: Any, hint: str = "") -> bool:
    """Returns `True` or `False`, Python's or NumPy's, as a bool; ValueError otherwise."""
    if not isinstance(value, (bool, np.bool_)):
        raise _refusal(name, value, "True or False", False, hint)
    return bool(value)


def either(values: Iterable[Any]) -> str:
    """Returns values as words: `a`, `a or b`, `a, b or c`."""
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def unexpected(owner: str, name: str, known: Iterable[str], cures: Mapping[str, str] | None = None) -> TypeError:
    """Returns the error for an argument that nobody knows, with the name that was meant or what to do instead.

    Args:
        owner: what was called, used in the message.
        name: name of the argument.
        known: names of the arguments that there are.
        cures: what to do in place of some arguments, by their names; beside what is known of other libraries.

    Example:
        >>> str(unexpected("DPSGD", "max_grad_norm", ["clip_norm", "clipping"]))
        "DPSGD() got an unexpected keyword argument 'max_grad_norm'. Did you mean `clip_norm`?"
    """
    known, cures = list(known), {**_CURES, **(cures or {})}
    meant = _NAMES_ELSEWHERE.get(name, name)
    close = [meant] if meant in known else difflib.get_close_matches(name, known, 1)
    if meant in cures and meant not in known:
        hint = cures[meant]
    elif close:
        hint = f"Did you mean `{close[0]}`?"
    else:
        hint = f"It takes: {', '.join(known)}."
    return TypeError(f"{owner}() got an unexpected keyword argument '{name}'. {hint}")


def not_twice(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses arguments of `fit` that a recipe sets itself."""
    if twice := [f"{name}={given[name]!r}" for name in own if name in given]:
        raise TypeError(
            f"The recipe sets this itself. Received: {', '.join(twice)}. Change the recipe with dataclasses.replace, "
            "or build the model and call its `fit`."
        )


def known_arguments(*more: str) -> Callable[[Decorated], Decorated]:
    """Returns a decorator for a function or a class, whose constructor it is for, that explains arguments it lacks.

    Args:
        more: names that its `**kwargs` take beside those of its signature.

    Example:
        >>> @known_arguments()
        ... def cost(*, epsilon): ...
        >>> cost(target_epsilon=1.0)
        Traceback (most recent call last):
        TypeError: cost() got an unexpected keyword argument 'target_epsilon'. Did you mean `epsilon`?
    """

    def decorate(function, owner=None):
        if isinstance(function, type):
            function.__init__ = decorate(function.__init__, function.__name__)  # type: ignore[misc]
            return function
        owner, signature = owner or function.__name__, inspect.signature(function)
        parameters = signature.parameters.values()
        takes = [*(p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"), *more]
        needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        by_name = all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters)

        @functools.wraps(function)
        def call(*args, **kwargs):
            for name in kwargs:
                if name not in takes:
                    raise unexpected(owner, name, takes)
            call_for = f"{owner}({', '.join(f'{name}=...' for name in needed)})"
            if args and by_name:
                raise TypeError(
                    f"{owner}() takes its arguments by name. Received: {len(args)} without one. Write {call_for}."
                )
            missing = [f"`{name}`" for name in needed if name not in kwargs]
            if missing:
                received = ", ".join(kwargs) or "nothing"
                raise TypeError(f"{owner}() needs {', '.join(missing)}. Received: {received}. Write {call_for}.")
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def _number(name: str, value, expected: str, accepts: Callable[[float], bool], optional: bool, hint: str):
    if value is None and optional:
        return None
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the largest float
            number = math.inf
        if accepts(number):
            return number
    raise _refusal(name, value, expected, optional, hint)


def _refusal(name: str, value, expected: str, optional: bool, hint: str) -> ValueError:
    expected = f"{expected} or None" if optional else expected
    return ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}.{hint and ' ' + hint}")


def replaced(thing: Any) -> list[str]:
    """Returns the names of methods that a user has replaced: on an object alone, or in a class of a known package.

    Its class does not say then what it computes. What Keras replaces by itself, as `build` of each layer, is left out.
    """
    of_class = ((name, getattr(type(thing), name, None)) for name in vars(thing))
    found = [name for name, method in of_class if method is not None and inspect.isroutine(method)]
    found = [name for name in found if name not in _OF_TRAINING and not _kept(thing, name)]
    return found + [name for kind in type(thing).__mro__ for name in replaced_in(kind) if name not in found]


def refuse_names(thing: Any, names: str) -> None:
    """Refuses an optimizer that has one of these names, or whose class of the user's sets it: lipdp needs them."""
    kinds = (kind for kind in type(thing).__mro__ if kind.__module__.partition(".")[0] not in _KNOWN_PACKAGES)
    held = {name: value for kind in kinds for name, value in vars(kind).items()}
    set_there = {name for value in held.values() for name in _set_by(getattr(value, "__code__", None))}
    taken = [name for name in names.split() if name in vars(thing) or name in held or name in set_there]
    if taken:
        raise ValueError(
            "Private training keeps its own state in an optimizer, and one would be taken for the other. Received: an "
            f"optimizer of {type(thing).__name__} that has {', '.join(map(repr, taken))} itself. Call that otherwise."
        )


def _set_by(code: Any) -> set[str]:
    """Returns the names of the attributes that code sets."""
    if code is None:
        return set()
    found = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    return found.union(*(_set_by(part) for part in code.co_consts if hasattr(part, "co_code")))


def _kept(thing: Any, name: str) -> bool:
    """Whether a method of an object is a wrapper of Keras' around that of the class."""
    method, original = vars(thing)[name], getattr(type(thing), name)
    inner = inspect.unwrap(method)
    return _home(method) == "keras" and getattr(inner, "__func__", inner) is inspect.unwrap(original)


def replaced_in(kind: type) -> tuple[str, ...]:
    """Returns the names of what is called in a class of a known package and comes from elsewhere."""
    if (root := kind.__module__.partition(".")[0]) not in _KNOWN_PACKAGES:
        return ()
    held = list(vars(kind).values())
    seen = _looked_at.get(kind)
    if seen is None or len(seen[0]) != len(held) or any(a is not b for a, b in zip(seen[0], held, strict=True)):
        # TensorFlow adds methods to the layers of Keras that it keeps track of.
        methods = {name: v for name, v in vars(kind).items() if name not in _OF_TRAINING and _is_method(v)}
        names = [name for name, v in methods.items() if _home(v) not in (root, "keras", "tensorflow")]
        seen = _looked_at[kind] = held, tuple(names)
    return seen[1]


_looked_at: dict[type, tuple[list, tuple[str, ...]]] = {}
# Of which layers are known by their class: by what bounds them, or keeps their rows apart.
_KNOWN_PACKAGES = ("keras", "lipdp", "keras_hub")
# No layer calls these; what watches trainings, as MLflow, wraps them in the class.
_OF_TRAINING = ("compile", "evaluate", "export", "fit", "load_weights", "predict", "save", "save_weights", "summary")


def _is_method(value: Any) -> bool:
    return isinstance(value, (property, classmethod, staticmethod)) or callable(value) and not isinstance(value, type)


def _home(method: Any) -> str:
    """Returns the package in which the code of a method was written: `__module__` is copied by `functools.wraps`."""
    method = getattr(method, "fget", None) or method
    method = getattr(method, "__func__", None) or method
    return str(getattr(method, "__globals__", {}).get("__name__")).partition(".")[0]


def users_line() -> int:
    """Returns the `stacklevel` with which a warning of the caller shows the line outside of lipdp and Keras."""
    inner = "lipdp", "keras", "contextlib"  # the last is between where a `with` enters a generator
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in inner:
        frame, level = frame.f_back, level + 1
    return level


def warn_of_channels_first(shape: Sequence[int]) -> None:
    """Warns of a shape of images that looks like channels first, as files for torch have them."""
    if len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2] > 4:
        warnings.warn(
            f"Images have channels last here, (height, width, channels). Received: shape {tuple(shape)}, which looks "
            "like channels first. If so, pass numpy.moveaxis(x, 1, -1): as they are, rows of pixels count as channels.",
            stacklevel=users_line(),
        )


def as_range(value: Any, where: str) -> tuple[float, float]:
    """Returns `(low, high)` as two floats with low < high; ValueError otherwise."""
    try:
        low, high = (float(number) for number in value)
    except (TypeError, ValueError, OverflowError):
        low = high = math.nan
    # A width that is no float, or next to none, would make NaN of numbers within it.
    if not -math.inf < low < high < math.inf or not sys.float_info.min < high - low < math.inf:
        raise ValueError(f"A range must be two numbers, the lower one first. Received: {value!r}.{where}")
    return low, high
