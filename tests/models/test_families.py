"""Fine-tuning of each family: `check` finds no fallback, `fit` moves what trains, and nothing else."""

import keras
import numpy as np
import pytest

import lipdp
from lipdp import gradients, isolation
from lipdp.gradients import rules
from lipdp.gradients.leaves import leaves

pytest.importorskip("keras_hub")
from tests.helpers import hub
from tests.helpers.reference import compare

# B0 of keras.applications holds the moments of ImageNet in a layer that could have been adapted to private rows.
pytestmark = pytest.mark.filterwarnings("ignore:What `adapt` reads")
# The others are run by make test-all.
_QUICK = ("vit",)
FAMILIES = {**hub.TEXT, **hub.IMAGES}


def _case(name):
    marks = [pytest.mark.backend_free] if name in _QUICK else [pytest.mark.slow]
    return pytest.param(name, id=name, marks=marks)


def classifier(backbone):
    """A new head on the first of what a backbone returns."""
    h = keras.tree.flatten(backbone.output)[0]
    while len(h.shape) > 3:
        h = keras.layers.Reshape((-1, h.shape[-1]))(h)
    h = keras.layers.GlobalAveragePooling1D()(h) if len(h.shape) == 3 else h
    return keras.Model(backbone.input, keras.layers.Dense(3)(h))


def partly_frozen(name):
    """Low-rank additions where layers take them, else the second half of the layers; and a head."""
    keras.utils.set_random_seed(0)
    backbone = hub.frozen_batch_normalization(FAMILIES[name]())
    if name in hub.TEXT or name in ("vit", "deit"):
        backbone.enable_lora(2)
    else:
        for layer in backbone.layers[: len(backbone.layers) // 2]:
            layer.trainable = False
    return classifier(backbone)


def fitted(model):
    """The changes of all variables by two private updates, as (of what trains, of what is frozen)."""
    kept = [v for v in model.variables if "seed" not in v.path]  # seeds of dropout move, too
    before = {id(v): keras.ops.convert_to_numpy(v) for v in kept}
    private = lipdp.DP_Model.from_keras(model)
    private.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    private.fit(hub.rows_for(model, 8), np.arange(8) % 3, batch_size=4, noise_multiplier=1.0, delta=1e-3, verbose=0)
    assert private.privacy.epsilon() > 0
    changes = {id(v): np.abs(keras.ops.convert_to_numpy(v) - before[id(v)]).max() for v in kept}
    trained = {id(v) for v in model.trainable_variables}
    return [changes[i] for i in changes if i in trained], [changes[i] for i in changes if i not in trained]


@pytest.mark.parametrize("name", [_case(name) for name in FAMILIES])
def test_what_trains_moves_and_what_is_frozen_does_not(name):
    model = partly_frozen(name)
    assert not isolation.foreign(model)
    assert rules.fallback not in [rule for _, rule in leaves(model)]
    trained, frozen = fitted(model)
    assert len(trained) > 2 and min(trained) > 0 and np.isfinite(trained).all()
    assert len(frozen) > 2 and max(frozen) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficient_net", "efficient_net_v2"])
def test_batch_normalization_of_an_efficient_net_is_replaced(name):
    keras.utils.set_random_seed(0)
    plain = classifier(FAMILIES[name]())
    with pytest.raises(ValueError, match="GroupNormalization"):
        gradients.supported(plain)
    model = lipdp.fix(plain, verbose=False)
    kinds = {type(layer) for layer in model._flatten_layers()}
    assert keras.layers.GroupNormalization in kinds and keras.layers.BatchNormalization not in kinds
    assert not isolation.foreign(model)
    assert rules.fallback not in [rule for _, rule in leaves(model)]
    compare(model, hub.rows_for(model), scaled=False)
    trained, _ = fitted(model)
    assert min(trained) > 0 and np.isfinite(trained).all()
