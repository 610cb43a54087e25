"""`lipdp audit`."""

import json

import keras
import numpy as np
import pytest

import lipdp
from lipdp import layers, losses, strategies
from lipdp.audit import Audit
from lipdp.cli import audit, main
from tests.helpers.audit_faults import FAULTS

SHORT = ["--runs", "30", "--canaries", "64", "--seed", "0"]


@pytest.mark.slow
def test_a_strategy(capsys, tmp_path):
    plot = tmp_path / "audit.svg"
    assert main(["audit", "dpsgd", "--epsilon", "4", *SHORT, "--output", str(plot), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1.0 < found["epsilon_lower"] < found["epsilon"] <= 4.0 and found["confidence"] == 0.95
    assert found["written"] == str(plot) and plot.read_text().startswith("<?xml")


@pytest.mark.slow
def test_a_fault_ends_with_1(capsys):
    with FAULTS[0].inject():
        assert main(["audit", "dpsgd", "--epsilon", "4", "--runs", "100", "--canaries", "128", "--seed", "1"]) == 1
    assert "ABOVE THE STATED EPSILON" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "updates"), [("poisson", 4), pytest.param("shuffle", 4, marks=pytest.mark.backend_free)]
)
def test_a_run_is_audited_with_its_own_settings(capsys, tmp_path, sampling, updates):
    model = lipdp.DP_Sequential([layers.BoundedInput((4,), norm=1.0), layers.SpectralDense(2)])
    model.compile("sgd", loss=losses.SparseCategoricalCrossentropy())
    x, y = np.random.default_rng(0).standard_normal((40, 4)), np.arange(40) % 2
    model.fit(x, y, batch_size=20, epochs=2, noise_multiplier=1.5, delta=1e-3, sampling=sampling, verbose=0)
    model.save(tmp_path / "model.keras")
    assert main(["audit", str(tmp_path / "model.keras"), "--runs", "40", "--seed", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["strategy"], found["sampler"], found["updates"]) == ("clipless", sampling, updates)
    assert (found["noise_multiplier"], found["sampling_probability"]) == (1.5, 0.5)
    assert found["epsilon"] == pytest.approx(model.privacy.epsilon(1e-3), rel=1e-6) and found["delta"] == 1e-3
    assert found["run"] == {"epsilon": model.privacy.epsilon(), "updates": 4, "sampling_probability": 0.5}


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_run_with_an_augmentation_of_images_is_audited_without_it(capsys, tmp_path):
    model = lipdp.DP_Model.from_keras(
        keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    )
    model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    strategy = strategies.DPSGD(augmentation_multiplicity=2, augmentation=strategies.RandomShift(1))
    x, y = np.random.default_rng(0).standard_normal((40, 4, 4, 1)), np.arange(40) % 2
    model.fit(x, y, batch_size=20, noise_multiplier=1.5, delta=1e-3, strategy=strategy, verbose=0)
    model.save(tmp_path / "model.keras")
    assert main(["audit", str(tmp_path / "model.keras"), *SHORT]) == 0
    assert "Copies of a row were alike: its augmentation was left out." in capsys.readouterr().out


@pytest.mark.backend_free
def test_the_epsilon_of_the_audit_is_told_from_that_of_the_run():
    details = {"updates": 120, "sampling_probability": 0.5001}
    found = Audit(
        "white_box", "clipless", "poisson", "add_or_remove_one", 4.003, 1e-5, 0.95, {"curve": 3.4}, "curve", details
    )
    text = audit._beside(found, {"epsilon": 3.99988, "updates": 120, "sampling_probability": 0.49965})
    assert "The run states epsilon 4, for 120 updates with sampling probability 0.4996." in text
    assert "Audited were 120 updates with 0.5001" in text and "4.003 is their epsilon" in text


@pytest.mark.backend_free
def test_what_keeps_the_epsilon_or_the_bound_of_an_audit_low_is_said():
    """With the same updates, draws and noise 1.94 stood beside 2, and a bound of 0 beside both."""
    details = {"updates": 120, "sampling_probability": 0.5, "runs": 1}
    words = ("white_box", "dpsgd", "poisson", "add_or_remove_one", 1.94, 1e-5, 0.95, {"curve": 0.0, "one_run": 0.6})
    stated = {"epsilon": 2.0, "updates": 120, "sampling_probability": 0.5}
    found = Audit(*words, "curve", details)
    assert "The 2 noisy moments that the run released" in audit._beside(found, {**stated, "moments_left_out": 2})
    assert "moments" not in audit._beside(found, stated) and "--runs 8" in audit._beside(found, stated)
    assert "--runs" not in audit._beside(Audit(*words, "curve", {**details, "runs": 16}), stated)
    assert "which one the second line states was chosen before the audit" in found.statement()


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_moments_of_a_run_are_named(capsys, tmp_path):
    x, y = np.random.default_rng(0).standard_normal((200, 4)), np.arange(200) % 2
    recipe = lipdp.recipe((4,), 2, 200, epsilon=4.0)
    recipe.fit(x, y, epsilon=4.0, delta=1e-3, verbose=0).save(tmp_path / "model.keras")
    assert main(["audit", str(tmp_path / "model.keras"), "--seed", "0"]) == 0
    assert "noisy moments that the run released" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_recipe_on_a_data_set(capsys, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.uniform(size=(80, 6)).astype("float32"), y=np.arange(80) % 2)
    command = ["audit", "accurate", "--dataset", str(tmp_path / "mine.npz"), "--epsilon", "8", "--canaries", "30"]
    assert main([*command, "--seed", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["canaries"]) == ("one_run", 30)
    assert found["epsilon_lower"] <= found["epsilon"] <= 8.0


@pytest.mark.slow
def test_the_recipe_of_a_table_in_unknown_units(capsys, tmp_path):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(1000, 2)) * [1e-3, 1e4]).astype("float32")
    np.savez(tmp_path / "t.npz", x_train=x, y_train=(x[:, 0] > 0).astype("int64"))
    words = ["--epsilon", "8", "--canaries", "20", "--confidence", "0.9", "--json"]
    assert main(["audit", "accurate", "--dataset", str(tmp_path / "t.npz"), *words]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["epsilon"] <= 8.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such run"),
        (["dpsgd"], "`--epsilon` is required"),
        (["accurate", "--epsilon", "1"], "`--dataset` and `--epsilon` are required"),
        (["dpsgd", "--epsilon", "1", "--dataset", "digits"], "another kind of audit"),
        (["accurate", "--runs", "3"], "another kind of audit"),
        (["dpsgd", "--epsilon", "1", "--confidence", "2"], "confidence"),
        (["dpsgd", "--epsilon", "1", "--output", "nowhere/plot.svg"], "folder of the output does not exist"),
        (["dpsgd", "--epsilon", "1", "--output", "plot.xyz"], "Use .svg, .png or .pdf"),
    ],
)
def test_bad_input(capsys, arguments, message):
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_has_released_nothing(capsys, tmp_path):
    model = lipdp.DP_Sequential([keras.Input((2,)), layers.BoundedInput(norm=1.0), layers.SpectralDense(1)])
    model.compile("sgd", loss=losses.MeanAbsoluteError())
    model.save(tmp_path / "new.keras")
    assert main(["audit", str(tmp_path / "new.keras")]) == 2
    assert "released nothing" in capsys.readouterr().err
