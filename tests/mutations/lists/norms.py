"""Norms, projections, sums, products."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "norms/exact.py",
        "norms/test_exact.py",
        (
            "the norm from below",
            "squared = top * (1 + slack) + 2 * rows * _UNIT * frobenius",
            "squared = top * (1 - 1e-6)",
        ),
        (
            "the scale is not put back",
            "return math.nextafter(math.ldexp(math.sqrt(squared) * (1 + 8 * _UNIT), exponent), math.inf)",
            "return math.nextafter(math.sqrt(squared) * (1 + 8 * _UNIT), math.inf)",
            "norms/test_exact.py::test_spectral_norm_at_any_scale",
        ),
        (
            "the multiplicity is rounded down",
            "return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in zip(*sizes, strict=True))",
            "return math.prod(max(1, k // (s // math.gcd(s, d))) for k, s, d in zip(*sizes, strict=True))",
        ),
        (
            "strides and dilation are coprime",
            "return math.prod(-(-k // (s // math.gcd(s, d))) for k, s, d in zip(*sizes, strict=True))",
            "return math.prod(-(-k // s) for k, s, d in zip(*sizes, strict=True))",
        ),
        (
            "weights that are not finite",
            "if weights.ndim == 0 or not np.all(np.isfinite(weights)):",
            "if weights.ndim == 0:",
        ),
    ),
    *faults(
        "norms/fourier.py",
        "norms/test_fourier.py",
        ("between frequencies nothing is larger", "factor /= math.cos(math.pi * degree / size)", "pass"),
        (
            "aliases are left out",
            "norm = (best + rounding) / math.sqrt(aliases) * factor",
            "norm = (best + rounding) / aliases * factor",
        ),
        ("half of the frequencies", "halves[-1] = halves[-1] // 2 + 1", "halves[-1] = halves[-1] // 4 + 1"),
        (
            "the cheap bound is too small",
            "return np.exp(logarithm) * (1.0 + 16 * size**1.5 * _UNIT * 2)",
            "return 0.9 * np.exp(logarithm)",
        ),
    ),
    *faults(
        "norms/projection.py",
        "norms/test_projection.py",
        ("a target above one", "_TARGET = 1.0 - 2.0**-20", "_TARGET = 1.0 + 2.0**-16"),
        ("scaled beyond the step", "_LIMIT = 1.6\n", "_LIMIT = 2.5\n"),
        (
            "matrices that need it are not scaled",
            "scale = ops.where(bound <= _LIMIT**2, ops.ones_like(bound), _SCALED / ops.sqrt(bound))[..., None, None]",
            "scale = ops.ones_like(bound)[..., None, None]",
        ),
        (
            "rounding of the Gram matrix is free",
            "rounding = (2.0 * (inner + n + 8) * _UNIT) * (n * mean)",
            "rounding = 0.0 * mean",
        ),
        (
            "a matrix of zeros beside a huge one",
            "unit = shrunk / ops.where(ops.equal(largest, 0.0), 1.0, largest)",
            "unit = shrunk / largest",
            "norms/test_projection.py::test_a_huge_matrix_leaves_the_others_of_a_batch_finite",
        ),
        (
            "overflow is not looked at",
            "return ops.cond(usable, lambda: _scaled_step(weights, gram, tight()), rescaled)",
            "return _scaled_step(weights, gram, tight())",
        ),
        (
            "one small matrix of a batch suffices",
            "return ops.cond(ops.all(cheap <= _LIMIT**2), lambda: _step(weights, gram), otherwise)",
            "return ops.cond(ops.any(cheap <= _LIMIT**2), lambda: _step(weights, gram), otherwise)",
        ),
        (
            "the bound is not looked at",
            "return ops.cond(ops.all(cheap <= _LIMIT**2), lambda: _step(weights, gram), otherwise)",
            "return _step(weights, gram)",
        ),
        (
            "the corner of the Gram matrix",
            "strips.append(ops.matmul(matrix[begin:end], ops.transpose(matrix[begin:])))",
            "strips.append(ops.matmul(matrix[:end - begin], ops.transpose(matrix[begin:])))",
        ),
        (
            "the cubic term is too small",
            "linear, cubic = 1.5 * _TARGET * scale, -0.5 * _TARGET * scale * scale * scale",
            "linear, cubic = 1.5 * _TARGET * scale, -0.4 * _TARGET * scale * scale * scale",
        ),
        (
            "balls of a larger radius",
            'radius = self.max_norm * sums.margin(math.prod(value.shape), times=2.0, name="A variable in an L2Ball")',
            "radius = 1.001 * self.max_norm",
        ),
        (
            "rows of a larger radius",
            'radius = self.max_norm * sums.margin(value.shape[-1], times=2.0, name="A row in a RowBall")',
            "radius = 1.001 * self.max_norm",
            "norms/test_projection.py norms/test_sums.py layers/test_embedding.py",
        ),
        (
            "what is outside holds",
            "return all(spectral_norm(part) <= 1.0 + 1e-5 for part in self.matrices(value))",
            "return True",
        ),
        (
            "groups are one matrix",
            "return (-1, columns) if self.groups == 1 else (-1, self.groups, columns)",
            "return (-1, columns)",
            "norms/test_projection.py layers/test_contract.py",
        ),
    ),
    *faults(
        "norms/sums.py",
        "norms/test_sums.py",
        ("a margin of nothing", "left = 1.0 - times * (chain(terms) + more) * _UNIT", "left = 1.0"),
        ("more entries than float32 adds up", "if left < _LEAST:", "if False:"),
        (
            "one stage for all",
            "parts = _block_sums(ops.reshape(squares, (-1, terms, 1)))",
            "parts = ops.sum(ops.reshape(squares, (-1, terms, 1)), axis=1, keepdims=True)",
        ),
        ("the rest of the blocks is lost", "return ops.concatenate([sums, rest], axis=1)", "return sums"),
        (
            "rows are added up together",
            "first = 1 if per_row else 0",
            "first = 0",
            "norms/test_sums.py layers/test_bounded_input.py",
        ),
    ),
    *faults(
        "backend/tensorflow.py",
        "layers/test_products.py::test_the_last_rows_of_a_product_are_filled_up",
        ("the last rows of a product are rounded otherwise", "[[0, -count % size], *", "[[0, 0 * count], *"),
    ),
]
