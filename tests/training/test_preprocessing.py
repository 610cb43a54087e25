"""Tasks of keras_hub: raw rows in, the same network, and the task works with what was trained."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify, gradients, layers, losses
from lipdp.training.preprocessing import preprocessed

keras_hub = pytest.importorskip("keras_hub")
models = keras_hub.models

WORDS = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *"the quick brown fox jumped over lazy dog good bad".split()]
TEXTS = ["the quick fox", "bad dog good", "brown", "lazy dog jumped over the fox"] * 6
LABELS = np.array([0, 1, 0, 1] * 6)
PAIRS = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3, "Ġa": 4, "Ġb": 5, "Ġ": 6}
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "intermediate_dim": 6, "max_sequence_length": 10}


def classifier():
    tokenizer = models.BertTokenizer(vocabulary=WORDS)
    return models.BertTextClassifier(
        backbone=models.BertBackbone(vocabulary_size=len(WORDS), **SIZES),
        preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=10),
        num_classes=2,
    )


def language_model(**options):
    tokenizer = models.GPT2Tokenizer(vocabulary=PAIRS, merges=["a b", "Ġ a", "Ġ b"])
    return models.GPT2CausalLM(
        backbone=models.GPT2Backbone(vocabulary_size=len(PAIRS), **SIZES),
        preprocessor=models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8, **options),
    )


def compiled(task, **options):
    model = lipdp.DP_Model.from_keras(task)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


@pytest.mark.slow
@pytest.mark.backend_free
def test_texts_train_and_are_judged_as_by_the_task(tmp_path):
    task = classifier()
    model = compiled(task)
    history = model.fit(
        TEXTS, LABELS, batch_size=8, noise_multiplier=1.0, verbose=0, validation_data=(TEXTS[:5], LABELS[:5])
    )
    assert np.isfinite(history.history["val_loss"]).all() and model.privacy.epsilon() > 0
    np.testing.assert_array_equal(model.predict(TEXTS[:3], verbose=0), task.predict(TEXTS[:3], verbose=0))
    assert np.isfinite(model.evaluate(np.array(TEXTS[:5]), LABELS[:5], verbose=0))
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert again.privacy.epsilon() == model.privacy.epsilon()
    np.testing.assert_array_equal(again.predict(TEXTS[:3], verbose=0), model.predict(TEXTS[:3], verbose=0))


@pytest.mark.slow
@pytest.mark.backend_free
def test_rows_that_went_through_it_already():
    task = classifier()
    ready = task.preprocessor(TEXTS)
    task.preprocessor = None
    model = compiled(task)
    assert model.preprocessor is None
    model.fit({k: np.asarray(v) for k, v in ready.items()}, LABELS, batch_size=8, noise_multiplier=1.0, verbose=0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_language_model_with_low_rank_additions_trains_on_texts_and_generates():
    task = language_model()
    task.backbone.enable_lora(2)
    low_rank = [v for v in task.trainable_variables if "lora" in v.path]
    before, frozen = [v.numpy() for v in low_rank], task.backbone.token_embedding.get_weights()[0]
    model = compiled(task, ignore_class=-1)
    model.fit(["a b ab", "b a"] * 12, batch_size=8, epochs=2, noise_multiplier=1.0, verbose=0)
    assert all((v.numpy() != old).any() for v, old in zip(low_rank, before, strict=True))
    np.testing.assert_array_equal(task.backbone.token_embedding.get_weights()[0], frozen)
    assert isinstance(task.generate("a b", max_length=6), str)


@pytest.mark.backend_free
def test_a_loss_that_counts_the_padding_is_refused():
    model = compiled(language_model())
    with pytest.raises(ValueError, match="pass ignore_class=-1 to the loss"):
        model.fit(["a b ab", "b a"] * 12, batch_size=8, noise_multiplier=1.0, verbose=0)
    assert model.privacy.epsilon() == 0


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("x", "message"),
    [((TEXTS, TEXTS[:3]), "same number of rows"), (7, "must be lists or arrays"), ([], "at least one")],
)
def test_rows_that_a_preprocessor_cannot_take(x, message):
    with pytest.raises(ValueError, match=message):
        compiled(classifier()).fit(x, LABELS, batch_size=8, noise_multiplier=1.0, verbose=0)


class Own(models.BertTextClassifierPreprocessor):
    """A preprocessor of the user's, which changes the tokens of a batch."""

    change = staticmethod(lambda tokens: tokens)

    def call(self, x, y=None, sample_weight=None):
        made = super().call(x, y=y, sample_weight=sample_weight)
        found, *rest = made if isinstance(made, tuple) else (made,)
        tokens = np.asarray(found["token_ids"])
        found = {**found, "token_ids": type(self).change(tokens) if tokens.ndim == 2 else tokens}
        return (found, *rest) if rest else found


