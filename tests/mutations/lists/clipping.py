"""Strategies: clipping, thresholds that follow a quantile, noise per variable, copies."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "strategies/clipping.py",
        "strategies/test_dpsgd.py",
        ("the margin for rounding is missing", "MARGIN = 1.0 - 1e-4", "MARGIN = 1.0"),
        (
            "contributions are a thousandth too long",
            "MARGIN * clip_norm / ops.maximum(norms, MARGIN * clip_norm)",
            "1.001 * clip_norm / ops.maximum(norms, 1.001 * clip_norm)",
        ),
        (
            "long gradients are not shortened",
            "MARGIN * clip_norm / ops.maximum(norms, MARGIN * clip_norm)",
            "ops.ones_like(norms)",
        ),
        (
            "the norm of the last variable is left out",
            "ops.sqrt(ops.maximum(sum(squared[1:], squared[0]), 0.0))",
            "ops.sqrt(ops.maximum(sum(squared[1:-1], squared[0]), 0.0))",
        ),
        (
            "padding counts",
            "ops.where(ops.logical_and(weight > 0, ops.isfinite(norms)), factors * weight, 0.0)",
            "ops.where(ops.isfinite(norms), factors, 0.0)",
            "strategies/test_dpsgd.py gradients/test_capture.py strategies/test_adaclip.py",
        ),
        (
            "overflowing rows count",
            "ops.where(ops.logical_and(weight > 0, ops.isfinite(norms)), factors * weight, 0.0)",
            "ops.where(weight > 0, factors * weight, 0.0)",
            "strategies/test_dpsgd.py gradients/test_overflow.py",
        ),
        (
            "noise for half of the clip norm",
            "std = self.total_clip_norm / batch_size",
            "std = 0.5 * self.total_clip_norm / batch_size",
        ),
        (
            "copies count one by one",
            "x, y, shares = augmentations.repeat((x, y, weight / copies), copies)",
            "x, y, shares = augmentations.repeat((x, y, weight / copies), copies)\n            copies, weight = 1, ops.repeat(weight, copies)",
        ),
        ("all copies of a microbatch get one key", "augmentations.key(secret, index)", "augmentations.key(secret, 0)"),
        ("a tiny clip norm is taken", "if value < LEAST_CLIP:", "if value < 0.0:"),
        ("dropout is taken", "if not rates or any(rates):", "if False:"),
        (
            "probabilities into a loss on logits",
            'if named and activation in ("softmax", "sigmoid", "log_softmax"):',
            'if named and activation in ("log_softmax",):',
        ),
        ("two variables share a group by accident", "groups.append(group)", "groups.append(group[:1])"),
        (
            "what the augmentation does is not checked",
            "augmentations.check(self.augmentation, model.input_shape)",
            "pass",
        ),
    ),
    *faults(
        "strategies/dpsgd.py",
        "strategies/test_dpsgd.py",
        (
            "each layer gets the whole clip norm",
            "norms = [norms / math.sqrt(len(groups))] * len(groups)",
            "norms = [norms] * len(groups)",
        ),
        (
            "the norms of layers are added, not their squares: too small a sum",
            "math.sqrt(sum(c * c for c in norms)) if isinstance(norms, tuple) else norms",
            "max(norms) if isinstance(norms, tuple) else norms",
        ),
        (
            "automatic clipping without the norm",
            "MARGIN * self.clip_norm / (norms + self.stability)",
            "MARGIN * self.clip_norm / self.stability",
        ),
        (
            "automatic clipping without the margin and more",
            "MARGIN * self.clip_norm / (norms + self.stability)",
            "1.01 * self.clip_norm / norms",
        ),
        (
            "the threshold does not follow the quantile, the noise does",
            "threshold = self.clip_norm * state[0] if state else self.clip_norm",
            "threshold = self.clip_norm",
        ),
        (
            "the sum holds overflowing rows",
            "return record.weighted_sum(clip_factors(norms, threshold, weight), finite), counts",
            "return record.weighted_sum(clip_factors(norms, threshold, weight)), counts",
            "strategies/test_dpsgd.py gradients/test_overflow.py",
        ),
        (
            "per-layer factors of the whole norm",
            "factor = clip_factors(total_norm([squared[i] for i in group]), clip_norm, weight)",
            "factor = clip_factors(total_norm([squared[i] for i in group[:1]]), clip_norm, weight)",
        ),
        ("the number of norms is not checked", "len(self.clip_norm) != len(groups)", "False"),
        (
            "the quantile takes the threshold below the least clip norm",
            "least = max(_RANGE[0], LEAST_CLIP / self.clip_norm)",
            "least = 0.0",
        ),
        (
            "no noise is left for the count",
            "count_noise_std=self.count_noise_std(batch_size))",
            "count_noise_std=None)",
        ),
    ),
    *faults(
        "strategies/quantile.py",
        "strategies/test_dpsgd.py strategies/test_clipless_quantile.py",
        (
            "the count moves by one",
            "ops.cast(norms <= threshold, weight.dtype) - 0.5",
            "ops.cast(norms <= threshold, weight.dtype)",
        ),
        (
            "padding is counted",
            "ops.sum(weight * (ops.cast(norms <= threshold, weight.dtype) - 0.5))",
            "ops.sum(ops.cast(norms <= threshold, weight.dtype) - 0.5)",
        ),
        (
            "the threshold runs the other way",
            "ops.exp(-self.quantile_rate * (fraction - self.quantile))",
            "ops.exp(self.quantile_rate * (fraction - self.quantile))",
        ),
        (
            "the noise does not follow the threshold",
            "return state[0] if state else None",
            "return ops.ones_like(state[0]) if state else None",
        ),
        (
            "the noise of the user is ignored",
            "return batch_size / 20.0 if self.quantile_noise is None else self.quantile_noise",
            "return batch_size / 20.0",
        ),
        (
            "the threshold has no limits",
            "return [ops.clip(state[0] * ops.exp(-self.quantile_rate * (fraction - self.quantile)), least, most)]",
            "return [state[0] * ops.exp(-self.quantile_rate * (fraction - self.quantile))]",
        ),
    ),
    *faults(
        "strategies/base.py",
        "strategies/test_dpsgd.py strategies/test_clipless_quantile.py",
        (
            "the gradient pays nothing for the count",
            "noise_multiplier = (noise_multiplier**-2 - count**-2) ** -0.5",
            "noise_multiplier = noise_multiplier",
        ),
        ("the count counts twice", "count = 2.0 * self.count_noise_std", "count = 4.0 * self.count_noise_std"),
        ("a count that costs more than the update is taken", "if count <= noise_multiplier:", "if count < 0.0:"),
        (
            "sums are divided twice",
            "return [s / batch_size for s in sums]",
            "return [2.0 * s / batch_size for s in sums]",
        ),
        (
            "strategies can be changed",
            "def __setattr__(self, name: str, value: Any) -> None:",
            "def _not_setattr(self, name: str, value: Any) -> None:",
            "strategies/test_frozen.py",
        ),
    ),
    *faults(
        "strategies/adaclip.py",
        "strategies/test_adaclip.py",
        (
            "noise of one width for all",
            "return [b / self.clip_norm for b in self._transform(state)[1]]",
            "return [ops.ones_like(b) for b in self._transform(state)[1]]",
        ),
        (
            "noise of half the width",
            "return [b / self.clip_norm for b in self._transform(state)[1]]",
            "return [0.5 * b / self.clip_norm for b in self._transform(state)[1]]",
        ),
        (
            "the norm is that of the gradient",
            "record.squared_norms(center=means, inverse_scale=[1.0 / b for b in widths])",
            "record.squared_norms(center=means)",
        ),
        (
            "the norm is not centered",
            "record.squared_norms(center=means, inverse_scale=[1.0 / b for b in widths])",
            "record.squared_norms(inverse_scale=[1.0 / b for b in widths])",
        ),
        ("clipped to two", "factors = clip_factors(norms, 1.0, weight)", "factors = clip_factors(norms, 2.0, weight)"),
        (
            "the mean is not taken off",
            "[s - a * count for s, a in zip(sums, means, strict=True)]",
            "[s for s, a in zip(sums, means, strict=True)]",
        ),
        (
            "the mean is taken off for each row of the buffer",
            "count = ops.sum(factors)",
            "count = ops.sum(ops.ones_like(factors))",
        ),
        (
            "overflowing rows are not left out",
            "record.weighted_sum(factors, ops.isfinite(norms))",
            "record.weighted_sum(factors)",
            "strategies/test_adaclip.py gradients/test_overflow.py",
        ),
        (
            "the widths of a layer count once",
            "parts = [ops.sum(s) * (n / math.prod(s.shape)) for s, n in zip(stddevs, sizes, strict=True)]",
            "parts = [ops.sum(s) for s, n in zip(stddevs, sizes, strict=True)]",
        ),
        (
            "the mean is not added back",
            "return [a + s / batch_size for a, s in zip(self._transform(state)[0], sums, strict=True)]",
            "return [s / batch_size for a, s in zip(self._transform(state)[0], sums, strict=True)]",
        ),
    ),
    *faults(
        "strategies/clipless.py",
        "strategies/test_clipless.py strategies/test_clipless_quantile.py training/test_fit.py",
        (
            "the Lipschitz constant of the loss is left out",
            "propagated = bounds.propagate(model, first)",
            "propagated = bounds.propagate(model, 1.0)",
        ),
        (
            "global noise for the largest variable only",
            "return (math.sqrt(sum(s * s for s in sensitivities)),) * len(sensitivities)",
            "return (max(sensitivities),) * len(sensitivities)",
        ),
        (
            "per-layer noise without the number of layers",
            "return tuple(math.sqrt(used) * s for s in sensitivities)",
            "return tuple(s for s in sensitivities)",
        ),
        (
            "optimal noise without the energy",
            "energy = math.sqrt(sum(s * math.sqrt(d) for s, d in zip(sensitivities, sizes, strict=True)))",
            "energy = 1.0",
        ),
        (
            "the batch is squared",
            "sensitivities = [propagated.gradient(v) / batch_size for v in variables]",
            "sensitivities = [propagated.gradient(v) / batch_size**2 for v in variables]",
        ),
        (
            "the stated sensitivity is that of one variable",
            "Calibration(noise_std, math.sqrt(sum(s * s for s in sensitivities)), propagated)",
            "Calibration(noise_std, max(sensitivities), propagated)",
        ),
        (
            "gradients are not limited, the noise is",
            "limit = calibration.limits[0] * state[0] if state else None",
            "limit = calibration.limits[0] if state else None",
        ),
        (
            "padding has a gradient",
            "values = ops.where(weight > 0, values * weight, 0.0)",
            "values = ops.where(weight >= 0, values, 0.0)",
        ),
        (
            "bounds out of proportion are taken",
            "if small.gradient(variable) > propagated.gradient(variable) * _LEAST * (1.0 + 1e-9):",
            "if False:",
        ),
        ("layers that mix rows are taken", "isolation.refuse_mixing(model)", "pass", "isolation/test_mixing.py"),
    ),
    *faults(
        "strategies/augmentation.py",
        "strategies/test_dpsgd.py",
        (
            "rows are shifted alike",
            'rows = ops.cast(ops.arange(ops.shape(images)[0], dtype="int32"), "uint32")',
            'rows = ops.zeros((ops.shape(images)[0],), "uint32")',
        ),
        (
            "an augmentation that mixes is taken",
            "if not np.array_equal(ops.convert_to_numpy(augmentation(others, ops.convert_to_tensor(key)))[i], together[i]):",
            "if False:",
        ),
        ("copies are tiled, not repeated", "ops.repeat(t, copies, axis=0)", "ops.concatenate([t] * copies, axis=0)"),
    ),
]
