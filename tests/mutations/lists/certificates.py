"""Certificates."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "certify.py",
        "test_certify.py::test_margin_that_is_rounding_error_is_not_certified",
        ("rounding of logits is free", "slack = 2.0 * LOGIT_SLACK * np.maximum(", "slack = 0.0 * np.maximum("),
        (
            "inputs that are rounded are certified",
            "    refuse_rounded(functional(model))\n",
            "",
            "test_certify.py::test_inputs_that_are_rounded_have_no_certificate",
        ),
        (
            "a program of other settings predicts",
            "model.predict_function = None",
            "pass",
            "test_certify.py::test_settings_of_layers_that_were_changed_since_the_last_prediction_count",
        ),
        (
            "own layers have no settings beside their configuration",
            "if own or vars(model)",
            "if vars(model)",
            "test_certify.py::test_settings_of_own_layers_that_were_changed_since_the_last_prediction_count",
        ),
        (
            "predictions of a model's own are certified",
            "    _refuse_own_prediction(model)\n",
            "",
            "test_certify.py::test_predictions_that_are_not_what_the_layers_compute_are_refused",
        ),
        (
            "preprocessed rows are certified",
            'if getattr(model, "preprocessor", None) is not None:',
            "if False:",
            "training/test_preprocessing.py::test_rows_that_are_preprocessed_have_no_certificate",
        ),
        (
            "the size of what is averaged need not be known",
            "if use.terms is None:",
            "if False:",
            "test_certify.py::test_a_certificate_needs_the_number_of_places_of_an_average",
        ),
        (
            "the metric counts as many",
            "_METRIC_SLACK = 2e-3",
            "_METRIC_SLACK = -2e-2",
            "test_certify.py::test_metric_never_counts_more_than_is_certified test_certify.py::test_metric_stays_below_at_the_boundary_itself",
        ),
        (
            "two classes move by one",
            "return np.full((outputs, outputs), math.sqrt(2.0) * total)",
            "return np.full((outputs, outputs), total)",
            "test_certify.py::test_radius_of_a_linear_model_is_the_distance_to_the_boundary test_certify.py::test_subclass_of_the_last_layer_is_not_trusted_to_be_linear test_certify.py::test_no_attack_flips_a_prediction_inside_its_radius",
        ),
        (
            "the metric: two classes move by one",
            "constant = math.sqrt(2.0) * self.lipschitz",
            "constant = self.lipschitz",
            "test_certify.py::test_metric_never_counts_more_than_is_certified test_certify.py::test_metric_stays_below_at_the_boundary_itself",
        ),
        (
            "a subclass of the last layer is linear",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if not isinstance(last.layer, SpectralDense) or shared or not last.lipschitz or not leads:",
            "test_certify.py::test_subclass_of_the_last_layer_is_not_trusted_to_be_linear",
        ),
        (
            "a last layer that is used twice",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if type(last.layer) is not SpectralDense or not last.lipschitz or not leads:",
            "test_certify.py::test_a_last_layer_that_is_used_twice_is_not_taken_apart",
        ),
        (
            "a last layer that leads nowhere",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz or not leads:",
            "if type(last.layer) is not SpectralDense or shared or not last.lipschitz:",
            "test_certify.py::test_a_layer_that_leads_nowhere_certifies_nothing",
        ),
        ("the runner-up is the last class", ".min(axis=1), 0.0)", ".max(axis=1), 0.0)", "test_certify.py"),
        (
            "inputs that are not finite have a radius",
            "finite &= np.isfinite(np.asarray(part)).reshape(len(logits), -1).all(axis=1)",
            "pass",
            "test_certify.py::test_what_is_not_finite_has_no_radius test_certify.py::test_inputs_that_are_not_numbers_have_radius_zero",
        ),
        (
            "the norms of the constraint, not of the weights",
            "bounded = bounds.propagate(model, 1.0, trained=True)\n",
            "bounded = bounds.propagate(model, 1.0)\n",
            "test_certify.py::test_weights_outside_of_the_constraint_shrink_the_radius",
        ),
        (
            "wrong predictions are certified",
            "float(np.mean(correct & ((radii > r) | (r == 0))))",
            "float(np.mean((radii > r) | (r == 0)))",
            "test_certify.py::test_certified_accuracy_falls_with_the_radius",
        ),
        (
            "a label out of range is certified",
            "own = ops.max(ops.where(mask > 0, logits, -math.inf), axis=-1)",
            "own = ops.max(logits, axis=-1)",
            "",
            "without a logit of its own the margin is that of the largest logit to itself, and 0 certifies nothing",
        ),
        (
            "rounding scales with the logits only",
            "np.maximum(np.abs(logits).max(axis=1), scale)",
            "np.abs(logits).max(axis=1)",
        ),
        (
            "rounding is that of the examples, however far away",
            "return rounded(always.layers, scales), always.lipschitz * rounded(always.layers, [1.0] * len(scales))",
            "return rounded(always.layers, scales), 0.0",
            "test_certify.py::test_rounding_grows_with_the_distance_where_nothing_bounds_it",
        ),
        (
            "a sigmoid is split at zero",
            "if low >= 0.0 or high <= 0.0:",
            "if False:",
            "test_certify.py::test_one_output_that_is_never_negative_is_refused",
        ),
        (
            "a sigmoid is split at zero by the metric",
            "if name in _NEVER_NEGATIVE:",
            "if False:",
            "test_certify.py::test_the_metric_refuses_one_output_that_is_never_negative",
        ),
    ),
    *faults(
        "bounds/rounding.py",
        "test_certify.py::test_what_cancels_in_front_of_a_bound_is_not_certified",
        (
            "averages of many places round like few",
            "(use.terms or 0) * scale for use",
            "scale for use",
            "test_certify.py::test_no_equal_pixels_flip_a_prediction_inside_their_radius",
        ),
        ("what cancels in front of a bound rounds for free", "return [*found, ", "return [*(0.0 for _ in found), "),
        (
            "many layers round like one",
            "added = sum((use.terms",
            "added = max((use.terms",
            "test_certify.py::test_rounding_of_many_layers_adds_up",
        ),
    ),
]
