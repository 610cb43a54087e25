"""Who is in a batch, padding, proposals."""

from tests.mutations.fault import faults

FAULTS = [
    *faults(
        "sampling/source.py",
        "sampling/test_source.py",
        (
            "rows that are written into one array are not copied",
            "tree.map_structure(np.array, _parts(rows[i]))",
            "_parts(rows[i])",
            "sampling/test_source.py::test_rows_that_are_written_into_one_array_are_copied",
        ),
        (
            "several rows are read at once although they are others",
            "same = _same(found, one_by_one)",
            "same = True",
            "sampling/test_source.py::test_several_are_read_at_once_only_where_that_gives_the_same_rows",
        ),
        (
            "a class of the user's is asked for several rows at once",
            "if not _row_by_row(rows):\n        return items\n",
            "pass\n",
            "sampling/test_source.py::test_rows_of_a_class_of_the_users_do_not_meet",
        ),
        (
            "several rows by a method of a parent, which does not know what a row is",
            'if _defined(rows, "__getitems__") in _until_rows(rows) else ()',
            'if hasattr(rows, "__getitems__") else ()',
            "sampling/test_source.py::test_rows_of_a_class_of_the_users_do_not_meet",
        ),
        (
            "a function of the user's in a data set gets several rows",
            "return () if _transformed(rows) else",
            "return",
            "sampling/test_source.py::test_rows_of_a_class_of_the_users_do_not_meet",
        ),
        (
            "rows come back in the order of the file",
            "return found if same else [leaf[back] for leaf in found]",
            "return found",
            "sampling/test_source.py::test_every_kind_returns_the_rows_that_are_asked_for",
        ),
        (
            "a source may grow while a model trains",
            "if now != self._length:",
            "if False:",
            "sampling/test_reading.py::test_a_source_that_grows_while_a_model_trains_is_told",
        ),
        (
            "what was written into a private mapping is lost",
            'private = getattr(self.rows, "mode", None) == "c" and name == "MADV_DONTNEED"',
            "private = False",
            "sampling/test_source.py::test_pages_of_a_file_are_given_back_and_what_was_written_into_a_private_mapping_stays",
        ),
    ),
    *faults(
        "sampling/columns.py",
        "sampling/test_source.py::test_the_digest_of_a_source_sees_its_length_types_shapes_and_sample_and_no_other_row",
        (
            "the key of a seed does not depend on length and shape",
            'return randomness.derive(b"", "sampled", found, *known) if columns else found',
            'return randomness.derive(b"", "sampled", found) if columns else found',
        ),
        (
            "the key of a seed does not depend on the sample",
            "seen = tree.map_structure(lambda leaf: leaf.sample if isinstance(leaf, Column) else leaf, data)",
            "seen = tree.map_structure(lambda leaf: leaf.sample[:0] if isinstance(leaf, Column) else leaf, data)",
        ),
        (
            "rows of other shapes are broadcast",
            "if rows.shape[1:] != self.shape[1:]:",
            "if False:",
            "sampling/test_source.py::test_rows_of_another_shape_or_type_are_not_made_to_fit",
        ),
    ),
    *faults(
        "sampling/reading.py",
        "sampling/test_reading.py::test_a_row_that_is_not_finite_or_has_no_allowed_label_counts_as_zero_and_no_other_row_changes",
        ("padding holds old rows", "out[count:] = 0\n", "pass\n", "sampling/test_batches.py"),
        (
            "padding of a source holds old rows",
            "rows[len(index) :] = 0",
            "pass",
            "sampling/test_reading.py::test_numbers_beyond_float32_are_not_finite",
        ),
        ("rows that are not finite count", "bad |= ~counts", "pass"),
        ("labels that are not allowed count", "bad |= self._refused(rows, ~bad)", "pass"),
        (
            "one label that is not allowed takes the others with it",
            "refused[i] = not self._allows(labels[i : i + 1])",
            "refused[i] = True",
        ),
        ("weights of rows that do not count stay", "for leaf in (*out, weight):", "for leaf in out:"),
        (
            "more rows are read than were drawn",
            "found, bad = source.read(index), np.zeros(len(index), bool)",
            "found, bad = source.read(np.append(index, 0)), np.zeros(len(index), bool)\n"
            "        found = [leaf[:-1] for leaf in found]",
            "sampling/test_reading.py::test_only_drawn_rows_are_read_and_two_updates_ahead",
        ),
        (
            "rows come to lie in other places",
            "out[number][places] = rows",
            "out[number][places[::-1]] = rows",
            "sampling/test_reading.py::test_batches_of_a_source_are_those_of_arrays",
        ),
    ),
    *faults(
        "sampling/poisson.py",
        "sampling/test_poisson.py sampling/test_samplers.py",
        (
            "batches of constant size",
            "size = rng.binomial(self.num_examples, self.sampling_probability)",
            "size = round(self.num_examples * self.sampling_probability)",
        ),
        (
            "the rate is another one",
            "size = rng.binomial(self.num_examples, self.sampling_probability)",
            "size = rng.binomial(self.num_examples, min(1.0, 1.1 * self.sampling_probability))",
        ),
        ("an example may be drawn twice", "replace=False, shuffle=False)", "replace=True, shuffle=False)"),
        (
            "the capacity is ignored",
            "return size if self.capacity is None else min(size, self.capacity)",
            "return size",
        ),
    ),
    *faults(
        "sampling/fixed_size.py",
        "sampling/test_samplers.py",
        (
            "batches of random size",
            "return self.batch_size\n",
            "return rng.binomial(self.num_examples, self.sampling_probability)\n",
        ),
    ),
    *faults(
        "sampling/epochs.py",
        "sampling/test_samplers.py",
        ("an epoch is not permuted", "rng.permutation(self.num_examples)", "np.arange(self.num_examples)"),
        ("one permutation for all epochs", "counter=[0, 0, 0, epoch]", "counter=[0, 0, 0, 0]"),
        (
            "an epoch begins early",
            "epoch, place = divmod(update, -(-self.num_examples // self.batch_size))",
            "epoch, place = divmod(update, self.num_examples // self.batch_size)",
        ),
        (
            "batches overlap",
            "return self._order[place * self.batch_size : (place + 1) * self.batch_size]",
            "return self._order[place * self.batch_size : (place + 1) * self.batch_size + 1]",
        ),
    ),
    *faults(
        "sampling/schemes.py",
        "sampling/test_samplers.py training/test_fit_sampling.py",
        (
            "truncated batches are not truncated",
            "sampling.sampling_probability, seed, sampling.capacity)",
            "sampling.sampling_probability, seed, None)",
        ),
        (
            "shuffled epochs are in order",
            '"shuffle": _epochs,',
            '"shuffle": lambda sampling, seed, key: EpochSampler(sampling.num_examples, sampling.batch_size),',
        ),
        (
            "batches of constant size are Poisson",
            '"fixed_size": lambda sampling, seed, key: FixedSizeSampler(sampling.num_examples, sampling.batch_size, seed),',
            '"fixed_size": _poisson,',
        ),
        ("an epoch that goes on has a new permutation", "epoch_key(seed) if key is None else key)", "epoch_key(seed))"),
    ),
    *faults(
        "sampling/persons.py",
        "sampling/test_persons.py",
        (
            "shares add up to more than 1",
            "shares = np.where(shares > 1.0 / brought, np.nextafter(shares, np.float32(0.0)), shares)",
            "shares = np.nextafter(shares, np.float32(2.0))",
        ),
        (
            "masked ids are one person",
            "if np.ma.is_masked(person_ids):",
            "if False:",
        ),
        (
            "missing ids are texts",
            "np.array(person_ids, object) if isinstance(person_ids, list | tuple) else np.asarray(person_ids)",
            "np.asarray(person_ids)",
        ),
        (
            "codes of missing ids are persons",
            'ids.ndim == 1 and ids.dtype.kind in "OUi":',
            'ids.ndim == 1 and ids.dtype.kind in "OU" :',
        ),
        (
            "one person is two that look alike",
            "        _refuse_alike(ids)\n",
            "        pass\n",
        ),
        (
            "a person brings all rows",
            "int(min(most, self._sizes.max()))",
            "int(self._sizes.max())",
        ),
        (
            "the first rows of a person are always the ones",
            "places[many] = _subsets(sizes[many], self.width, rng)",
            "pass",
        ),
        (
            "some rows are likelier than others",
            "one = rng.integers(0, last + 1)",
            "one = rng.integers(0, last)",
        ),
        (
            "the rows of a person are the same in all updates",
            'randomness.generator(self._secret, "rows", update)',
            'randomness.generator(self._secret, "rows")',
        ),
    ),
    *faults(
        "sampling/batches.py",
        "sampling/test_batches.py",
        ("a last microbatch in low precision may be short", "(static or full)", "static"),
        (
            "padding has weight one",
            "weight[i * each + len(share) : (i + 1) * each] = 0.0",
            "weight[i * each + len(share) : (i + 1) * each] = 1.0",
        ),
        (
            "padding of a source's batch holds old rows",
            "part[len(share) :] = 0",
            "pass",
            "sampling/test_reading.py::test_batches_of_a_source_are_those_of_arrays",
        ),
        (
            "rows lie on two devices",
            "dealt = [slice(share, None, self.size.shards) for share in self.held]",
            "dealt = [slice(max(share - 1, 0), None, self.size.shards) for share in self.held]",
        ),
        (
            "the weight of the last row is lost",
            "weight[i * each : i * each + len(share)] = counts[i]",
            "weight[i * each : i * each + max(len(share) - 1, 0)] = counts[i][:-1]",
        ),
        (
            "rows beyond the last padded size are lost",
            "return next((level for level in self._levels if level >= drawn), self._round(drawn))",
            "return next((level for level in self._levels if level >= drawn), self._levels[-1] if self._levels else self._round(drawn))",
        ),
        (
            "rows beyond the largest shape are lost",
            "# Dealt out like cards",
            "most = self.size._levels[-1] if self.size._levels else None\n        index, counts = index[:most], counts[:most]\n        # Dealt out like cards",
            "sampling/test_batches.py::test_a_draw_above_the_largest_shape_loses_no_row",
        ),
        (
            "buffers in use are given out again",
            "sys.getrefcount(self._arrays[i].base) == 2",
            "sys.getrefcount(self._arrays[i].base) >= 2",
        ),
        ("the first update is drawn again and again", "update += 1", "update += 0"),
    ),
    *faults(
        "sampling/arrays.py",
        "training/test_refusals.py sampling/test_arrays.py training/test_fit.py",
        ("rows that are not finite are taken", "if bad:\n        raise", "if False:\n        raise"),
        (
            "the part that is held out trains",
            "first = tree.map_structure(lambda leaf: leaf[~out], (x, y))",
            "first = (x, y)",
        ),
    ),
    *faults(
        "checks.py",
        "training/test_refusals.py sampling/test_arrays.py",
        ("inputs and labels of different length", "if len(found) == 1:", "if found:"),
    ),
    *faults(
        "sampling/doubled.py",
        "sampling/test_doubled.py",
        ("windows overlap in memory", "not apart and np.shares_memory", "False and np.shares_memory"),
        ("sources are not looked at", "    if found is not None:\n        raise", "    if False:\n        raise"),
        ("epochs within a source", "> len(parents[0]):", "> 2 * len(parents[0]):"),
        ("pieces that overlap", "a[1] + a[2] > b[1]", "a[1] == b[1]"),
        ("rows that are selected twice", "return int(seen.sum()) < len(index)", "return False"),
    ),
    *faults(
        "sampling/pipelines.py",
        "sampling/test_pipelines.py",
        ("functions that shuffle are not seen", '    if stage.has("Shuffle"):', "    if False:"),
        (
            "batches whose rows see each other are taken",
            "if pipelines.mixes_rows(sources[0], given[0], draws):",
            "if False:",
        ),
        ("windows overlap", 'if stage.kind == "Window" and _overlap', 'if stage.kind == "none" and _overlap'),
        (
            "a rare class stands behind all classes",
            "if _wholly(one) & _all_behind(other):",
            "if _wholly(one) & _wholly(other):",
            "sampling/test_arrays.py::test_the_same_rows_one_behind_the_other_are_refused",
        ),
        (
            "rows are zipped with others of the same set",
            "and not _in_step(one) & _in_step(other)",
            "and not _all_behind(one) & _all_behind(other)",
        ),
        ("state goes from row to row", 'if stage.kind == "Scan" or', 'if stage.kind == "none" or'),
        ("functions that repeat are not seen", r'    if stage.has(r"Repeat\w*Dataset"):', "    if False:"),
        ("an order by who is first", 'node.attr["deterministic"].s == b"false"', "False"),
        ("data sets that a function uses are not seen", "own, outside = own + nodes, outside + others", "own += nodes"),
        ("a choice at random", 'if stage.kind == "DirectedInterleave" and _at_random(stage.dataset):', "if False:"),
        ("what cannot be looked into is taken", "    if unseen:\n", "    if False:\n"),
        ("a whole data set for each element", "if stage.kind in _READING and", "if False and"),
    ),
    *faults(
        "sampling/proposal.py",
        "sampling/test_proposal.py",
        (
            "probabilities are not capped",
            "self._limits = self.bounds if largest <= self.clip_norm else np.minimum(self.bounds, self.clip_norm)",
            "self._limits = self.bounds",
        ),
        ("a norm may exceed its bound", "np.minimum(bounds, clip_norm, out=bounds)", "pass"),
        ("bounds above the cap are taken", "if largest > self.cap:", "if False:"),
        ("a sum below its floor is taken", "if self.norm_sum <= self.batch_size * self.clip_norm:", "if False:"),
        (
            "everyone is proposed twice as often",
            "rng.random(len(self.bounds)) < self._probabilities",
            "rng.random(len(self.bounds)) < 2.0 * self._probabilities",
        ),
        (
            "proposals are always kept",
            "thresholds = (1.0 - rng.random(len(indices))) * self.bounds[indices] / _ROUND_DOWN",
            "thresholds = 0.0 * self.bounds[indices] / _ROUND_DOWN",
        ),
        (
            "thresholds are those of the clip norm",
            "thresholds = (1.0 - rng.random(len(indices))) * self.bounds[indices] / _ROUND_DOWN",
            "thresholds = (1.0 - rng.random(len(indices))) * 0.5 * self.bounds[indices] / _ROUND_DOWN",
        ),
        ("gradients of norm zero are kept", "_SMALLEST_NORM = np.float32(1e-20)", "_SMALLEST_NORM = np.float32(0.0)"),
        ("growth below one", "if growth < 1.0:", "if False:"),
    ),
    *faults(
        "accounting/held_out.py",
        "sampling/test_arrays.py",
        (
            "the side of a row depends on its place",
            'digest = hashlib.blake2b(digest_size=8, person=b"lipdp held out")',
            'digest = hashlib.blake2b(digest_size=8, person=b"lipdp held out", salt=i.to_bytes(4, "little"))',
        ),
        ("labels play no part", "for leaf in rows:\n", "for leaf in rows[:1]:\n"),
    ),
]
