"""The statement says what was released, what holds and what does not."""

import dataclasses
import json
import math
import re

import jsonschema
import pytest

from lipdp.accounting import Sampling, gaussian
from lipdp.privacy.guarantee import Privacy, schema
from lipdp.privacy.ledger import Ledger, Release
from lipdp.privacy.statement import delta_in_words, in_plain_words, releases, right_guesses, shown

pytestmark = pytest.mark.backend_free

UPDATE = Release(
    sampling=Sampling().bind(60000, 256),
    noise_multiplier=1.1,
    sensitivity=0.0123,
    strategy="clipless",
    noise_allocation="global",
)


def flat(text):
    return re.sub(r"\s+", " ", text)


@pytest.fixture
def ledger():
    ledger = Ledger()
    ledger.charge(UPDATE, 2350)
    return ledger


def test_before_any_release():
    privacy = Privacy(Ledger(), 1e-5)
    assert privacy.epsilon() == 0.0
    assert privacy.updates == 0
    assert "Nothing has been released yet: epsilon = 0 at delta = 1e-05" in privacy.statement()
    assert json.loads(json.dumps(privacy.to_dict(), allow_nan=False))["epsilon"] == 0.0


def test_statement_holds_every_fact(ledger):
    text = Privacy(ledger, 1e-5, training_metrics=["loss", "accuracy"]).statement()
    assert max(map(len, text.splitlines())) <= 90
    for fact in (
        "2350 noisy updates", "epsilon = 0.9203 and delta = 1e-05", "one example", "add or remove one",
        "Poisson, as executed", "N = 60000", "treated as public", "B = 256", "q = 0.00426667",
        "noise multiplier = 1.1", "L2 sensitivity of the averaged gradient = 0.0123", "global", "clipless",
        "pld, dp_accounting 0.", "discretization 0.0001", "Amplification by sampling was used",
        "Keras' own fit", "code of the user",
        "optimizer", "averages of the weights", "Other models", "that a layer holds", "Early stopping",
        "model selection",
        "without any noise: loss, accuracy", "Preprocessing", "Floating-point", "not cryptographic", "secret",
        "running time", "realized size of each batch", "fixed in advance",
        "A fixed seed, should one be given: none was",
    ):  # fmt: skip
        assert fact in flat(text), fact


def test_dict_holds_the_same(ledger):
    facts = Privacy(ledger, 1e-5, seeded=True, training_metrics=("loss",)).to_dict()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["epsilon"] == ledger.epsilon(1e-5)
    assert facts["epsilon_without_amplification"] > 1000.0
    assert facts["releases"][0]["count"] == 2350
    assert facts["seed_fixed_by_user"] is True
    assert facts["training_metrics_outside_the_guarantee"] == ["loss"]


def test_special_cases_are_said(ledger):
    ledger.charge(dataclasses.replace(UPDATE, noise_multiplier=1.3), 100)
    text = flat(Privacy(ledger, 1e-4, "rdp", seeded=True).statement())
    assert "2 plans were run" in text
    assert "N = 60000 training examples. N is" in text
    assert "A FIXED SEED was used" in text
    assert "WARNING: delta is not below 1 / N" in text
    assert "orders from 1.1 to 1024" in text
    assert "none were logged" in text


@pytest.mark.slow
def test_plans_on_several_numbers_of_examples_are_said(ledger):
    for size in (70000, 50000):
        ledger.charge(dataclasses.replace(UPDATE, sampling=Sampling().bind(size, 256)), 10)
    text = flat(Privacy(ledger, 1e-6).statement())
    assert "N = 50000, 60000 or 70000 training examples, by plan. N is treated as public" in text


def test_no_guarantee_is_said():
    ledger = Ledger()
    ledger.charge(dataclasses.replace(UPDATE, noise_multiplier=0.0))
    privacy = Privacy(ledger, 1e-5)
    assert "NO finite guarantee" in privacy.statement()
    assert json.loads(json.dumps(privacy.to_dict(), allow_nan=False))["epsilon"] is None
    assert repr(privacy) == "Privacy(epsilon=inf, delta=1e-05, updates=1)"


