"""temp"""

import keras
from keras.src.models.functional import Functional


def walk(model, include_self=False):
    return model._flatten_layers(include_self=include_self)


def own_trainable_variables(layer):
    return layer._trainable_variables


def seed_generators(layer):
    return getattr(layer, "_seed_generators", ())


def nodes(layer):
    return layer._inbound_nodes


def takes_training(layer):
    return layer._call_has_training_arg


def loss_tracker(model):
    return model._loss_tracker


def updated_metrics(model, metrics, loss, x, y, y_pred, weight):
    return list(model._update_metrics_variables(metrics, loss, x, y, y_pred, weight)[1])


def build_metrics(model, batch):
    model._symbolic_build(data_batch=(*batch, batch[1]))
    model._compile_loss.built = True


def functional(model):
    graph = model._functional if isinstance(model, keras.Sequential) else model
    return graph if isinstance(graph, Functional) else None


def inputs_struct(graph):
    return graph._inputs_struct


def variable_index(optimizer, variable):
    return optimizer._get_variable_index(variable)


def learning_rate(optimizer):
    return optimizer._learning_rate


def untrack(optimizer, variable):
    optimizer._tracker.untrack(variable)


def optimizer_variables(optimizer):
    return optimizer._trainable_variables
