"""Nothing changed for users since 0.1.0 but names: its files, seeded results, numbers and statements."""

import json
import math
import shutil

import keras
import numpy as np
import pytest

import lipdp
from lipdp import certify
from lipdp.cli import main
from tests.golden import cases, keys, later, ledgers, stored

BACKEND = keras.backend.backend()
RUN = cases.HERE / "run_0_1_0"
# Of float32 results on another processor; numbers of the accountant are far more exact.
LOOSE, EXACT = 2e-4, 1e-9


def read(name):
    return json.loads((cases.HERE / name).read_text(encoding="utf-8"))


HELD, CONTINUED, SEEDED = read("held.json"), read(f"continued_{BACKEND}.json"), read(f"seeded_{BACKEND}.json")
ACCOUNTING, STATEMENTS = read("accounting.json"), read("statements.json")


def marked(names, fast, mark=pytest.mark.slow):
    return [pytest.param(name, marks=[] if name in fast else [mark]) for name in names]


def differences(found, expected, tolerance, path="", relative=True):
    """Where two JSON values differ; floats by more than the tolerance."""
    if isinstance(found, float) and isinstance(expected, (int, float)) and not isinstance(expected, bool):
        close = math.isclose(found, expected, rel_tol=tolerance, abs_tol=0.0 if relative else tolerance)
        return [] if close or found == expected else [f"{path}: {found!r} != {expected!r}"]
    if isinstance(found, dict) and isinstance(expected, dict):
        if found.keys() != expected.keys():
            return [f"{path}: keys {sorted(found.keys() ^ expected.keys())} on one side only"]
        return [d for k in found for d in differences(found[k], expected[k], tolerance, f"{path}/{k}", relative)]
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)) and len(found) == len(expected):
        pairs = zip(found, expected, strict=True)
        return [d for i, (a, b) in enumerate(pairs) for d in differences(a, b, tolerance, f"{path}/{i}", relative)]
    return [] if found == expected else [f"{path}: {found!r} != {expected!r}"]


def check(found, expected, tolerance=EXACT, **options):
    found, expected = cases.normal(json.loads(json.dumps(found))), cases.mended(cases.normal(expected))
    assert differences(found, expected, tolerance, **options) == []


def check_result(found, expected, columns=None):
    """Weights, noise, what is stated and the history of a fit, or some of its columns."""
    for mine, other in zip(found["weights"], expected["weights"], strict=True):
        norm = other[1]
        # A sum of n entries may be off by sqrt(n) times as much as their norm.
        np.testing.assert_allclose(mine[0], other[0], rtol=0, atol=10 * LOOSE * norm + 1e-6)
        np.testing.assert_allclose(mine[1:], other[1:], rtol=0, atol=LOOSE * norm + 1e-6)
    # Noise, sampling and costs of DPIS follow from computed norms; RDP at fractional orders was up to 1e-4 looser.
    computed = expected["privacy"]["adaptive"] or expected["privacy"]["accountant"]["name"] == "rdp"
    tolerance = LOOSE if computed else EXACT
    np.testing.assert_allclose(found["noise_std"], expected["noise_std"], rtol=max(tolerance, 1e-6))
    check(found["privacy"], expected["privacy"], tolerance)
    assert found["history"].keys() == expected["history"].keys()
    budget = expected["privacy"]["adaptive"] or expected["privacy"]["accountant"]["name"] == "filter"
    for column in columns or expected["history"]:
        values = expected["history"][column]
        if column == "epsilon" and budget:  # 0.1.0 logged what was used up
            values = [expected["privacy"]["epsilon"]] * len(values)
        np.testing.assert_allclose(found["history"][column], values, rtol=tolerance if column == "epsilon" else 1e-3)


# ---- model files ----------------------------------------------------------------------------------------------


@pytest.mark.backend_free
@pytest.mark.parametrize("name", stored.CASES)
def test_a_model_file_holds_and_states_what_it_did(name):
    found, expected = stored.held(stored.load(name)), HELD[name]
    assert found["digest"] == expected["digest"]
    np.testing.assert_allclose(found.pop("outputs"), expected["outputs"], rtol=LOOSE, atol=1e-5)
    check(found, {k: v for k, v in expected.items() if k != "outputs"})


@pytest.mark.parametrize("name", stored.WEIGHT_FILES)
def test_a_weight_file_holds_what_the_model_file_does(name):
    model, expected = stored.load(name, weights=True), HELD[name]
    assert cases.digest(model.get_weights()) == expected["digest"]
    check(model.privacy.statement(), expected["statement"])
    check(model.privacy.to_dict(), expected["privacy"])


