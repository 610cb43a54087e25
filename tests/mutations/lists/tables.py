"""Tables by description, what is read off their rows, and epsilon within an epoch."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "data/column.py",
        "data/test_described.py",
        (
            "numbers leave their interval",
            "return np.clip(first + (numbers - low) * ((last - first) / (high - low)), first, last)",
            "return first + (numbers - low) * ((last - first) / (high - low))",
            "data/test_described.py::test_the_norm_is_a_bound_and_is_attained",
        ),
        (
            "other words are an error of one row",
            "places = np.where(np.array(ids) < 0, len(self.vocabulary), ids)",
            "places = np.array(ids)",
            "data/test_described.py::test_a_file_is_encoded_by_its_description",
        ),
        (
            "truth values are no words",
            "place = self._truths.get(bool(value), -1)",
            "pass",
            "data/test_described.py::test_words_of_a_description_come_before_other_forms_of_a_truth_value",
        ),
        (
            "truth values in another form are other words",
            "place = self._place_of_truth(value)",
            "pass",
            "data/test_described.py::test_a_truth_value_is_one_in_whatever_form_it_is_written",
        ),
        (
            "a missing number keeps its place",
            "table[:, 0] = np.where(absent, 0.0, self._scaled(numbers, interval))",
            "table[:, 0] = np.where(absent, 0.5, self._scaled(numbers, interval))",
            "data/test_described.py::test_the_norm_is_a_bound_and_is_attained",
        ),
    ),
    *faults(
        "data/table.py",
        "data/test_described.py",
        (
            "raw numbers have a norm",
            'if any(column.kind == "number" and column.range is None for column in used):',
            "if not used:",
            "data/test_described.py::test_the_norm_is_a_bound_and_is_attained",
        ),
        (
            "the bound forgets columns",
            "return math.sqrt(len(used))",
            "return math.sqrt(max(len(used) - 1, 1))",
            "data/test_described.py::test_the_norm_is_a_bound_and_is_attained",
        ),
    ),
    *faults(
        "data/rows.py",
        "data/test_rows.py",
        ("a part of a file stays with the next", "done, rows = done + len(rows), []", "done = done + len(rows)"),
        (
            "the rest of a file is left out",
            "    if rows:\n        yield columns()",
            "    if False:\n        yield columns()",
        ),
    ),
    *faults(
        "data/load.py",
        "data/test_described.py",
        (
            "classes read off the rows are not said",
            '(f"the list of classes: those that occur in column {label!r}",)',
            "()",
            "data/test_described.py::test_without_a_description_what_is_read_off_the_rows_is_said",
        ),
        (
            "numbers may be published as classes",
            'check_few(classes, len(labels), f"Label column {label!r} of {path}", _FEW)',
            "pass",
            "data/test_table.py::test_values_that_are_hardly_classes_are_refused",
        ),
    ),
    *faults(
        "data/dataset.py",
        "data/test_text_columns.py",
        (
            "all texts may be published as classes",
            "many or len(classes) > max(_MANY_CLASSES, count / 2)",
            "False",
            "data/test_text_columns.py::test_values_that_are_hardly_classes_are_refused",
        ),
    ),
    *faults(
        "data/files.py",
        "data/test_described.py",
        (
            "classes of arrays are not said",
            "uncharged = () if public else",
            "uncharged = () if True else",
            "data/test_described.py::test_without_a_description_what_is_read_off_the_rows_is_said",
        ),
    ),
    *faults(
        "cli/datasets.py",
        "cli/test_tables.py::test_what_is_read_off_the_rows_is_said_everywhere",
        (
            "the ledger is not told",
            "ledger.uncharged = tuple(dict.fromkeys([*ledger.uncharged, *dataset.uncharged]))",
            "pass",
        ),
    ),
    *faults(
        "training/progress.py",
        "training/test_progress.py::test_epsilon_is_never_below_what_is_spent_and_costs_little",
        (
            "epsilon of the past is shown",
            "self._run.privacy(ahead).epsilon(), updates + ahead",
            "self._run.privacy().epsilon(), updates + ahead",
        ),
        ("an answer holds too long", "updates > self._covered", "updates > self._covered + 5"),
    ),
]
