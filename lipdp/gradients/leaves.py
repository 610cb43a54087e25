"""Which layers of a model are captured, and by which rule."""

import keras

from lipdp import _keras, isolation

_RULES = {}
# Run the layer inside them in a loop of the backend, where nothing can be captured.
_LOOPS = (keras.layers.RNN, keras.layers.TimeDistributed)


def rule(*types, applies=lambda layer: True, owns=lambda layer: ()):
    """Registers a rule for layers of exactly these types: a subclass may compute something else.

    A rule is called in place of the layer's `call`, as `rule(layer, call, tape, *args, **kwargs)`; it calls `call`
    or computes the same, and hands to `tape.tap` what the gradients of the layer's variables are made of.

    Args:
        types: Layer classes; a class of a package that need not be installed by its full name.
        applies: Whether the rule covers this configuration; where not, the layer's own vjp is used.
        owns: Sublayers whose variables the rule covers.
    """

    def register(function):
        for type_ in types:
            _RULES[type_] = (function, applies, owns)
        return function

    return register


def rule_of(layer) -> tuple | None:
    """Returns the rule that covers a layer, and what it owns; None where none does."""
    type_ = type(layer)
    found = _RULES.get(type_) or _RULES.get(f"{type_.__module__}.{type_.__qualname__}")
    if found is None or not found[1](layer):
        return None
    return found[0], found[2](layer)


def leaves(model) -> list:
    """Returns pairs of a layer and its rule, for all layers that hold trainable variables."""
    from lipdp.gradients import rules

    pairs, seen = [], set()
    # They run one row at a time, where nothing inside of them can be captured.
    foreign = {id(operation) for operation, _ in isolation.foreign(model)}

    def visit(layer):
        # A frozen layer may hold trainable ones: `trainable_variables` would be empty.
        if id(layer) in seen or not any(v.trainable for v in layer.variables):
            return
        seen.add(id(layer))
        if id(layer) in foreign:
            pairs.append((layer, rules.fallback))
            return
        found = rule_of(layer)
        if found is not None:
            function, owned = found
            pairs.append((layer, function))
            seen.update(id(inner) for inner in owned)
        elif isinstance(layer, _LOOPS) or any(v.trainable for v in _keras.own_variables(layer)):
            pairs.append((layer, rules.fallback))
            return
        for inner in _keras.walk(layer, deep=False):
            visit(inner)

    visit(model)
    return pairs
