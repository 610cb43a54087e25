"""`fit(person_ids=...)`: persons are drawn, their rows averaged, and everything is stated for a person."""

import json

import jsonschema
import keras
import numpy as np
import pytest
from keras import ops

import lipdp
from lipdp import accounting, backend, callbacks, layers, losses, privacy, sampling, strategies
from lipdp.optimizer import private
from lipdp.training import weights
from tests.adversarial.attack import TOLERANCE, fixed, watched
from tests.helpers.models import DELTA, blobs, mlp, same, state
from tests.helpers.reference import plain_gradients
from tests.helpers.reference import state as values_of

FIT = {"batch_size": 5, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}
SIZES = (1, 3, 2, 5, 1, 4, 2)
IDS = np.repeat(np.arange(len(SIZES)), SIZES)


class Draws:
    """Stands for every sampler: every update takes these persons."""

    def __init__(self, chosen):
        self.chosen = np.asarray(chosen)

    def draw(self, update):
        return self.chosen


def dense(optimizer=None, hidden=6):
    keras.utils.set_random_seed(1)
    inner = [keras.Input((4,)), keras.layers.Dense(hidden, "tanh"), keras.layers.Dense(3)]
    model = lipdp.DP_Model.from_keras(keras.Sequential(inner))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or private(watched(keras.optimizers.SGD))(0.5), loss=loss)
    return model


def spectral():
    keras.utils.set_random_seed(1)
    parts = [layers.BoundedInput((4,), norm=2.0), layers.SpectralDense(6), layers.Abs(), layers.SpectralDense(3)]
    model = lipdp.DP_Sequential(parts)
    loss = losses.SparseCategoricalCrossentropy(temperature=4.0, clip=0.5)
    model.compile(private(watched(keras.optimizers.SGD))(0.5), loss=loss)
    return model


def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(len(IDS), 4)).astype("float32"), rng.integers(0, 3, len(IDS)).astype("int32")


def released(model, x, y, chosen, monkeypatch, quiet=True, **arguments):
    """What the optimizer was given by one update of these persons."""
    monkeypatch.setattr(sampling, "make_sampler", lambda *_: Draws(chosen))
    if quiet:
        monkeypatch.setattr(backend, "normal", lambda size, key, generator="chacha20": ops.zeros((size,)))
    model.fit(x, y, **{**FIT, "person_ids": IDS, "steps_per_epoch": 1, **arguments})
    return [ops.convert_to_numpy(v.value).astype("float64") for v in model.optimizer.seen]


def averages(model, x, y, chosen):
    """The gradient of the mean loss of each person's rows, computed one person at a time."""
    found = []
    loss = losses.SparseCategoricalCrossentropy(temperature=4.0, clip=0.5)

    def values(y, y_pred):
        if isinstance(model.loss, losses.Loss):
            return loss.call(y, y_pred)
        return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    for person in chosen:
        own = np.flatnonzero(person == IDS)
        (one,) = zip(*plain_gradients(model, x[own], y[own], np.ones(1, "float32"), len(own), values), strict=True)
        found.append(one)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("microbatch", [None, 6])
def test_a_person_is_clipped_once_after_the_rows_are_averaged(microbatch, monkeypatch):
    x, y = rows()
    x *= np.repeat([3.0, 0.1, 1.0, 5.0, 0.2, 1.0, 4.0], SIZES)[:, None]
    chosen = [3, 0, 6, 1, 5]
    model = dense()
    persons = averages(model, x, y, chosen)
    norms = [np.sqrt(sum((g**2).sum() for g in one)) for one in persons]
    clip_norm = float(np.median(norms))
    expected = [
        sum(min(1.0, clip_norm / n) * one[k] for n, one in zip(norms, persons, strict=True)) / 5
        for k in range(len(persons[0]))
    ]
    arguments = {"strategy": strategies.DPSGD(clip_norm=clip_norm), "microbatch_size": microbatch}
    found = released(model, x, y, chosen, monkeypatch, **arguments)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4 * clip_norm)
    assert min(norms) < clip_norm < max(norms)


