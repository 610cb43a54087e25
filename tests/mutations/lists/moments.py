"""Moments of the data: what bounds them, what is charged for them, and when."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "layers/normalization.py",
        "layers/test_normalization.py::test_no_row_moves_the_sums_further_than_its_share",
        (
            "rows are not clipped",
            "factors = np.where(finite, norm / np.maximum(np.where(finite, norms, norm), norm), 0.0)",
            "factors = np.where(finite, 1.0, 0.0)",
        ),
        ("squares are those of unclipped rows", "np.square(self.clipped(rows) - np", "np.square(rows - np"),
        ("squares are not clipped", "return _clipped(averages, self.square_norm)", "return averages"),
        (
            "variances may fall below their noise",
            "least = max(deviation, 1e-12 * self.norm**2)",
            "least = 1e-12 * self.norm**2",
            "layers/test_normalization.py::test_variances_stay_above_their_noise",
        ),
        (
            "the certificate is that of the average deviation",
            "np.min(ops.convert_to_numpy(self.variance))",
            "np.mean(ops.convert_to_numpy(self.variance))",
            "layers/test_normalization.py::test_the_certificate_is_that_of_the_affine_map",
        ),
        (
            "the certificate forgets the mean",
            "return self.trained_lipschitz(input_bounds)[0] * (input_bounds[0] + mean)",
            "return self.trained_lipschitz(input_bounds)[0] * input_bounds[0]",
            "layers/test_normalization.py::test_the_certificate_is_that_of_the_affine_map",
        ),
    ),
    *faults(
        "models/table.py",
        "models/test_table.py::test_ranges_are_part_of_what_a_recipe_plans_for",
        ("ranges are not planned for", "return 5 if self.rescaled else 2", "return 2"),
    ),
    *faults(
        "layers/rescaling.py",
        "layers/test_rescaling.py::test_no_example_moves_a_histogram_by_more_than_its_sensitivity",
        ("the sensitivity is that of one column", "math.sqrt(self._shape[-1])", "1.0"),
        (
            "each entry of an example counts in full",
            "share = counted * (columns / max(1, math.prod(bins.shape[1:])))",
            "share = counted * 1.0",
        ),
        (
            "rows of a person count in full",
            "share = share * weights.reshape(-1, *[1] * (bins.ndim - 1))",
            "pass",
        ),
        (
            "values outside of the range raise an error or count",
            "inside = (parts >= 0) & (parts < _PARTS)",
            "inside = parts == parts",
        ),
        (
            "ranges are those of all values",
            "> level * math.sqrt(width)",
            "> 0.0",
            "layers/test_rescaling.py::test_ranges_hold_most_of_each_column_whatever_its_unit",
        ),
        (
            "what is not a number stays so",
            "ops.where(ops.isnan(x), 0.0, x)",
            "x",
            "layers/test_rescaling.py::test_the_certificate_is_that_of_the_narrowest_range",
        ),
        (
            "the certificate is that of the widest range",
            "2.0 / float((high - low).min())",
            "2.0 / float((high - low).max())",
            "layers/test_rescaling.py::test_the_certificate_is_that_of_the_narrowest_range",
        ),
    ),
    *faults(
        "layers/deskew.py",
        "layers/test_places.py::test_an_image_has_the_same_bits_at_each_place",
        (
            "columns are weighed behind their sum",
            "across = ops.sum(ink, axis=2), ops.sum(ink * (columns - center)[:, None], axis=2)",
            "across = ops.sum(ink, axis=2), ops.sum(ink, axis=1) * (columns - center)",
        ),
    ),
    *faults(
        "training/moments.py",
        "training/test_moments.py::test_moments_and_updates_share_one_budget",
        (
            "what ranges count is computed in batches",
            "OneByOne(front) if layer.counts else front",
            "front",
            "training/test_moments.py::test_a_row_in_front_does_not_change_how_others_are_counted",
        ),
        ("moments are not planned for", "                run.ledger.charge(release)\n", "                pass\n"),
        ("moments are not charged", "        run.charge(release)\n", ""),
        (
            "the sensitivity is that of a sum over one row",
            "sensitivity=query.sensitivity / count,",
            "sensitivity=query.sensitivity,",
        ),
        (
            "no noise is added",
            "release.noise_multiplier * release.sensitivity * noise",
            "0.0 * noise",
            "training/test_moments.py::test_the_noise_has_the_size_that_is_charged",
        ),
        (
            "half of the noise is added",
            "release.noise_multiplier * release.sensitivity * noise",
            "0.5 * release.noise_multiplier * release.sensitivity * noise",
            "training/test_moments.py::test_the_noise_has_the_size_that_is_charged",
        ),
        (
            "each row of a person counts in full",
            "None if self._shares is None else self._shares[index]",
            "None",
            "training/test_moments.py::test_all_rows_of_a_person_count_as_one",
        ),
        (
            "a plan goes on that did not know of the moments",
            "run.request = None  # no plan",
            "pass  # no plan",
            "training/test_moments.py::test_a_fit_that_was_stopped_before_its_first_update_keeps_to_the_budget",
        ),
        (
            "all releases of a run have one noise",
            'run.secret.draws = randomness.derive(run.secret.draws, "next")',
            "pass",
            "training/test_moments.py::test_no_file_of_a_seeded_run_gives_the_noise_again",
        ),
        (
            "the noise of a source hangs on a sample of its rows",
            "seen = [total.tobytes()] if columns_of(x) else []",
            "seen = []",
            "training/test_moments.py::test_the_noise_of_a_source_hangs_on_all_of_its_rows",
        ),
        (
            "layers in front may train",
            "    if trained:\n",
            "    if False:\n",
            "training/test_moments.py::test_refuses_places_without_moments_of_single_rows",
        ),
        (
            "layers in front may mix rows",
            "    if mixing:\n",
            "    if False:\n",
            "training/test_moments.py::test_refuses_places_without_moments_of_single_rows",
        ),
        (
            "the place of a layer is that of its first call",
            "return next(node for node in _keras.nodes(_keras.graph(model)) if node.operation is layer).input_tensors[0]",
            "return layer.input",
            "training/test_moments.py::test_a_layer_is_looked_at_where_it_stands_in_this_model",
        ),
    ),
    *faults(
        "training/driver.py",
        "training/test_moments.py",
        (
            "who holds moments does not know of their cost",
            "run.attribute([*self.model.trainable_variables, *self.moments.variables()])",
            "run.attribute(self.model.trainable_variables)",
            "training/test_moments.py::test_a_model_that_shares_the_layer_holds_the_charges",
        ),
        (
            "moments are taken back with a failed update",
            "                before = run.ledger.to_json()\n            self.sampler",
            "            self.sampler",
            "training/test_moments.py::test_an_update_that_was_never_made_does_not_take_the_moments_back",
        ),
        (
            "there is no file yet when moments are released",
            "            self.checkpoint.begin(self.model)  # a file",
            "            pass  # a file",
            "training/test_moments.py::test_a_fit_that_was_stopped_within_the_moments_goes_on_from_its_checkpoint",
        ),
    ),
    *faults(
        "privacy/ledger.py",
        "training/test_moments.py::test_moments_and_updates_share_one_budget",
        (
            "moments count as adaptive",
            "return any(release.kind in ADAPTIVE for release in self._descriptions)",
            'return any(release.kind != "gradient" for release in self._descriptions)',
        ),
    ),
    *faults(
        "models/scattered.py",
        "models/test_scattered.py::test_the_whole_has_the_ledger_of_the_part_that_was_trained",
        (
            "the whole forgets the ledger",
            "        share_run(model, whole)\n",
            "",
        ),
        (
            "the part forgets the ledger",
            "        share_run(whole, part)\n",
            "",
            "models/test_scattered.py::test_a_further_fit_that_stops_early_is_in_the_ledger",
        ),
        (
            "fixed layers may have other weights",
            "one.get_config() == other.get_config() and _same_weights(one, other)",
            "one.get_config() == other.get_config()",
            "models/test_scattered.py::test_larger_images_in_color_are_shown_to_the_encoder",
        ),
        (
            "fixed layers may have other settings",
            "one.get_config() == other.get_config() and _same_weights(one, other)",
            "_same_weights(one, other)",
            "models/test_scattered.py::test_a_recipe_goes_on_with_its_own_models_only",
        ),
    ),
    *faults(
        "models/base.py",
        "models/test_scattered.py",
        (
            "the whole has a ledger of its own",
            "    model.run.ledger = of.run.ledger\n",
            "",
            "models/test_scattered.py::test_the_whole_and_the_part_share_what_they_release",
        ),
    ),
    *faults(
        "models/base.py",
        "models/test_table.py",
        (
            "recipes plan without their moments",
            "return (Mechanism.of_updates(None, self.moments_noise, self.num_releases, group),)",
            "return ()",
        ),
        ("moments of small budgets", "max(8.0, 24.0 / epsilon)", "max(8.0, 24.0 / budget)"),
    ),
    *faults(
        "cli/backbone.py",
        "cli/test_tables.py::test_moments_of_groups_have_the_noise_of_groups",
        ("moments of groups", "recipe.moments_noise * options.examples_per_person", "recipe.moments_noise"),
    ),
    *faults(
        "cli/diffusion.py",
        "cli/test_diffusion.py::test_moments_of_persons_with_several_images_have_their_noise",
        (
            "moments of images of groups",
            "dataclasses.replace(result.for_sampling(sampling, delta), updates=updates)",
            "dataclasses.replace(result, updates=updates)",
        ),
    ),
]