CONTINUED_FAST = {"clipless_stopped", "dpsgd_views", "dpis", "filter"}
# They were saved within an epoch, without the order of its rows.
UNORDERED = ("shuffle", "fixed_order", "two_plans")


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", marked([n for n in stored.STOPPED if n not in UNORDERED], CONTINUED_FAST))
def test_the_same_fit_goes_on_from_a_file_to_the_same_end(name):
    with keys.of_0_1_0():
        check_result(stored.continued(name), CONTINUED[name])


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", UNORDERED)
def test_the_rest_of_an_epoch_is_left_out_of_a_file_without_the_order(name):
    """It costs what the whole epoch does."""
    with keys.of_0_1_0():
        found = stored.continued(name)
    check(found["privacy"], CONTINUED[name]["privacy"])
    assert found["history"]["loss"] != CONTINUED[name]["history"]["loss"]


@pytest.mark.parametrize("name", ["clipless_done", "clipless_unseeded"])
def test_a_spent_budget_stays_spent(name):
    model = stored.load(name)
    with pytest.raises(ValueError, match="budget is spent"):
        stored.fit(model, stored.CASES[name][1][-1])
    check(model.privacy.to_dict(), HELD[name]["privacy"])


@pytest.mark.slow
@pytest.mark.backend_free
def test_a_key_of_0_1_0_does_not_go_on():
    """It has 64 bits: a seeded file of 0.1.0 begins a stream of its own, and repeats from then on."""
    found = []
    for _ in range(2):
        model = stored.load("clipless_stopped")
        assert not model.optimizer.noise_key.numpy().any() and model.run.ledger.generators == ("threefry64",)
        found.append(cases.result(model, stored.fit(model, stored.CASES["clipless_stopped"][1][-1]))["weights"])
        assert model.run.ledger.generators == ("threefry64", "threefry") and model.run.repeatable
        assert "with one seed share noise" in " ".join(model.privacy.statement().split())
    assert found[0] == found[1] != CONTINUED["clipless_stopped"]["weights"]


@pytest.mark.slow
@pytest.mark.backend_free
def test_an_unfitted_file_trains():
    model = stored.load("clipless_unfitted")
    with keys.of_0_1_0():
        found = cases.result(model, stored.fit(model, stored.NOISE))
    check_result(found, SEEDED["clipless_global/poisson/whole"])


# ---- seeded results -------------------------------------------------------------------------------------------

SEEDED_FAST = {
    "clipless_global/poisson/whole",
    "clipless_global/shuffle/microbatches",
    "clipless_quantile/poisson/microbatches",
    "dpsgd_flat/fixed_size/microbatches",
    "dpsgd_per_layer/poisson/whole",
    "dpsgd_quantile/truncated_poisson/whole",
    "dpsgd_views/poisson/microbatches",
    "adaclip_layer/fixed_order/whole",
    "dpis/poisson/whole",
    "dpis_clip_scale/poisson/microbatches",
    "dpis_count_noise/poisson/whole",
    "other/clipless_executions",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(cases.seeded_cases(), SEEDED_FAST))
def test_seeded_results(name):
    with keys.of_0_1_0():
        check_result(cases.seeded(name), SEEDED[name])


@pytest.mark.backend_free
def test_both_backends_gave_the_same_results():
    """Same seed, batches and noise: the files differ by rounding; but each backend averages losses as it pads."""
    one, other = read("seeded_tensorflow.json"), read("seeded_jax.json")
    assert one.keys() == other.keys() == cases.seeded_cases().keys()
    for name in one:
        logged = one[name]["history"]
        check_result(cases.mended(one[name]), other[name], columns=logged.keys() - {"loss", "val_loss", "epsilon"})
        np.testing.assert_allclose(logged["epsilon"], other[name]["history"]["epsilon"], rtol=1e-3)


# ---- who took part --------------------------------------------------------------------------------------------