@pytest.mark.parametrize(
    "strategy", [pytest.param(strategies.DPSGD(), marks=pytest.mark.slow), strategies.DPIS()], ids=lambda s: s.name
)
def test_a_person_of_few_rows_trains_where_rows_of_zeros_are_not_finite(strategy):
    """The mean of a sequence that is masked throughout is NaN: only persons with as many rows as can be trained."""
    keras.utils.set_random_seed(1)
    stock = keras.layers
    inner = [keras.Input((4,), dtype="int32"), stock.Embedding(9, 3, mask_zero=True), stock.GlobalAveragePooling1D()]
    model = lipdp.DP_Model.from_keras(keras.Sequential([*inner, stock.Dense(3)]))
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    shares = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.0, 0.0]], "float32")
    x = np.random.default_rng(0).integers(1, 9, (12, 4)).astype("int32") * (shares.reshape(-1, 1) > 0)
    y = np.tile(np.arange(3, dtype="int32"), 4) * (shares.reshape(-1) > 0)
    forward = backend.Forward(model, **values_of(model))

    def sums(*chosen):
        own = shares * np.isin(np.arange(4), chosen)[:, None]
        data = [ops.convert_to_tensor(t) for t in (x, y, own.astype("float32"))]
        if strategy.name == "dpis":
            return ops.convert_to_numpy(strategy.norms(forward, tuple(data))[0])
        calibration = strategies.Calibration((1.0,), 1.0, rows=3)
        data[2] = ops.reshape(data[2], (-1,))
        found = strategy.microbatch(calibration, forward, [], 0, None, tuple(data), 1)[0][0]
        return np.concatenate([np.ravel(ops.convert_to_numpy(t)) for t in found])

    if strategy.name == "dpis":
        assert (sums(0, 1, 2)[:3] > 0.05).all() and (sums(0, 2)[[1, 3]] == 0.0).all()
    else:
        alone = [sums(person) for person in range(4)]
        assert [bool(np.abs(one).max() > 0.01) for one in alone] == [True, True, True, False]
        np.testing.assert_allclose(sums(0, 1, 2), sum(alone), atol=1e-6)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("microbatch", [None, 4])
def test_clipless_sums_the_averages_of_persons(microbatch, monkeypatch):
    x, y = rows()
    chosen = [5, 2, 3]
    model = spectral()
    weights.project(model)
    persons = averages(model, x, y, chosen)
    expected = [sum(one[k] for one in persons) / 5 for k in range(len(persons[0]))]
    found = released(model, x, y, chosen, monkeypatch, microbatch_size=microbatch)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        "dpsgd",
        pytest.param(strategies.AdaCliP(), marks=pytest.mark.slow),
        pytest.param(strategies.DPSGD(clipping="automatic"), marks=pytest.mark.slow),
        strategies.DPSGD(clipping="per_layer", augmentation_multiplicity=2),
    ],
    ids=lambda s: getattr(s, "name", s),
)
def test_no_person_moves_an_update_by_more_than_is_charged(strategy, monkeypatch):
    """A person of 5 hostile rows against one without them, over the noise that is really there."""
    x, y = rows()
    largest = 0.0
    for scale in (1.0, 3e3):
        hostile = x.copy()
        hostile[IDS == 3] *= scale
        found = {}
        for name, chosen in (("with", [0, 1, 2, 3]), ("without", [0, 1, 2])):
            with fixed(Draws(chosen)):
                model = dense()
                # Draws of one update, with the noise that `fit` adds.
                model.fit(hostile, y, **{**FIT, "person_ids": IDS, "steps_per_epoch": 1, "strategy": strategy})
                found[name] = [ops.convert_to_numpy(v.value).astype("float64") for v in model.optimizer.seen]
        with monkeypatch.context() as patch:
            quiet = released(dense(), hostile, y, [0, 1, 2], patch, strategy=strategy)
        stddev = [a - b for a, b in zip(found["without"], quiet, strict=True)]
        square = sum(
            np.sum(((a - b) / s) ** 2) for a, b, s in zip(found["with"], found["without"], stddev, strict=True)
        )
        largest = max(largest, np.sqrt(square))
    assert 0.9 < largest <= 1.0 + TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("quantile", [None, pytest.param(0.5, marks=pytest.mark.slow)])
