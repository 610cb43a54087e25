"""DPIS in `fit`: the mean it releases, the noise it adds, what it charges, and how it goes on."""

import contextlib
import dataclasses
import json

import jsonschema
import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

import lipdp
from lipdp import backend, data, layers, privacy, sampling, strategies
from lipdp.models import plain
from lipdp.privacy import ledger
from lipdp.strategies import DPIS
from lipdp.training import importance
from tests.helpers.models import DELTA, blobs, weights

FIT = {"batch_size": 40, "delta": DELTA, "verbose": 0}


def linear(features=8, classes=3, **arguments):
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes, use_bias=False)])
    return compiled(plain, **arguments)


def network(features=8, classes=3, **arguments):
    keras.utils.set_random_seed(0)
    hidden = keras.layers.Dense(12, activation="tanh")
    return compiled(keras.Sequential([keras.Input((features,)), hidden, keras.layers.Dense(classes)]), **arguments)


def compiled(plain, optimizer=None, metrics=("accuracy",), **arguments):
    model = lipdp.DP_Model.from_keras(plain)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.5), loss=loss, metrics=list(metrics), **arguments)
    return model


def kinds(model):
    counts = {}
    for release in model.run.ledger.entries:
        counts[release.kind] = counts.get(release.kind, 0) + release.count
    return counts


def stop_at(model, update):
    """Stops `fit` after so many updates, in the middle of an epoch if need be."""

    def check(batch, logs=None):
        if model.run.ledger.updates >= update:
            model.stop_training = True

    return keras.callbacks.LambdaCallback(on_train_batch_end=check)


def eager_part(strategy, model, data):
    (sums, norms, _), _, _ = strategy.proposed(backend.Forward(model), tuple(map(ops.convert_to_tensor, data)))
    return [ops.convert_to_numpy(s) for s in sums], ops.convert_to_numpy(norms)


# The cap on proposals binds for most examples in the second case, for nobody in the first.
@pytest.mark.slow
@pytest.mark.parametrize("norm_sum, growth", [(30.0, 2.0), (5.1, 5.0)])
def test_the_mean_of_the_gradient_is_that_of_the_clipped_ones(norm_sum, growth):
    """Many updates at fixed weights, noise off, against gradients written down by hand."""
    (x, y), n, b, c, updates = blobs(60), 60, 5, 1.0, 2000
    x = x * np.random.default_rng(1).lognormal(-1.0, 1.0, (n, 1)).astype("float32")
    model = linear()
    (kernel,) = weights(model)
    logits = x @ kernel
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    per_example = x[:, :, None] * (p / p.sum(axis=1, keepdims=True) - np.eye(3)[y])[:, None, :]
    norms = np.linalg.norm(per_example, axis=(1, 2))
    stale = np.minimum(norms * np.random.default_rng(2).uniform(0.2, 5.0, n), c)
    bounds = np.minimum(growth * np.maximum(stale, 0.05), norm_sum / b)
    proposal = sampling.Proposal(bounds, norm_sum=norm_sum, batch_size=b, clip_norm=c)
    assert (proposal.bounds == proposal.cap).any() == (growth == 5.0)
    clipped = per_example * np.minimum(1.0, proposal.limits / norms)[:, None, None]

    many = sampling.Proposal(np.tile(proposal.bounds, updates), norm_sum=norm_sum, batch_size=b, clip_norm=c)
    rng = np.random.default_rng(3)
    proposed = many.draw(rng)
    example = proposed % n
    limits, thresholds = many.limits[proposed].astype("float32"), many.thresholds(rng, proposed)
    ones = np.ones(len(example), "float32")
    strategy = DPIS(clip_norm=c, growth=growth)
    (total,), seen = eager_part(strategy, model, (x[example], y[example], ones, limits, thresholds, ones))
    np.testing.assert_allclose(seen, norms[example], rtol=1e-4)

    mean = total * norm_sum / (n * b) / updates
    # An update is a sum of independent contributions of norm norm_sum / (n b).
    inclusion = proposal.inclusion(norms)
    directions = (per_example / norms[:, None, None]).reshape(n, -1) * norm_sum / (n * b)
    covariance = directions.T @ (directions * (inclusion * (1.0 - inclusion))[:, None]) / updates
    difference = (mean - clipped.mean(axis=0)).ravel()
    # Softmax gradients sum to zero over the classes: 16 free coordinates.
    statistic = difference @ np.linalg.pinv(covariance, rcond=1e-6) @ difference
    assert statistic < stats.chi2.ppf(1 - 0.0027, np.linalg.matrix_rank(covariance, 1e-6 * covariance.max()))
    # Each one kept adds a vector of norm 1, less the margin for rounding.
    one = (x[:1], y[:1], ones[:1], np.float32([9.0]), np.float32([1e-6]), ones[:1])
    assert 0.9998 < np.linalg.norm(eager_part(strategy, model, one)[0][0]) < 1.0


