"""Multiclass hinge, KR and HKR: formulas, constants, declared priors; the batch never enters."""

import math

import numpy as np
import pytest

from lipdp import losses

pytestmark = pytest.mark.backend_free

Z = np.array([[1.0, -2.0, 0.1], [0.0, 0.0, 0.0], [-3.0, 0.2, -0.3]], "float32")
IDS = np.array([2, 0, 1])
ONE_HOT = np.eye(3, dtype="float32")[IDS]
PRIORS = [0.5, 0.3, 0.2]


def hinge(z, y, margin):
    """The definition, one example at a time: two hinges for each wrong class, averaged over the classes."""
    total = 0.0
    for j in range(len(z)):
        if j != y:
            total += max(margin / 2 - z[y], 0.0) + max(margin / 2 + z[j], 0.0)
    return total / len(z)


def kr(z, y, p):
    wrong = sum(z[j] / (1 - p[j]) for j in range(len(z)) if j != y)
    return -(z[y] / p[y] - wrong) / len(z)


@pytest.mark.parametrize("margin", [0.5, 1.0, 3.0])
def test_hinge_against_its_definition(margin):
    expected = [hinge(z, y, margin) for z, y in zip(Z, IDS, strict=True)]
    loss = losses.MulticlassHinge(margin)
    for y in (ONE_HOT, IDS, IDS[:, None]):
        np.testing.assert_allclose(loss.value(y, Z), expected, rtol=1e-6)


@pytest.mark.parametrize("priors", [None, PRIORS])
def test_kr_and_hkr_against_their_definition(priors):
    p = priors or [1 / 3] * 3
    expected = np.array([kr(z, y, p) for z, y in zip(Z, IDS, strict=True)])
    for y in (ONE_HOT, IDS, IDS[:, None]):
        np.testing.assert_allclose(losses.MulticlassKR(priors).value(y, Z), expected, rtol=1e-5, atol=1e-6)
    expected += 4.0 * np.array([hinge(z, y, 2.0) for z, y in zip(Z, IDS, strict=True)])
    loss = losses.MulticlassHKR(alpha=4.0, margin=2.0, class_priors=priors)
    np.testing.assert_allclose(loss.value(IDS, Z), expected, rtol=1e-5)


def test_golden_gradients():
    np.testing.assert_allclose(losses.MulticlassKR().gradient([0], [[9.0, 9.0]]), [[-1.0, 1.0]])
    np.testing.assert_allclose(losses.MulticlassHinge().gradient([0], [[0.0, 0.0]]), [[-0.5, 0.5]])
    np.testing.assert_allclose(losses.MulticlassHinge().gradient([0], [[9.0, -9.0]]), [[0.0, 0.0]])
    np.testing.assert_allclose(losses.MulticlassHKR(10.0).gradient([0], [[0.0, 0.0]]), [[-6.0, 6.0]])


@pytest.mark.parametrize("num_classes, hinge_constant", [(2, 0.7071), (10, 0.9487), (100, 0.9950)])
def test_constants_of_the_table(num_classes, hinge_constant):
    c = num_classes
    assert losses.MulticlassHinge().lipschitz(c) == pytest.approx(hinge_constant, abs=5e-5)
    assert losses.MulticlassHinge().lipschitz(c) == pytest.approx(math.sqrt((c - 1) / c))
    assert losses.MulticlassKR().lipschitz(c) == pytest.approx(math.sqrt(c / (c - 1)))
    expected = math.sqrt(c / (c - 1)) * (1 + 10 * (c - 1) / c)
    assert losses.MulticlassHKR(10.0).lipschitz(c) == pytest.approx(expected)


