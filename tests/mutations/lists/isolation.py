"""What runs one row at a time."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "isolation/known.py",
        "isolation/test_known.py isolation/test_alone.py",
        (
            "every type is trusted",
            "return kind in _LAYERS and _LAYERS[kind](layer, ranks) and",
            "return _LAYERS.get(kind, _always)(layer, ranks) and",
        ),
        (
            "subclasses are trusted",
            "return kind in _LAYERS and _LAYERS[kind](layer, ranks) and",
            "kind = next((c for c in kind.__mro__ if c in _LAYERS), kind)\n    return kind in _LAYERS and _LAYERS[kind](layer, ranks) and",
        ),
        (
            "what is named like Keras is Keras",
            'return str(getattr(thing, "__module__", None)).split(".")[0]',
            'return "lipdp"',
        ),
        (
            "a call set on an object",
            'if "call" in vars(operation):\n        return False',
            "if False:\n        return False",
        ),
        (
            "activations of one's own",
            " and all(_function(layer, name) for name in FUNCTIONS)",
            "",
        ),
        (
            "what is inside of a layer is not looked at",
            "if not all(_keeps_apart(layer, None, within) for layer in inner):",
            "if False:",
            "gradients/test_hub.py isolation/test_known.py",
        ),
        (
            "what a layer holds is not looked at",
            "return not _shadows(operation) and all(_is_harmless(part, inner) for part in _held(operation))",
            "return not _shadows(operation)",
            "gradients/test_hub.py isolation/test_known.py",
        ),
        (
            "methods of an object are not looked at",
            "return not _shadows(operation) and all(",
            "return all(",
            "",
            "what is set there is looked at like all that a layer holds; only functions that keep rows apart would pass",
        ),
        (
            "layers that nothing tracks are harmless",
            "return any(part is layer for layer in inner)",
            "return True",
        ),
        (
            "operations in a block are harmless",
            "if isinstance(part, keras.Operation):\n        return False",
            "if isinstance(part, keras.Operation):\n        return True",
            "gradients/test_hub.py",
        ),
        (
            "a name of a family is enough",
            "if name is None or getattr(sys.modules.get(module), name, None) is not thing:",
            "if name is None:",
            "gradients/test_hub.py",
        ),
        (
            "what a block inherits is not looked at",
            "return _elsewhere(axes, ranks) and all(rule(layer, ranks) for rule in above)",
            "return _elsewhere(axes, ranks)",
            "gradients/test_hub.py",
        ),
        (
            "axes from the end are not the batch inside of layers",
            "known = [isinstance(axis, int) and (axis > 0 or axis == -1 or bool(ranks)) for axis in axes]",
            "known = [isinstance(axis, int) for axis in axes]",
        ),
        (
            "images need no channels",
            "return bool(ranks) and all(rank > 3 for rank in ranks)",
            "return True",
        ),
        (
            "attention on vectors",
            "return len(ranks) == 1 and min(ranks) > 2 and (ranks == {3} or not _keras.is_masked(layer))",
            "return True",
        ),
        (
            "versions that were not read are trusted",
            'return str(getattr(sys.modules.get(package), "__version__", "")).startswith(release)',
            "return True",
            "gradients/test_hub.py",
        ),
        (
            "softmax over the batch",
            "several = 1 not in [len(u.outputs[0]) for u in _keras.uses(layer)]",
            "several = True",
        ),
        (
            "normalization over the batch",
            "return all(known) and all(axis % rank for axis in axes for rank in ranks)",
            "return all(known)",
        ),
        (
            "attention over the batch",
            "return min(inputs) >= 3 and all(rank > 2 * positions for rank in masks) and _elsewhere(axes, ranks)",
            "return True",
        ),
        (
            "masks of attention for all rows at once",
            "all(rank > 2 * positions for rank in masks)",
            "True",
        ),
        (
            "masks without an axis that is attended along",
            "if positions > 1 and (padding or _keras.is_masked(layer)):",
            "if False:",
        ),
        (
            "masks of a softmax that is an activation",
            "if isinstance(function, L.Softmax) and _keras.is_masked(layer):",
            "if False:",
        ),
        (
            "masks of one time for a layer inside",
            "return not (_keras.is_masked(layer) or",
            "return True or not (_keras.is_masked(layer) or",
        ),
        (
            "masks of means with more axes",
            'return all(len(mask.shape) == 2 for mask in _keras.passed(layer, "mask"))',
            "return True",
        ),
        (
            "masks of a softmax for all rows at once",
            "if any(len(shape) < len(use.inputs[0]) for use in _keras.uses(layer) for shape in use.inputs):",
            "if False:",
        ),
        (
            "products that sum over the batch",
            "return bool(result) and inputs[0] == result[0] and inputs[0] not in kernel + inputs[1:]",
            "return True",
        ),
        (
            "lambdas are trusted",
            "return is_declared(layer.function) and (not callable(layer.mask) or is_declared(layer.mask))",
            "return True",
        ),
        (
            "sums over the batch",
            "axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]\n        return all(isinstance(axis, int) and axis % rank for axis in axes)",
            "return True",
        ),
        ("rows are taken out by number", "return isinstance(key[0], slice) and key[0] == slice(None)", "return True"),
        (
            "reshaped across rows",
            "return None not in (*before, *after) and math.prod(before) == math.prod(after) > 0",
            "return True",
        ),
        (
            "all operations are entrywise",
            "return None not in (*before, *after) and math.prod(before) == math.prod(after) > 0\n    return False",
            "return None not in (*before, *after) and math.prod(before) == math.prod(after) > 0\n    return True",
        ),
        (
            "arrays with a batch of their own",
            "return kept and len(node.output_tensors[0].shape) == rank",
            "return True",
        ),
        (
            "a batch norm that trains",
            "L.BatchNormalization: lambda layer, ranks: not layer.trainable,",
            "L.BatchNormalization: _always,",
        ),
        ("stateful recurrent layers", "lambda layer, ranks: not layer.stateful,", "_always,"),
        (
            "what is inside a declared layer is trusted",
            "inner, less = _keras.walk(operation, deep=False), int",
            "inner, less = [] if is_declared(kind) else _keras.walk(operation, deep=False), int",
        ),
        (
            "models with a call of their own",
            'return not (_keras.has_own_call(model) or own or "call" in vars(model))',
            "return True",
        ),
        (
            "declarations are not stated",
            "return declared([*map(type, operations), *functions, *others, *map(type, others)])",
            "return ()",
        ),
        ("Masking of vectors", "L.Masking: _several_axes,", "L.Masking: _always,"),
        (
            "a Pipeline of any layers",
            "for one in layer.layers} <= {_images, _scalar}",
            "for one in layer.layers} and True",
        ),
        ("a Rescaling by arrays", "L.Rescaling: _scalar,", "L.Rescaling: _always,"),
    ),
    *faults(
        "isolation/alone.py",
        "isolation/test_alone.py isolation/test_mixing.py",
        ("nothing is replaced", "vars(operation).update(_replacements(operation, nodes))", "pass"),
        ("layers stay replaced", "_restore(operation, before)\n\n\n@contextlib", "pass\n\n\n@contextlib"),
        (
            "changed variables are lost",
            "if len(after) != len(before) or any(after[key] is not before[key] for key in set(before) - random):",
            "if False:",
        ),
        (
            "all rows draw the same numbers",
            'rows = ops.cast(ops.arange(number, dtype="int32"), "uint32")',
            'rows = ops.cast(ops.zeros(number, dtype="int32"), "uint32")',
            "isolation/test_random.py::test_rows_draw_their_own_numbers_and_no_row_moves_another",
        ),
        (
            "each call draws the same numbers",
            "generator.next()\n",
            "pass\n",
            "isolation/test_random.py::test_rows_draw_their_own_numbers_and_no_row_moves_another",
        ),
        ("outputs of several rows", "if not len(tensor.shape) or tensor.shape[0] not in (1, None):", "if False:"),
        (
            "a `__call__` of one's own",
            'if _defined_by_user(operation, "__call__") or getattr(operation, "quantization_mode", None) is not None:',
            "if False:",
        ),
        ("arrays that may be as long as a batch", "if layer and arrays:", "if False:"),
        (
            "masks of one's own see all rows",
            'if layer and (_defined_by_user(operation, "compute_mask") or callable(getattr(operation, "mask", None))):',
            "if False:",
            "",
            "the graph holds the operations of a mask as well, and they run one row at a time",
        ),
        (
            "what differs alone and together is taken",
            "if a.shape != b.shape or not np.allclose(a[:-1], b[:-1], rtol=1e-3, atol=1e-5, equal_nan=True):",
            "if False:",
        ),
        ("no outlier is tried", "rows[-1] *= 1e6", "pass"),
    ),
    *faults(
        "isolation/declared.py",
        "isolation/test_alone.py",
        (
            "a declaration holds for subclasses",
            "return id(thing) in _DECLARED",
            "return any(id(c) in _DECLARED for c in getattr(thing, '__mro__', (thing,)))",
        ),
        (
            "objects and instances can be declared",
            'if isinstance(declared, type) == hasattr(declared, "get_config") and callable(declared):',
            "if True:",
        ),
    ),
]