def test_no_person_moves_a_clipless_update_by_more_than_is_charged(quantile, monkeypatch):
    x, y = rows()
    strategy = strategies.Clipless(quantile=quantile, quantile_noise=quantile and 5.0)
    largest = 0.0
    for seed in range(3):
        hostile = x.copy()
        hostile[IDS == 3] = 100.0 * np.random.default_rng(seed).normal(size=4)  # all rows alike: no average helps
        one = released(spectral(), hostile, y, [0, 1, 3], monkeypatch, strategy=strategy)
        other = released(model := spectral(), hostile, y, [0, 1], monkeypatch, strategy=strategy)
        std = [float(s) for s in ops.convert_to_numpy(model.optimizer.noise_std)][: len(one)]
        largest = max(
            largest, np.sqrt(sum(((a - b) ** 2).sum() / s**2 for a, b, s in zip(one, other, std, strict=True)))
        )
    assert 0.05 < largest <= 1.0 + TOLERANCE


def clipping():
    keras.utils.set_random_seed(1)
    parts = [layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(3), layers.ClipGradient(0.01)]
    model = lipdp.DP_Sequential(parts)
    model.compile(private(watched(keras.optimizers.SGD))(0.5), loss=losses.SparseCategoricalCrossentropy())
    return model


@pytest.mark.slow
def test_a_layer_that_clips_each_row_bounds_no_person_of_several(monkeypatch):
    """Eight shares of an eighth pass a clip that one whole row does not."""
    x, y = rows()
    with pytest.raises(ValueError, match="not in proportion.*Remove ClipGradient, or pass rows_per_person=1"):
        clipping().fit(x, y, person_ids=IDS, strategy="clipless", **FIT)
    hostile = np.where((IDS == 3)[:, None], 100.0, x).astype("float32")
    more = {"strategy": "clipless", "rows_per_person": 1}
    one = released(clipping(), hostile, y, [0, 3], monkeypatch, **more)
    other = released(model := clipping(), hostile, y, [0], monkeypatch, **more)
    (std,) = [float(s) for s in ops.convert_to_numpy(model.optimizer.noise_std)][: len(one)]
    assert 0.5 < np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(one, other, strict=True))) / std <= 1.0 + TOLERANCE


def test_rows_of_nobody_are_not_counted():
    with pytest.raises(ValueError, match="rows_per_person=2 without `person_ids`"):
        dense().fit(*rows(), rows_per_person=2, **FIT)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs tf.data")
def test_ids_do_not_go_with_rows_in_random_order():
    import tensorflow as tf

    shuffled = tf.data.Dataset.from_tensor_slices(rows()).shuffle(20, seed=1, reshuffle_each_iteration=False)
    for data in (shuffled, shuffled.batch(4), shuffled.map(lambda x, y: (x, y)).batch(4)):
        with pytest.raises(ValueError, match=r"Ids of persons.*`\.shuffle\(\)`"):
            dense().fit(data, person_ids=IDS, **FIT)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["poisson", "fixed_size", "shuffle"])
def test_persons_are_drawn_and_charged(name, monkeypatch):
    x, y = blobs(400)
    ids = np.arange(400) % 57
    seen = []
    choose = sampling.Persons.rows

    def noted(self, drawn, rng):
        seen.append(np.sort(drawn))
        return choose(self, drawn, rng)

    monkeypatch.setattr(sampling.Persons, "rows", noted)
    model = mlp()
    model.fit(x, y, person_ids=ids, rows_per_person=3, sampling=name, **{**FIT, "batch_size": 10}, epochs=2)
    assert model.run.ledger.updates == 2 * 6  # ceil(57 / 10)
    plan = model.run.plan.sampling
    assert (plan.num_examples, plan.batch_size, plan.rows_per_person) == (57, 10, 3)
    assert model.privacy.epsilon() == accounting.epsilon(
        noise_multiplier=1.0, updates=12, delta=1e-3, sampler=sampling.Sampling(name).bind(57, 10)
    )
    sizes = [len(drawn) for drawn in seen[:12]]
    assert all(len(set(drawn)) == len(drawn) and drawn.max() < 57 for drawn in seen if len(drawn))
    if name == "fixed_size":
        assert set(sizes) == {10}
    elif name == "shuffle":
        assert sorted(np.concatenate(seen[:6])) == list(range(57))
    else:
        assert len(set(sizes)) > 1


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_statement_is_about_a_person():
    x, y = blobs(400)
    model = mlp()
    model.fit(x, y, person_ids=np.arange(400) % 57, rows_per_person=3, **FIT)
    facts = model.privacy.to_dict()
    jsonschema.validate(json.loads(model.privacy.statement("json")), privacy.schema())
    assert facts["unit"] == "person" and facts["rows_per_person"] == 3 and facts["examples_per_person"] == 1
    assert facts["releases"][0]["num_examples"] == 57
    text = " ".join(model.privacy.statement().split())
    for part in (
        "Unit: one person, with any number of rows",
        "add or remove one person, with all their rows",
        "each person enters each batch independently",
        "at most 3 rows, chosen uniformly at random for each update, whose gradients are averaged",
        "N = 57 persons",
        "Groups of up to 2 persons",
        "but for the examples of one person",
    ):
        assert part in text, part
    assert "one example" not in text.split("Covered")[0]