@pytest.mark.slow
def test_rejected_padding_and_overflowing_rows_add_nothing():
    (x, y), model = blobs(4), linear()
    x[2] = 1e30
    weight = np.array([1.0, 1.0, 1.0, 0.0], "float32")
    thresholds = np.array([np.inf, 1e9, 1e-6, 1e-6], "float32")
    rows = (x, y, weight, np.ones(4, "float32"), thresholds, weight)
    (total,), norms = eager_part(DPIS(), model, rows)
    assert (total == 0.0).all() and norms[2] == 0.0 and np.isfinite(norms).all()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "arguments",
    [
        {"clip_scale": 2.0},
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({}, {"first_phase": 0.0}, {"count_noise": 8.0})),
    ],
    ids=str,
)
def test_the_budget_is_met_and_what_is_accounted_is_executed(arguments):
    model = network()
    history = model.fit(*blobs(), epochs=3, steps_per_epoch=10, epsilon=2.0, strategy=DPIS(**arguments), **FIT).history
    assert 0.99 * 2.0 <= model.privacy.spent() <= 2.0 == model.privacy.epsilon()
    # What one path has used up is no guarantee: a run that stops after the first epoch has cost the budget.
    assert history["epsilon"] == [2.0, 2.0, 2.0]
    expected = {"gradient": 30, "norm_sum": 3}
    if "clip_scale" in arguments:
        expected["clip_sum"] = 3
    if "count_noise" in arguments:
        expected["count"] = 1
    assert kinds(model) == expected
    assert int(model.optimizer.iterations.numpy()) == 30
    statement = model.privacy.statement()
    assert "importance sampling" in statement and "filter" in statement
    assert ("noisy count" in statement) == ("count_noise" in arguments)
    with pytest.raises(ValueError, match="does not cover"):
        model.run.ledger.epsilon(DELTA, "pld")


