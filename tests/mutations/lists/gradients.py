"""Gradients per example: rules, norms, what is refused."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "gradients/microbatch.py",
        "gradients/test_low_precision.py::test_microbatches_have_one_size",
        (
            "microbatches in low precision have several sizes",
            "if low_precision(model) or chosen",
            "if chosen",
        ),
        (
            "tables that are read in low precision are not found",
            '{getattr(layer, "reverse_dtype", None) or layer.compute_dtype for layer in layers}',
            "set()",
            "gradients/test_low_precision.py::test_low_precision_is_found_wherever_it_is",
        ),
    ),
    *faults(
        "gradients/capture.py",
        "gradients/test_capture.py",
        (
            "copies count one by one",
            "total = ops.sum(weight * ops.mean(ops.reshape(values, (-1, copies)), axis=1))",
            "total = ops.sum(weight * ops.sum(ops.reshape(values, (-1, copies)), axis=1))",
        ),
        (
            "what low precision leaves is not made float32",
            "backend.made_once(tree.map_structure(_float32, (cotangents, saved)))",
            "backend.made_once((cotangents, saved))",
            "gradients/test_low_precision.py",
        ),
        (
            "losses that layers add are left out",
            "losses.refuse_additional(added)",
            "pass",
            "gradients/test_capture.py::test_losses_that_layers_add_are_refused",
        ),
        (
            "only the last use of a layer",
            "pieces.setdefault(id(variable), []).append(factor)",
            "pieces[id(variable)] = [factor]",
        ),
        (
            "the padding has a gradient",
            "total = ops.sum(weight * ops.mean(ops.reshape(values, (-1, copies)), axis=1))",
            "total = ops.sum(ops.mean(ops.reshape(values, (-1, copies)), axis=1))",
        ),
        (
            "layers of others are not isolated",
            "return isolation.isolated(model) if isolated else contextlib.nullcontext()",
            "return contextlib.nullcontext()",
            "isolation/test_mixing.py isolation/test_alone.py",
        ),
        (
            "layers do not get their calls back",
            'layer.__dict__.pop("call", None)\n            if before',
            "pass\n            if before",
            "gradients/test_supported.py isolation/test_alone.py",
        ),
    ),
    *faults(
        "gradients/factors.py",
        "gradients/test_factors.py gradients/test_rules.py gradients/test_capture.py",
        ("rounding is free", "part = (terms + 8) * _UNIT\n", "part = 0.0 * terms\n"),
        (
            "positions do not meet",
            "product = pair_sums(_gram(self.a) * _gram(self.g))",
            "product = squared_length(self.a) * squared_length(self.g)",
        ),
        (
            "two forms of one variable are not added",
            "total = Whole(total.whole() + factor.whole()) if merged is None else merged",
            "total = total if merged is None else merged",
        ),
        ("what underflows is lost", "TINY = 1.2e-38", "TINY = 0.0"),
        (
            "squares of integers overflow",
            'self.a, self.g = (t if keras.backend.is_float_dtype(t.dtype) else ops.cast(t, "float32") for t in (a, g))',
            "self.a, self.g = a, g",
        ),
        ("long sums in one", "_AT_ONCE = 2**10", "_AT_ONCE = 2**30"),
        (
            "the center is left out",
            "return sum_of_squares(inverse_scale * (self._gradients - center))",
            "return sum_of_squares(inverse_scale * self._gradients)",
            "strategies/test_adaclip.py gradients/test_factors.py gradients/test_capture.py gradients/test_rules.py",
        ),
        (
            "a variable that nobody reads has no center",
            "return self.squared_norm() + ops.reshape(sums.sum_of_squares(scaled, per_row=False), (-1,))",
            "return self.squared_norm()",
        ),
        (
            "overflowing rows are not left out",
            "return ops.where(ops.reshape(keep, (-1, *(1 for _ in values.shape[1:]))), values, ops.zeros_like(values))",
            "return values",
            "gradients/test_overflow.py strategies/test_dpsgd.py",
        ),
        (
            "the cross term has the other sign",
            "return ops.maximum(first - 2.0 * cross + last + margin, 0.0)\n\n    def weighted_sum(self, coefficients):\n        if",
            "return ops.maximum(first + 2.0 * cross + last + margin, 0.0)\n\n    def weighted_sum(self, coefficients):\n        if",
        ),
        (
            "parts of a kernel are the first",
            "return sum(part.squared_norm() for part in self._parts)",
            "return self._parts[0].squared_norm()",
        ),
    ),
    *faults(
        "backend/capture_tensorflow.py",
        "gradients/test_factors.py",
        ("rows of other examples", "segments + number * tf.range(batch)[:, None]", "segments + 0 * number"),
    ),
    *faults(
        "gradients/tables.py",
        "gradients/test_factors.py gradients/test_rules.py gradients/test_capture.py",
        (
            "uses of a table that meet in a row",
            'new = ops.cast(found[:, 1:] != found[:, :-1], "int32")',
            'new = ops.ones_like(found[:, 1:], "int32")',
        ),
        (
            "positions of all texts are added up at once",
            "if self._single:\n            sums, rows = self.g, self.indices",
            "if True:\n            sums, rows = self.g, self.indices",
        ),
        (
            "lengths of unlike rows count for one",
            "return sum_of_squares(of_rows), sum_of_squares(longest)",
            "return sum_of_squares(of_rows), 0.0 * sum_of_squares(longest)",
        ),
        (
            "rows that do not exist are the first",
            "known = ops.logical_and(indices >= 0, indices < rows)",
            "known = ops.logical_and(indices >= 0, indices >= 0)",
        ),
        (
            "a table that reads and writes has no cross term",
            "return ops.maximum(parts + 2.0 * cross + margin + tiny, 0.0)",
            "return ops.maximum(parts + margin + tiny, 0.0)",
        ),
        (
            "reading and writing cancel without a margin",
            "margin = 2.0 * rounding(width + pairs) * lengths + 4.0 * rounding(0) * parts",
            "margin = 0.0 * lengths",
        ),
        (
            "a slice of a table is its first rows",
            "[(self._start, after), (0, 0)]",
            "[(0, after + self._start), (0, 0)]",
        ),
    ),
    *faults(
        "gradients/record.py",
        "gradients/test_overflow.py gradients/test_capture.py",
        (
            "overflow in one row spoils all",
            "return ops.cond(ops.all(finite), lambda: sums, lambda: total([f.masked(finite) for f in self._factors]))",
            "return sums",
        ),
    ),
    *faults(
        "gradients/rows.py",
        "gradients/test_capture.py gradients/test_rules.py",
        (
            "only the first place of a row",
            "return ops.sum(ops.reshape(tensor, (self.batch, -1 if self.views is None else self.views, *shape)), axis=1)",
            "return ops.reshape(tensor, (self.batch, -1 if self.views is None else self.views, *shape))[:, 0]",
        ),
        (
            "steps of a loop are rows of their own",
            "return Rows(self.batch, None if steps is None or self.views is None else self.views * steps)",
            "return Rows(self.batch * (steps or 1), self.views)",
        ),
    ),
    *faults(
        "gradients/rules/fallback.py",
        "isolation/test_random.py::test_gradients_are_those_of_the_numbers_that_were_drawn",
        (
            "other numbers are drawn for the gradients",
            "other[place] = state\n",
            "pass\n",
        ),
        (
            "nothing is drawn for the gradients",
            "training = _keras.told_training() if seeds else True",
            "training = False",
        ),
    ),
    *faults(
        "gradients/leaves.py",
        "gradients/test_capture.py gradients/test_supported.py isolation/test_mixing.py",
        (
            "a layer without a rule is left out",
            "elif isinstance(layer, _LOOPS) or any(v.trainable for v in _keras.own_variables(layer)):",
            "elif isinstance(layer, _LOOPS):",
        ),
        (
            "rules of a parent class serve",
            "found = _RULES.get(type_) or",
            "found = next((_RULES[c] for c in type_.__mro__ if c in _RULES), None) or",
        ),
        (
            "a frozen layer hides what trains inside of it",
            "not any(v.trainable for v in layer.variables):",
            "not layer.trainable_variables:",
            "gradients/test_lora.py",
        ),
        (
            "rules apply whatever the settings",
            "if found is None or not found[1](layer):",
            "if found is None:",
            "gradients/test_rules.py gradients/test_supported.py gradients/test_capture.py",
        ),
    ),
    *faults(
        "gradients/unfolding.py",
        "gradients/test_unfolding.py gradients/test_rules.py gradients/test_capture.py",
        (
            "padding on the wrong side",
            "pads.append((total // 2, total - total // 2))",
            "pads.append((total - total // 2, total // 2))",
        ),
        (
            "taps without dilation",
            "[t * d + c for t, d, c in zip(tap, self.dilation, cut, strict=True)]",
            "[t + c for t, d, c in zip(tap, self.dilation, cut, strict=True)]",
        ),
        (
            "the norm of the first tap",
            "return sum_of_squares(*self._matrices())",
            "return sum_of_squares(self._matrices()[0])",
        ),
        (
            "a kernel's gradients that are not finite stay in the sum",
            "return Whole(zeroed(self.whole(), keep))",
            "return Whole(self.whole())",
            "gradients/test_overflow.py",
        ),
        (
            "groups of channels see all channels",
            "return ops.transpose(ops.reshape(kernel, (inputs, groups, outputs)), (1, 0, 2))",
            "return ops.reshape(kernel, (groups, inputs, outputs))",
        ),
    ),
    *faults(
        "gradients/rules/dense.py",
        "gradients/test_rules.py gradients/test_capture.py",
        (
            "a dense layer has no bias",
            "if layer.bias is not None:\n            yield bias(rows, g, layer.bias)\n\n    return activation(tape.tap(outputs, (inputs, low_rank), gradients))\n\n\n@rule(layers.SpectralDense)",
            "if False:\n            yield bias(rows, g, layer.bias)\n\n    return activation(tape.tap(outputs, (inputs, low_rank), gradients))\n\n\n@rule(layers.SpectralDense)",
        ),
        ("a letter that is summed on its own", "return None  # a letter that is summed on its own", "pass"),
        (
            "the scale of low-rank additions",
            "yield layer.lora_kernel_b, product(rows, down, scale * g, b)",
            "yield layer.lora_kernel_b, product(rows, down, g, b)",
            "gradients/test_lora.py",
        ),
        (
            "low-rank additions split any letter off",
            "(not adapted(layer) or letters[1][-1] in letters[-1])",
            "True",
            "gradients/test_lora.py",
        ),
    ),
    *faults(
        "gradients/rules/convolution.py",
        "gradients/test_rules.py gradients/test_capture.py",
        (
            "causal padding is none",
            "pads = ((dilation[0] * (kernel[0] - 1), 0),)",
            "pads = ((0, dilation[0] * (kernel[0] - 1)),)",
        ),
        (
            "gradients along a standardized filter",
            "turned = ops.where(turns, whole - along * direction, whole)",
            "turned = whole",
        ),
        (
            "filters below the floor turn as others",
            "turned = ops.where(turns, whole - along * direction, whole)",
            "turned = whole - along * direction",
            "layers/test_standardized.py",
        ),
        (
            "gradients along the mean of a filter",
            "turned = turned - ops.mean(turned, axis=(1, 2, 3), keepdims=True)",
            "turned = turned * 1.0",
        ),
        (
            "the scale of spectral convolutions",
            "kernel_factor(rows, inputs, g * scale, where, shape)",
            "kernel_factor(rows, inputs, g, where, shape)",
        ),
        (
            "the scale of orthogonal convolutions",
            "kernel_factor(rows, layer.continued(inputs), layer.scale * g, where, shape)",
            "kernel_factor(rows, layer.continued(inputs), 2.0 * g, where, shape)",
        ),
        (
            "halves of the channels do not move back",
            "first[axis + 1], second[axis + 1] = slice(None, -1), slice(1, None)",
            "first[axis + 1], second[axis + 1] = slice(1, None), slice(None, -1)",
        ),
        ("unknown sizes with padding", "if not known(layer, inputs):", "if False:", "gradients/test_supported.py"),
    ),
    *faults(
        "gradients/rules/hub.py",
        "gradients/test_hub.py",
        ("a scale that starts at zero", "offset=1.0)", "offset=0.0)"),
        (
            "positions after the first token",
            "yield variable, Whole(rows.summed(g[:, place : place + 1], (1, variable.shape[-1]))[:, None])",
            "yield variable, Whole(rows.summed(g[:, 1 : 2], (1, variable.shape[-1]))[:, None])",
        ),
    ),
    *faults(
        "gradients/rules/normalization.py",
        "gradients/test_rules.py gradients/test_capture.py",
        ("the scale of a bias", "yield bias(rows, g * scale, layer.bias)", "yield bias(rows, g, layer.bias)"),
        (
            "the shift is left out",
            "((scale, lambda: normalized * g), (shift, lambda: g))",
            "((scale, lambda: normalized * g),)",
        ),
    ),
    *faults(
        "gradients/rules/embedding.py",
        "gradients/test_rules.py gradients/test_capture.py",
        (
            "tied tables are used once",
            "yield table, Outer(g, a, MatrixLayout(table.shape))",
            "pass",
        ),
    ),
    *faults(
        "gradients/rules/recurrent.py",
        "gradients/test_rules.py gradients/test_capture.py",
        ("states of the wrong time", "before = ops.concatenate([start, outputs[:, :-1]], axis=1)", "before = outputs"),
        (
            "recurrent kernels are left out",
            "yield gates.recurrent, gates.factor(rows, h, state_masks, in_order, gates.recurrent)",
            "pass",
        ),
        (
            "going backwards in the wrong order",
            "in_order = ops.flip(g, axis=1) if layer.go_backwards else g",
            "in_order = g",
        ),
        (
            "the reset gate is left out",
            "g = ops.concatenate([g[..., : 2 * units], reset * gates.columns(g, 2)], axis=-1)",
            "pass",
        ),
    ),
    *faults(
        "gradients/rules/fallback.py",
        "isolation/test_mixing.py isolation/test_alone.py gradients/test_capture.py",
        (
            "masks that attention takes off are lost",
            "            _keras.set_mask(flat[k], masks[k])",
            "            pass",
            "gradients/test_supported.py::test_masks_that_attention_takes_off_its_inputs_are_there_for_the_gradients",
        ),
        (
            "gradients see a part of a constant",
            "number=number, places=places)",
            "number=number)",
            "isolation/test_alone.py::test_a_layer_on_a_constant_has_it_for_each_row",
        ),
        (
            "each copy is an example",
            "whole = [ops.sum(rows.examples(t), axis=1) for t in whole]",
            "whole = [rows.examples(t)[:, 0] for t in whole]",
        ),
        (
            "what is inside is recorded twice",
            "tape.closed = True",
            "tape.closed = False",
            "gradients/test_capture.py::test_a_layer_inside_and_outside_of_one_without_a_rule_counts_for_both",
        ),
    ),
    *faults(
        "gradients/supported.py",
        "gradients/test_supported.py",
        ("no probe", "if probe:\n", "if False:\n"),
        (
            "one number of rows",
            "_ROWS = (5, 11)",
            "_ROWS = (5,)",
            "isolation/test_mixing.py::test_a_declaration_that_a_larger_batch_disproves_is_refused",
        ),
        (
            "declarations of functions are believed",
            "if isolation.foreign(model) or isolation.used(model):",
            "if isolation.foreign(model):",
            "isolation/test_mixing.py::test_a_declaration_that_a_larger_batch_disproves_is_refused",
        ),
        ("rows that move others", "if np.max(spread) > 1e-3 * scale:", "if False:"),
        ("weights used behind the back of a layer", "if not np.max(np.abs(total - expected)) <= largest:", "if False:"),
        ("statistics kept by the forward pass", "if id(variable) not in seeds:", "if False:"),
        (
            "no mixing is looked for",
            "isolation.refuse_mixing(model)",
            "pass",
            "isolation/test_mixing.py",
            "a help beside the probe, which finds the same; what may mix runs one row at a time in any case",
        ),
    ),
    *faults(
        "gradients/refused.py",
        "gradients/test_supported.py",
        (
            "statistics of a batch",
            "if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:",
            "if False:",
        ),
        ("spectral normalization", "if isinstance(layer, keras.layers.SpectralNormalization):", "if False:"),
        ("stateful layers", 'if getattr(layer, "stateful", False):', "if False:"),
        (
            "regularizers",
            "if variable.trainable and variable.regularizer is not None:",
            "if False:",
            "gradients/test_supported.py training/test_refusals.py",
        ),
        ("half precision", 'if keras.backend.is_float_dtype(dtype) and dtype != "float32":', "if False:"),
        (
            "layers that draw for a batch",
            "if any(any(known) or not known for known in ([r for r in some if r is not None] for some in rates)):",
            "if False:",
            "strategies/test_dpsgd.py gradients/test_supported.py",
        ),
    ),
    *faults(
        "gradients/tried.py",
        "gradients/test_tried.py",
        (
            "what has failed counts as tried",
            "    trial(model)\n",
            "    _passed[model] = {trial.__qualname__: found}\n    trial(model)\n",
        ),
        ("settings are not looked at", "[settings(model), ", "["),
        ("attributes are not looked at", "parts += [(name, _value(value))", "parts += [name"),
        ("functions are all one", "return (id(value), id(value.__code__))", 'return "function"'),
        ("classes do not change", "if _own(layer) else None", "if False else None"),
        ("models that passed are kept", "weakref.WeakKeyDictionary()", "{}"),
    ),
]
