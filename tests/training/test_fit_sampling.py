"""`fit(sampling=...)`: each sampler is drawn for real, charged as what it is, and goes on where it stopped."""

import json
import warnings

import keras
import numpy as np
import pytest

import lipdp
from lipdp import accounting, callbacks, privacy, sampling
from lipdp.sampling import AllocationSampler, EpochSampler, FixedSizeSampler, PoissonSampler, Sampling
from tests.helpers.models import DELTA, blobs, mlp, same, state

FIT = {"batch_size": 60, "delta": DELTA, "verbose": 0}
PER_PASS = 7  # ceil(400 / 60)


@pytest.fixture
def draws(monkeypatch):
    """Every batch that was drawn: (number of the update, indices)."""
    seen = []
    for cls in (EpochSampler, PoissonSampler):
        original = cls.draw

        def draw(self, update, original=original):
            found = original(self, update)
            seen.append((update, found))
            return found

        monkeypatch.setattr(cls, "draw", draw)
    return seen


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("name", "relation"),
    [
        pytest.param("truncated_poisson", "zero_out_one", marks=pytest.mark.slow),
        ("fixed_size", "replace_one"),
        ("shuffle", "zero_out_one"),
        pytest.param("fixed_order", "zero_out_one", marks=pytest.mark.slow),
    ],
)
def test_budget_draws_and_statement(name, relation, draws):
    model = mlp()
    scheme = Sampling(name, capacity=66) if name == "truncated_poisson" else name
    model.fit(*blobs(), epochs=2, epsilon=3.0, sampling=scheme, **FIT)
    assert model.run.ledger.updates == 2 * PER_PASS
    assert 0.99 * 3.0 <= model.privacy.epsilon() <= 3.0
    facts = model.privacy.to_dict()
    assert facts["sampler"] == [name] and facts["neighboring_relation"] == relation
    used = dict(draws[: 2 * PER_PASS])
    assert sorted(used) == list(range(2 * PER_PASS))
    if name == "truncated_poisson":
        assert facts["releases"][0]["largest_batch_size"] == 66
        assert max(len(batch) for batch in used.values()) <= 66  # reached or not: the draws are not seeded
    elif name == "fixed_size":
        assert {len(batch) for batch in used.values()} == {60}
    else:
        for start in (0, PER_PASS):  # each example once in each pass; the last batch is short
            assert sorted(np.concatenate([used[start + i] for i in range(PER_PASS)])) == list(range(400))
        assert len(used[PER_PASS - 1]) == 40
        noise = model.run.plan.noise_multiplier
        passes = accounting.Mechanism(1.0, noise, 2, name)
        assert model.privacy.epsilon() == accounting.compose([passes], DELTA)


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_last_short_batch_is_divided_by_the_expected_size():
    """One pass over everything moves the weights by the sum of all gradients over B, however it is cut."""
    x, y = np.ones((7, 2), "float32"), np.zeros(7, "int32")
    moved = []
    for batch in (7, 3):
        model = mlp(features=2, classes=2, optimizer=keras.optimizers.SGD(1e-4))
        before = [v.numpy() for v in model.trainable_variables]
        model.fit(x, y, batch_size=batch, delta=1e-3, noise_multiplier=1e-6, sampling="fixed_order", verbose=0)
        after = [v.numpy() for v in model.trainable_variables]
        moved.append([(b - a) * batch for a, b in zip(before, after, strict=True)])
    for one, three in zip(*moved, strict=True):
        np.testing.assert_allclose(one, three, atol=2e-6)


