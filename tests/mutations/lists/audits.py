"""Audits: what is counted, at what error, on which trials and in which worlds; and noise that follows from risk."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "audit/intervals.py",
        "audit/test_intervals.py",
        (
            "the interval is two-sided",
            "high = stats.beta.isf(error, hits + 1, trials - hits) if hits < trials else 1.0",
            "high = stats.beta.isf(error / 2.0, hits + 1, trials - hits) if hits < trials else 1.0",
        ),
        (
            "a rate has no upper bound above what was counted",
            "high = stats.beta.isf(error, hits + 1, trials - hits) if hits < trials else 1.0",
            "high = stats.beta.isf(error, hits, trials - hits + 1) if 0 < hits < trials else hits / trials",
        ),
        (
            "both rates take the whole error",
            "clopper_pearson(alarms, trials_out, error / 2.0)[1],",
            "clopper_pearson(alarms, trials_out, error)[1],",
            "audit/test_watched.py",
        ),
        (
            "one direction only",
            "((true_positives, false_positives), (1.0 - false_positives, 1.0 - true_positives)):",
            "((true_positives, false_positives),):",
        ),
        (
            "delta is forgotten",
            "math.inf if rare <= 0.0 else math.log((likely - delta) / rare)",
            "math.inf if rare <= 0.0 else math.log(likely / rare)",
        ),
        (
            "coins that were guessed together count as independent",
            "return float(min(1.0, above + 2.0 * canaries * delta * np.max(within / steps, initial=0.0)))",
            "return float(above)",
        ),
        (
            "one guess too many is right",
            "return int(np.sum(members[order[len(order) - (guesses - low) :]]) + np.sum(~members[order[:low]]))",
            "return int(np.sum(members[order[len(order) - (guesses - low) :]]) + np.sum(~members[order[: low + 1]]))",
        ),
        (
            "one run refutes before the sums are a contradiction",
            "most = guesses / canaries",
            "most = 0.9 * guesses / canaries",
        ),
    ),
    *faults(
        "audit/family.py",
        "audit/test_intervals.py",
        (
            "the bound is that of a curve that was not refuted",
            "return self.epsilon(rejected)",
            "return self.epsilon(kept)",
        ),
        (
            "a curve is read off the wrong side",
            "above = (self._small * (rate[..., None] - self._deltas)).max(axis=-1)",
            "above = (self._small * rate[..., None]).max(axis=-1)",
        ),
    ),
    *faults(
        "audit/white_box.py",
        "audit/test_watched.py",
        (
            "the threshold is chosen on what is counted",
            "inside, outside = scores[~chosen & members], scores[~chosen & ~members]",
            "inside, outside = scores[members], scores[~members]",
        ),
        (
            "three numbers of guesses at the whole error each",
            "count, part = len(scores), error / len(GUESSES)",
            "count, part = len(scores), error",
        ),
        (
            "false alarms at the threshold are not counted",
            "hits, alarms = int(np.sum(inside >= cut)), int(np.sum(outside >= cut))",
            "hits, alarms = int(np.sum(inside >= cut)), int(np.sum(outside > cut))",
        ),
    ),
    *faults(
        "audit/watched.py",
        "audit/test_watched.py",
        (
            "canaries that are not there are there",
            "x[places[there]], y[places[there]] = network.x[there], network.y[there]",
            "x[places], y[places] = network.x, network.y",
        ),
        (
            "a row that is replaced stays",
            "x[places], y[places] = network.x, np.where(there[:, None], network.y, network.opposite())",
            "x[places], y[places] = network.x, network.y",
        ),
        (
            "the noise is taken for one",
            "observed = self._unit @ (released[quiet] / noise[quiet]) * release.noise_multiplier",
            "observed = self._unit @ (released[quiet] / noise[quiet])",
        ),
        (
            "a run goes on after its end",
            "self._scores = self._make()",
            "pass",
        ),
        (
            "persons have one row",
            'options |= {"person_ids": np.repeat(np.arange(len(x)), 2 * most), "rows_per_person": most}',
            'options |= {"person_ids": np.arange(2 * most * len(x)), "rows_per_person": most}',
            "audit/test_white_box.py::test_canaries_that_are_persons",
        ),
    ),
    *faults(
        "accounting/risk_budget.py",
        "accounting/test_risk.py",
        (
            "what was spent does not count",
            "return excess(risk_of([*spent, Mechanism.of_updates(None, noise, updates, sampling)], accountant), wanted)",
            "return excess(risk_of([Mechanism.of_updates(None, noise, updates, sampling)], accountant), wanted)",
        ),
        (
            "the rounded noise is not looked at again",
            "while above(noise := round_up(noise, _DIGITS)) > 0.0:",
            "while above(noise := float(f'{noise:.2g}')) > 1e9:",
        ),
        (
            "rates at the wrong false positives",
            'return found.true_positive_rate(wanted["fpr"]) - wanted["tpr"]',
            'return found.true_positive_rate(0.5 * wanted["fpr"]) - wanted["tpr"]',
        ),
        (
            "a bound that is used up is trained on",
            ">= -0.01 * size:",
            ">= 1.0:",
        ),
    ),
]