def one_hot(**options):
    """A model whose only kernel counts how often each of 20 rows took part, and its data."""
    parts = [keras.Input((20,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    model = lipdp.DP_Model.from_keras(keras.Sequential(parts))
    loss = keras.losses.MeanSquaredError()
    return cases.compiled(model, optimizer=keras.optimizers.SGD(1.0), loss=loss, **options)


def count(model, **arguments):
    """How often each row took part in all fits so far: gradients are far above the clip norm, noise is far below."""
    data = np.eye(20, dtype="float32"), np.full((20, 1), 100.0, "float32")
    settings = {"batch_size": 4, "noise_multiplier": 1e-4, "delta": 1e-3, "strategy": "dpsgd", "epochs": 1}
    cases.train(model, data, **settings | {"steps_per_epoch": 5, "callbacks": None} | arguments)
    return np.round(4.0 * model.get_weights()[0][:, 0], 1).tolist()


@pytest.mark.backend_free
@pytest.mark.parametrize("sampling", ["fixed_order", "shuffle"])
@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param({"physical_batch_size": 3, "training_metrics": False}, marks=pytest.mark.slow)],
    ids=["whole", "in parts"],
)
def test_each_example_takes_part_once_in_what_is_charged_as_one_pass(sampling, arguments, tmp_path):
    """Frameworks look at batches before they train: none may get lost, in one fit or in several."""
    model, arguments = one_hot(), {"sampling": sampling, **arguments}
    assert sum(count(model, callbacks=cases.stop_at(model, 2), **arguments)) == 8
    model.save(tmp_path / "m.keras")
    for each in (model, keras.saving.load_model(tmp_path / "m.keras")):
        assert count(each, **arguments) == [1.0] * 20
        assert [release["count"] for release in each.privacy.to_dict(())["releases"]] == [5]
        assert each.privacy.epsilon() == pytest.approx(lipdp.accounting.compose([_pass(sampling)], 1e-3))


def _pass(sampling):
    return lipdp.accounting.Mechanism(1.0, 1e-4, 1, sampling)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"steps_per_execution": 5}, {"steps_per_execution": 3}])
def test_several_steps_in_one_execution_lose_no_batch(options):
    model = one_hot(**options)
    steps = options["steps_per_execution"]
    found = count(model, steps_per_epoch=steps, epochs=2, sampling="fixed_order")
    assert sum(found) == 8 * steps and found == sorted(found, reverse=True)


# ---- accounting and statements --------------------------------------------------------------------------------

# More than a second each.
SLOW_CALLS = {"solve batch", "solve epochs", "most", "calibrate group", "calibrate truncated", "calibrate fixed size"}


@pytest.mark.backend_free
@pytest.mark.parametrize("name", marked(ledgers.CALLS, ledgers.CALLS.keys() - SLOW_CALLS))
def test_accounting(name):
    check(ledgers.value(name), ACCOUNTING[name])


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ledgers.LEDGERS)
def test_statements(name):
    expected = STATEMENTS[name]
    found = ledgers.described(name, expected["ledger"])
    for form in ("text", "markdown", "repr"):
        assert cases.normal(found[form]) == cases.mended(cases.normal(expected[form]))
    check(found["facts"], expected["facts"])


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ledgers.LEDGERS)
def test_the_text_of_a_ledger_is_read(name):
    mine = ledgers.privacy(name, STATEMENTS[name]["ledger"]).ledger
    assert mine.updates == STATEMENTS[name]["facts"]["updates"]
    assert type(mine).from_json(mine.to_json()) == mine


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("name", later.CASES)
def test_statements_of_what_came_later(name):
    found, expected = later.described(name), read("later.json")[name]
    for form in ("text", "repr", "facts", "plan"):
        check(found[form], expected[form])


# ---- run folder -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return shutil.copytree(RUN, tmp_path_factory.mktemp("runs") / "run_0_1_0")


def answer(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_folder_is_reported(folder, capsys):
    found = answer(capsys, "report", folder)
    check(found["privacy"], read("run_0_1_0/privacy.json"))
    check(found["held_out"], read("run_0_1_0/results.json")["held_out"])
    now, before = ((at / "report.md").read_text(encoding="utf-8").split("\n\n") for at in (folder, RUN))
    rest = map(cases.normal, now)
    # In this order; what numbers mean came in between.
    assert all(cases.normal(block) in rest for block in before)
    assert (folder / "report.html").is_file()


@pytest.mark.backend_free
def test_the_model_of_a_run_folder_is_certified(folder, capsys):
    found, expected = answer(capsys, "certify", folder), read("run_0_1_0/results.json")["held_out"]
    # One example of 360 may be on the other side on another processor.
    check({k: found[k] for k in expected}, expected, 5e-3, relative=False)


@pytest.mark.backend_free
def test_the_model_of_a_run_folder_states_what_was_written():
    model = keras.saving.load_model(RUN / "model.keras")
    assert isinstance(model, lipdp.DP_Model | lipdp.DP_Sequential)
    check(model.privacy.statement(), (RUN / "privacy.txt").read_text(encoding="utf-8"))
    check(model.privacy.to_dict(), read("run_0_1_0/privacy.json"))
    assert len(certify.radii(model, np.zeros((2, 8, 8, 1), "float32"))) == 2
