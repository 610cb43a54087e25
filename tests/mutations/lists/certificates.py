"""Certificates."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "certify.py",
        "test_certify.py",
        ("rounding of logits is free", "_LOGIT_SLACK = 1e-5", "_LOGIT_SLACK = 0.0"),
        ("the metric counts as many", "_METRIC_SLACK = 2e-3", "_METRIC_SLACK = -2e-2"),
        (
            "two classes move by one",
            "return np.full((outputs, outputs), math.sqrt(2.0) * total)",
            "return np.full((outputs, outputs), total)",
        ),
        (
            "the metric: two classes move by one",
            "constant = math.sqrt(2.0) * self.lipschitz",
            "constant = self.lipschitz",
        ),
        (
            "a subclass of the last layer is linear",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if not isinstance(last.layer, SpectralDense) or shared or not last.lipschitz or not leads:",
        ),
        (
            "a last layer that is used twice",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if type(last.layer) is not SpectralDense or not last.lipschitz or not leads:",
        ),
        (
            "a last layer that leads nowhere",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz:",
        ),
        ("the runner-up is the last class", ".min(axis=1), 0.0)", ".max(axis=1), 0.0)"),
        (
            "inputs that are not finite have a radius",
            "finite &= np.isfinite(np.asarray(part)).reshape(len(logits), -1).all(axis=1)",
            "pass",
        ),
        (
            "the norms of the constraint, not of the weights",
            "bounded = bounds.propagate(model, 1.0, trained=True)\n",
            "bounded = bounds.propagate(model, 1.0)\n",
        ),
        (
            "wrong predictions are certified",
            "float(np.mean(correct & ((radii > r) | (r == 0))))",
            "float(np.mean((radii > r) | (r == 0)))",
        ),
        (
            "a label out of range is certified",
            "own = ops.max(ops.where(mask > 0, logits, -math.inf), axis=-1)",
            "own = ops.max(logits, axis=-1)",
        ),
        (
            "rounding scales with the logits only",
            "np.maximum(np.abs(logits).max(axis=1), _scale(model, x))",
            "np.abs(logits).max(axis=1)",
        ),
    ),
]
