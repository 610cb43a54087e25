"""Whether a step is made of the layers and the loss that its noise was calibrated for."""

from __future__ import annotations

import keras

from lipdp import _keras, backend, bounds, isolation, losses
from lipdp.bounds import Bounds
from lipdp.strategies import Calibration
from lipdp.training import weights


class Unchanged:
    """Refuses a step under other bounds than those that the noise of a `fit` was calibrated for.

    A step is traced long after that, and again for other shapes of batches; callbacks have run in between. Layers of
    lipdp are fixed once they are built, but not those of Keras or of a user, nor which loss a model has.

    **Guarantee.** Conditions: made when the noise is calibrated; `check` is called where a step is traced and, as one
    that runs eagerly is not, in each of them. Then the bound of each gradient in a step is the calibrated one, as both
    are computed in the same way, the second one from what is traced. Not covered: a layer or a loss of a user's whose
    bounds do not follow what it computes; weights that are set by hand, until `hold`.

    Args:
        model: The model.
        calibration: What its strategy returned for it. Without bounds nothing is compared: where gradients are clipped,
            no bound of a layer or a loss counts.
    """

    def __init__(self, model: keras.Model, calibration: Calibration):
        self._model, self._expected = model, None
        if calibration.bounds is None:
            return
        # Bounds of a user's may follow from weights. JAX takes these out of their variables while it trains.
        own = [layer for layer in _keras.walk(model) if isolation.root(type(layer)) not in ("keras", "lipdp")]
        held = {id(v): v for layer in own for v in layer.variables}.values()
        self._held = [(v, keras.ops.convert_to_numpy(v)) for v in held]
        self._lipschitz, self._expected = self._bounds()

    def check(self) -> None:
        """Refuses what has changed, by name."""
        if self._expected is None:
            return
        try:
            difference = self._difference(*self._bounds())
        except ValueError as refusal:
            raise ValueError(_refusal(str(refusal).rstrip("."))) from refusal
        if difference is not None:
            raise ValueError(_refusal(difference))

    def hold(self) -> None:
        """Makes the bounds hold for weights that somebody has set, or refuses them."""
        weights.project(self._model)
        if self._expected is not None:
            self._held = [(v, old if v.trainable else keras.ops.convert_to_numpy(v)) for v, old in self._held]
            self.check()

    def _bounds(self) -> tuple[float, Bounds]:
        with backend.concrete(), keras.StatelessScope(self._held):
            lipschitz = losses.get(self._model.loss).lipschitz(self._model.output_shape[-1])
            return lipschitz, bounds.propagate(self._model, lipschitz)

    def _difference(self, lipschitz: float, found: Bounds) -> str | None:
        """Returns what differs, the cause of it where that is known; None where all weights have their bounds."""
        trained = {id(v) for layer in self._expected.layers for v in layer.variables}
        for variable in self._model.trainable_variables:
            if id(variable) not in trained:
                return f"'{variable.path}' did not train and does so now"
        pairs = [(self._expected.gradient(v), found.gradient(v), v.path) for v in self._model.trainable_variables]
        changed = [pair for pair in pairs if pair[0] != pair[1]]
        if not changed:
            return None
        if lipschitz != self._lipschitz:
            return _moved("the norm of the gradient of the loss", self._lipschitz, lipschitz)
        for before, now in zip(self._expected.layers, found.layers, strict=False):
            if before.layer is not now.layer:
                return f"layer '{now.name}' stands where '{before.name}' did"
            if before.lipschitz != now.lipschitz:
                return _moved(f"the constant of layer '{now.name}'", before.lipschitz, now.lipschitz)
            if before.input_bound != now.input_bound:
                return _moved(f"the norm at the input of layer '{now.name}'", before.input_bound, now.input_bound)
        return _moved(f"the norm of the gradient of '{changed[0][2]}'", *changed[0][:2])


def _moved(what: str, before: float, now: float) -> str:
    return f"{what} was at most {before:.6g} and is {now:.6g} now"


def _refusal(what: str) -> str:
    return (
        f"Since `fit` has calibrated its noise, what its bounds follow from has changed. Received: {what}. Leave loss "
        "and layers as they are while `fit` runs, in callbacks too; to change them in the course of training, call "
        "`fit` once for each value: the ledger goes on."
    )