def test_the_noise_added_is_the_noise_charged():
    """Of a zero gradient a step is nothing but noise."""
    model = linear(200, 200, optimizer=keras.optimizers.SGD(1.0))
    x, y = np.zeros((400, 200), "float32"), np.zeros(400, "int32")
    steps, seen = [weights(model)[0]], []

    def record(batch, logs=None):
        steps.append(weights(model)[0])

    class Record(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            steps.append(weights(model)[0])
            seen.append(model.run.ledger.entries[-1])

    model.fit(x, y, epochs=3, steps_per_epoch=1, epsilon=2.0, strategy=DPIS(), callbacks=[Record()], **FIT)
    assert len({release.noise_multiplier for release in seen}) == 3
    for before, after, release in zip(steps, steps[1:], seen, strict=False):
        expected = release.noise_multiplier * release.sensitivity
        assert np.std(after - before) == pytest.approx(expected, rel=0.02)
        q = release.sampling.sampling_probability
        # Accounted with the least probability of inclusion at which the contribution is this long.
        assert q * 400 * release.sensitivity == pytest.approx(1.0, rel=1e-9)


@pytest.mark.slow
@pytest.mark.backend_free
def test_it_learns_and_draws_few_examples_of_small_gradient():
    x, y = blobs(800)
    model = network()
    model.fit(x, y, epochs=6, epsilon=4.0, strategy="dpis", seed=0, **FIT)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0.9
    updates = [r for r in model.run.ledger.entries if r.kind == "gradient"]
    assert updates[-1].sensitivity < 0.7 * updates[0].sensitivity


@pytest.mark.slow
@pytest.mark.backend_free
def test_chunks_compute_the_same_updates():
    (x, y), results = blobs(), []
    for rows in (None, 7):
        model = network()
        model.fit(x, y, epochs=2, steps_per_epoch=5, epsilon=4.0, strategy=DPIS(), seed=3, microbatch_size=rows, **FIT)
        results.append((weights(model), model.run.ledger))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    for a, b in zip(results[0][1].entries, results[1][1].entries, strict=True):
        assert a.noise_multiplier == pytest.approx(b.noise_multiplier, rel=1e-3)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_seed_repeats_a_run_and_no_seed_does_not():
    runs = []
    for seed in (5, 5, None):
        model = network()
        model.fit(*blobs(), epochs=1, steps_per_epoch=3, epsilon=2.0, strategy=DPIS(), seed=seed, **FIT)
        runs.append(weights(model)[0])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2], atol=1e-3)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize(
    "update, arguments",
    [
        (3, {}),
        pytest.param(10, {"clip_scale": 2.0}, marks=pytest.mark.slow),
        (14, {"clip_scale": 2.0, "count_noise": 8.0}),
        pytest.param(20, {}, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_within_an_epoch(tmp_path, update, arguments):
    fit = {**FIT, "epochs": 3, "steps_per_epoch": 10, "epsilon": 2.0, "strategy": DPIS(**arguments)}
    model = network()
    model.fit(*blobs(), callbacks=[stop_at(model, update)], **fit)
    assert model.run.ledger.updates == update
    spent = model.privacy.spent()
    # Another path might have cost more until here, so the whole budget is stated.
    assert spent < 0.99 * 2.0 or update == 20
    assert model.privacy.epsilon() == 2.0 and "Used up so far" in " ".join(model.privacy.statement().split())
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.privacy.spent() == spent and loaded.privacy.statement() == model.privacy.statement()
    loaded.fit(*blobs(), **fit)
    assert loaded.run.ledger.updates == 30 and kinds(loaded)["norm_sum"] == 3
    assert loaded.run.ledger.entries[: len(model.run.ledger) - 1] == model.run.ledger.entries[:-1]
    assert 0.99 * 2.0 <= loaded.privacy.spent() <= 2.0 == loaded.privacy.epsilon()
    with pytest.raises(ValueError, match="budget is spent"):
        loaded.fit(*blobs(), **fit)


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_file_holds_no_number_of_the_data():
    x, y = blobs(397)
    model = network()
    fit = {**FIT, "epochs": 2, "steps_per_epoch": 10, "epsilon": 2.0, "strategy": DPIS(count_noise=8.0)}
    model.fit(x, y, seed=0, callbacks=[stop_at(model, 14)], training_metrics=False, **fit)
    state = json.loads(model.run.to_array().tobytes())
    assert state["request"]["num_examples"] == 400  # the guess that follows from count_noise
    released = state["plan"]["num_examples"]
    assert released not in (397, 400) and released == state["adaptive"]["state"]["num_examples"]
    assert {entry["num_examples"] for entry in state["ledger"]["entries"]} == {400, released}
    assert set(state["adaptive"]["state"]) == {
        "num_examples", "order", "norm_sum", "clip_norm", "noise_multiplier", "epoch", "updates", "count_charged",
        "clip_sum_charged", "norm_sum_charged",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_older_file_forgets_no_sum():
    model = network()
    model.fit(*blobs(), epochs=1, epsilon=1.0, strategy=DPIS(), **FIT)
    run, older = model.run, model.run.to_array()
    described = dataclasses.replace(run.ledger.entries[0], count=0)
    assert described.kind == "norm_sum"
    run.ledger.charge(described)
    releases = run.ledger.releases
    run.restore(older)
    assert run.ledger.releases == releases


@pytest.mark.backend_free
def test_more_budget_keeps_the_order():
    model = network()
    model.fit(*blobs(), epochs=1, epsilon=1.0, strategy=DPIS(), **FIT)
    accountant, first = model.run.plan.accountant, model.run.ledger.entries
    model.fit(*blobs(), epochs=2, epsilon=3.0, strategy=DPIS(), **FIT)
    assert model.run.plan.accountant.order == accountant.order
    assert model.run.ledger.entries[: len(first)] == first
    assert 0.99 * 3.0 <= model.privacy.spent() <= 3.0 == model.privacy.epsilon()
    assert kinds(model) == {"gradient": 30, "norm_sum": 3}


@pytest.mark.backend_free
def test_the_budget_cannot_shrink():
    model = network()
    model.fit(*blobs(), epochs=3, epsilon=3.0, strategy=DPIS(), callbacks=[stop_at(model, 3)], **FIT)
    assert model.privacy.spent() < 2.0
    with pytest.raises(ValueError, match="cannot shrink"):
        model.fit(*blobs(), epochs=1, epsilon=2.5, strategy=DPIS(), **FIT)
    assert model.run.ledger.updates == 3 and model.privacy.epsilon() == 3.0


@pytest.mark.backend_free
def test_it_continues_what_another_strategy_spent():
    model = network()
    model.fit(*blobs(), epochs=1, epsilon=1.0, strategy="dpsgd", **FIT)
    model.fit(*blobs(), epochs=2, epsilon=3.0, strategy=DPIS(), **FIT)
    assert 0.99 * 3.0 <= model.privacy.spent() <= 3.0 == model.privacy.epsilon() and model.run.ledger.updates == 30
    with pytest.raises(ValueError, match="adaptive strategy"):
        model.fit(*blobs(), epochs=1, epsilon=9.0, strategy="dpsgd", **FIT)


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:delta is not below")
@pytest.mark.parametrize("noise", [-1e9, 1e9, pytest.param(0.0, marks=pytest.mark.slow)])
def test_no_released_sum_exceeds_the_budget(monkeypatch, noise):
    class Adversary:
        def normal(self):
            return noise

    ordinary = importance.ImportanceDriver._generator
    monkeypatch.setattr(
        importance.ImportanceDriver,
        "_generator",
        lambda driver, label: Adversary() if label == "sum" else ordinary(driver, label),
    )
    model = network()
    strategy = DPIS(clip_scale=1.0, count_noise=8.0)
    model.fit(*blobs(), epochs=2, steps_per_epoch=4, epsilon=1.0, strategy=strategy, **FIT)
    assert 0.99 <= model.privacy.spent() <= 1.0 == model.privacy.epsilon()
    assert all(0 < r.sampling.sampling_probability <= 1 for r in model.run.ledger.entries)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("validation", [False, True])
def test_without_training_metrics_nothing_private_is_logged(validation):
    x, y = blobs()
    model = network()
    history = model.fit(
        x, y, epochs=2, epsilon=2.0, strategy=DPIS(), training_metrics=False,
        validation_data=(x, y) if validation else None, **FIT,
    ).history  # fmt: skip
    assert {name for name in history if not name.startswith("val_")} == {"epsilon"}


@pytest.mark.slow
@pytest.mark.backend_free
def test_metrics_are_those_of_the_data_and_not_of_the_proposals():
    x, y = blobs(1000)
    model = network(optimizer=keras.optimizers.SGD(0.0))
    history = model.fit(x, y, epochs=4, steps_per_epoch=20, epsilon=1.0, strategy=DPIS(), seed=0, **FIT).history
    exact = model.evaluate(x, y, verbose=0, return_dict=True)
    assert history["accuracy"][-1] == pytest.approx(exact["accuracy"], abs=0.05)
    assert history["loss"][-1] == pytest.approx(exact["loss"], rel=0.1)


@pytest.mark.slow
@pytest.mark.backend_free
def test_eager_execution_does_the_same():
    results = []
    for eager in (False, True):
        model = network(run_eagerly=eager)
        model.fit(*blobs(), epochs=1, steps_per_epoch=3, epsilon=2.0, strategy=DPIS(), seed=2, **FIT)
        results.append(weights(model)[0])
    np.testing.assert_allclose(*results, atol=2e-4)


@pytest.mark.backend_free
def test_an_interrupted_update_stays_charged():
    model = network()

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(*blobs(), epochs=2, epsilon=2.0, strategy=DPIS(), callbacks=[Break()], **FIT)
    assert kinds(model) == {"gradient": 1, "norm_sum": 1}
    model.fit(*blobs(), epochs=2, epsilon=2.0, strategy=DPIS(), **FIT)
    assert model.run.ledger.updates == 20 and model.privacy.epsilon() <= 2.0


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_recurrent_network_learns_texts():
    texts = data.synthetic_text(400, length=8)
    keras.utils.set_random_seed(0)
    network = plain.bidirectional_lstm(50, 8, embedding_size=8, units=8)
    model = compiled(network, optimizer=keras.optimizers.Adam(0.03))
    model.fit(texts.x_train, texts.y_train, epochs=4, epsilon=8.0, strategy="dpis", seed=0, **FIT)
    assert model.evaluate(texts.x_test, texts.y_test, verbose=0, return_dict=True)["accuracy"] > 0.65
    assert model.privacy.epsilon() <= 8.0


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": 1e-13}, "at least 1e-12"),
        ({"clip_scale": 1e-13}, "`clip_scale \\* clip_norm` must be at least 1e-12"),
        ({"growth": 0.5}, "growth"),
        ({"floor": 0.0}, "floor"),
        ({"floor": 2.0}, "floor"),
        ({"first_phase": 1.5}, "first_phase"),
        ({"clip_scale": -1.0}, "clip_scale"),
        ({"norm_sum_noise": 0.0}, "norm_sum_noise"),
        ({"count_noise": np.nan}, "count_noise"),
    ],
)
def test_wrong_settings_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        DPIS(**arguments)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"noise_multiplier": 1.0}, "DPIS chooses its noise"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "DPIS chooses its noise"),
        ({"epsilon": 1.0, "strategy": DPIS(count_noise=8.0)}, "steps_per_epoch"),
        ({"epsilon": 1.0, "strategy": DPIS(norm_sum_noise=0.1)}, "budget"),
        ({"epsilon": 1.0, "accountant": "pdl"}, "accountant"),
        ({"epsilon": 1.0, "sampling": "shuffle"}, "sampling='shuffle'"),
        ({"epsilon": 1.0, "examples_per_person": 2}, "examples_per_person=2"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments, match):
    model = network()
    with pytest.raises(ValueError, match=match):
        model.fit(*blobs(), **{**FIT, "strategy": DPIS(), **arguments})
    assert model.run.ledger.releases == 0


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "arguments", [{"sampling": "fixed_size"}, pytest.param({"accountant": "filter"}, marks=pytest.mark.slow)]
)
def test_what_cannot_be_charged_at_its_order_is_not_continued(arguments):
    model = network()
    model.fit(*blobs(), epochs=1, epsilon=1.0, strategy="dpsgd", **FIT, **arguments)
    releases = model.run.ledger.releases
    with pytest.raises(ValueError, match="goes on only after"):
        model.fit(*blobs(), epochs=1, epsilon=3.0, strategy="dpis", **FIT)
    assert model.run.ledger.releases == releases


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("planned", [True, False])
def test_moments_for_another_relation_are_not_continued(planned):
    """The refusal named an accountant that DPIS cannot use."""
    model = compiled(
        keras.Sequential([keras.Input((8,)), layers.PrivateNormalization(2.0, 8.0), keras.layers.Dense(3)])
    )

    def stop(logs=None):
        raise KeyboardInterrupt

    callback = keras.callbacks.LambdaCallback(on_train_begin=stop)
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(*blobs(), epsilon=2.0, strategy="dpsgd", sampling="fixed_size", callbacks=callback, **FIT)
    assert [entry.kind for entry in model.run.ledger.entries] == ["moments", "moments"]
    if not planned:  # as those of a diffusion model, which are released before any `fit`
        model.run.ledger.plan = None
    with pytest.raises(ValueError, match="goes on only after.*relation replace_one.*another strategy"):
        model.fit(*blobs(), epsilon=3.0, strategy="dpis", **FIT)
    model.fit(*blobs(), epsilon=3.0, strategy="dpsgd", **FIT)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("before", ["moments", "updates", "exact"])