@pytest.mark.slow
@pytest.mark.backend_free
def test_rows_and_persons_do_not_add_up():
    x, y = blobs(400)
    ids = np.arange(400) % 57
    for first, second in (({}, {"person_ids": ids}), ({"person_ids": ids}, {})):
        model = mlp()
        model.fit(x, y, **FIT, **first)
        before = state(model)
        with pytest.raises(ValueError, match="cannot change"):
            model.fit(x, y, **FIT, **second)
        assert same(before, state(model))
    ledger = model.run.ledger.copy()
    other = mlp()
    other.fit(x, y, **FIT)
    with pytest.raises(ValueError, match="cannot be added up"):
        privacy.Ledger.joined([ledger, other.run.ledger]).mechanisms()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"person_ids": np.arange(399)}, "399 ids for 400 rows"),
        ({"person_ids": np.ones(400)}, "one integer or text for each row"),
        ({"person_ids": np.zeros(400, int)}, "PERSONS"),
        ({"person_ids": np.arange(400), "rows_per_person": 0}, "rows_per_person"),
        ({"person_ids": np.arange(400), "examples_per_person": 4}, "Leave it out"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    model = mlp()
    model.build()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.fit(*blobs(400), **FIT, **arguments)
    assert same(before, state(model))


@pytest.mark.backend_free
def test_a_strategy_that_does_not_know_of_persons_is_refused(monkeypatch):
    monkeypatch.setattr(strategies.PerExample, "averages_persons", False)
    with pytest.raises(ValueError, match="averages_persons"):
        dense().fit(*rows(), person_ids=IDS, strategy="dpsgd", **FIT)


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:Earlier training of these weights drew persons by other ids")
def test_a_run_goes_on_with_the_same_persons_only(tmp_path):
    x, y = blobs(400)
    ids, other = np.arange(400) % 57, (np.arange(400) + 1) // 2 % 57
    fit = {**FIT, "epochs": 2, "rows_per_person": 2, "seed": 4}

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.model.stop_training or self.model.run.ledger.updates >= 7

    whole, part, wrong = mlp(), mlp(), mlp()
    whole.fit(x, y, person_ids=ids, **fit)
    for model, name in ((part, "a.keras"), (wrong, "b.keras")):
        model.fit(x, y, person_ids=ids, callbacks=[Stop()], **fit)
        model.save(tmp_path / name)
    part, wrong = (keras.saving.load_model(tmp_path / name) for name in ("a.keras", "b.keras"))
    part.fit(x, y, person_ids=ids, **fit)
    assert part.run.ledger == whole.run.ledger
    for a, b in zip(part.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    key = part.run.secret.basis
    wrong.fit(x, y, person_ids=other, **fit)
    assert wrong.run.secret.basis != key and wrong.run.ledger.updates > whole.run.ledger.updates  # a plan of its own


@pytest.mark.parametrize("source", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_begun_epoch_needs_its_ids_though_a_file_does_not_tell_them(tmp_path, source):
    """The model that wrote the file knows the epoch; under other ids somebody would be in it twice."""
    (x, y), model = rows(), dense()
    arguments = FIT | {"batch_size": 2, "sampling": "shuffle", "epochs": 2, "rows_per_person": 2}

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.model.run.ledger.updates == 2

    data = (sampling.Source(x), y) if source else (x, y)
    model.fit(*data, person_ids=IDS, callbacks=[Stop()], **arguments)
    model.save_weights(tmp_path / "m.weights.h5")
    model.load_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="other rows or ids"):
        model.fit(*data, person_ids=IDS.max() - IDS, **arguments)
    assert model.run.ledger.updates == 2
    model.fit(*data, person_ids=IDS, **arguments)
    assert model.run.ledger.updates == 8 == int(model.optimizer.iterations.numpy())


@pytest.mark.slow
@pytest.mark.backend_free
def test_files_of_a_run_without_a_seed_do_not_tell_the_ids(tmp_path):
    x, y = blobs(400)
    ids = np.arange(400) % 57
    for seed in (None, 3):
        model = mlp()
        model.fit(x, y, person_ids=ids, seed=seed, **FIT)
        held = json.loads(model.run.to_array().tobytes())["request"]
        assert held["rows_per_person"] == 8 and ("persons" in held) == (seed is not None)
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert loaded.run.request.continues(model.run.request)
        assert loaded.privacy.to_dict()["unit"] == "person"


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_persons(tmp_path):
    x, y = blobs(400)
    fit = {**FIT, "person_ids": np.arange(400) % 57, "epochs": 3, "strategy": "clipless"}
    model = mlp()
    model.fit(x, y, **{**fit, "epochs": 3}, callbacks=[callbacks.Checkpoint(tmp_path / "c.keras")])
    again = mlp()
    again.fit(x, y, **fit, callbacks=[callbacks.Checkpoint(tmp_path / "c.keras")])
    assert again.run.ledger == model.run.ledger


@pytest.mark.slow
@pytest.mark.backend_free
def test_rows_of_a_source_are_read_for_persons():
    x, y = blobs(400)

    class Rows:
        def __init__(self):
            self.read = []

        def __len__(self):
            return 400

        def __getitem__(self, index):
            self.read.append(index)
            return x[index], y[index]

    for strategy in ("clipless", "dpsgd", "dpis"):
        source, model = Rows(), mlp()
        model.fit(
            source, person_ids=np.arange(400) % 57, rows_per_person=2, batch_size=10, epochs=4, epsilon=50.0,
            delta=DELTA, strategy=strategy, verbose=0,
        )  # fmt: skip
        assert model.history.history["accuracy"][-1] > 0.8
        assert model.privacy.to_dict()["unit"] == "person"


@pytest.mark.slow
def test_importance_sampling_clips_once_per_person(monkeypatch):
    """Stored norms and contributions are those of persons."""
    x, y = rows()
    model = dense("sgd")
    seen = []
    draw = sampling.Proposal.draw

    def noted(self, rng):
        seen.append(self)
        return draw(self, rng)

    monkeypatch.setattr(sampling.Proposal, "draw", noted)
    model.fit(
        x,
        y,
        person_ids=IDS,
        batch_size=2,
        epochs=2,
        epsilon=20.0,
        delta=1e-2,
        strategy=strategies.DPIS(norm_sum_noise=5.0),
        verbose=0,
    )
    assert all(len(one.bounds) == len(SIZES) for one in seen)
    assert all(entry.sampling.num_examples == len(SIZES) for entry in model.run.ledger.entries)
    assert all(entry.sampling.unit == "person" for entry in model.run.ledger.entries)
    assert {entry.kind for entry in model.run.ledger.entries} == {"gradient", "norm_sum"}


@pytest.mark.backend_free
def test_importance_sampling_computes_the_gradient_of_the_average():
    x, y = rows()
    model = dense("sgd")
    strategy = strategies.DPIS(clip_norm=1e6)
    persons = sampling.Persons(IDS, 5)
    index, shares = persons.rows(np.arange(len(SIZES)), np.random.default_rng(0))
    used = shares > 0
    data = x[index.reshape(-1)] * used.reshape(-1, 1), y[index.reshape(-1)] * used.reshape(-1)
    data = [ops.convert_to_tensor(part) for part in (*data, shares)]
    found, _ = strategy.norms(backend.Forward(model, **values_of(model)), tuple(data))
    exact = averages(model, x, y, range(len(SIZES)))
    norms = [np.sqrt(sum((g**2).sum() for g in one)) for one in exact]
    np.testing.assert_allclose(ops.convert_to_numpy(found), norms, rtol=1e-4)
    more = [np.full(len(SIZES), 1e6), np.zeros(len(SIZES)), np.ones(len(SIZES))]
    more = [ops.convert_to_tensor(part.astype("float32")) for part in more]
    (sums, _, _), _, _ = strategy.proposed(backend.Forward(model, **values_of(model)), (*data, *more))
    for k, total in enumerate(sums):
        expected = sum(one[k] / norm for one, norm in zip(exact, norms, strict=True))
        np.testing.assert_allclose(ops.convert_to_numpy(total), expected, atol=2e-4)