def test_reads_the_ledger_each_time(ledger):
    privacy = Privacy(ledger, 1e-5)
    before = privacy.epsilon()
    ledger.charge(UPDATE, 1000)
    assert privacy.epsilon() > before
    assert privacy.updates == 3350
    assert privacy.epsilon(1e-6) > privacy.epsilon()
    assert len(repr(privacy)) < 80


def test_printed_epsilon_is_never_too_small():
    for value in (0.920200048, 0.99999, 9.9996, 1234.56, 1.0, 3e-7, 12345678.9):
        assert value <= float(shown(value)) <= value * 1.001
    assert shown(math.inf) == "inf"
    assert shown(None) == "infinite"


def test_bad_input(ledger):
    with pytest.raises(ValueError, match="`ledger` must be a Ledger"):
        Privacy([], 1e-5)
    with pytest.raises(ValueError, match="`delta` must be a number in"):
        Privacy(ledger, 0)
    with pytest.raises(ValueError, match="`accountant` must be one of"):
        Privacy(ledger, 1e-5, "x")
    with pytest.raises(ValueError, match="must be a list of names.*'loss'"):
        Privacy(ledger, 1e-5, training_metrics="loss")


SAMPLED = {
    "truncated_poisson": ("zero out one example", "truncated Poisson, as executed"),
    "fixed_size": ("replace one example by any other one", "fixed size, as executed"),
    "shuffle": ("zero out one example", "shuffled epochs, as executed"),
    "fixed_order": ("zero out one example", "epochs in a fixed order"),
}


@pytest.mark.parametrize("sampler", SAMPLED)
def test_each_sampler_is_stated_as_what_it_is(sampler):
    ledger = Ledger()
    ledger.charge(dataclasses.replace(UPDATE, sampling=Sampling(sampler).bind(60000, 256)), 300)
    privacy = Privacy(ledger, 1e-5)
    text = flat(privacy.statement())
    for words in SAMPLED[sampler]:
        assert words in text
    amplified = sampler in ("truncated_poisson", "fixed_size")
    assert ("Amplification by sampling was used" in text) == amplified
    assert ("No amplification by sampling was used" in text) == (not amplified)
    jsonschema.validate(privacy.to_dict(), schema())


@pytest.mark.slow
def test_groups_and_persons(ledger):
    privacy = Privacy(ledger, 1e-5)
    assert privacy.epsilon(group_size=0) == 0.0
    assert privacy.epsilon() == privacy.epsilon(group_size=1) < privacy.epsilon(1e-5, group_size=4)
    facts = privacy.to_dict(groups=[3, 5])
    assert [group["group_size"] for group in facts["groups"]] == [3, 5]
    assert facts["groups"][0]["epsilon"] < facts["groups"][0]["epsilon_without_amplification"]
    text = flat(Privacy(ledger, 1e-5, examples_per_person=4).statement())
    assert "one person with at most 4 examples" in text
    assert "add or remove all examples of one person, at most 4" in text
    assert f"epsilon = {shown(privacy.epsilon(group_size=4))} and" in text
    assert Privacy(ledger, 1e-5, examples_per_person=4).to_dict()["unit"] == "person"
    assert Privacy(ledger, 1e-5, "rdp").to_dict()["groups"] == []  # RDP knows none
    with pytest.raises(ValueError, match='"rdp" has no bound'):
        Privacy(ledger, 1e-5, "rdp").to_dict(groups=[2])
    with pytest.raises(ValueError, match="`groups` must be a positive integer"):
        privacy.to_dict(groups=[0])


def test_formats(ledger):
    privacy = Privacy(ledger, 1e-5, training_metrics=["val_[x]"])
    facts = json.loads(privacy.statement("json"))
    assert facts == privacy.to_dict()
    markdown = privacy.statement("markdown")
    assert markdown.startswith("# Privacy statement\n\n- 2350 noisy updates")
    assert "## Accounting" in markdown and "val\\_\\[x\\]" in markdown
    with pytest.raises(ValueError, match="`format` must be one of.*'markdown'.*'html'"):
        privacy.statement("html")