def test_a_number_of_examples_that_was_told_cannot_become_private(before):
    """The statement called N private beside moments that named it."""
    x, y = blobs(417)
    first = [layers.PrivateNormalization(2.0, 8.0)] if before == "moments" else []
    model = compiled(keras.Sequential([keras.Input((8,)), *first, keras.layers.Dense(3)]))

    def stop(logs=None):
        raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_train_begin=stop) if before == "moments" else None
    with contextlib.suppress(KeyboardInterrupt):
        told = {"epsilon": 2.0, "strategy": DPIS() if before == "exact" else "dpsgd"}
        model.fit(x, y, steps_per_epoch=2, callbacks=stop, **told, **FIT)
    assert model.run.ledger.releases
    ledger = model.run.ledger.to_json()
    private = {"steps_per_epoch": 3, "epsilon": 4.0, "strategy": DPIS(count_noise=10.0), "training_metrics": False}
    with pytest.raises(ValueError, match="names the number of examples.*count_noise=10.0.*new model"):
        model.fit(x, y, **private, **FIT)
    assert model.run.ledger.to_json() == ledger
    model.fit(x, y, **private | {"strategy": DPIS()}, **FIT)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_private_number_of_examples_stays_private():
    """What follows a count was taken for noisy, also where it was not."""
    x, y = blobs(417)
    model = network()
    # With a seed: now and then a noisy count is 417 as well.
    asked = {"steps_per_epoch": 3, "epsilon": 2.0, "strategy": DPIS(count_noise=10.0), "seed": 0}
    model.fit(x, y, **asked, **FIT)
    ledger = model.run.ledger.to_json()
    with pytest.raises(ValueError, match="holds a noisy count.*count_noise=None.*new model"):
        model.fit(x, y, **asked | {"epsilon": 4.0, "strategy": DPIS()}, **FIT)
    assert model.run.ledger.to_json() == ledger
    model.fit(x, y, **asked | {"epsilon": 4.0}, **FIT)
    facts = model.privacy.to_dict()
    assert not facts["num_examples_is_public"] and 417 not in {r["num_examples"] for r in facts["releases"]}


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_file_of_an_unseeded_run_holds_no_key(tmp_path):
    """Draws of proposals come from the operating system; the key of the noise is only saved for a fixed seed."""
    for seed in (None, 0):
        model = network()
        fit = {**FIT, "epochs": 2, "steps_per_epoch": 10, "epsilon": 2.0, "strategy": DPIS(), "seed": seed}
        saved = keras.callbacks.ModelCheckpoint(tmp_path / f"{seed}.keras")  # in the middle of `fit`
        model.fit(*blobs(), callbacks=[stop_at(model, 4), saved], **fit)
        key = model.optimizer.noise_key.numpy()
        assert key.any()
        model.save(tmp_path / "after.keras")
        for name in (f"{seed}.keras", "after.keras"):
            loaded = keras.saving.load_model(tmp_path / name)
            assert loaded.optimizer.noise_key.numpy().any() == (seed is not None)
            assert not {"seed", "key"} & set(loaded.run.importance["state"]) and loaded.run.epoch_key is None


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_statement_in_every_format():
    model = network()
    model.fit(*blobs(), epochs=1, epsilon=2.0, strategy=DPIS(count_noise=8.0), steps_per_epoch=3, **FIT)
    facts = model.privacy.to_dict()
    jsonschema.validate(facts, privacy.schema())
    assert json.loads(model.privacy.statement("json")) == facts
    assert facts["adaptive"] and not facts["num_examples_is_public"] and facts["groups"] == []
    # Who is in a batch follows from norms of gradients.
    assert facts["epsilon_without_amplification"] is None
    for format in ("text", "markdown"):
        words = " ".join(model.privacy.statement(format).replace("\\", "").split())
        assert "Sampler: importance sampling" in words and "Sampler: Poisson" not in words
        assert "L2 sensitivity of the sum of clipped gradient norms" in words and "1 x count" in words
        assert "a noisy count that was released. B is public" in words and "N is treated as public" not in words
    for ask in (lambda: model.privacy.epsilon(group_size=2), lambda: model.privacy.to_dict(groups=[2])):
        with pytest.raises(ValueError, match="groups"):
            ask()
    for accountant in ("pld", "rdp", "filter:8.0:4.0:1e-05"):
        other = privacy.Privacy(model.run.ledger, DELTA, accountant)
        for ask in (other.epsilon, other.spent, other.to_dict):
            with pytest.raises(ValueError, match="does not cover"):
                ask()


