"""What is shown while a model trains: never less than what is spent, seldom computed, lines in a terminal only."""

import sys

import keras
import numpy as np
import pytest

from lipdp import strategies
from lipdp.accounting import Sampling
from lipdp.privacy import Release
from lipdp.training import Run
from lipdp.training.progress import EpsilonSoFar, Line
from tests.helpers.models import DELTA, blobs, mlp

UPDATE = Release(
    sampling=Sampling().bind(1000, 10),
    noise_multiplier=1.0,
    sensitivity=0.1,
    strategy="clipless",
    noise_allocation="global",
)


class Clock:
    """Seconds by which updates and the accountant take their time."""

    def __init__(self, accountant):
        self.now, self.accountant = 0.0, accountant

    def __call__(self):
        return self.now


@pytest.mark.backend_free
@pytest.mark.parametrize("cost", [0.0, 0.3, 30.0])
def test_epsilon_is_never_below_what_is_spent_and_costs_little(monkeypatch, cost):
    run, clock, asked = Run(), Clock(cost), []
    so_far, spent = EpsilonSoFar(run, clock), Run.privacy

    def privacy(self, ahead=0):
        asked.append(ahead)
        clock.now += cost
        return spent(self, ahead)

    monkeypatch.setattr(Run, "privacy", privacy)
    shown = []
    for left in range(299, -1, -1):
        run.charge(UPDATE)
        clock.now += 1.0
        shown.append(so_far.value(left))
        assert shown[-1] >= run.ledger.epsilon(1e-5) * (1.0 - 1e-9)
    assert shown == sorted(shown)
    assert shown[-1] == run.ledger.epsilon(1e-5)
    assert run.ledger.updates == 300  # looking ahead charges nothing
    assert cost == 0.0 or (len(asked) - 3) * cost <= 0.06 * 300


@pytest.mark.backend_free
def test_a_run_ahead_is_charged_like_its_last_release():
    run = Run()
    assert run.privacy(5).spent() == 0.0
    run.charge(UPDATE, 3)
    assert run.privacy(7).updates == 10 and run.privacy().updates == 3


class Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.stated = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(dict(logs))
        self.stated.append(self.model.privacy.epsilon())


@pytest.mark.slow
@pytest.mark.backend_free
@pytest.mark.parametrize("strategy", ["clipless", strategies.DPIS()])
def test_the_bar_shows_epsilon_within_an_epoch(strategy, capsys):
    logs, model = Logs(), mlp()
    arguments = {"batch_size": 40, "delta": DELTA, "training_metrics": False, "strategy": strategy}
    history = model.fit(*blobs(), epochs=2, epsilon=1.0, callbacks=[logs], verbose=1, **arguments).history
    assert all(set(seen) == {"epsilon"} for seen in logs.seen) and len(logs.seen) == 20
    assert all(seen["epsilon"] >= stated * (1 - 1e-9) for seen, stated in zip(logs.seen, logs.stated, strict=True))
    for epoch in (0, 1):
        assert logs.seen[10 * epoch + 9]["epsilon"] == history["epsilon"][epoch]
    out = capsys.readouterr().out
    assert "epsilon: " in out and "updates:" not in out
    assert "compiled" not in out and "Gradient norms" not in out  # no terminal


@pytest.mark.slow
def test_without_a_bar_nothing_is_computed_for_it():
    logs, model = Logs(), mlp()
    model.fit(*blobs(), batch_size=40, epsilon=1.0, delta=DELTA, callbacks=[logs], verbose=0, training_metrics=False)
    assert all(seen == {} for seen in logs.seen)


@pytest.mark.slow
def test_a_terminal_is_told_what_it_waits_for(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    model, (x, y) = mlp(), (part[:397] for part in blobs())
    arguments = {"batch_size": 40, "delta": DELTA, "verbose": 1, "training_metrics": False, "steps_per_epoch": 10}
    # The number of examples is private here, and nothing that is shown tells it, but that a noisy count may be right
    # by chance: seeded, and with noise that makes this rare on whatever backend.
    arguments["seed"] = 1
    strategy = strategies.DPIS(count_noise=40.0)
    model.fit(x, y, epochs=2, epsilon=1.0, strategy=strategy, **arguments)
    out = capsys.readouterr().out
    assert out.count("The first update waits until it is compiled.") == 1
    assert "Gradient norms: 0% of the examples" in out and str(len(x)) not in out
    model.fit(x, y, epochs=1, epsilon=2.0, strategy=strategy, **arguments | {"verbose": 0})
    assert capsys.readouterr().out == ""


@pytest.mark.backend_free
def test_a_line_is_written_over_and_wiped(capsys, monkeypatch):
    monkeypatch.setattr("lipdp.training.progress._PAUSE", 0.0)
    line = Line(True)
    line.show("long text")
    line.show("short")
    line.wipe()
    line.wipe()
    assert capsys.readouterr().out == "\rlong text\rshort    \r     \r"
    Line(False).show("nothing")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.backend_free
def test_the_batches_of_a_dataset_give_the_expected_batch_size():
    import tensorflow as tf

    x, y = blobs()

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return x[i * 100 : (i + 1) * 100], y[i * 100 : (i + 1) * 100]

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    for data, expected in (((rows.batch(50),), 50), ((Rows(),), 100), ((rows,), 256), ((x, y), 256)):
        model = mlp()
        model.fit(*data, epsilon=1.0, delta=DELTA, verbose=0, training_metrics=False)
        assert model.run.plan.sampling.batch_size == expected
    model = mlp()
    model.fit(rows.batch(50), batch_size=80, epsilon=1.0, delta=DELTA, verbose=0, training_metrics=False)
    assert model.run.plan.sampling.batch_size == 80
    assert np.isfinite(model.privacy.epsilon())
