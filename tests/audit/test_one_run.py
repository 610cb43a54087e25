"""Canaries among the data of one training: what is learned shows, and no more than epsilon allows."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import audit, layers, losses
from lipdp.audit import training
from lipdp.audit.one_run import Agreement
from lipdp.audit.training import Fit, Rows, Worlds

SIZE = 64


def wide():
    """A linear model on one input for each canary: it can learn each by itself."""
    inputs = keras.Input((SIZE,))
    model = lipdp.DP_Model(inputs, keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")(inputs))
    model.compile(keras.optimizers.SGD(4.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def lipschitz():
    model = lipdp.DP_Sequential([layers.BoundedInput((SIZE,), norm=1.0), layers.SpectralDense(2)])
    model.compile(keras.optimizers.SGD(1.0, momentum=0.5), loss=losses.SparseCategoricalCrossentropy())
    return model


RNG = np.random.default_rng(0)
X, Y = np.zeros((40, SIZE), "float32"), np.arange(40) % 2
CANARIES = 20.0 * np.eye(SIZE, dtype="float32"), np.zeros(SIZE, int)
OTHERS = 20.0 * np.eye(SIZE, dtype="float32"), np.ones(SIZE, int)
STRONG = {"noise_multiplier": 0.15, "batch_size": 20, "epochs": 4, "strategy": "dpsgd", "delta": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("score", ["loss", "gradient"])
def test_what_is_learned_shows(score):
    found = audit.one_run(wide, X, Y, fit=STRONG, canaries=CANARIES, score=score, seed=1)
    assert 0.5 < found.epsilon_lower <= found.epsilon
    assert found.headline == "one_run_curve" and found.bounds["one_run"] <= found.epsilon_lower
    assert found.details["canaries"] == SIZE and found.details["num_examples"] == 40 + SIZE


@pytest.mark.backend_free
@pytest.mark.parametrize("sampling", ["fixed_size", "shuffle"])
def test_where_rows_are_replaced_epsilon_is_that_of_replacing_one(sampling):
    settings = {**STRONG, "sampling": sampling, "batch_size": 26}
    found = audit.one_run(wide, X, Y, fit=settings, canaries=CANARIES, others=OTHERS, seed=1)
    assert found.relation == "replace_one"
    assert 0.5 < found.epsilon_lower <= found.epsilon
    assert found.details["num_examples"] == 40 + SIZE


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_score_of_ones_own():
    def confidence_in_the_label(model, x, y):
        return -np.asarray(keras.ops.convert_to_numpy(model(x)))[np.arange(len(y)), y]

    found = audit.one_run(wide, X, Y, fit=STRONG, canaries=CANARIES, score=confidence_in_the_label, seed=1)
    assert found.epsilon_lower > 0.2 and found.details["score"] == "confidence_in_the_label"


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_strong_guarantee_hides_all():
    settings = {**STRONG, "noise_multiplier": 50.0}
    assert audit.one_run(wide, X, Y, fit=settings, canaries=CANARIES, seed=1).epsilon_lower < 0.2


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", ["clipless", "adaclip"])
def test_other_strategies(strategy):
    make = lipschitz if strategy == "clipless" else wide
    settings = {"epsilon": 20.0, "batch_size": 20, "epochs": 4, "strategy": strategy, "delta": 1e-3}
    found = audit.one_run(make, X, Y, fit=settings, canaries=CANARIES, score="gradient", seed=1)
    assert 0.0 <= found.epsilon_lower <= found.epsilon <= 20.0 and found.strategy == strategy


@pytest.mark.backend_free
def test_the_agreement_of_a_released_canary_is_its_own():
    """One full batch, hardly any noise: each gradient agrees with its own canary, and with no other."""
    model = wide()
    audit.observe.observe(model)
    watched = Agreement(model, Rows.of(*CANARIES), None)
    there = np.arange(SIZE) < SIZE // 2
    rows = Rows.of(*CANARIES)[there]
    model.fit(
        rows.x,
        rows.y,
        batch_size=len(rows),
        epochs=1,
        noise_multiplier=1e-3,
        strategy="dpsgd",
        verbose=0,
        delta=1e-3,
        callbacks=[watched],
        training_metrics=False,
    )
    assert watched.total[there].min() > 100.0 * np.abs(watched.total[~there]).max() / 500.0
    assert watched.total[there].min() > 0.0 > watched.total[~there].max()


@pytest.mark.backend_free
def test_made_up_canaries_have_wrong_labels():
    y = np.arange(40) % 3
    canaries, others = training.made_up(Rows.of(RNG.standard_normal((40, 5)), y), 30, np.random.default_rng(0))
    assert np.all(canaries.y != others.y) and np.array_equal(canaries.x, others.x)
    with pytest.raises(ValueError, match="too few"):
        training.made_up(Rows.of(np.zeros((5, 1)), np.zeros(5)), 6, np.random.default_rng(0))


@pytest.mark.backend_free
def test_worlds_leave_out_or_replace():
    rows, canaries, others = Rows.of([[9.0]], [9]), Rows.of([[1.0], [2.0]], [1, 2]), Rows.of([[3.0], [4.0]], [3, 4])
    there = np.array([True, False])
    found = Worlds("add_or_remove_one").data(rows, canaries, others, there)
    assert found.y.tolist() == [9, 1, 2] and np.isnan(found.x[:, 0]).tolist() == [False, False, True]
    assert Worlds("replace_one").data(rows, canaries, others, there).y.tolist() == [9, 1, 4]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fit": {"batch_size": 10}}, "epsilon"),
        ({"fit": {"epsilon": 1.0, "callbacks": []}}, "without data and callbacks"),
        ({"fit": {"epsilon": 1.0, "person_ids": np.arange(40)}}, "rows of nobody.*person_ids"),
        ({"fit": {"epsilon": 1.0, "sample_weight": np.ones(len(X) + 64)}}, "have no weights.*sample_weight"),
        ({"y": Y[:7]}, "as many rows.*7"),
        ({"canaries": (X[:5],)}, r"pair \(x, y\).*1 parts"),
        ({"canaries": (X[:5, :3], Y[:5])}, r"like those of the data.*\(3,\)"),
        ({"canaries": CANARIES, "others": (X[:5], Y[:5])}, "5 rows for 64 canaries"),
        ({"canaries": CANARIES, "others": 3}, "a int"),
        ({"score": "norm"}, "score"),
        ({"confidence": 0.0}, "confidence"),
        ({"canaries": 0}, "canaries"),
        ({"make_model": 3}, "must be a function"),
        ({"make_model": lipschitz()}, "the DP_Sequential itself. Pass a function that builds and compiles a new"),
        ({"make_model": lambda: keras.Sequential([keras.layers.Dense(1)])}, "compiled DP_Model"),
    ],
)
def test_bad_input(change, message):
    arguments = {"make_model": wide, "x": X, "y": Y, "fit": STRONG, "canaries": 10} | change
    with pytest.raises(ValueError, match=message):
        audit.one_run(**arguments)


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_plan_that_tells_who_was_there_is_refused():
    fit = Fit(wide, {"noise_multiplier": 1.0, "batch_size": 40, "delta": 1e-3, "strategy": "dpsgd"})
    fit.train(fit.model(), Rows.of(X, Y))
    with pytest.raises(ValueError, match="one plan"):
        fit.train(fit.model(), Rows.of(X, Y) + Rows.of(X[:1], Y[:1]))


@pytest.mark.backend_free
def test_fit_takes_the_relation_of_the_sampler():
    assert Fit(wide, {"epsilon": 1.0}).worlds.relation == "add_or_remove_one"
    assert Fit(wide, {"epsilon": 1.0, "sampling": "fixed_order"}).worlds.relation == "replace_one"


@pytest.mark.backend_free
@pytest.mark.slow
def test_a_diffusion_model_with_its_own_score():
    from lipdp import diffusion

    def make():
        network = diffusion.unet((8, 8, 1), num_classes=2, channels=8, multipliers=(1,), blocks=1, slim=True)
        model = diffusion.DiffusionModel(network, num_classes=2)
        model.compile("adam")
        return model

    def error(model, x, y):
        inputs = [keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y, "float32")]
        return keras.ops.convert_to_numpy(
            keras.ops.mean(keras.ops.square(model(inputs, training=True)), axis=(1, 2, 3))
        )

    images = RNG.standard_normal((32, 8, 8, 1)).astype("float32")
    settings = {"epsilon": 20.0, "batch_size": 16, "epochs": 1, "delta": 1e-3}
    found = audit.one_run(make, images, np.arange(32) % 2, fit=settings, canaries=16, score=error, seed=0)
    assert 0.0 <= found.epsilon_lower <= found.epsilon <= 20.0
    assert (found.strategy, found.details["updates"]) == ("dpsgd", 3)