def numbers(*plans):
    """What a ledger of plans says about N; a plan is strategy, N, and whether N is a noisy count."""
    book = ledger.Ledger()
    base = dict(noise_multiplier=2.0, sensitivity=0.1, noise_allocation="global")
    for strategy, size, private in plans:
        for kind in (("count",) if private else ()) + (("norm_sum",) if strategy == "dpis" else ()) + ("gradient",):
            book.charge(
                ledger.Release(sampling=sampling.Sampling().bind(size, 50), kind=kind, strategy=strategy, **base)
            )
    adaptive = any(strategy == "dpis" for strategy, *_ in plans)
    found = privacy.Privacy(book, DELTA, "rdp_order:8.0:400.0:1e-05" if adaptive else "pld")
    words = " ".join(found.statement().split())
    return found.to_dict()["num_examples_is_public"], "treated as public" in words, "a noisy count" in words


@pytest.mark.backend_free
def test_a_public_number_of_examples_is_not_stated_as_private():
    assert numbers(("dpis", 979, True)) == (False, False, True)
    assert numbers(("dpis", 979, True), ("dpis", 991, True)) == (False, False, True)
    assert numbers(("dpis", 1000, False)) == (True, True, False)
    assert numbers(("dpis", 979, True), ("dpis", 1000, False)) == (True, True, True)
    assert numbers(("dpsgd", 1000, False), ("dpis", 979, True)) == (True, True, True)


