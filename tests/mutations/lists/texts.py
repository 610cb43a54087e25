"""Texts: whose they are, what is read off them, and that each is encoded alone."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "data/text_columns.py",
        "data/test_text_columns.py",
        (
            "nobody has written a text",
            '_check_whole(ids, "Column", found, person)\n    return ids',
            "return None",
            "data/test_text_columns.py::test_whose_texts_they_are",
        ),
        (
            "classes read off the texts are not said",
            "uncharged = () if classes else",
            "uncharged = () if True else",
            "data/test_text_columns.py::test_classes_that_are_read_off_the_rows_are_named",
        ),
    ),
    *faults(
        "cli/resuming.py",
        "cli/test_text.py::test_a_run_goes_on_with_the_same_vocabulary",
        ("a run goes on behind another vocabulary", "if found.get(name) != before:", "if False:"),
    ),
    *faults(
        "cli/text.py",
        "cli/test_text.py::test_persons_are_what_is_protected",
        ("persons are said to be texts", "if person is not None:\n        line", "if False:\n        line"),
    ),
    *faults(
        "models/token_crossentropy.py",
        "models/test_token_crossentropy.py::test_padding_and_other_texts_are_nothing_to_it",
        (
            "the longest text counts for all",
            "ops.maximum(ops.sum(there, axis=-1), 1.0)",
            "ops.maximum(ops.max(ops.sum(there, axis=-1)), 1.0)",
        ),
    ),
    *faults(
        "cli/encoder.py",
        "cli/test_encoder.py",
        (
            "any vocabulary will do",
            'getattr(tokenizer, "vocabulary", None) or list(tokenizer.get_vocabulary())',
            "None",
            "cli/test_encoder.py::test_another_encoder_is_refused",
        ),
        (
            "any setting of the tokenizer will do",
            "[type(tokenizer).__name__, tokenizer.get_config()]",
            "None",
            "cli/test_encoder.py::test_settings_that_shape_no_weight_are_part_of_an_encoder",
        ),
        (
            "tokens may hang on other texts",
            "if not np.array_equal(self._rows(texts[i : i + 1])[0], found[i]):",
            "if False:",
            "cli/test_encoder.py::test_tokens_that_hang_on_other_texts_are_refused",
        ),
    ),
]