def test_constant_of_unequal_priors():
    expected = max(
        math.sqrt(1 / PRIORS[c] ** 2 + sum(1 / (1 - PRIORS[j]) ** 2 for j in range(3) if j != c)) / 3 for c in range(3)
    )
    assert losses.MulticlassKR(PRIORS).lipschitz(3) == pytest.approx(expected, rel=1e-12)
    uniform = losses.MulticlassHKR(3.0, class_priors=[0.25] * 4)
    assert uniform.lipschitz(4) == pytest.approx(losses.MulticlassHKR(3.0).lipschitz(4), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("name", ["MulticlassKR", "MulticlassHKR"])
def test_batch_counts_do_not_matter(name, num_classes, autodiff):
    """Regression: the reference weighs by the counts of the batch: 181x its bound for a class of one."""
    loss = getattr(losses, name)()
    z = np.random.default_rng(0).normal(size=(256, num_classes)).astype("float32")
    balanced = np.arange(256) % num_classes
    alone = np.ones(256, "int32")  # row 0 is the only example of class 0
    alone[0] = 0
    single_class = np.zeros(256, "int32")
    rows = []
    for y in (balanced, alone, single_class):
        gradient = autodiff(lambda x, y=y: loss.call(y, x), z)
        assert np.isfinite(loss.call(y, z)).all()
        assert np.linalg.norm(gradient.astype("float64"), axis=-1).max() <= loss.lipschitz(num_classes)
        rows.append(gradient[0])
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])


@pytest.mark.parametrize("name", ["MulticlassKR", "MulticlassHKR"])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_adding_an_example_moves_the_sum_by_at_most_the_bound(name, num_classes, autodiff):
    """Regression: with batch counts, one example also changes the weights of all others of its class."""
    loss = getattr(losses, name)(reduction="sum")
    rng = np.random.default_rng(1)
    x = np.ones((64, 1), "float32")  # every example pulls in the same direction: the worst case
    y = rng.integers(1, num_classes, 64)
    weights = rng.normal(size=(1, num_classes)).astype("float32")

    def summed(y, present):
        return autodiff(lambda w: loss(y, x @ w, sample_weight=present), weights)

    everyone = np.ones(64, "float32")
    without = summed(y, np.where(np.arange(64) == 0, 0.0, everyone).astype("float32"))
    for new_class in (0, num_classes - 1):
        y[0] = new_class
        moved = np.linalg.norm(summed(y, everyone) - without)
        assert moved <= loss.lipschitz(num_classes) * (1 + 1e-4)


@pytest.mark.parametrize("name", ["MulticlassHinge", "MulticlassKR", "MulticlassHKR"])
def test_labels_refused(name):
    loss = getattr(losses, name)()
    with pytest.raises(ValueError, match=r"lie in \[0, 3\)"):
        loss.check_labels(np.array([0, 1, 3]), 3)
    for row in ([0.5, 0.5, 0.0], [1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]):
        with pytest.raises(ValueError, match="a single 1 and zeros, but 1 of 2 rows"):
            loss.check_labels(np.array([[1.0, 0.0, 0.0], row]), 3)
    with pytest.raises(ValueError, match="at least 2 outputs"):
        loss.lipschitz(1)


@pytest.mark.parametrize(
    "priors",
    [[0.5, 0.6], [1.0], [1.0, 0.0], [1.5, -0.5], [0.5, math.nan], 0.5, ["a", "b"], [], [0.5, math.inf]],
)
@pytest.mark.parametrize("name", ["MulticlassKR", "MulticlassHKR"])
def test_priors_refused(name, priors):
    with pytest.raises(ValueError, match=r"`class_priors` must .*Received: class_priors="):
        getattr(losses, name)(class_priors=priors)


@pytest.mark.parametrize("name", ["MulticlassKR", "MulticlassHKR"])
def test_priors_must_match_the_outputs(name):
    loss = getattr(losses, name)(class_priors=PRIORS)
    for call in (lambda: loss.lipschitz(4), lambda: loss([0], np.zeros((1, 4)))):
        with pytest.raises(ValueError, match="Received: 3 priors and num_outputs=4"):
            call()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, None])
def test_arguments_out_of_range(bad):
    for make in (
        lambda: losses.MulticlassHinge(margin=bad),
        lambda: losses.MulticlassHKR(margin=bad),
        lambda: losses.MulticlassHKR(alpha=bad),
    ):
        with pytest.raises(ValueError, match="must be a finite number above 0"):
            make()
