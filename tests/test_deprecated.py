"""Names of earlier versions work for one release more, and warn."""

import importlib
import inspect
import sys
import types
import warnings

import keras
import pytest

from lipdp import _deprecated
from lipdp._deprecated import (
    renamed_arguments,
    renamed_attributes,
    renamed_keys,
    renamed_property,
    renamed_value,
)


@pytest.mark.parametrize(("old", "new"), _deprecated.MOVED.items())
def test_a_moved_module_is_found_by_its_old_name(old, new):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"`{old}` is deprecated: use `{new}`"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__name__ == module.__spec__.name == new


def test_the_warning_blames_the_line_that_imports():
    for name in ("lipdp.plan", "lipdp.ledger"):
        sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import lipdp.plan
        from lipdp.ledger import Ledger
    assert [warning.filename for warning in caught] == [__file__, __file__]
    assert Ledger is lipdp.privacy.Ledger and lipdp.plan.Plan is lipdp.privacy.Plan


def test_a_module_that_never_was_is_still_missing():
    with pytest.raises(ModuleNotFoundError, match="lipdp.plans"):
        importlib.import_module("lipdp.plans")


def test_attributes_of_a_module(monkeypatch):
    module = types.ModuleType("room")
    module.microbatch, module.__getattr__ = 3, renamed_attributes("room", rows="microbatch")
    monkeypatch.setitem(sys.modules, "room", module)
    with pytest.warns(DeprecationWarning, match="`room.rows` is deprecated: use `room.microbatch`"):
        assert module.rows == 3
    with pytest.raises(AttributeError, match="no attribute 'row'"):
        _ = module.row


def test_arguments_of_a_function():
    @renamed_arguments(views="copies")
    def total(x, copies=1):
        return x * copies

    assert total(2, copies=3) == total(2, 3) == 6
    with pytest.warns(DeprecationWarning, match="`views=` is deprecated: use `copies=`"):
        assert total(2, views=3) == 6
    with pytest.raises(TypeError, match="old name of `copies`"), pytest.warns(DeprecationWarning):
        total(2, views=3, copies=3)
    assert list(inspect.signature(total).parameters) == ["x", "copies"]


def test_arguments_of_a_layer_and_the_keys_of_an_old_file():
    @renamed_arguments(size="units")
    class Scale(keras.layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units = units

        @classmethod
        def from_config(cls, config):
            return cls(**renamed_keys(config, size="units"))

    with pytest.warns(DeprecationWarning, match="`size=` is deprecated") as caught:
        assert Scale(size=4, name="scale").units == 4
    assert caught[0].filename == __file__
    assert Scale(4).get_config()["units"] == 4
    assert Scale.from_config({"size": 5, "name": "old"}).units == 5
    assert Scale.from_config({"units": 5}).units == 5


def test_properties_and_values():
    class Box:
        width = 3
        breadth = renamed_property("breadth", "width")

        def __init__(self, mode="normalize"):
            self.mode = renamed_value("mode", mode, normalise="normalize")

    with pytest.warns(DeprecationWarning, match="`breadth` is deprecated: use `width`"):
        assert Box().breadth == 3
    with pytest.warns(DeprecationWarning, match="`mode='normalise'` is deprecated") as caught:
        assert Box("normalise").mode == "normalize"
    assert caught[0].filename == __file__
    assert Box(7).mode == 7


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("bounds", "Answers", "BoundRules"),
        ("bounds", "answers", "rules"),
        ("data", "made_up_text", "synthetic_text"),
        ("diffusion", "importance", "noise_level_importance"),
        ("diffusion", "nearest_neighbours", "nearest_neighbors"),
        ("diffusion", "neighbour_panel", "neighbor_panel"),
    ],
)
def test_renamed_names(module, old, new):
    module = importlib.import_module(f"lipdp.{module}")
    with pytest.warns(DeprecationWarning, match=f"{module.__name__}.{old}` is deprecated.*{new}"):
        assert getattr(module, old) is getattr(module, new)
