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
        types: Layer classes.
        applies: Whether the rule covers this configuration; where not, the layer's own vjp is used.
        owns: Sublayers whose variables the rule covers.
    """

    def register(function):
        for type_ in types:
            _RULES[type_] = (function, applies, owns)
        return function

    return register


def leaves(model) -> list:
    """Returns pairs of a layer and its rule, for all layers that hold trainable variables."""
    from lipdp.gradients import rules

    pairs, seen = [], set()
    # They run one row at a time, where nothing inside of them can be captured.
    foreign = {id(operation) for operation, _ in isolation.foreign(model)}

    def visit(layer):
        if id(layer) in seen or not layer.trainable_variables:
            return
        seen.add(id(layer))
        function, applies, owns = _RULES.get(type(layer), (None, None, None))
        if id(layer) in foreign:
            pairs.append((layer, rules.fallback))
            return
        if function is not None and applies(layer):
            pairs.append((layer, function))
            seen.update(id(inner) for inner in owns(layer))
        elif isinstance(layer, _LOOPS) or any(v.trainable for v in _keras.own_variables(layer)):
            pairs.append((layer, rules.fallback))
            return
        for inner in _keras.walk(layer, deep=False):
            visit(inner)

    visit(model)
    return pairs
