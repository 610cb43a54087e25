"""Epsilon: distributions, composition, RDP, calibration, filters."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "accounting/gaussian.py",
        "accounting/test_gaussian.py",
        ("the other direction", "loss = -epsilon if add else epsilon", "loss = epsilon if add else -epsilon"),
        (
            "the sampled part without its rate",
            "sampled = q * between(x, x + 1.0, z)",
            "sampled = q * between(x, x + 0.9, z)",
        ),
        (
            "half of the norm when one is added",
            "sampled = q * np.exp(e) * between(x - 1.0, x, z)",
            "sampled = q * np.exp(e) * between(x - 0.9, x, z)",
        ),
        (
            "the rest is added",
            "curve[inside] = np.maximum(sampled - np.where(e == 0.0, 0.0, rest), 0.0)",
            "curve[inside] = np.maximum(sampled - np.where(e == 0.0, 0.0, 1.01 * rest), 0.0)",
        ),
        (
            "an unsampled release in the direction of a sampled one",
            "if q == 1.0:\n        add = False",
            "if q == 1.0:\n        add = add",
            "",
            "the two directions of a release without sampling have the same curve; this saves one of the two closed forms",
        ),
        (
            "what is left above the grid is free",
            "return LossDistribution(step, low, masses, float(values[-1]))",
            "return LossDistribution(step, low, masses, 0.0)",
        ),
        ("the last point is lost", "[down[-1]]))", "[0.0 * down[-1]]))"),
        ("epsilon is rounded down", "return root * (1.0 + 1e-10) + 1e-11 * top", "return root * (1.0 - 1e-6)"),
        (
            "mu is not halved",
            "upper = special.log_ndtr(0.5 * mu - epsilon / mu)",
            "upper = special.log_ndtr(0.45 * mu - epsilon / mu)",
        ),
        (
            "huge mu costs nothing",
            "if mu > 1e6:  # epsilon is about mu^2 / 2: no guarantee at all\n        return math.inf",
            "if mu > 1e6:  # epsilon is about mu^2 / 2: no guarantee at all\n        return 0.0",
            "accounting/test_gaussian.py accounting/test_hostile.py accounting/test_epsilon.py",
        ),
        (
            "the range ends early",
            "far = 0.5 / (z * z) + tail / z",
            "far = 0.5 / (z * z) + 0.05 * tail / z",
            "accounting/test_epsilon.py accounting/test_gaussian.py",
        ),
    ),
    *faults(
        "accounting/loss_distribution.py",
        "accounting/test_epsilon.py accounting/test_cost.py accounting/test_gaussian.py",
        ("what cannot be bounded is free", "if self.infinite > delta:", "if False:"),
        ("infinite losses are left out of delta", "curve = self.infinite + np.cumsum(rise)", "curve = np.cumsum(rise)"),
        (
            "a loss is rounded down",
            'k = int(np.searchsorted(curve, delta, side="right")) - 1',
            'k = int(np.searchsorted(curve, delta, side="right"))',
        ),
        (
            "mass moves down on a coarser grid",
            "share = np.expm1(-offset * self.step) / np.expm1(-gaps * self.step)[cell]",
            "share = 0.5 * np.expm1(-offset * self.step) / np.expm1(-gaps * self.step)[cell]",
        ),
        (
            "a coarser grid forgets infinite losses",
            "int(knots[0]) // factor, self.spread(knots), self.infinite)",
            "int(knots[0]) // factor, self.spread(knots), 0.0)",
        ),
    ),
    *faults(
        "accounting/fft_composition.py",
        "accounting/test_epsilon.py accounting/test_cost.py",
        (
            "rounding is not paid",
            "error = 2.0 / size * float(np.sum(np.exp(log_size) * share + unit * np.abs(product))) + math.exp(_NEGLIGIBLE)",
            "error = math.exp(_NEGLIGIBLE)",
        ),
        (
            "the mass above the window is free",
            "infinite = -math.expm1(kept) + _OUTSIDE * math.exp(min(exponent[-1], 0.0))",
            "infinite = 0.0",
        ),
        ("the window ends early", "_OUTSIDE = 1e-15", "_OUTSIDE = 1e-3"),
        (
            "one release less",
            "product = product * np.power(transform, count, out=np.zeros_like(transform), where=seen)",
            "product = product * np.power(transform, max(count - 1, 1), out=np.zeros_like(transform), where=seen)",
        ),
        (
            "masses that overflow are a distribution",
            "return abs(total - 1.0) < 1e-6 and np.min(pmf.masses) >= 0.0 and pmf.infinite < 1.0",
            "return True",
            "accounting/test_epsilon.py accounting/test_cost.py accounting/test_group.py accounting/test_hostile.py",
        ),
    ),
    *faults(
        "accounting/pld.py",
        "accounting/test_epsilon.py accounting/test_dominating_pairs.py accounting/test_cost.py",
        (
            "the better direction",
            "return max(self._both(mechanisms, delta, rough, lazy=True))",
            "return min(self._both(mechanisms, delta, rough))",
        ),
        (
            "releases without sampling count as one",
            "scale = mechanism.shift * math.sqrt(mechanism.count)",
            "scale = mechanism.shift",
        ),
        (
            "a group without sampling counts as one",
            "scale = mechanism.shift * math.sqrt(mechanism.count)",
            "scale = math.sqrt(mechanism.count)",
            "accounting/test_group.py accounting/test_dominating_pairs.py",
        ),
        (
            "both directions are the first",
            "return (_single(remove, step, tail), mechanism.count), (_single(add, step, tail), mechanism.count), lost",
            "return (_single(add, step, tail), mechanism.count), (_single(add, step, tail), mechanism.count), lost",
        ),
        (
            "large noise counts as more noise",
            "noise_multiplier=min(mechanism.noise_multiplier, LARGEST_NOISE))\n    if mechanism.shift",
            "noise_multiplier=mechanism.noise_multiplier)\n    if mechanism.shift",
            "accounting/test_epsilon.py accounting/test_hostile.py",
        ),
        (
            "a grid of ten steps per deviation less",
            "_STEP_FRACTION = 30.0",
            "_STEP_FRACTION = 2.0",
            "accounting/test_epsilon.py",
        ),
    ),
    *faults(
        "accounting/dominating_pairs.py",
        "accounting/test_dominating_pairs.py accounting/test_group.py",
        (
            "a replacement in batches of fixed size costs one norm",
            "pair = Largest((SampledGaussian(q, z / 2.0, False), SampledGaussian(q, z / 2.0, True)))",
            "pair = Largest((SampledGaussian(q, z, False), SampledGaussian(q, z, True)))",
        ),
        (
            "only one direction of a replacement",
            "pair = Largest((SampledGaussian(q, z / 2.0, False), SampledGaussian(q, z / 2.0, True)))",
            "pair = Largest((SampledGaussian(q, z / 2.0, True),))",
        ),
        (
            "a replacement is charged as a removal",
            "elif mechanism.relation == REPLACE:\n        pair = SampledReplacement(q, z)",
            "elif mechanism.relation == REPLACE:\n        pair = SampledGaussian(q, z, False)",
        ),
        ("truncation is free", "if overflow == 0.0:", "if True:"),
        (
            "crowded batches are rare",
            "overflow = float(stats.binom.sf(mechanism.capacity - 1, size - 1, q))",
            "overflow = float(stats.binom.sf(mechanism.capacity + 20, size - 1, q))",
        ),
        (
            "a crowded batch costs one norm",
            "crowded = SampledReplacement(kept, z / 2.0)",
            "crowded = SampledReplacement(kept, z)",
        ),
        (
            "weights of cases do not add up",
            "tuple(Revealed((1.0 - overflow, overflow), (pair, crowded)) for pair in plain)",
            "tuple(Revealed((1.0 - overflow, 0.5 * overflow), (pair, crowded)) for pair in plain)",
        ),
        (
            "the smallest of several curves",
            "return functools.reduce(np.maximum, (pair.curve(epsilon) for pair in self.pairs))",
            "return functools.reduce(np.minimum, (pair.curve(epsilon) for pair in self.pairs))",
        ),
        (
            "groups in one order of magnitude",
            "pair = SampledGaussian(1.0, z / mechanism.shift, False)",
            "pair = SampledGaussian(1.0, z, False)",
        ),
        (
            "replacement moves half as far",
            "gained = q * gaussian.between(x - 1.0, x + 1.0, z)",
            "gained = q * gaussian.between(x - 1.0, x + 0.9, z)",
        ),
    ),
    *faults(
        "accounting/mixture.py",
        "accounting/test_group.py",
        (
            "a group of which only one is drawn",
            "tail = stats.binom.sf(counts, group_size, sampling_probability)",
            "tail = stats.binom.sf(counts, group_size, sampling_probability) * 0",
        ),
        (
            "fixed size: a group moves one norm each",
            "return _cut(law.pmf(counts), law.sf(counts), dropped, 2.0)",
            "return _cut(law.pmf(counts), law.sf(counts), dropped, 1.0)",
        ),
        ("what was cut off is free", "lost = float(tail[last]) if last < len(mass) - 1 else 0.0", "lost = 0.0"),
        (
            "shifts of a component",
            "sampled = sum(p * between(x - c, x, z) for c, p in zip(shifts, weights, strict=True))",
            "sampled = sum(p * between(x - 0.9 * c, x, z) for c, p in zip(shifts, weights, strict=True))",
        ),
    ),
    *faults(
        "accounting/mechanism.py",
        "accounting/test_dominating_pairs.py accounting/test_epsilon.py accounting/test_schemes.py privacy/test_ledger.py",
        (
            "shuffled updates of an epoch are free",
            "count = -(-updates // sampling.updates_per_epoch) if sampling.by_epoch else updates",
            "count = updates // sampling.updates_per_epoch if sampling.by_epoch else updates",
        ),
        (
            "replacing costs one norm without sampling",
            "return self.group_size * (2.0 if doubled else 1.0)",
            "return self.group_size * 1.0",
        ),
        (
            "groups cost one without sampling",
            "return self.group_size * (2.0 if doubled else 1.0)",
            "return 2.0 if doubled else 1.0",
            "accounting/test_group.py accounting/test_dominating_pairs.py",
        ),
        (
            "a relation that is not common",
            'if mechanism.relation == ADD_OR_REMOVE and mechanism.sampler != "poisson":',
            "if False:",
        ),
        (
            "equal releases are counted once",
            "counts[key] = counts.get(key, 0) + mechanism.count",
            "counts[key] = mechanism.count",
        ),
        (
            "without amplification a replacement costs one norm",
            "noise, relation = noise / 2.0, None",
            "relation = None",
            "accounting/test_dominating_pairs.py privacy/test_guarantee.py",
        ),
        ("groups of several sizes", "if len({m.group_size for m in mechanisms}) > 1:", "if False:"),
        (
            "groups are plain",
            'return self.sampler == "poisson" and self.group_size == 1 and self.relation != REPLACE',
            'return self.sampler == "poisson"',
            "accounting/test_dominating_pairs.py accounting/test_dpis.py accounting/test_filter.py accounting/test_planning.py",
        ),
    ),
    *faults(
        "accounting/rdp.py",
        "accounting/test_epsilon.py accounting/test_filter.py accounting/test_planning.py",
        (
            "a curve that is no number costs nothing",
            "np.where(np.isnan(curve), np.inf, np.maximum(curve, 0.0)) + _ROUNDING",
            "np.where(np.isnan(curve), 0.0, np.maximum(curve, 0.0)) + _ROUNDING",
        ),
        ("rounding of a million releases is free", "_ROUNDING = 1e-15", "_ROUNDING = 0.0"),
        (
            "a release without sampling costs half",
            "curve = 0.5 * np.asarray(orders) * (mechanism.shift / noise) ** 2",
            "curve = 0.25 * np.asarray(orders) * (mechanism.shift / noise) ** 2",
        ),
        (
            "batches of fixed size cost one norm",
            "relation, event = _NEIGHBORS.REPLACE_ONE, dp_event.GaussianDpEvent(noise / 2.0)",
            "relation, event = _NEIGHBORS.REPLACE_ONE, dp_event.GaussianDpEvent(noise)",
            "accounting/test_dominating_pairs.py accounting/test_epsilon.py",
        ),
        (
            "tiny noise costs something finite",
            "return math.inf if mechanism.noise_multiplier < SMALLEST_NOISE else float(single(mechanism, (order,))[0])",
            "return float(single(mechanism, (order,))[0])",
            "accounting/test_filter.py accounting/test_dpis.py accounting/test_hostile.py accounting/test_epsilon.py",
        ),
        (
            "counts are ignored",
            "return orders, sum((count * curve for count, curve in singles), np.zeros(len(orders)))",
            "return orders, sum((curve for count, curve in singles), np.zeros(len(orders)))",
        ),
        (
            "groups and replacements have the curve of one",
            'return one and mechanism.sampler == "fixed_size" and mechanism.relation != ADD_OR_REMOVE',
            "return True",
            "accounting/test_dominating_pairs.py accounting/test_epsilon.py accounting/test_group.py accounting/test_filter.py",
        ),
        (
            "between integers the smaller value",
            "return ((low + 1 - order) * below + (order - low) * above) / (order - 1.0)",
            "return below / (order - 1.0)",
        ),
        (
            "the integral is rounded down",
            "return (max(total, 0.0) + 2.0**-49 * (size + order / (z * z) - order * math.log(q) + 16.0)) / (order - 1.0)",
            "return 0.99 * max(total, 0.0) / (order - 1.0)",
        ),
    ),
    *faults(
        "accounting/calibration.py",
        "accounting/test_calibration.py",
        (
            "the noise is rounded down",
            "while cost(noise := round_up(noise, _DIGITS)) > budget:",
            "while cost(noise := round(noise, 2)) > 1.05 * budget:",
        ),
        (
            "what is spent is not paid",
            "return [*spent, Mechanism.of_updates(None, noise, updates, sampling)]",
            "return [Mechanism.of_updates(None, noise, updates, sampling)]",
        ),
        (
            "one update more than fits",
            "return min(_MOST_UPDATES, unit * _last(cost, budget, start))",
            "return min(_MOST_UPDATES, unit * _last(cost, budget, start) + 1)",
        ),
        (
            "a spent budget",
            "if paid >= budget:",
            "if False:",
            "accounting/test_calibration.py accounting/test_hostile.py",
        ),
        (
            "updates beside what is spent",
            "return [*spent, dataclasses.replace(single, count=count)]",
            "return [dataclasses.replace(single, count=count)]",
        ),
        (
            "a budget that needs no noise",
            "if cost(noise) < 0.99 * budget and not math.isfinite(cost(0.99 * noise)):",
            "if False:",
            "accounting/test_calibration.py accounting/test_hostile.py",
        ),
    ),
    *faults(
        "accounting/composition.py",
        "accounting/test_epsilon.py",
        (
            "what is rough is stated",
            "return _compose(canonical(mechanisms), checks.delta(delta), get_accountant(accountant))",
            "return _compose(canonical(mechanisms), min(1.0, 2.0 * checks.delta(delta)), get_accountant(accountant))",
        ),
    ),
    *faults(
        "accounting/rounding.py",
        "accounting/test_calibration.py privacy/test_guarantee.py",
        ("rounded to the nearest", "if rounded >= value:", "if True:"),
    ),
    *faults(
        "accounting/schemes.py",
        "accounting/test_schemes.py accounting/test_dominating_pairs.py privacy/test_ledger.py",
        (
            "a rate below B / N is taken",
            'if claimed < rate * (1.0 - 1e-5) or (self.name != "poisson" and claimed > rate * (1.0 + 1e-9)):',
            "if False:",
        ),
        (
            "groups of truncated batches have a cost",
            "if self.group_size > 1 and self.relation not in self.scheme.group_relations:",
            "if False:",
        ),
        ("truncated batches have any relation", "if self.relation not in self.scheme.relations:", "if False:"),
        (
            "shuffling amplifies",
            "return not self.by_epoch and self.sampling_probability < 1.0",
            "return self.sampling_probability < 1.0",
            "accounting/test_schemes.py privacy/test_guarantee.py",
        ),
        (
            "an epoch is shorter than it is",
            "return -(-self.num_examples // self.batch_size)",
            "return self.num_examples // self.batch_size",
        ),
        (
            "an epoch is charged at its rate",
            "sampling_probability=1.0 if self.by_epoch else self.sampling_probability,",
            "sampling_probability=self.sampling_probability,",
        ),
        (
            "persons of batches of fixed size: one norm each",
            "return dataclasses.replace(self, group_size=size, relation=ADD_OR_REMOVE, num_examples=known)",
            "return dataclasses.replace(self, group_size=size)",
            "accounting/test_schemes.py accounting/test_group.py privacy/test_ledger.py",
        ),
        ("unsound samplers are taken", "if isinstance(name, str) and name in WITHOUT_ACCOUNTANT:", "if False:"),
        ("a batch larger than the data", "if batch_size > num_examples:", "if False:"),
        (
            "a default capacity that is often reached",
            "math.ceil(self.batch_size + 6.0 * math.sqrt(self.batch_size))",
            "self.batch_size",
        ),
    ),
    *faults(
        "accounting/group.py",
        "accounting/test_group.py",
        (
            "a group is one",
            "return Mechanism.of_updates(probability, noise, updates, sampler, group_size=size)",
            "return Mechanism.of_updates(probability, noise, updates, sampler, group_size=1)",
        ),
        ("a group comes on top of no more data", "together = least + size", "together = least"),
    ),
    *faults(
        "accounting/filter.py",
        "accounting/test_filter.py accounting/test_planning.py training/test_fit_sampling.py",
        (
            "more than the budget",
            "if spent > self.rdp_budget + _ROUNDING * self.budget:",
            "if False:",
            "privacy/test_guarantee.py accounting/test_filter.py accounting/test_planning.py",
        ),
        (
            "the conversion is forgotten",
            "return self.budget - conversion(self.order, self.delta)",
            "return self.budget",
        ),
        (
            "what one path used up is the guarantee",
            "return max(0.0, budget, spent + conversion(self.order, delta))",
            "return max(0.0, spent + conversion(self.order, delta))",
        ),
        (
            "any mechanism is charged",
            "if not (mechanism.plain if self.covers_adaptive else rdp.supports(mechanism)):",
            "if False:",
        ),
        (
            "counts are ignored",
            "return sum(mechanism.count * rdp.at_order(rdp.kind(mechanism), self.order) for mechanism in mechanisms)",
            "return sum(rdp.at_order(rdp.kind(mechanism), self.order) for mechanism in mechanisms)",
        ),
        ("delta costs less", "log_delta = math.log(1.0 / delta)", "log_delta = 0.9 * math.log(1.0 / delta)"),
        ("orders of one and less", 'if checks.real("order", order) <= 1.0:', 'if checks.real("order", order) <= 0.0:'),
    ),
    *faults(
        "accounting/dpis.py",
        "accounting/test_dpis.py",
        (
            "charges that pass the budget are taken",
            "if self._costs + cost > self._total:",
            "if self._costs > self._total:",
        ),
        ("updates are free", "self._charge(self.update)\n", "pass\n"),
        ("the norm sum is free", "self._charge(Mechanism(1.0, self.norm_sum_noise, 1))\n", "pass\n"),
        ("the sum of the clip norm is free", "self._charge(Mechanism(1.0, self.clip_sum_noise, 1))\n", "pass\n"),
        ("the number of examples is free", "self._charge(Mechanism(1.0, self.count_noise, 1))\n", "pass\n"),
        (
            "the rate of short gradients is that of DP-SGD",
            "probability = self.batch_size / self.num_examples / share",
            "probability = self.batch_size / self.num_examples",
        ),
        (
            "the noise is not seen in units of a contribution",
            "return Mechanism(min(probability, 1.0), noise / share, 1)",
            "return Mechanism(min(probability, 1.0), noise / share**2, 1)",
        ),
        ("an epoch without a norm sum", "if not self._norm_sum_charged:", "if False:"),
        ("more updates than planned", "if self.updates_left < 1:", "if False:"),
        (
            "sums to come are not set aside",
            "return self._total * (1.0 - _SLACK) - self._costs - aside",
            "return self._total * (1.0 - _SLACK) - self._costs",
        ),
        (
            "the norm sum may be below its floor",
            "self.norm_sum, self.clip_norm = max(floor, min(norm_sum, ceiling)), clip_norm",
            "self.norm_sum, self.clip_norm = min(norm_sum, ceiling), clip_norm",
        ),
        (
            "the norm sum may be above its ceiling",
            "self.norm_sum, self.clip_norm = max(floor, min(norm_sum, ceiling)), clip_norm",
            "self.norm_sum, self.clip_norm = max(floor, norm_sum), clip_norm",
        ),
        ("a resumed budget forgets", "self._costs = _rdp(tuple(charged), self.order)", "self._costs = 0.0"),
        (
            "what other strategies spent is free",
            "self._costs = _rdp(self._spent_before, self.order)",
            "self._costs = 0.0",
        ),
        (
            "the conversion is free",
            "return (self.budget - conversion(self.order, self.delta)) * (1.0 - _SLACK)",
            "return self.budget * (1.0 - _SLACK)",
        ),
    ),
    *faults(
        "accounting/least_noise.py",
        "accounting/test_dpis.py",
        (
            "noise a little below what is needed",
            "while cost(noise) > left:\n        noise += 2.0 * step",
            "noise *= 0.999",
        ),
    ),
]
