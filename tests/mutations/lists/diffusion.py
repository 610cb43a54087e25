"""Moments of classes: what bounds them, what is charged for them, and when."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "diffusion/class_moments.py",
        "diffusion/test_class_moments.py::test_one_image_moves_the_sums_by_at_most_their_sensitivity",
        ("images are not clipped", "1.0 / np.maximum(lengths, self.norm)", "1.0 / self.norm"),
        (
            "a mixture of other images is charged for",
            "if layers and own.image_shape != shape:",
            "if False:",
            "diffusion/test_class_mixture.py::test_what_does_not_fit_is_refused_before_anything_is_released",
        ),
        ("the count is free", "math.sqrt(_COUNT**2 + _MEAN**2 + 1.0)", "math.sqrt(_MEAN**2 + 1.0)"),
        ("products are free", "math.sqrt(_COUNT**2 + _MEAN**2 + 1.0)", "math.sqrt(_COUNT**2 + _MEAN**2)"),
        (
            "products off the diagonal weigh twice",
            "np.where(rows == columns, 1.0, math.sqrt(2.0))",
            "np.where(rows == columns, 1.0, 2.0)",
        ),
        ("what is not finite is taken", "x = np.where(finite[:, None, None, None], x, 0.0).astype", "x = x.astype"),
        (
            "rows of a person count one each",
            "finite * (1.0 if shares is None else shares[index])",
            "finite * 1.0",
            "diffusion/test_class_moments.py::test_rows_of_one_person_count_one_together",
        ),
        (
            "the noise is smaller than charged",
            "sums + deviation * randomness",
            "sums + 0.9 * deviation * randomness",
            "diffusion/test_class_moments.py::test_the_noise_is_as_large_as_charged_and_new_each_time",
        ),
        (
            "an image counts beside every center",
            "(nearest(part, center) == np.arange(components)[:, None]) * counted[mine]",
            "np.ones((components, 1)) * counted[mine]",
            "diffusion/test_class_mixture.py::test_one_image_moves_the_sums_of_each_round_by_at_most_their_sensitivity",
        ),
        (
            "an image moves others between centers that are alike",
            "np.square(rows[:, None] - centers).sum(axis=2)",
            "(np.square(centers).sum(axis=1) - 2.0 * rows @ centers.T)",
            "diffusion/test_class_mixture.py::test_an_image_moves_no_other_one_where_centers_are_alike",
        ),
        (
            "the noise of all queries is one",
            'name = "moments" if done == 0 else f"moments {done}"',
            'name, sums_of_name = "moments", b""',
            "diffusion/test_class_mixture.py::test_each_query_has_noise_of_its_own",
        ),
        (
            "the noise hangs on the seed alone",
            'randomness.from_seed(seed, "moments of classes", wanted, data, ledger)',
            'randomness.from_seed(seed, "moments of classes", wanted, ledger)',
            "diffusion/test_class_moments.py::test_other_data_have_other_noise_under_one_seed",
        ),
    ),
    *faults(
        "diffusion/labels.py",
        "diffusion/test_labels.py::test_a_recipe_charges_what_it_says_beforehand",
        (
            "the classifier leaves its ledger behind",
            "    provenance.attribute(copy, ledgers)\n",
            "",
            "diffusion/test_labels.py::test_a_budget_holds_the_classifier_and_files_keep_both",
        ),
        (
            "its updates are free beforehand",
            "self._moments(sampling), updates",
            "(self._moments(sampling),)",
        ),
        (
            "noise is added to it with that of the generator",
            "    copy.trainable = False\n",
            "",
            "diffusion/test_labels.py::test_the_gradients_of_the_generator_leave_the_classifier_alone",
        ),
        (
            "a budget that cannot hold what comes first is found out late",
            "if epsilon is not None and cost >= epsilon:",
            "if False:",
            "diffusion/test_labels.py::test_what_cannot_end_well_does_not_begin",
        ),
        (
            "a row in place of another one counts once",
            "(2 if sampling.relation == REPLACE else 1)",
            "1",
            "cli/test_diffusion.py::test_what_comes_first_leaves_budget_whatever_the_sampling",
        ),
    ),
    *faults(
        "diffusion/recipes.py",
        "diffusion/test_labels.py::test_fit_of_a_recipe_suits_its_noise_to_the_sampling",
        (
            "the noise of a recipe is that of Poisson samples",
            'suited = self.for_sampling(sampling, public.get("delta", 1e-5))',
            "suited = self",
        ),
    ),
    *faults(
        "diffusion/copies.py",
        "diffusion/test_labels.py::test_layers_that_compute_with_their_weights_are_copied_whole",
        (
            "a copy computes with what its layers were before",
            '        getattr(layer, "finalize_state", lambda: None)()\n',
            "        pass\n",
        ),
    ),
    *faults(
        "diffusion/model.py",
        "diffusion/test_class_moments.py::test_fit_plans_for_what_is_left_and_the_statement_names_the_moments",
        ("moments are not charged", "            run.charge(release, 1 + rounds)\n", ""),
        (
            "noise is added to a classifier that was made trainable",
            "            self.classifier.trainable = False  # whatever was asked of the whole model\n",
            "            pass\n",
            "diffusion/test_labels.py::test_the_classifier_stays_as_it_is",
        ),
        (
            "validation on copies of training rows passes for public",
            "with computed_from(*given):",
            "with computed_from(None, None):",
            "diffusion/test_model.py::test_validation_on_training_rows_is_named_in_every_type",
        ),
        (
            "further queries are not charged",
            "run.charge(release, 1 + rounds)",
            "run.charge(release)",
            "diffusion/test_class_mixture.py::test_it_trains_with_the_network_and_what_it_costs_is_planned_for",
        ),
        (
            "the sensitivity is that of an image of norm 1",
            "deviation = self.run, release.noise_multiplier * release.sensitivity",
            "deviation = self.run, release.noise_multiplier",
            "diffusion/test_class_moments.py::test_the_noise_is_as_large_as_charged_and_new_each_time",
        ),
        (
            "an unfinished plan goes on",
            "            run.request = None  # no plan goes on that did not know of them\n",
            "",
            "diffusion/test_class_moments.py::test_a_plan_that_was_not_finished_does_not_go_on_past_its_budget",
        ),
        (
            "moments are not checked",
            "            budget.check_moments(run, release, 1 + rounds, scheme.group_size)\n",
            "            pass\n",
            "diffusion/test_class_moments.py::test_moments_that_could_not_be_stated_are_not_released",
        ),
        (
            "weights do not carry the cost of the moments",
            "run.attribute((self.network if mixture is None else mixture).weights)",
            "run.attribute(() if mixture is None else mixture.weights)",
            "diffusion/test_class_moments.py::test_weights_that_learned_moments_carry_their_cost",
        ),
        (
            "constants do not carry the cost of the moments",
            "run.attribute((self.network if mixture is None else mixture).weights)",
            "run.attribute(self.network.weights if mixture is None else ())",
            "diffusion/test_class_mixture.py::test_constants_carry_the_cost_of_the_moments",
        ),
        (
            "before fit epsilon is that of an example",
            "            run.ledger.examples_per_person = max(run.examples_per_person, scheme.group_size)\n",
            "",
            "diffusion/test_class_moments.py::test_before_the_first_update_epsilon_is_that_of_a_person_too",
        ),
        (
            "a person is an example",
            "noise_multiplier, scheme, None if owners is None else rows_per_person",
            "noise_multiplier, scheme, None",
            "diffusion/test_class_moments.py::test_rows_of_one_person_count_one_together",
        ),
    ),
    *faults(
        "diffusion/recipes.py",
        "diffusion/test_class_moments.py::test_a_recipe_charges_what_it_says_beforehand",
        (
            "a recipe forgets the moments beforehand",
            "Mechanism.of_updates(None, self.moments_noise, queries,",
            "Mechanism.of_updates(None, self.moments_noise + 1.0, queries,",
        ),
        (
            "a recipe forgets the rounds beforehand",
            "Mechanism.of_updates(None, self.moments_noise, queries,",
            "Mechanism.of_updates(None, self.moments_noise, 1,",
            "diffusion/test_class_mixture.py::test_a_recipe_charges_what_it_says_beforehand",
        ),
    ),
    *faults(
        "diffusion/examples.py",
        "diffusion/test_examples.py",
        ("places in a shuffled dataset", "        refuse_shuffled(x)\n", "        pass\n"),
        (
            "validation data count as taken",
            "if isinstance(x, SourceBatches):\n            return True",
            "if False:\n            return True",
        ),
    ),
]
