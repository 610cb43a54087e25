"""Lipschitz constants of losses, their clips and labels."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "losses/base.py",
        "losses/test_base.py losses/test_contract.py",
        (
            "a function of one's own in a loss of Keras",
            'stock = function is loss or getattr(keras.losses, getattr(function, "__name__", ""), None) is function',
            "stock = True",
            "losses/test_known.py bounds/test_replaced.py",
        ),
        (
            "the gradient is not limited",
            "return ops.where(ops.isfinite(norm), gradient * scale, ops.zeros_like(gradient)), norm",
            "return ops.where(ops.isfinite(norm), gradient, ops.zeros_like(gradient)), norm",
        ),
        (
            "gradients that are not finite pass",
            "return ops.where(ops.isfinite(norm), gradient * scale, ops.zeros_like(gradient)), norm",
            "return gradient * scale, norm",
        ),
        (
            "the clip is ignored in the graph",
            "limit = self.lipschitz(num_outputs) if limit is None else ops.cast(limit, gradient.dtype)",
            "limit = self.exact_lipschitz(num_outputs) if limit is None else ops.cast(limit, gradient.dtype)",
        ),
        (
            "the constant is the larger of two",
            "return exact if self.clip is None else min(exact, self.clip)",
            "return exact if self.clip is None else max(exact, self.clip)",
        ),
        (
            "no room for rounding",
            'limit = limit * sums.margin(num_outputs, more=16, name=f"The gradient of {type(self).__name__}")',
            "limit = limit * 1.0",
        ),
        (
            "the gradient is that of the value",
            "return value + linear, ops.stop_gradient(norm[:, 0])",
            "return value + 2.0 * linear, ops.stop_gradient(norm[:, 0])",
        ),
        ("outputs of half precision", 'if self.dtype not in ("float32", "float64"):', "if False:"),
        (
            "labels of another number of rows",
            "if None not in (shape[0], y_true.shape[0]) and shape[0] != y_true.shape[0]:",
            "if False:",
        ),
        (
            "too few outputs",
            "if num_outputs < self.min_outputs:",
            "if False:",
            "losses/test_base.py losses/test_crossentropy.py losses/test_multiclass.py",
        ),
    ),
    *faults(
        "losses/binary_crossentropy.py",
        "losses/test_contract.py losses/test_crossentropy.py",
        (
            "the constant is halved",
            "return 1.0 / math.sqrt(self.check_outputs(num_outputs))",
            "return 0.5 / math.sqrt(self.check_outputs(num_outputs))",
        ),
        (
            "labels outside of the unit interval",
            "accepts = (labels.dense_targets, labels.check_unit_interval)",
            "accepts = (labels.dense_targets, labels.check_dense)",
        ),
    ),
    *faults(
        "losses/categorical_crossentropy.py",
        "losses/test_contract.py losses/test_crossentropy.py",
        ("the constant is one", "return math.sqrt(2.0)", "return 1.0"),
        (
            "labels that are no distribution",
            "accepts = (labels.dense_targets, labels.check_simplex)",
            "accepts = (labels.dense_targets, labels.check_dense)",
        ),
    ),
    *faults(
        "losses/class_weight.py",
        "training/test_class_weight.py",
        ("labels of one-hot rows are taken as numbers", "if len(y.shape) == 2 and y.shape[1] != 1:", "if False:"),
        (
            "classes without a weight do not train",
            'ops.ones(ops.shape(labels), "float32")',
            'ops.zeros(ops.shape(labels), "float32")',
        ),
    ),
    *faults(
        "strategies/clipping.py",
        "training/test_class_weight.py",
        (
            "weights of classes do nothing",
            "return (weight, y) if weights is None else",
            "return (weight, y) if True else",
        ),
        (
            "weights of examples do nothing",
            "return found if weight is None else",
            "return found if weights is None else",
            "training/test_sample_weight.py::test_one_update_is_that_of_keras",
        ),
    ),
    *faults(
        "sampling/weighted.py",
        "training/test_sample_weight.py::test_what_are_no_weights_is_refused",
        (
            "weights that are negative or not finite",
            "    if not (np.isfinite(weight) & (weight >= 0)).all():",
            "    if False:",
        ),
        ("too few weights", "    if weight.shape not in ((rows,), (rows, 1)):", "    if False:"),
    ),
    *faults(
        "training/request.py",
        "training/test_class_weight.py::test_other_weights_are_another_plan_with_noise_of_its_own",
        ("noise does not depend on the weights of classes", '            "class_weight": self.class_weight,\n', ""),
    ),
    *faults(
        "losses/cosine_similarity.py",
        "losses/test_contract.py losses/test_regression.py",
        ("the constant without the floor", "return 1.0 / self.floor", "return min(1.0, 1.0 / self.floor)"),
    ),
    *faults(
        "losses/huber.py",
        "losses/test_contract.py losses/test_regression.py",
        (
            "the constant without delta",
            "return self.delta / math.sqrt(self.check_outputs(num_outputs))",
            "return 1.0 / math.sqrt(self.check_outputs(num_outputs))",
        ),
        (
            "the constant without the scale",
            "(self.check_outputs(num_outputs)) / self.scale",
            "(self.check_outputs(num_outputs))",
        ),
        (
            "large errors have large gradients",
            "return ops.clip((z - y) / self.scale, -self.delta, self.delta) / z.shape[-1]",
            "return (z - y) / self.scale / z.shape[-1]",
        ),
        (
            "quotients that are infinite",
            "(z - y) / self.scale, -self",
            "z / self.scale - y / self.scale, -self",
        ),
    ),
    *faults(
        "losses/labels.py",
        "losses/test_per_example.py",
        (
            "hinges of Keras look at the labels of all rows",
            'if owner not in ("Hinge", "SquaredHinge", "hinge", "squared_hinge"):',
            "if True:",
        ),
    ),
    *faults(
        "losses/mean_absolute_error.py",
        "losses/test_contract.py losses/test_regression.py",
        (
            "the constant of a mean is that of one output, divided",
            "return 1.0 / math.sqrt(self.check_outputs(num_outputs))",
            "return 1.0 / self.check_outputs(num_outputs)",
        ),
    ),
    *faults(
        "losses/multiclass_hinge.py",
        "losses/test_contract.py losses/test_multiclass.py",
        (
            "the constant of the wrong classes only",
            "return math.sqrt((num_classes - 1) / num_classes)",
            "return (num_classes - 1) / num_classes",
        ),
    ),
    *faults(
        "losses/multiclass_hkr.py",
        "losses/test_contract.py losses/test_multiclass.py",
        (
            "the hinge is left out of the constant",
            "return largest_class_norm(inside + hinge * (num_classes - 1), outside + hinge)",
            "return largest_class_norm(inside, outside)",
        ),
    ),
    *faults(
        "losses/multiclass_kr.py",
        "losses/test_contract.py losses/test_multiclass.py",
        (
            "the constant of the easiest class",
            "return float(np.sqrt(np.max(inside**2 + rest)))",
            "return float(np.sqrt(np.min(inside**2 + rest)))",
        ),
        ("priors that do not add up", "if not abs(total - 1.0) <= 1e-6:", "if False:"),
        (
            "priors of other classes",
            "if self.class_priors is not None and len(self.class_priors) != num_outputs:",
            "if False:",
        ),
    ),
    *faults(
        "losses/labels.py",
        "losses/test_crossentropy.py losses/test_multiclass.py losses/test_contract.py losses/test_regression.py",
        ("class ids out of range", "(y < 0) | (y >= num_outputs), todo)", "(y < 0) & (y >= num_outputs), todo)"),
        (
            "labels that are not finite",
            '_refuse(owner, "labels must be finite", y, bad, "Remove or impute these rows.")',
            "pass",
        ),
        ("one row in doubt is enough", "if not np.any(bad):", "if not np.all(bad):"),
    ),
    *faults(
        "losses/per_output.py",
        "training/test_outputs.py",
        (
            "the weights are left out",
            "return sum(weight * value for",
            "return sum(value for",
            "training/test_outputs.py::test_gradients_are_those_of_the_weighted_sum",
        ),
        (
            "losses see all rows",
            "else per_example.example_values(loss, y, outputs)\n            for",
            "else per_example._values(loss, y, outputs)\n            for",
            "training/test_outputs.py::test_a_loss_of_ones_own_runs_one_row_at_a_time",
        ),
        (
            "only the first output is checked",
            "zip(loss.names, loss.losses, loss.labels(y), output_shape, strict=True):\n        try:",
            "list(zip(loss.names, loss.losses, loss.labels(y), output_shape, strict=True))[:1]:\n        try:",
            "training/test_outputs.py::test_a_loss_that_mixes_rows_is_refused_for_its_output",
        ),
    ),
    *faults(
        "losses/endings.py",
        "losses/test_endings.py",
        ("only the last layer counts", "keeps = type(operation).__name__ in _KEEPING or", "keeps = False and"),
        ("one of several inputs decides", "if len(before) == 1 and", "if"),
    ),
    *faults(
        "losses/per_example.py",
        "losses/test_per_example.py losses/test_known.py isolation/test_mixing.py",
        (
            "hidden places count",
            "there = _shown(mask, values)",
            "there = None",
        ),
        ("places of an ignored class count", "if labelled is not None:", "if False:"),
        (
            "losses are not tried as the step computes them",
            "if not np.allclose(mapped, together",
            "if False and not np.allclose(mapped, together",
            "isolation/test_mixing.py::test_a_loss_that_the_map_of_rows_computes_wrongly_is_refused",
        ),
        (
            "hidden places count in the mean",
            "return ops.sum(values, axis=axes) / ops.maximum(number, 1.0)",
            "return ops.mean(values, axis=axes)",
        ),
        (
            "every loss keeps rows apart",
            "if isolation.is_declared(kind):\n        return True",
            "if True:\n        return True",
        ),
        (
            "losses known by name mix along the batch",
            "if axis is None or not isinstance(axis, int) or not axis % (len(outputs) + 1):",
            "if False:",
        ),
        (
            "a known name is enough",
            "return name in _KNOWN and getattr(keras.losses, name, None) is kind and is_as_its_class(loss)",
            "return name in _KNOWN and is_as_its_class(loss)",
        ),
        (
            "labels without an axis meet all outputs",
            "if _is_stock(loss):\n        y_true, y_pred = _of_one_rank",
            "if False:\n        y_true, y_pred = _of_one_rank",
            "losses/test_known.py",
        ),
        (
            "class ids in a column meet all outputs",
            "return ops.squeeze(y_true, -1) if column else y_true, y_pred",
            "return y_true, y_pred",
            "losses/test_known.py::test_generalized_cross_entropy_takes_class_ids",
        ),
        (
            "labels that broadcast along the batch",
            "return labels == outputs or (*labels, 1) == outputs or labels == (*outputs, 1)",
            "return True",
        ),
        ("an axis that no configuration tells", 'axis = _keras.loss_arguments(loss).get("axis", -1)', "axis = -1"),
        ("one number for the whole batch", "if len(values.shape) < 1:", "if False:"),
        (
            "Dice is known",
            '*("Poisson", "SparseCategoricalCrossentropy", "SquaredHinge"),',
            '*("Poisson", "SparseCategoricalCrossentropy", "SquaredHinge", "Dice", "Tversky"),',
        ),
        ("class ids are not checked", "if wrong.any():", "if False:"),
    ),
    *faults(
        "losses/penalties.py",
        "losses/test_penalties.py",
        (
            "losses that layers add are taken",
            "if added:\n        raise",
            "if False:\n        raise",
            "gradients/test_capture.py::test_losses_that_layers_add_are_refused losses/test_penalties.py",
        ),
        ("a subclass is taken for the class", "type(regularizer) not in _KNOWN", "not isinstance(regularizer, _KNOWN)"),
        ("half of the gradient", "2.0 * l2 * weight", "l2 * weight"),
    ),
]