@pytest.mark.slow
def test_a_resumed_pass_goes_on_with_the_same_permutation(tmp_path, draws):
    """With a seed: the file holds the order of the rows."""
    arguments = dict(epochs=4, steps_per_epoch=PER_PASS, epsilon=3.0, sampling="shuffle", seed=1, **FIT)
    model = mlp()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if model.run.ledger.updates == 10:
                self.model.stop_training = True
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(*blobs(), callbacks=[Stop()], **arguments)
    assert model.run.ledger.updates == 10
    model.save(tmp_path / "m.keras")
    first = dict(draws[:10])
    draws.clear()
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.fit(*blobs(), **arguments)
    second = dict(draws)
    assert min(second) == 10
    together = [first.get(i, second.get(i)) for i in range(PER_PASS, 2 * PER_PASS)]
    assert sorted(np.concatenate(together)) == list(range(400))
    assert loaded.run.ledger.updates == 4 * PER_PASS
    assert sum(m.count for m in loaded.run.ledger.mechanisms()) == 4
    assert loaded.privacy.epsilon() <= 3.0


def allocated(monkeypatch):
    """Every batch of a random allocation: (number of the update, indices)."""
    seen, original = [], AllocationSampler.draw

    def draw(self, update):
        found = original(self, update)
        seen.append((update, found))
        return found

    monkeypatch.setattr(AllocationSampler, "draw", draw)
    return seen


def test_random_allocation_is_drawn_charged_and_stated(monkeypatch):
    seen, model = allocated(monkeypatch), mlp()
    model.fit(*blobs(), epochs=2, epsilon=3.0, sampling="random_allocation", **FIT)
    used = dict(seen)
    sizes = {len(used[i]) for i in range(2 * PER_PASS)}
    for start in (0, PER_PASS):
        assert sorted(np.concatenate([used[start + i] for i in range(PER_PASS)])) == list(range(400))
    assert len(sizes) > 2
    mechanism = accounting.Mechanism(1 / PER_PASS, model.run.plan.noise_multiplier, 2, "random_allocation")
    assert model.privacy.epsilon() == accounting.compose([mechanism], DELTA)
    facts, text = model.privacy.to_dict(), " ".join(model.privacy.statement().split())
    assert facts["amplification_by_sampling"] and facts["neighboring_relation"] == "add_or_remove_one"
    assert "each example enters exactly one, drawn uniformly" in text
    assert 0.99 * 3.0 <= model.privacy.epsilon() <= 3.0 < facts["epsilon_without_amplification"]


@pytest.mark.backend_free
@pytest.mark.parametrize("seed", [None, pytest.param(6, marks=pytest.mark.slow)])
def test_a_begun_epoch_goes_on_only_where_its_secret_is_known(seed, tmp_path, monkeypatch):
    seen = allocated(monkeypatch)
    arguments = dict(epochs=3, epsilon=3.0, sampling="random_allocation", seed=seed, **FIT)
    model = mlp()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            model.stop_training = model.stop_training or model.run.ledger.updates == 10

    model.fit(*blobs(), callbacks=[Stop()], **arguments)
    first = dict(pair for pair in seen if pair[0] < 10)
    model.save(tmp_path / "m.keras")
    assert (json.loads(model.run.to_array().tobytes())["pass_key"] is None) == (seed is None)
    seen.clear()
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.fit(*blobs(), **arguments)
    second = dict(seen)
    assert loaded.run.ledger.updates == 3 * PER_PASS and loaded.privacy.epsilon() <= 3.0
    if seed is None:  # what is left of the begun epoch counts as made
        assert min(second) == 2 * PER_PASS and int(loaded.optimizer.iterations.numpy()) == 10 + PER_PASS
    else:
        together = [first.get(i, second.get(i)) for i in range(PER_PASS, 2 * PER_PASS)]
        assert sorted(np.concatenate(together)) == list(range(400))


