"""`losses.get`: what it takes, and what it says to what it does not take."""

import keras
import pytest

from lipdp import losses
from lipdp.losses.registry import LOSSES


@pytest.mark.parametrize(
    "name, cls",
    [
        ("categorical_crossentropy", losses.CategoricalCrossentropy),
        ("sparse_categorical_crossentropy", losses.SparseCategoricalCrossentropy),
        ("SparseCategoricalCrossentropy", losses.SparseCategoricalCrossentropy),
        ("binary_crossentropy", losses.BinaryCrossentropy),
        ("bce", losses.BinaryCrossentropy),
        ("multiclass_hinge", losses.MulticlassHinge),
        ("multiclass_kr", losses.MulticlassKR),
        ("MulticlassHKR", losses.MulticlassHKR),
        ("multiclass_hkr", losses.MulticlassHKR),
        ("cosine_similarity", losses.CosineSimilarity),
        ("huber", losses.Huber),
        ("mean_absolute_error", losses.MeanAbsoluteError),
        ("MAE", losses.MeanAbsoluteError),
    ],
)
def test_names(name, cls):
    assert type(losses.get(name)) is cls


@pytest.mark.parametrize("cls", LOSSES)
def test_objects_classes_and_configurations(cls):
    loss = cls(clip=0.5)
    assert losses.get(loss) is loss
    assert type(losses.get(cls)) is cls
    for config in (
        keras.saving.serialize_keras_object(loss),
        keras.losses.serialize(loss),
        {"class_name": cls.__name__, "config": {"clip": 0.5}},
    ):
        assert losses.get(config).clip == 0.5
        assert type(losses.get(config)) is cls
    assert losses.get({"class_name": cls.__name__}).clip is None


@pytest.mark.parametrize(
    "identifier, replacement",
    [
        ("mse", "Huber instead of mse: its gradient grows"),
        ("mean_squared_error", "Huber instead of mean_squared_error: its gradient grows"),
        ("MeanSquaredError", "Huber"),
        (keras.losses.MeanSquaredError(), "Huber instead of MeanSquaredError"),
        (keras.losses.mean_squared_error, "Huber instead of mean_squared_error"),
        (keras.losses.MeanSquaredError, "Huber"),
        (keras.losses.Huber(), "Huber, which knows its bound"),
        (keras.losses.CategoricalCrossentropy(from_logits=True), "CategoricalCrossentropy, which"),
        (keras.losses.categorical_hinge, "MulticlassHinge"),
        (keras.losses.serialize(keras.losses.Huber()), "Huber, which knows its bound"),
        ({"class_name": "MeanSquaredError"}, "Huber"),
        ("sparse_crossentropy", "Did you mean lipdp.losses.SparseCategoricalCrossentropy"),
        ("categorical_crosentropy", "Did you mean lipdp.losses.CategoricalCrossentropy"),
        ("mean_square_error", "Did you mean keras.losses.MeanSquaredError?"),
        ("crossentropy", "'sparse_categorical_crossentropy' for class ids"),
        ("ce", "'binary_crossentropy' for truth values"),
        ("nonsense", "Use one of lipdp.losses: BinaryCrossentropy, "),
        (lambda y, z: z, "Use one of lipdp.losses"),
        (3, "Use one of lipdp.losses"),
        (None, "Use one of lipdp.losses"),
    ],
)
def test_refusals_name_a_replacement(identifier, replacement):
    with pytest.raises(ValueError) as error:
        losses.get(identifier)
    theirs = isinstance(identifier, keras.losses.Loss)  # Keras writes addresses of functions
    assert f"Received: {f'keras.losses.{type(identifier).__name__}.' if theirs else repr(identifier)}" in str(
        error.value
    )
    assert replacement in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"class_name": 3},
        {"module": "elsewhere", "class_name": "Gone", "config": {}, "registered_name": "elsewhere>Gone"},
        keras.saving.serialize_keras_object(keras.layers.ReLU()),
    ],
)
def test_foreign_configurations(config):
    with pytest.raises(ValueError, match="Received: {"):
        losses.get(config)


class Weighted(losses.Huber):
    """Multiplies the gradient behind its limit: it was 89 times as long as what the noise was made for."""

    def call(self, y_true, y_pred):
        return 100.0 * super().call(y_true, y_pred)


class Limited(losses.Huber):
    def limited(self, y_true, y_pred, limit):
        values, norms = super().limited(y_true, y_pred, limit)
        return 100.0 * values, norms


@pytest.mark.parametrize(("own", "name"), [(Weighted, "call"), (Limited, "limited")])
def test_a_loss_that_goes_around_its_limit_has_no_bound(own, name):
    with pytest.raises(ValueError, match=f"{own.__name__} with a `{name}` of its own"):
        losses.get(own())
    # Where gradients are clipped it may compute what it likes.
    assert isinstance(losses.per_example.resolve(made := own()), losses.Loss) and made.name
