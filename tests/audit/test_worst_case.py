"""The search for the worst example comes near to the joint bound where that is tight, and leaves the model alone."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import audit, checks, layers, losses


def deep(optimizer="sgd", outputs=1, loss=losses.MeanAbsoluteError):
    stack = [
        layers.SpectralDense(8),
        layers.Abs(),
        layers.SpectralDense(8),
        layers.Abs(),
        layers.SpectralDense(outputs),
    ]
    model = lipdp.DP_Sequential([layers.BoundedInput((6,), norm=2.0), *stack])
    model.compile(optimizer, loss=loss())
    return model


FAR = np.array([[1e3], [-1e3]])


@pytest.mark.slow
def test_the_joint_bound_of_a_whole_network_is_reached():
    found = audit.worst_case(deep(), FAR, tries=40, steps=300)
    assert 0.9 < found.joint <= 1.0001
    assert len(found.layers) == 3
    assert all(row["at_worst"] <= row["largest"] <= 1.0001 for row in found.layers)
    squares = sum((row["at_worst"] * row["bound"]) ** 2 for row in found.layers)
    assert found.joint**2 * sum(row["bound"] ** 2 for row in found.layers) == pytest.approx(squares, rel=1e-3)


@pytest.mark.backend_free
def test_the_model_stays_as_it_was():
    model = deep()
    before = model.get_weights()
    audit.worst_case(model, FAR, tries=10, steps=10)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.backend_free
def test_weights_that_stay_are_not_searched():
    model = deep(outputs=3, loss=losses.SparseCategoricalCrossentropy)
    found = audit.worst_case(model, np.arange(3), tries=20, steps=20, move_weights=False)
    assert all(np.array_equal(a, b) for a, b in zip(found.weights, model.get_weights(), strict=True))
    assert 0.0 < found.joint < 1.0


@pytest.mark.backend_free
@pytest.mark.slow
def test_the_worst_example_is_a_canary():
    found = audit.worst_case(deep(), FAR, tries=20, steps=50)
    audited = audit.white_box("clipless", epsilon=8.0, network=found.canaries(deep), runs=150, seed=0)
    assert 0.1 < audited.ratio <= 1.0
    assert audited.details["canaries"] == 1


@pytest.mark.backend_free
def test_a_bound_that_is_too_small_is_found(monkeypatch):
    right = layers.SpectralDense.parameter_bounds
    monkeypatch.setattr(layers.SpectralDense, "parameter_bounds", lambda *args: tuple(b / 2.0 for b in right(*args)))
    monkeypatch.setattr(checks, "replaced", lambda thing: [])  # as if it stood in the source
    with pytest.raises(RuntimeError, match="joint bound"):
        audit.worst_case(deep(), FAR, tries=40, steps=200)


@pytest.mark.backend_free
def test_a_model_that_is_not_compiled_is_refused():
    with pytest.raises(ValueError, match="compiled model"):
        audit.worst_case(keras.Sequential([keras.Input((2,)), layers.SpectralDense(1)]), FAR)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("loss", "outputs", "labels"),
    [
        (losses.MeanAbsoluteError, 1, []),
        (losses.MeanAbsoluteError, 1, 1.0),
        (losses.MeanAbsoluteError, 1, [[np.nan]]),
        (losses.SparseCategoricalCrossentropy, 3, [0, 3]),
        (losses.SparseCategoricalCrossentropy, 3, [-1]),
        (losses.CategoricalCrossentropy, 3, [[5.0, 5.0, 5.0]]),
        (losses.CategoricalCrossentropy, 3, [1, 2]),
    ],
)
def test_labels_for_which_no_bound_holds_are_refused(loss, outputs, labels):
    with pytest.raises(ValueError, match="([Ll]abel|class ids).*Received"):
        audit.worst_case(deep(outputs=outputs, loss=loss), labels)


@pytest.mark.backend_free
def test_what_has_no_joint_bound_is_refused_by_name():
    model = deep()
    model.trainable = False
    with pytest.raises(ValueError, match="no gradient to bound"):
        audit.worst_case(model, FAR)
    crossentropy = keras.losses.SparseCategoricalCrossentropy
    with pytest.raises(ValueError, match="SparseCategoricalCrossentropy"):
        audit.worst_case(deep(outputs=3, loss=lambda: crossentropy(from_logits=True)), [0, 1])
    entry = keras.Input((4,))
    bounded = layers.BoundedInput(norm=1.0)(entry)
    several = lipdp.DP_Model(entry, [layers.SpectralDense(3)(bounded), layers.SpectralDense(2)(bounded)])
    several.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    with pytest.raises(ValueError, match="one output"):
        audit.worst_case(several, [0, 1])