@pytest.mark.backend_free
@pytest.mark.parametrize("first", ["dpsgd", pytest.param("dpis", marks=pytest.mark.slow)])
def test_a_budget_that_grew_is_not_stated_as_fixed_in_advance(first):
    """That order and budget, chosen after releases, do not follow from them is an assumption."""
    model = network()
    fit = {**FIT, "epochs": 1, "steps_per_epoch": 2}
    model.fit(*blobs(), epsilon=2.0, strategy=DPIS() if first == "dpis" else first, **fit)
    model.fit(*blobs(), epsilon=5.0, strategy=DPIS(), **fit)
    facts, words = model.privacy.to_dict(), " ".join(model.privacy.statement().split())
    assert facts["plans_fixed_in_advance"] == "assumed"
    assert "were fixed in advance" not in words and "assumed to be fixed in advance" in words
    assert "assumes that order and budget" in words and "without regard to results" in words


@pytest.mark.backend_free
def test_several_updates_per_execution_are_refused():
    model = network(steps_per_execution=2)
    with pytest.raises(ValueError, match="steps_per_execution"):
        model.fit(*blobs(), epsilon=1.0, strategy=DPIS(), **FIT)


@pytest.mark.backend_free
def test_its_settings_survive():
    strategy = DPIS(clip_norm=0.3, growth=3.0, clip_scale=1.5)
    config = keras.saving.serialize_keras_object(strategy)
    assert keras.saving.deserialize_keras_object(config).get_config() == strategy.get_config()
    assert strategies.get("dpis").get_config() == DPIS().get_config()


def test_nothing_larger_is_released_than_what_is_charged(monkeypatch):
    """One row has a gradient a million times as long as the others."""
    sums, factors = [], []
    released, release = importance.ImportanceDriver._released, backend.ImportanceStep.release

    def note_sum(driver, kind, charge, value, noise_multiplier, sensitivity):
        sums.append((kind, value, sensitivity))
        return released(driver, kind, charge, value, noise_multiplier, sensitivity)

    def note_factor(step, factor):
        budget = step.update.__self__.budget
        factors.append((factor, budget.norm_sum / budget.num_examples / budget.batch_size))
        release(step, factor)

    monkeypatch.setattr(importance.ImportanceDriver, "_released", note_sum)
    monkeypatch.setattr(backend.ImportanceStep, "release", note_factor)
    x, y = blobs()
    x[0] *= 1e6
    linear().fit(x, y, epochs=2, steps_per_epoch=3, epsilon=3.0, strategy=DPIS(0.5, clip_scale=1.5), **FIT)
    assert {kind for kind, _, _ in sums} == {"clip_sum", "norm_sum"} and len(factors) == 6
    assert all(0.0 < value <= len(y) * sensitivity for _, value, sensitivity in sums)
    assert all(0.0 < factor <= charged for factor, charged in factors)
