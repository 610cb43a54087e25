"""Copies of Keras models in which what cannot be trained privately is replaced."""

import sys
from typing import Any, NamedTuple

import keras

from lipdp import _keras
from lipdp.exporting import GraphCopy
from lipdp.losses import penalties
from lipdp.model import DP_Model, DP_Sequential
from lipdp.privacy import provenance

# With fewer channels in a group, normalization leaves little of what they hold.
_LEAST_CHANNELS = 4
_MOST_GROUPS = 32
# Of one kind of change, each with a line of its own.
_MOST_LINES = 3
_OTHER_FLOATS = ("float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16")


def fix(model: keras.Model, verbose: bool = True) -> keras.Model:
    """Returns a copy of a Keras model in which what cannot be trained privately is replaced.

    | refused | in its place |
    |---|---|
    | `BatchNormalization` that is trained | `GroupNormalization` on the same axis, with its gamma and beta |
    | the same behind a layer of one or two units | itself, frozen: groups of so few numbers would hold nothing |
    | `SpectralNormalization` | the layer inside it |
    | regularizers of outputs, and of weights but for L1, L2 and L1L2 | nothing; see `weight_decay` of the optimizer |
    | `stateful=True` | `stateful=False` |
    | low or double precision | float32 |
    | layers of a `RematScope` | the same outside of it |

    Args:
        model: A functional or built Sequential model; nested ones and `TimeDistributed` are followed.
        verbose: Whether to write what was replaced to standard output: a line for each layer, or one for all where more
            than 3 had the same done to them.

    Returns:
        A model of the same kind, not compiled. All other layers are copied with their weights, and what these have cost
        (`privacy`) follows them. Groups have at least 4 channels, and there are at most 32 of them; there is one group
        where the input has no positions beside its channels. Moving averages are dropped, so a trained model has to be
        trained on.

    Raises:
        ValueError: a subclassed or unbuilt model, or a layer of your own that cannot be copied or looked into.

    Example:
        >>> import keras
        >>> import lipdp
        >>> parts = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(name="norm"), keras.layers.Flatten()]
        >>> plain = keras.Sequential([keras.Input((8, 8, 1)), *parts, keras.layers.Dense(3)])
        >>> fixed = lipdp.fix(plain)
        Layer 'norm': BatchNormalization became GroupNormalization(groups=2).
        >>> model = lipdp.DP_Sequential.from_keras(fixed)
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"`fix` takes a Keras model. Received: {type(model).__name__}. Read a file with keras.saving.load_model "
            "first."
        )
    fixer = _Fixer()
    fixed = fixer.model(model)
    provenance.attribute(fixed, provenance.ledgers_of(model))
    if verbose:
        lines = fixer.lines() or [f"Model '{model.name}': nothing had to be replaced."]
        sys.stdout.write("\n".join(lines) + "\n")
    return fixed


class _Change(NamedTuple):
    """What was done to one layer, in the words of all of its kind and in its own, and the groups it has now."""

    name: str
    kind: str
    own: str
    groups: int


class _Fixer(GraphCopy):
    def __init__(self):
        super().__init__()
        self.changes: dict[str, list[_Change]] = {}

    def lines(self) -> list[str]:
        """Returns what was changed, one kind after the other."""
        return [line for changes in self.changes.values() for line in _lines(changes)]

    def model(self, model):
        private = isinstance(model, (DP_Model, DP_Sequential))
        graph = _keras.graph(model)
        if graph is None or _keras.has_own_call(model) or (private and type(model) not in (DP_Model, DP_Sequential)):
            raise ValueError(
                f"`fix` needs a graph of layers. Received: model '{model.name}' of {type(model).__name__}, "
                f"{'a subclass' if graph is not None or model.built else 'which is not built'}. Give a Sequential "
                "model a keras.Input(shape); build others as keras.Model(inputs, outputs)."
            )
        if not isinstance(model, keras.Sequential):
            copy = super().model(model)
            if private:
                copy = DP_Model(*_keras.structures(copy), name=model.name)
            return copy
        copies = [self.copied(layer) for layer in model.layers]
        kind = DP_Sequential if private else keras.Sequential
        (start,) = graph.inputs
        start = keras.Input(batch_shape=start.shape, dtype=_precision(start.dtype), name=start.name)
        fixed = kind([start, *(copy for copy, _ in copies)], name=model.name)
        for copy, weights in copies:
            if weights:
                copy.set_weights(weights)
        return fixed

    def copy(self, operation):
        if isinstance(operation, keras.Model):
            return self.model(operation), []
        if not isinstance(operation, keras.Layer):
            return _again(operation, operation.get_config()), []
        kind = type(operation)
        if isinstance(operation, keras.layers.BatchNormalization) and operation.trainable:
            return self._group_normalization(operation)
        if isinstance(operation, keras.layers.SpectralNormalization):
            own = f"gave its place to '{operation.layer.name}', the layer inside it"
            self._note(operation, "gave its place to the layer inside it", own)
            return self.copy(operation.layer)
        if isinstance(operation, keras.layers.ActivityRegularization):
            self._note(operation, "became Identity, without the penalty")
            return keras.layers.Identity(name=operation.name), []
        if kind is keras.layers.TimeDistributed:
            inner, weights = self.copy(operation.layer)
            return keras.layers.TimeDistributed(inner, name=operation.name), weights or inner.get_weights()
        hidden = [
            inner
            for inner in _keras.walk(operation)
            if isinstance(inner, keras.layers.SpectralNormalization)
            or (isinstance(inner, keras.layers.BatchNormalization) and inner.trainable)
        ]
        if hidden:
            raise ValueError(
                f"`fix` cannot replace what a layer makes itself. Received: layer '{operation.name}' ({kind.__name__}) "
                f"with '{hidden[0].name}' ({type(hidden[0]).__name__}) inside. Write it with GroupNormalization, or as "
                "a functional keras.Model."
            )
        try:
            config, changed = _trainable_privately(operation.get_config())
        except NotImplementedError as error:  # its own, or that of a regularizer or an initializer
            if operation.variables:
                raise _uncopied(operation, error) from error
            config, changed = None, []
        if _keras.rematerialized(operation):
            changed.append("left its RematScope")
        if changed:
            self._note(operation, ", ".join(changed))
        return _again(operation, config), operation.get_weights()

    def outputs(self, operation, copy, args, kwargs):
        if isinstance(copy, keras.Layer) and type(copy) is not type(operation):
            # Flags such as `training=False` are those of the layer that was replaced.
            args, kwargs = args[:1], {key: value for key, value in kwargs.items() if _keras.takes(copy, key)}
        return super().outputs(operation, copy, args, kwargs)

    def _group_normalization(self, layer):
        axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
        channels = layer.moving_mean.shape[0]
        if layer.input_spec.ndim == 2 and channels < 3:
            # Normalized by themselves, one number is zero whatever it was, and two are a sign.
            frozen = keras.layers.BatchNormalization.from_config(layer.get_config())
            frozen.trainable = False
            self._note(layer, "was frozen, as too few numbers are there to be normalized")
            return frozen, layer.get_weights()
        # Without positions a group of one channel would be normalized to zero.
        groups = _groups(channels) if layer.input_spec.ndim > 2 else 1
        copy = keras.layers.GroupNormalization(
            groups,
            axis=axis,
            epsilon=layer.epsilon,
            center=layer.center,
            scale=layer.scale,
            gamma_initializer=layer.gamma_initializer,
            beta_initializer=layer.beta_initializer,
            gamma_constraint=layer.gamma_constraint,
            beta_constraint=layer.beta_constraint,
            name=layer.name,
        )
        self._note(layer, "became GroupNormalization", f"became GroupNormalization(groups={groups})", groups)
        return copy, [keras.ops.convert_to_numpy(v) for v in (layer.gamma, layer.beta) if v is not None]

    def _note(self, layer, change: str, own: str = "", groups: int = 0) -> None:
        kind = f"{type(layer).__name__} {change}"
        found = _Change(layer.name, kind, f"{type(layer).__name__} {own or change}", groups)
        self.changes.setdefault(kind, []).append(found)


def _lines(changes: list[_Change]) -> list[str]:
    """Returns what was done to layers of one kind."""
    if len(changes) <= _MOST_LINES:
        return [f"Layer '{change.name}': {change.own}." for change in changes]
    low, high = min(change.groups for change in changes), max(change.groups for change in changes)
    groups = "" if not high else f"(groups={low})" if low == high else f", with {low} to {high} groups"
    first, *_, last = changes
    return [f"{len(changes)} layers, from '{first.name}' to '{last.name}': {first.kind}{groups}."]


def _groups(channels: int) -> int:
    """Returns the largest number of equal groups that are large enough."""
    fitting = [g for g in range(1, _MOST_GROUPS + 1) if channels % g == 0 and channels // g >= _LEAST_CHANNELS]
    return max(fitting, default=1)


def _trainable_privately(config: Any) -> tuple[Any, list[str]]:
    """Returns a configuration without what is refused, and what was changed, each once."""
    changed: dict[str, None] = {}

    def visit(value, key=None):
        if key is not None and key.endswith("regularizer") and value is not None and not _stays(key, value):
            changed[f"lost its {key}"] = None
            return None
        if key == "stateful" and value is True:
            changed["became stateless"] = None
            return False
        name = value.get("config", {}).get("name") if key == "dtype" and isinstance(value, dict) else value
        if key == "dtype" and isinstance(name, str) and _precision(name) != name:
            changed[f"left {name} for float32"] = None
            return "float32"
        if isinstance(value, dict):
            return {k: visit(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [visit(v) for v in value]
        return value

    return visit(config), list(changed)


def _stays(key, regularizer):
    return key != "activity_regularizer" and penalties.is_known(regularizer)


def _precision(dtype: str) -> str:
    return "float32" if dtype in _OTHER_FLOATS else dtype


def _again(operation, config):
    """Returns another operation of a configuration; the same one where it has none and nothing to train."""
    try:
        return type(operation).from_config(config)
    except Exception as error:  # each class has its own
        if not getattr(operation, "variables", ()):
            return operation
        raise _uncopied(operation, error) from error


def _uncopied(operation, error) -> ValueError:
    return ValueError(
        f"Layer '{operation.name}' ({type(operation).__name__}) cannot be copied. Received: {error!r}. Give it, or "
        "what it was given, such as a regularizer, a `get_config` that holds the arguments of its constructor."
    )
