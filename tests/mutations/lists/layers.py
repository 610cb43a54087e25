"""Layers: bounds, kernels, scales."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "layers/base.py",
        "layers/test_contract.py bounds/test_check.py",
        (
            "inputs of a merge do not add up",
            "return sum(times(c, x) for c, x in zip(lipschitz, input_bounds, strict=True))",
            "return max(times(c, x) for c, x in zip(lipschitz, input_bounds, strict=True))",
            "layers/test_adversarial.py bounds/test_propagate.py",
        ),
        (
            "kernels are not projected",
            "initializer, constraint = StartedIn((first or ball).start, initializer), ball",
            "initializer = StartedIn((first or ball).start, initializer)",
            "training/test_fit.py bounds/test_reference_defects.py layers/test_contract.py",
        ),
        (
            "kernels begin outside of the ball",
            "initializer, constraint = StartedIn((first or ball).start, initializer), ball",
            "constraint = ball",
        ),
        (
            "kernels without projection have norm one",
            'return (1.0 if self.projected else float("inf"),)',
            "return (1.0,)",
            "bounds/test_propagate.py",
        ),
        (
            "the gradient of a kernel does not see the input",
            "return (input_bounds[0] * cotangent_bound,)",
            "return (cotangent_bound,)",
            "layers/test_adversarial.py bounds/test_propagate.py",
        ),
        (
            "settings change after build",
            'if getattr(self, "built", False) and name in _settings(type(self)):',
            "if False:",
        ),
        (
            "half precision",
            'if policy.compute_dtype != "float32" or policy.variable_dtype != "float32":',
            "if False:",
            "layers/test_bounded_input.py::test_layers_compute_in_float32",
        ),
    ),
    *faults(
        "layers/bias.py",
        "layers/test_adversarial.py bounds/test_reference_defects.py",
        (
            "the bias is added to each position in full",
            "bias = self.bias * (1.0 / math.sqrt(count))",
            "bias = self.bias",
        ),
        (
            "the bias does not make the output longer",
            "return input_bounds[0] + self.max_norm",
            "return input_bounds[0]",
        ),
        (
            "the bias is not projected",
            'initializer="zeros", constraint=L2Ball(self.max_norm)',
            'initializer="zeros"',
            "bounds/test_reference_defects.py training/test_fit.py layers/test_contract.py",
        ),
        ("the bias has half a gradient", "return (cotangent_bound,)", "return (0.5 * cotangent_bound,)"),
        (
            "the scale of the shape it was built on",
            "count = positions(inputs.shape, self)\n        bias",
            "count = self.bias.shape[0]\n        bias",
        ),
    ),
    *faults(
        "layers/bounded_input.py",
        "layers/test_bounded_input.py",
        (
            "inputs a thousandth too long",
            "divisors = ops.sqrt(ops.maximum(squares, floor * floor)) * (1.0 / radius)",
            "divisors = ops.sqrt(ops.maximum(squares, floor * floor)) * (0.999 / radius)",
        ),
        (
            "what overflows passes",
            "return ops.where(ops.isfinite(squares), divisors, 0.0)",
            "return divisors",
        ),
        (
            "the norm is that of the last entry",
            "squares = ops.reshape(sums.sum_of_squares(inputs), (-1, 1))",
            "squares = ops.square(rows[:, -1:])",
        ),
        (
            "the gradient leads out of the sphere",
            "ops.divide_no_nan(cotangent - outputs * part, divisors)",
            "ops.divide_no_nan(cotangent + outputs * part, divisors)",
        ),
        (
            "the gradient is not scaled",
            "ops.divide_no_nan(cotangent - outputs * part, divisors)",
            "cotangent - outputs * part",
        ),
        (
            "the gradient of the whole batch",
            "part = along * sums.dot(cotangent, outputs)",
            "part = along * ops.sum(cotangent * outputs, keepdims=True)",
        ),
        (
            "no room for rounding",
            "return self.norm * sums.margin(entries(shape, self), name=f\"The input of layer '{self.name}'\")",
            "return self.norm",
        ),
        (
            "normalizing is 1-Lipschitz",
            'return (1.0 if self.mode == "clip" else float("inf"),)',
            "return (1.0,)",
            "layers/test_bounded_input.py bounds/test_propagate.py layers/test_adversarial.py",
        ),
        (
            "the output is as long as the input",
            'return min(input_bounds[0], self.norm) if self.mode == "clip" else self.norm',
            "return min(input_bounds[0], self.norm)",
            "layers/test_bounded_input.py::test_bounds_follow_the_mode",
        ),
    ),
    *faults(
        "layers/clip_gradient.py",
        "layers/test_clip_gradient.py",
        (
            "nothing is clipped",
            "factor = ops.where(norm > radius, radius / ops.where(norm > radius, norm, ops.ones_like(norm)), 1.0)",
            "factor = 1.0",
        ),
        (
            "clipped over the batch",
            "axes = tuple(range(1, len(cotangent.shape)))\n",
            "axes = tuple(range(0, len(cotangent.shape)))\n",
        ),
        (
            "the bound is smaller than the clip",
            "return (min(cotangent_bound, self.norm),)",
            "return (0.5 * min(cotangent_bound, self.norm),)",
        ),
        (
            "no room for rounding",
            "return sums.margin(entries(shape, self), times=2.0, name=f\"The input of layer '{self.name}'\")",
            "return 1.0",
        ),
    ),
    *faults(
        "layers/convolution.py",
        "layers/test_convolution.py layers/test_adversarial.py layers/test_contract.py",
        (
            "overlapping patches count once",
            "kernel = self.kernel * (1.0 / math.sqrt(self.multiplicity))\n        if inputs",
            "kernel = self.kernel * 1.0\n        if inputs",
        ),
        (
            "the multiplicity of stride one",
            "return conv_multiplicity(self.kernel_size, self.strides, self.dilation_rate)",
            "return conv_multiplicity(self.kernel_size, self.kernel_size, self.dilation_rate)",
        ),
        (
            "groups are projected as one",
            "self.add_kernel(self.kernel_shape(input_shape[-1]), SpectralBall(self.groups), first)",
            "self.add_kernel(self.kernel_shape(input_shape[-1]), SpectralBall(), first)",
            "layers/test_contract.py layers/test_adversarial.py",
        ),
        (
            "the trained norm of the first group",
            "largest = max(largest, min(unfold, fourier))",
            "largest = min(unfold, fourier)",
            "layers/test_contract.py test_certify.py",
        ),
        (
            "columns beside the image are read",
            "if inputs.shape[-1] == 1 and self._uneven():",
            "if False:",
            "layers/test_convolution.py",
        ),
    ),
    *faults(
        "layers/standardized.py",
        "layers/test_standardized.py",
        ("filters keep their mean", "centered = kernel - ops.mean(", "centered = kernel - 0.0 * ops.mean("),
        ("equal weights are divided by nothing", "ops.rsqrt(ops.maximum(squares, _FLOOR))", "ops.rsqrt(squares)"),
        ("gains are not saved", 'store["gain"] = self.gain', "pass"),
        ("gains stay as they began", 'self.gain.assign(store["gain"])', "pass"),
    ),
    *faults(
        "layers/orthogonal_convolution.py",
        "layers/test_orthogonal_convolution.py",
        ("factors are not projected", "initializer, constraint=ball,", "initializer, constraint=None,"),
        ("factors round by less than they may", "_PER_FACTOR = 2e-5", "_PER_FACTOR = 1e-6"),
        (
            "channels that move are read twice",
            "ops.pad(kernel[..., half:], second)]",
            "ops.pad(kernel[..., half:], second) + ops.pad(kernel[..., half:], first)]",
        ),
        (
            "one factor stands for all",
            "return (self.scale * math.prod(norms),)",
            "return (self.scale * max(norms),)",
        ),
        (
            "the bounds of the gradients are halved",
            "return (input_bounds[0] * cotangent_bound,) * (sum(self.kernel_size) - 1)",
            "return (0.5 * input_bounds[0] * cotangent_bound,) * (sum(self.kernel_size) - 1)",
        ),
        (
            "the other border is read twice",
            "places = np.arange(-before, length + after) % length",
            "places = np.arange(-before, length + after) % (length - 1)",
        ),
        (
            "a kernel that wraps around itself",
            'if self.padding != "same":\n            cut',
            'if self.padding == "valid":\n            cut',
        ),
        (
            "rounding of one product for all",
            "return positions(output_shape, self) * math.ceil(math.sqrt(taps)) + taps",
            "return positions(output_shape, self) + taps",
        ),
    ),
    *faults(
        "layers/depthwise.py",
        "layers/test_convolution.py layers/test_adversarial.py",
        (
            "overlapping patches count once",
            "kernel = ops.reshape(self.kernel, shape) * (1.0 / math.sqrt(self.multiplicity))",
            "kernel = ops.reshape(self.kernel, shape)",
        ),
        (
            "channels share one ball",
            "self.groups = input_shape[-1]\n",
            "self.groups = 1\n",
            "layers/test_contract.py layers/test_adversarial.py",
        ),
    ),
    *faults(
        "layers/transposed.py",
        "layers/test_convolution.py layers/test_adversarial.py layers/test_convolution_values.py",
        (
            "overlapping patches count once",
            "kernel = self.kernel * (1.0 / math.sqrt(self.multiplicity))",
            "kernel = self.kernel * 1.0",
        ),
    ),
    *faults(
        "layers/deskew.py",
        "layers/test_deskew.py",
        (
            "ink of all images is one mass",
            "mass = ops.maximum(ops.sum(down, axis=1, keepdims=True), _FLOOR)",
            "mass = ops.maximum(ops.sum(down, keepdims=True), _FLOOR)",
            "layers/test_deskew.py::test_each_example_alone_equals_together",
        ),
    ),
    *faults(
        "layers/unbounded.py",
        "layers/test_deskew.py",
        (
            "gradients pass as if it were an isometry",
            'return (float("inf"),)',
            "return (1.0,)",
            "layers/test_deskew.py::test_clipless_training_needs_a_bound_behind_it",
        ),
        (
            "the output is as long as the input",
            'return float("inf")',
            "return input_bounds[0]",
            "layers/test_deskew.py::test_clipless_training_needs_a_bound_behind_it",
        ),
    ),
    *faults(
        "layers/encoder_features.py",
        "layers/test_encoder_features.py",
        (
            "all images of a batch share one deviation",
            "variance = ops.mean(ops.square(groups), axis=(1, 2, 4), keepdims=True)",
            "variance = ops.mean(ops.square(groups), axis=(0, 1, 2, 4), keepdims=True)",
            "layers/test_encoder_features.py::test_each_example_alone_equals_together",
        ),
        (
            "optimizers train its weights",
            "keras.initializers.Constant(value), trainable=False, ",
            "keras.initializers.Constant(value), ",
            "layers/test_encoder_features.py::test_nothing_trains_it_and_files_hold_its_weights",
        ),
    ),
    *faults(
        "layers/patch_features.py",
        "layers/test_patch_features.py",
        (
            "all patches of an image share one length",
            "length = ops.sum(ops.square(patches), axis=-1, keepdims=True) + _FLOOR",
            "length = ops.sum(ops.square(patches), keepdims=True) + _FLOOR",
        ),
        (
            "what is looked for comes from another seed",
            "drawn, self.seed)",
            "drawn, 1)",
            "layers/test_patch_features.py::test_values_are_those_of_the_definition",
        ),
    ),
    *faults(
        "layers/embedding.py",
        "layers/test_embedding.py layers/test_adversarial.py",
        (
            "each token has the norm of all",
            "return lookup(tokens) * (1.0 / math.sqrt(max(1, entries(inputs.shape, self))))",
            "return lookup(tokens)",
        ),
        ("rows are not projected", "RowBall(self.max_norm)", "RowBall(2.0 * self.max_norm)"),
        (
            "tokens out of range",
            'tokens = ops.clip(ops.cast(inputs, "int32"), 0, self.input_dim - 1)',
            'tokens = ops.cast(inputs, "int32")',
        ),
        ("the gradient bound is halved", "return (cotangent_bound,)", "return (0.5 * cotangent_bound,)"),
    ),
    *faults(
        "layers/householder.py",
        "layers/test_householder.py layers/test_adversarial.py",
        (
            "reflected too far",
            "return ops.reshape(pairs - 2.0 * behind * normals, ops.shape(inputs))",
            "return ops.reshape(pairs - 2.5 * behind * normals, ops.shape(inputs))",
        ),
        ("reflected too far, in few channels", "2.0 * ops.transpose(normals)", "2.5 * ops.transpose(normals)"),
        (
            "the gradient bound is halved",
            "return (input_bounds[0] * cotangent_bound,)",
            "return (0.5 * input_bounds[0] * cotangent_bound,)",
        ),
    ),
    *faults(
        "layers/pooling.py",
        "layers/test_adversarial.py bounds/test_reference_defects.py layers/test_contract.py",
        ("overlapping windows count once", "return (math.sqrt(self.multiplicity),)", "return (1.0,)"),
        (
            "the mean is a sum",
            "return average(inputs) * math.sqrt(math.prod(self.pool_size))",
            "return average(inputs) * math.prod(self.pool_size)",
        ),
        (
            "a norm of many places is charged as one of few",
            "return sums.chain(positions(input_shapes[0], self), _AT_ONCE)",
            "return 1",
            "bounds/test_rounding.py::test_cotangents_are_charged_for_long_sums_of_outputs",
        ),
        (
            "zero becomes something",
            "return ops.sqrt(squares + _EPSILON) - math.sqrt(_EPSILON)",
            "return ops.sqrt(squares + _EPSILON)",
        ),
    ),
    *faults(
        "layers/residual.py",
        "layers/test_adversarial.py layers/test_contract.py",
        (
            "both in full",
            "return (1.0 - self.weight) * first + self.weight * second",
            "return first + self.weight * second",
        ),
        (
            "constants are halved",
            "return (1.0 - self.weight, self.weight)",
            "return (0.5 * (1.0 - self.weight), self.weight)",
        ),
        (
            "shapes that broadcast",
            "if len(shapes) != 2 or shapes[0] != shapes[1] or None in shapes[0]:",
            "if len(shapes) != 2:",
            "layers/test_contract.py::test_an_average_of_what_may_broadcast_is_refused",
        ),
    ),
    *faults(
        "layers/centering.py",
        "layers/test_contract.py bounds/test_reference_defects.py",
        ("the mean of the batch", "if self.axis is not None and 0 in _as_tuple(self.axis):", "if False:"),
        ("axes counted from the end reach the batch", "if any(a < 1 or a >= rank for a in axes):", "if False:"),
        (
            "a mean of many entries is one sum",
            "_AT_ONCE = 2**7",
            "_AT_ONCE = 2**30",
            "test_certify.py::test_a_mean_of_many_equal_pixels_is_removed",
        ),
        (
            "the blocks are those of other axes",
            "rows = ops.transpose(inputs, (0, *self._axes, *others))",
            "rows = inputs",
            "test_certify.py::test_centering_by_blocks_is_centering",
        ),
        (
            "the mean is taken off twice",
            "return inputs - ops.mean(inputs, axis=self._axes, keepdims=True)",
            "return inputs - 2.5 * ops.mean(inputs, axis=self._axes, keepdims=True)",
            "layers/test_adversarial.py",
        ),
    ),
    *faults(
        "layers/activations.py",
        "layers/test_ties.py layers/test_adversarial.py layers/test_contract.py",
        (
            "ties are exchanged",
            "kept = sign * (rows - swapped) <= 0",
            "kept = sign * (rows - swapped) < 0",
            "",
            "the cotangents of two equal entries are then exchanged, which is a permutation as well",
        ),
        (
            "a pair has its gradient twice",
            "return ops.reshape(ops.where(kept, cotangent, ops.matmul(cotangent, swap)), shape)",
            "return ops.reshape(cotangent + 0.01 * ops.matmul(cotangent, swap), shape)",
        ),
    ),
    *faults(
        "layers/mixing.py",
        "layers/test_adversarial.py layers/test_contract.py",
        (
            "rows of a batch mix",
            "return ops.matmul(ops.transpose(self.kernel), inputs)",
            "return ops.matmul(ops.transpose(self.kernel), inputs) + 0.0 * inputs[:1, :1] + 1e-3 * ops.mean(inputs, axis=(0, 1), keepdims=True)",
        ),
    ),
    *faults(
        "layers/scattering.py",
        "layers/test_scattering.py",
        (
            "the constant of one order only",
            "self.constant = sum(self._bound(0, -1, 0, self._size))",
            "self.constant = 0.5 * sum(self._bound(0, -1, 0, self._size))",
        ),
        ("rounding is free", "return 1.001 * count * _UNIT * _mass(kernel)", "return 0.0"),
        ("another size of image", "if self.built and (height, width) != self._size:", "if False:"),
    ),
]
