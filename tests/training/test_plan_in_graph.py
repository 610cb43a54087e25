"""Inside `fit`, the optimizer's own budget is that of the plan."""

import keras

from tests.helpers.models import DELTA, blobs, mlp


class Budget(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        optimizer = self.model.optimizer
        self.left = int(optimizer.budget) - int(keras.ops.convert_to_numpy(optimizer.iterations))


def test_the_budget_in_the_graph_is_that_of_the_plan():
    model, seen = mlp(), Budget()
    for _ in range(2):
        model.fit(*blobs(), batch_size=40, delta=DELTA, epochs=2, noise_multiplier=2.0, callbacks=[seen], verbose=0)
        assert seen.left == model.run.plan.updates == 20
