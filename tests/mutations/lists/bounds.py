"""Bounds through a network and those of layers of Keras."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "bounds/registry.py",
        "bounds/test_declared.py",
        ("own subclasses are not named", 'issubclass(kind, LipschitzLayer) and _root(kind) != "lipdp"', "False"),
        ("own losses are not named", 'if _root(type(loss)) not in ("keras", "lipdp"):', "if False:"),
        ("three functions count as lipdp's", "entry.__module__ = output_bound.__module__", "pass"),
    ),
    *faults(
        "bounds/propagate.py",
        "bounds/test_propagate.py bounds/test_rounding.py",
        ("no slack for rounding", "SLACK = 1e-5", "SLACK = 0.0"),
        (
            "masks that are passed by position",
            "others += [v for v in arguments.args[1:] if isinstance(v, keras.KerasTensor)]",
            "pass",
        ),
        ("a variable of two uses has one", "return sum(bounds) * self.slack", "return max(bounds) * self.slack"),
        (
            "branches do not add up",
            "cotangents[tensor] = cotangents.get(tensor, 0.0) + value",
            "cotangents[tensor] = value",
        ),
        (
            "constants of layers behind are left out",
            "return tuple(times(constant, cotangent) for constant in lipschitz)",
            "return tuple(cotangent for constant in lipschitz)",
        ),
        (
            "only the first use of a layer",
            "yield from node.inner.uses() if node.inner else (node.use,)",
            "yield from (() if node.inner else (node.use,))",
        ),
        (
            "layers without a bound behind weights that train",
            "if self.rules.refusal and any(trains) and not trained:",
            "if False:",
        ),
        (
            "weights with a regularizer",
            'if getattr(layer, "activity_regularizer", None) is not None or regularized:',
            "if False:",
        ),
        ("other precisions", 'if policy is not None and policy.compute_dtype != "float32":', "if False:"),
        ("an infinite gradient bound", 'if not all(g < float("inf") for g in gradients):', "if False:"),
        (
            "too few bounds",
            "if len(gradients) != len(variables):",
            "if False:",
            "bounds/test_propagate.py bounds/test_check.py",
        ),
        ("a model with a call of its own", "if _keras.has_own_call(model):", "if False:"),
        (
            "clipped gradients keep their bound",
            "if clipped and self.rules.cotangent_bounds:",
            "if False:",
            "layers/test_clip_gradient.py",
        ),
        (
            "clipped gradients count in the Lipschitz constant",
            "input_cotangents = graph.backward(cotangent, trained, clipped=False)",
            "input_cotangents = graph.backward(cotangent, trained, clipped=True)",
            "layers/test_clip_gradient.py test_certify.py",
        ),
        (
            "rounding of long sums is free",
            "return max(1.0, math.exp((terms + _AROUND) * _UNIT) / (1.0 + SLACK) ** 2)",
            "return 1.0",
            "bounds/test_rounding.py",
        ),
        ("other arguments of a layer", "if others:", "if False:"),
        ("several outputs", "if len(self.functional.outputs) != 1:", "if False:"),
    ),
    *faults(
        "bounds/registry.py",
        "bounds/test_declared.py::test_a_constant_below_zero_is_refused",
        ("declared bounds have any sign", "            if not valid:", "            if False:"),
        ("declared bounds may be NaN", "return float(value) >= 0.0", "return not float(value) < 0.0"),
    ),
    *faults(
        "bounds/stock.py",
        "bounds/test_propagate.py layers/test_adversarial.py bounds/test_adversary.py",
        ("sigmoid contracts more", '"sigmoid": (0.25, 0.5),', '"sigmoid": (0.2, 0.5),'),
        ("sigmoid of zero is zero", '"sigmoid": (0.25, 0.5),', '"sigmoid": (0.25, 0.0),'),
        ("gelu is 1-Lipschitz", '"gelu": (1.129, 0.0),', '"gelu": (1.0, 0.0),'),
        ("silu is 1-Lipschitz", '"silu": (1.1, 0.0),', '"silu": (1.0, 0.0),'),
        ("softplus of zero is zero", '"softplus": (1.0, math.log(2.0)),', '"softplus": (1.0, 0.0),'),
        (
            "overlapping windows count once",
            "return math.sqrt(conv_multiplicity(layer.pool_size, layer.strides, (1,) * len(layer.pool_size)))",
            "return 1.0",
        ),
        ("padded averages", 'if layer.padding != "valid":', "if False:"),
        (
            "means over positions shrink by their number",
            "return 1.0 / math.sqrt(min(math.prod(size) for size in sizes))",
            "return 1.0 / min(math.prod(size) for size in sizes)",
        ),
        (
            "the largest of several shapes",
            "return 1.0 / math.sqrt(min(math.prod(size) for size in sizes))",
            "return 1.0 / math.sqrt(max(math.prod(size) for size in sizes))",
        ),
        ("slopes above one of LeakyReLU", "return max(1.0, abs(float(layer.negative_slope)))", "return 1.0"),
        ("slopes above one of ReLU", "return max(1.0, abs(slope))", "return 1.0"),
        ("alpha above one of ELU", "return max(1.0, abs(float(layer.alpha)))", "return 1.0"),
        ("a threshold of ReLU", "if layer.threshold:", "if False:"),
        (
            "an offset of Rescaling",
            "lambda bounds: largest * bounds[0] + shift)",
            "lambda bounds: largest * bounds[0])",
        ),
        ("a scale of Rescaling", "largest = float(np.abs(scale).max())\n", "largest = 1.0\n"),
        (
            "the least constant of the channels",
            "np.abs(scale).max()",
            "np.abs(scale).min()",
            "bounds/test_propagate.py::test_constants_for_each_channel",
        ),
        (
            "constants of Rescaling that can change",
            "isinstance(value, numbers.Real) or _numbers_for(value, last)",
            "True",
            "bounds/test_propagate.py::test_configurations_that_break_a_registered_bound_are_refused",
        ),
        ("repeated pixels count once", "return math.sqrt(math.prod(size))", "return 1.0"),
        ("dropout has a bound", "def _dropout(layer) -> float:\n", "def _dropout(layer) -> float:\n    return 1.0\n"),
        (
            "averages of several inputs",
            "lambda bounds: (1.0 / len(bounds),) * len(bounds))",
            "lambda bounds: (0.5 / len(bounds),) * len(bounds))",
        ),
        (
            "concatenated inputs are as long as the longest",
            "lambda bounds: math.hypot(*bounds))",
            "lambda bounds: max(bounds))",
        ),
        ("inputs that broadcast", "if len(shapes) > 1 or any(None in shape[1:] for shape in shapes):", "if False:"),
        (
            "concatenation along the batch",
            "elif any(layer.axis % len(use.outputs[0]) == 0 for use in _keras.uses(layer)):",
            "elif False:",
        ),
    ),
    *faults(
        "bounds/registry.py",
        "bounds/test_propagate.py bounds/test_check.py",
        (
            "layers without an entry pass",
            "if entry is None:\n            raise ValueError(unknown(layer))",
            "if entry is None:\n            return parameter_free(lambda bounds: (1.0,) * len(bounds))",
        ),
        (
            "an entry of a parent class serves",
            "entry = _ENTRIES.get(kind)\n",
            "entry = next((_ENTRIES[c] for c in kind.__mro__ if c in _ENTRIES), None)\n",
        ),
        (
            "inputs of a merge do not add up",
            "return sum(times(c, x) for c, x in zip(lipschitz(bounds), bounds, strict=True))",
            "return max(times(c, x) for c, x in zip(lipschitz(bounds), bounds, strict=True))",
        ),
    ),
    *faults(
        "bounds/affine.py",
        "bounds/test_frozen.py",
        (
            "the kernel of a convolution is read once",
            "kernel = [slope * math.sqrt(multiplicity) * bounds[0] * cotangent]",
            "kernel = [slope * bounds[0] * cotangent]",
        ),
        (
            "the norm of the input is one",
            "kernel = [slope * math.sqrt(multiplicity) * bounds[0] * cotangent]",
            "kernel = [slope * math.sqrt(multiplicity) * cotangent]",
        ),
        (
            "the bias is added once",
            "return (*kernel, slope * math.sqrt(spots) * cotangent) if layer.use_bias else tuple(kernel)",
            "return (*kernel, slope * cotangent) if layer.use_bias else tuple(kernel)",
        ),
        ("weights of its own train without a bound behind it", "refusal=ValueError(unknown(layer)),", "refusal=None,"),
        (
            "the trained norm is one",
            "lambda bounds: (slope * norm(),),",
            "lambda bounds: (slope * 1.0,),",
            "bounds/test_frozen.py test_certify.py",
        ),
    ),
    *faults(
        "bounds/frozen.py",
        "bounds/test_frozen.py",
        (
            "what trains counts as frozen",
            "if type(layer) not in _PER_EXAMPLE or layer.trainable_variables:",
            "if type(layer) not in _PER_EXAMPLE:",
            "bounds/test_frozen.py bounds/test_propagate.py",
        ),
        ("statistics of a batch", "if isinstance(layer, layers.BatchNormalization) and layer.trainable:", "if False:"),
        ("normalization over the batch", "if isinstance(layer, _ALONG_AXES) and not _keeps_apart(layer):", "if False:"),
        (
            "activations of one's own",
            'if hasattr(layer, "activation") and not stock_activation(layer.activation):',
            "if False:",
        ),
    ),
    *faults(
        "bounds/check.py",
        "bounds/test_check.py",
        (
            "nothing is reported",
            "broken = {kind: ratio for kind, ratio in ratios.items() if not ratio <= 1.0 + adversary.TOLERANCE}",
            "broken = {}",
        ),
    ),
    *faults(
        "bounds/stock.py",
        "layers/test_ties.py",
        (
            "ties of a maximum are not counted",
            'ties = math.prod(layer.pool_size) if keras.backend.backend() == "tensorflow" else 1',
            "ties = 1",
        ),
    ),
]
