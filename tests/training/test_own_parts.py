"""Strategies and accountants of the user's own: epsilon rests on what they say, which the statement says."""

import dataclasses
import json
from typing import ClassVar

import jsonschema
import keras
import pytest

import lipdp
from lipdp import accounting, privacy, strategies
from tests.helpers.models import blobs, mlp

pytestmark = pytest.mark.backend_free

FIT = {"batch_size": 100, "noise_multiplier": 1.0, "delta": 1e-3, "verbose": 0}


@keras.saving.register_keras_serializable(package="tests")
@dataclasses.dataclass(frozen=True)
class Mine(strategies.DPSGD):
    """Its name may be that of another one, but not its class."""

    name: ClassVar[str] = "mine"


class Cheap(accounting.Accountant):
    """It says what it likes."""

    name = "cheap"

    def epsilon(self, mechanisms, delta, rough=False):
        return 0.01

    def describe(self, mechanisms, delta):
        return {"name": self.name, "library": "mine", "version": "1", "settings": "none"}


def said(model):
    """What the statement names, facts and text alike."""
    jsonschema.validate(json.loads(model.privacy.statement("json")), privacy.schema())
    found, text = model.privacy.to_dict(()).get("unchecked", []), " ".join(model.privacy.statement().split())
    assert text.count("is the user's own: epsilon rests on it, and nothing has checked it.") == len(found)
    assert all(f"- {each[0].upper()}{each[1:]} is the user's own" in text for each in found)
    return found


@pytest.mark.slow
def test_own_strategies_and_accountants_are_named(tmp_path, monkeypatch):
    model = mlp()
    model.fit(*blobs(), **FIT, strategy="dpsgd", accountant="rdp")
    assert said(model) == []
    model.fit(*blobs(), **FIT, strategy=Mine())
    assert said(model) == ["strategy Mine"]
    monkeypatch.setitem(accounting.accountant._REGISTRY, "cheap", Cheap())
    model.fit(*blobs(), **FIT, strategy="dpsgd", accountant="cheap")
    assert said(model) == ["accountant Cheap", "strategy Mine"]
    model.save(tmp_path / "m.keras")
    assert said(keras.saving.load_model(tmp_path / "m.keras")) == ["accountant Cheap", "strategy Mine"]
    inputs = keras.Input((8,))
    assert said(lipdp.DP_Model(inputs, model(inputs))) == ["accountant Cheap", "strategy Mine"]