def own(change):
    task = classifier()
    kind = type("Changing", (Own,), {"change": staticmethod(change)})
    task.preprocessor = kind(task.preprocessor.tokenizer, sequence_length=10)
    return task


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "change", [lambda t: np.roll(t, 1, 0), lambda t: t * (t.sum() > 40), lambda t: t[:, : (t != 1).sum(1).max()]]
)
def test_a_preprocessor_that_mixes_rows_is_refused(change):
    with pytest.raises(ValueError, match="of one row alone"):
        preprocessed(own(change), TEXTS, LABELS)


@pytest.mark.backend_free
@pytest.mark.parametrize("copies", [1, 1000])
def test_one_long_text_among_rows_that_are_not_compared(copies):
    """All others would be padded to it; and in parts of their own the shorter ones had another length."""
    texts = ["the quick fox"] * 6 * copies
    longest = own(lambda t: t[:, : (t != 1).sum(1).max()])
    found, _ = preprocessed(longest, texts, np.zeros(6 * copies, int))
    assert found["token_ids"].shape == (6 * copies, 5)
    texts[-2] = "the quick brown fox jumped"
    with pytest.raises(ValueError, match="of one row alone.*pads to the longest"):
        preprocessed(longest, texts, np.zeros(6 * copies, int))


@pytest.mark.backend_free
def test_a_preprocessor_that_draws_at_random_is_not_compared():
    rng = np.random.default_rng(0)
    found, _ = preprocessed(own(lambda t: np.where(rng.random(t.shape) < 0.5, t, 0)), TEXTS, LABELS)
    assert len(found["token_ids"]) == len(TEXTS)


@pytest.mark.backend_free
def test_other_numbers_of_texts_and_labels():
    with pytest.raises(ValueError, match="same length. Received lengths: 23 and 24"):
        preprocessed(classifier(), TEXTS[:-1], LABELS)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_file_of_a_task_knows_what_is_frozen_and_what_was_added(tmp_path):
    task = classifier()
    task.backbone.enable_lora(2)
    model = compiled(task)
    model.fit(TEXTS, LABELS, batch_size=8, noise_multiplier=1.0, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    for a, b in zip(model.trainable_variables, again.trainable_variables, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again.predict(TEXTS[:3], verbose=0), model.predict(TEXTS[:3], verbose=0))
    again.fit(TEXTS, LABELS, batch_size=8, noise_multiplier=1.0, verbose=0)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_task_that_takes_short_texts_only():
    model = models.BertBackbone(vocabulary_size=7, **{**SIZES, "max_sequence_length": 6})
    gradients.supported(model)


def images_of_layers_with_bounds():
    """A task whose preprocessor multiplies pixels by ten."""

    class Images(models.Task):
        def __init__(self, backbone, preprocessor):
            self.backbone, self.preprocessor = backbone, preprocessor
            super().__init__(inputs=backbone.inputs, outputs=backbone.outputs)

    stack = [keras.Input((4, 4, 3)), keras.layers.Flatten(), layers.SpectralDense(2, "identity")]
    converter = keras_hub.layers.ImageConverter(image_size=(4, 4), scale=10.0)
    return Images(keras.Sequential(stack), models.ImageClassifierPreprocessor(image_converter=converter))


@pytest.mark.backend_free
def test_rows_that_are_preprocessed_have_no_certificate():
    """Their radii were those of preprocessed rows: here ten times too large."""
    task, x = images_of_layers_with_bounds(), np.zeros((1, 4, 4, 3), "float32")
    x[0, 0, 0, 0] = 0.2
    model = lipdp.DP_Model.from_keras(task)
    for one in (model, task):
        with pytest.raises(ValueError, match="whose preprocessor changes rows first. Certify keras.Model"):
            certify.radii(one, x)
        with pytest.raises(ValueError, match="whose preprocessor changes rows first"):
            certify.certified_accuracy(one, x, [0])
    (radius,) = certify.radii(keras.Model(model.inputs, model.outputs), 10.0 * x)
    assert radius == pytest.approx(2.0 / 2.0**0.5, rel=1e-3)
    metric, loss = certify.CertifiedAccuracy(0.1), losses.SparseCategoricalCrossentropy()
    with pytest.raises(ValueError, match="CertifiedAccuracy for model .* whose preprocessor changes rows first"):
        model.compile("sgd", loss=loss, metrics=[metric])
    model._task.model.preprocessor = None
    assert certify.radii(model, 10.0 * x) == pytest.approx([radius])