@pytest.mark.slow
def test_a_fit_that_fails_before_its_first_update_knows_no_more_of_a_begun_epoch(tmp_path, monkeypatch):
    """It has drawn a new secret: with it, who was in the first part of the epoch could be in the rest as well."""
    seen, count = allocated(monkeypatch), np.zeros(400, int)
    arguments = dict(epochs=6, noise_multiplier=1.0, sampling="random_allocation", **FIT)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise KeyboardInterrupt

    model = mlp()
    for _ in range(3):
        seen.clear()
        before = int(model.optimizer.iterations.numpy())
        model.fit(*blobs(), callbacks=[Stop()], **arguments)
        made = dict(seen)
        for update in sorted(made)[: int(model.optimizer.iterations.numpy()) - before]:
            count[made[update]] += 1
        charged = sum(mechanism.count for mechanism in model.run.total.mechanisms())
        assert count.max() <= charged
        model.save(tmp_path / "m.keras")
        model = keras.saving.load_model(tmp_path / "m.keras")
        with pytest.raises(KeyboardInterrupt):
            model.fit(*blobs(), callbacks=[Fail()], **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle", pytest.param("random_allocation", marks=pytest.mark.slow)])
def test_a_begun_epoch_needs_its_rows_in_their_order(name):
    x, y = blobs()
    arguments = dict(epochs=2, noise_multiplier=1.0, sampling=name, **FIT)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.model.run.ledger.updates == 3

    model = mlp()
    model.fit(x, y, callbacks=[Stop()], **arguments)
    before = state(model)
    with pytest.raises(ValueError, match="in another order"):
        model.fit(x[::-1], y[::-1], **arguments)
    assert same(state(model), before)
    model.fit(x.copy(), y.copy(), **arguments)
    assert model.run.ledger.updates == 2 * PER_PASS


@pytest.mark.backend_free
@pytest.mark.parametrize("seed", [None, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["shuffle", pytest.param("fixed_order", marks=pytest.mark.slow)])
def test_a_file_within_an_epoch_needs_its_rows_in_their_order_too(tmp_path, capsys, name, seed):
    """Rows that were moved would count twice in an epoch that is charged for once."""
    (x, y), arguments = blobs(), dict(epochs=3, noise_multiplier=1.0, sampling=name, seed=seed, **FIT)
    model = mlp()
    model.fit(x, y, callbacks=[stopping_after(3)], **arguments)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    if seed is not None:
        with pytest.raises(ValueError, match="in another order"):
            loaded.fit(x[::-1], y[::-1], **arguments)
        loaded.fit(x, y, **arguments)
        assert loaded.run.ledger.updates == 3 * PER_PASS == int(loaded.optimizer.iterations.numpy())
        return
    # Which rows are left nothing tells: the rest of the begun epoch counts as made.
    loaded.fit(x[::-1], y[::-1], **(arguments | {"verbose": 2}))
    assert f"{PER_PASS - 3} updates are left out" in capsys.readouterr().out
    assert loaded.run.ledger.updates == 3 * PER_PASS
    assert int(loaded.optimizer.iterations.numpy()) == 3 + 2 * PER_PASS
    # The same file, read by the model that wrote it, is about the epoch that it knows.
    model.load_weights(tmp_path / "m.keras")
    model.fit(x, y, **arguments)
    assert int(model.optimizer.iterations.numpy()) == 3 * PER_PASS


@pytest.mark.parametrize("epochs, made", [(1, []), pytest.param(3, [1, 2], marks=pytest.mark.slow)])
def test_a_checkpoint_within_an_epoch_goes_on_with_the_next(tmp_path, epochs, made):
    """In the last one the call that is made again after a crash returns, as it does where nothing is left."""

    class Crash(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.run.ledger.updates == 3:
                raise KeyboardInterrupt

    def trained(*more):
        model = mlp()
        model.fit(
            *blobs(),
            epochs=epochs,
            noise_multiplier=1.0,
            sampling="shuffle",
            callbacks=[callbacks.Checkpoint(tmp_path / "c.weights.h5"), *more],
            **FIT,
        )
        return model

    with pytest.raises(KeyboardInterrupt):
        trained(Crash())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = trained()
    assert any("Training is at its end" in str(w.message) for w in caught) == (epochs == 1)
    assert model.history.epoch == made
    assert int(model.optimizer.iterations.numpy()) <= 3 + PER_PASS * len(made)


def stopping_after(updates):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.model.stop_training or self.model.run.ledger.updates == updates

    return Stop()


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs tf.data")
def test_a_shuffled_dataset_has_no_order():
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(blobs()).shuffle(400).batch(60)
    with pytest.raises(ValueError, match=r"`\.shuffle\(\)`. Remove it"):
        mlp().fit(data, epochs=1, noise_multiplier=1.0, sampling="random_allocation", **FIT)
    mlp().fit(data, epochs=1, noise_multiplier=1.0, **FIT)


@pytest.mark.slow
def test_the_end_of_a_begun_last_epoch_is_refused(tmp_path):
    model = mlp()
    arguments = dict(epochs=1, epsilon=3.0, sampling="random_allocation", **FIT)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            model.stop_training = model.stop_training or model.run.ledger.updates == 3

    model.fit(*blobs(), callbacks=[Stop()], **arguments)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    before = state(loaded)
    with pytest.raises(ValueError, match="Training is at its end"):
        loaded.fit(*blobs(), **arguments)
    assert same(state(loaded), before)


def test_an_epoch_with_several_noises_costs_that_of_the_least():
    bound = Sampling("random_allocation").bind(400, 60)
    ledger = privacy.Ledger()
    for noise, count in ((2.0, 3), (1.0, 2), (3.0, 4)):
        one = privacy.Release(
            sampling=bound, noise_multiplier=noise, sensitivity=0.1, strategy="dpsgd", noise_allocation="global"
        )
        ledger.charge(one, count)
    (mechanism,) = ledger.mechanisms()
    assert (mechanism.noise_multiplier, mechanism.count) == (1.0, 2)


@pytest.mark.slow
def test_a_new_plan_within_an_epoch_pays_for_a_new_epoch():
    model = mlp()
    run = dict(noise_multiplier=20.0, steps_per_epoch=4, sampling="shuffle", **FIT)
    model.fit(*blobs(), **run)
    key = model.run.epoch_key
    model.fit(*blobs(), **run)
    # 4 + 4 updates could be two epochs of 7; the second plan shuffled anew, so they are two as well, not one.
    assert model.run.epoch_key != key
    assert [m.count for m in model.run.ledger.mechanisms()] == [1, 1]
    model.fit(*blobs(), **run)
    assert model.privacy.epsilon() == accounting.compose([accounting.Mechanism(1.0, 20.0, 3, "shuffle")], DELTA)


@pytest.mark.slow
def test_poisson_and_shuffle_in_one_ledger():
    model = mlp()
    model.fit(*blobs(), epochs=1, epsilon=2.0, **FIT)
    model.fit(*blobs(), epochs=1, epsilon=4.0, sampling="shuffle", **FIT)
    assert 0.99 * 4.0 <= model.privacy.epsilon() <= 4.0
    assert model.privacy.to_dict()["neighboring_relation"] == "zero_out_one"
    assert "fixed in advance, not chosen in view of earlier results" in " ".join(model.privacy.statement().split())


@pytest.mark.backend_free
def test_a_budget_per_person():
    model, single = mlp(), mlp()
    run = dict(epochs=2, epsilon=3.0, **FIT)
    model.fit(*blobs(), examples_per_person=4, **run)
    single.fit(*blobs(), **run)
    assert model.run.plan.noise_multiplier > 2.0 * single.run.plan.noise_multiplier
    assert 0.99 * 3.0 <= model.privacy.epsilon() <= 3.0
    assert model.privacy.epsilon() == model.privacy.epsilon(DELTA, group_size=4)
    assert single.privacy.epsilon(group_size=4) > 3.0 > model.privacy.epsilon(group_size=1)
    assert "one person with at most 4 examples" in model.privacy.statement()
    with pytest.raises(ValueError, match="budget is spent"):
        model.fit(*blobs(), examples_per_person=4, **run)
    for less in ({}, {"examples_per_person": 2}):
        with pytest.raises(ValueError, match="up to 4 examples.*Pass examples_per_person=4 again"):
            model.fit(*blobs(), **run | {"epsilon": 4.0} | less)
    model.fit(*blobs(), examples_per_person=4, **(run | {"epsilon": 4.0}))
    assert 0.99 * 4.0 <= model.privacy.epsilon() <= 4.0
    # A model that shares the weights, too.
    other = lipdp.DP_Model(model.inputs, model.outputs)
    other.compile("sgd", loss=model.loss)
    with pytest.raises(ValueError, match="up to 4 examples"):
        other.fit(*blobs(), **run | {"epsilon": 8.0})


@pytest.mark.backend_free
def test_a_budget_at_another_delta_or_after_a_bound_on_risk_is_told_of():
    def told(model, **arguments):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            model.fit(*blobs(), **FIT | arguments)
        assert all(one.filename == __file__ for one in found)
        return [str(one.message) for one in found]

    model = mlp()
    assert told(model, epsilon=2.0, delta=1e-7) == told(model, epsilon=2.5, delta=1e-7) == []
    (text,) = told(model, epsilon=3.0, delta=1e-6)
    assert "budget at delta=1e-07" in text and "pass delta=1e-07" in text
    model = mlp()
    assert told(model, risk={"advantage": 0.1}) == told(model, risk={"advantage": 0.2}) == []
    (text,) = told(model, epsilon=9.0)
    assert "keep the risk {'advantage': 0.2}" in text


@pytest.mark.slow
def test_a_filter_covers_noise_chosen_on_the_way():
    model = mlp()
    run = dict(accountant="filter", steps_per_epoch=5, **FIT)
    logged = model.fit(*blobs(), epsilon=3.0, noise_multiplier=3.0, **run).history["epsilon"]
    first = model.privacy.spent()
    assert first < model.privacy.epsilon() == pytest.approx(3.0)
    assert set(logged) == {model.privacy.epsilon()}
    name = model.run.plan.accountant
    assert model.privacy.to_dict()["epsilon_without_amplification"] is not None
    model.fit(*blobs(), noise_multiplier=2.0, **run)  # as if chosen after a look
    assert model.privacy.to_dict()["epsilon_without_amplification"] is None  # the filter kept no budget for that
    assert model.run.plan.accountant == name
    assert first < model.privacy.spent() <= model.privacy.epsilon() == pytest.approx(3.0)
    assert "also holds when noise" in " ".join(model.privacy.statement().split())
    model.fit(*blobs(), epochs=1000, noise_multiplier=1.0, **run)  # stops at the budget
    assert 2.5 < model.privacy.spent() <= 3.0 + 1e-9
    with pytest.raises(ValueError, match="cannot grow.*epsilon=4.0.*fixed: epsilon=3.0"):
        model.fit(*blobs(), epsilon=4.0, **run)
    with pytest.raises(ValueError, match="fixed before the first release.*'filter:8.0:9.0:1e-05'"):
        model.fit(*blobs(), epsilon=9.0, **(run | {"accountant": "filter:8:9:1e-05"}))


def test_a_filter_keeps_budget_and_unit_under_every_name():
    model = mlp()
    run = dict(steps_per_epoch=3, noise_multiplier=20.0, sampling="shuffle", **FIT)
    for wish, delta in ((3.5, DELTA), (2.0, DELTA / 10.0)):
        with pytest.raises(ValueError, match="cannot grow.*fixed: epsilon=3.0"):
            model.fit(*blobs(), epsilon=wish, accountant=f"filter:8.0:3.0:{DELTA!r}", **(run | {"delta": delta}))
    assert model.run.plan is None and not model.run.ledger.updates
    model.fit(*blobs(), epsilon=2.0, accountant="filter", **run)
    name, before = model.run.plan.accountant, state(model)
    with pytest.raises(ValueError, match="fixed"):
        model.fit(*blobs(), accountant=f"filter:{2.0 * name.order!r}:2.0:{DELTA!r}", **run)
    for accountant in ("filter", name):
        for change, message in (
            ({"epsilon": 6.0}, "cannot grow.*epsilon=6.0.*fixed: epsilon=2.0"),
            ({"delta": DELTA / 10.0}, "cannot grow"),
            ({"examples_per_person": 4}, "one unit.*examples_per_person=4.*fixed: examples_per_person=1"),
            ({"sampling": "fixed_size"}, "one unit.*'fixed_size'.*'replace_one'.*relation 'zero_out_one'"),
        ):
            with pytest.raises(ValueError, match=message):
                model.fit(*blobs(), accountant=accountant, **(run | {"epsilon": 2.0} | change))
            assert same(state(model), before)
    model.fit(*blobs(), epsilon=2.0, accountant=name, **(run | {"sampling": "fixed_order"}))  # the same relation
    assert model.run.ledger.updates == 6 and model.privacy.epsilon() == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_no_other_accountant_takes_over_from_a_filter(accountant):
    """Noise chosen on the way is covered by its budget only."""
    model, run = mlp(), dict(noise_multiplier=4.0, steps_per_epoch=2, **FIT)
    model.fit(*blobs(), epsilon=3.0, accountant="filter", **run)
    before = state(model)
    with pytest.raises(ValueError, match=f"keeps its budget.*accountant='{accountant}'.*Use accountant='filter'"):
        model.fit(*blobs(), accountant=accountant, **run)
    assert same(state(model), before) and model.privacy.epsilon() == pytest.approx(3.0)


def test_a_filter_must_be_there_from_the_start():
    model = mlp()
    before = state(model)
    with pytest.raises(ValueError, match="needs a budget that is fixed in advance"):
        model.fit(*blobs(), noise_multiplier=2.0, accountant="filter", **FIT)
    assert same(state(model), before)
    model.fit(*blobs(), noise_multiplier=2.0, steps_per_epoch=2, **FIT)
    with pytest.raises(ValueError, match="before the first release.*Use accountant='pld'"):
        model.fit(*blobs(), epsilon=9.0, accountant="filter", **FIT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling": "balls_in_bins"}, "no sound accountant.*Monte Carlo.*'poisson'"),
        ({"sampling": "cyclic"}, "`sampling` must be one of.*'poisson'.*'cyclic'"),
        ({"sampling": 3}, "`sampling` must be one of"),
        ({"sampling": "truncated_poisson", "accountant": "rdp"}, '"rdp" has no bound.*Use accountant="pld"'),
        ({"sampling": "truncated_poisson", "examples_per_person": 2}, "No sound cost is known for groups"),
        ({"examples_per_person": 0}, "`(examples_per_person|group_size)` must be"),
        ({"examples_per_person": 2, "accountant": "rdp"}, '"rdp" has no bound.*group_size=2'),
        ({"examples_per_person": 390, "sampling": "fixed_size"}, "smaller than one batch"),
    ],
)
def test_refusals_change_nothing(arguments, message):
    model = mlp()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(*blobs(), epsilon=3.0, **arguments, **FIT)
    assert len(model.run.ledger) == 0
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_schemes():
    assert sampling.get("shuffle") == Sampling("shuffle")
    assert Sampling("truncated_poisson").bind(60000, 256).largest_batch == 352
    with pytest.raises(ValueError, match="only truncated Poisson.*capacity=3"):
        Sampling("shuffle", capacity=3)
    with pytest.raises(ValueError, match="`capacity` must be a positive integer"):
        Sampling("truncated_poisson", capacity=0)
    assert len(FixedSizeSampler(10, 4).draw(0)) == 4


@pytest.mark.parametrize("scheme", [Sampling(group_size=4), Sampling().bind(200, 20), Sampling(relation="replace_one")])
def test_what_fit_says_by_its_own_arguments_is_not_taken_from_a_sampling(scheme):
    """It was dropped: the noise of an example instead of a person."""
    model = mlp()
    with pytest.raises(ValueError, match="examples_per_person"):
        model.fit(*blobs(), epochs=1, epsilon=3.0, sampling=scheme, **FIT)
    assert model.run.ledger.releases == 0