@pytest.mark.slow
def test_schema_is_valid_and_strict(ledger):
    jsonschema.Draft202012Validator.check_schema(schema())
    for privacy in (Privacy(Ledger(), 1e-5), Privacy(ledger, 1e-5), Privacy(ledger, 1e-5, "autodp", seeded=True)):
        jsonschema.validate(privacy.to_dict(), schema())
    facts = Privacy(ledger, 1e-5).to_dict()
    for bad in ({"epsilon": -1.0}, {"sampler": ["magic"]}, {"delta": 1.0}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(facts | bad, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({k: v for k, v in facts.items() if k != "accountant"}, schema())


def test_a_filter_states_its_budget(ledger):
    privacy = Privacy(ledger, 1e-5, "filter:12.0:2.0:1e-05")
    assert privacy.epsilon() == pytest.approx(2.0) and privacy.spent() < 1.5
    text = flat(privacy.statement())
    assert "epsilon = 2 and" in text and "fixed in advance" in text
    assert f"Used up so far: {shown(privacy.spent())}" in text
    assert "not needed" == privacy.to_dict()["plans_fixed_in_advance"]
    jsonschema.validate(privacy.to_dict(), schema())


def test_a_filter_states_nothing_for_other_groups(ledger):
    """Another path within the budget of one example costs a group more than this path does."""
    one = Privacy(ledger, 1e-5, "filter:12.0:2.0:1e-05")
    assert one.to_dict()["groups"] == [] and "Groups of" not in one.statement()
    for ask in (lambda: one.epsilon(group_size=2), lambda: one.to_dict(groups=[4]), lambda: one.statement(groups=[2])):
        with pytest.raises(ValueError, match="groups under a filter.*group_size=.*Ask for group_size=1"):
            ask()
    shuffled = Ledger()
    shuffled.charge(dataclasses.replace(UPDATE, sampling=Sampling("shuffle").bind(60000, 256), noise_multiplier=20.0))
    four = Privacy(shuffled, 1e-5, "filter:8.0:4.0:1e-05", examples_per_person=4)
    assert four.epsilon() == four.epsilon(group_size=4) == pytest.approx(4.0)
    for size in (1, 8):
        with pytest.raises(ValueError, match="Ask for group_size=4"):
            four.epsilon(group_size=size)


def test_an_exceeded_filter_states_no_epsilon(ledger):
    privacy = Privacy(ledger, 1e-5, "filter:12.0:1.0:1e-05")
    assert 1.0 < privacy.spent() < privacy.epsilon() == math.inf
    assert privacy.to_dict()["epsilon"] is None
    assert "NO finite guarantee" in flat(privacy.statement()) and "budget was exceeded" in flat(privacy.statement())
    jsonschema.validate(privacy.to_dict(), schema())


def test_an_epsilon_without_meaning_is_said():
    ledger = Ledger()
    ledger.charge(dataclasses.replace(UPDATE, noise_multiplier=0.2), 2000)
    assert "no meaningful guarantee" in flat(Privacy(ledger, 1e-5).statement())


def test_releases_of_one_kind_that_followed_from_others_are_one_line():
    update = dataclasses.replace(UPDATE, strategy="dpis")
    drawn = dataclasses.replace(UPDATE.sampling, sampling_probability=1.0)
    total = dataclasses.replace(update, kind="norm_sum", sampling=drawn, noise_multiplier=1200.0)
    ledger = Ledger()
    for release, count in ((total, 1), (update, 5), (total, 1), (dataclasses.replace(update, noise_multiplier=1.3), 7)):
        ledger.charge(release, count)
    lines = releases(Privacy(ledger, 1e-5, "rdp_order:8.0").to_dict())
    assert sorted(line.split(" (")[0] for line in lines) == ["12 x gradient", "2 x norm_sum"]


def test_training_that_followed_training_metrics_is_said(ledger):
    logged = {"training_metrics": ["loss"]}
    text = flat(Privacy(ledger, 1e-5, **logged, steered=["EarlyStopping (loss)"]).statement())
    assert "TRAINING FOLLOWED METRICS" in text and "the user accepted: EarlyStopping (loss)." in text
    assert "FOLLOWED" not in Privacy(ledger, 1e-5, **logged).statement()


@pytest.mark.parametrize("accountant", ["pld", "rdp", "filter:8.0:4.0:1e-05"])
def test_no_accountant_states_releases_that_it_does_not_cover(accountant):
    ledger = Ledger()
    ledger.charge(dataclasses.replace(UPDATE, kind="norm_sum", strategy="dpis"))
    found = Privacy(ledger, 1e-5, accountant)
    for ask in (found.epsilon, found.spent, found.to_dict):
        with pytest.raises(ValueError, match="does not cover"):
            ask()


def test_nobody_guesses_better_than_the_plain_words_say():
    """The best test between two Gaussians, the hardest pair of all, and what its total variation allows."""
    for mu in (0.01, 0.3, 1.0, 3.0):
        best = 0.5 * (1.0 + math.erf(mu / math.sqrt(8.0)))
        for delta in (1e-9, 1e-5, 0.01, 0.3):
            assert best <= right_guesses(gaussian.gaussian_epsilon(mu, delta), delta) + 1e-12
    for epsilon in (0.0, 0.1, 1.0, 8.0, 800.0):
        for delta in (1e-9, 1e-5, 0.3):
            # With delta the answer is given away, else it is right e^epsilon times as often as wrong.
            hardest = delta + (1.0 - delta) / (1.0 + math.exp(-epsilon))
            assert right_guesses(epsilon, delta) == pytest.approx(hardest, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "all training data but for one example, and who sees the weights after every update, can tell whether "
         "that example was used in at most 88.1 of 100 cases"),
        ({"examples_per_person": 3}, "but for the examples of one person,"),
        ({"neighboring_relation": "replace_one"}, "not which of two examples one of them was,"),
        ({"neighboring_relation": "replace_one", "examples_per_person": 3}, "can tell who it was in at most"),
        ({"neighboring_relation": "zero_out_one"}, "whether that example was used in at most"),
        ({"epsilon": 8.0}, "in at most 99.97 of 100 cases"),
        ({"epsilon": 1e-3}, "in at most 50.1 of 100 cases"),
        ({"epsilon": 20.0}, "this guarantee alone does not keep somebody who knows"),
        ({"epsilon": 2000.0}, "from telling whether that example was used."),
    ],
)  # fmt: skip
def test_plain_words(changes, words):
    facts = {"epsilon": 2.0, "delta": 1e-5, "neighboring_relation": "add_or_remove_one", "examples_per_person": 1}
    assert words in in_plain_words(facts | changes)


def test_plain_words_stand_in_the_statement_where_there_is_a_guarantee(ledger):
    privacy = Privacy(ledger, 1e-5)
    assert flat(in_plain_words(privacy.to_dict())) in flat(privacy.statement())
    for nothing in ({"epsilon": None}, {"epsilon": 0.0}):
        assert in_plain_words(privacy.to_dict() | nothing) is None
        assert delta_in_words(privacy.to_dict() | nothing) is None
    assert "In plain words" not in Privacy(Ledger(), 1e-5).statement()


@pytest.mark.parametrize(
    ("epsilon", "delta", "times", "rows"),
    [
        (2.0, 1e-5, "7.39 times (e^epsilon)", "100,000"),
        (9.0, 3e-7, "8,110 times (e^epsilon)", "3,333,333"),
        (2000.0, 0.01, "e^epsilon times", "100"),
    ],
)
def test_what_delta_is(epsilon, delta, times, rows):
    """Both numbers are rounded to the side on which the bound holds."""
    words = delta_in_words({"epsilon": epsilon, "delta": delta})
    assert f"at most {times} as likely in one" in words and f"plus delta: 1 in {rows}." in words
