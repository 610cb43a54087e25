"""The steps of a user's own layer as a graph that trains: its weights become those of layers with fast gradients."""

import math
from typing import Any, NamedTuple

import keras
from keras import ops, tree

from lipdp import _keras
from lipdp.exporting import repeated
from lipdp.isolation.rules import is_array
from lipdp.layers import Weight


class Stays(Exception):
    """Why a layer is left as it is."""


class Steps:
    """Stands in for the weights that are attributes of a layer, and writes down what its `call` does with them.

    Args:
        layer: A layer whose weights all train.

    Attributes:
        stand_ins: A symbolic tensor for each attribute that is a weight, to be read by `call`.

    Raises:
        Stays: weights that are no attributes, do not train, or have constraints or regularizers.
    """

    def __init__(self, layer: keras.layers.Layer):
        own = {id(variable) for variable in _keras.all_own_variables(layer)}
        held = {name: value for name, value in vars(layer).items() if id(value) in own}
        if own != {id(variable) for variable in held.values()}:
            raise Stays("it holds weights of its own in lists")
        if not all(v.trainable and keras.backend.is_float_dtype(v.dtype) for v in held.values()):
            raise Stays("it has weights of its own that do not train")
        if any(v.constraint is not None or v.regularizer is not None for v in held.values()):
            raise Stays("its own weights have constraints or regularizers")
        self.stand_ins = {
            name: keras.Input(batch_shape=tuple(variable.shape), dtype=layer.compute_dtype)
            for name, variable in held.items()
        }
        for tensor in self.stand_ins.values():
            tensor.__class__ = _Symbol
        self._variables = {id(self.stand_ins[name]): variable for name, variable in held.items()}
        self._dtype = layer.dtype_policy
        self._made: dict[tuple, keras.layers.Layer] = {}
        self._taken: set[int] = set()

    def again(self, inputs: list, outputs: Any) -> Any:
        """Returns outputs of a graph that began in `inputs` and the stand-ins, once more, from `inputs` alone.

        Products and tables become layers of Keras that hold the weights, not copies; all else reads a weight once for
        each row. So do layers that are called on a constant beside rows, a mask say.
        """
        graph = keras.Function([*inputs, *self.stand_ins.values()], outputs)
        nodes = _keras.nodes(graph)
        tensors = {id(tensor): tensor for tensor in graph.inputs}
        added: set[int] = set()
        for node in nodes:
            args, kwargs = tree.map_structure(
                lambda value: tensors[id(value)] if isinstance(value, keras.KerasTensor) else value,
                (node.arguments.args, node.arguments.kwargs),
            )
            if self._only_more_axes(node, args):  # which reading it for each row adds by itself
                found = args[0]
            elif _keras.operation_name(node.operation) == "GetItem" and id(args[0]) in self._variables:
                (found,) = node.output_tensors  # stands for it, until it is known what it meets
                key = tuple(args[1]) if isinstance(args[1], (list, tuple)) else (args[1],)
                self._variables[id(found)] = _Part(self._variables[id(args[0])], key, tuple(found.shape))
            elif id(node) in added:  # to the product before it
                found = next(t for t in tree.flatten((args, kwargs)) if id(t) not in self._variables)
            elif not any(id(value) in self._variables for value in tree.flatten((args, kwargs))):
                found = _with_rows(node, args, kwargs, inputs[0])
            else:
                bias = _bias(node, nodes, graph.outputs, self._variables)
                added.update([id(bias[0])] if bias else [])
                found = self._on_weights(node, args, kwargs, bias[1] if bias else None, inputs[0])
            tensors.update({id(old): new for old, new in zip(node.output_tensors, tree.flatten(found), strict=True)})
        return tree.map_structure(lambda tensor: tensors[id(tensor)], outputs)

    def _only_more_axes(self, node, args) -> bool:
        """Whether a step does nothing but to put axes in front of a weight."""
        variable = self._variables.get(id(args[0])) if args else None
        if variable is None or _keras.operation_name(node.operation) not in ("GetItem", "ExpandDims", "Reshape"):
            return False
        before, after = tuple(variable.shape), tuple(node.output_tensors[0].shape)
        more = len(after) - len(before)
        return more >= 0 and after == (1,) * more + before

    def _on_weights(self, node, args, kwargs, bias, inputs):
        """Calls one step that reads weights."""
        name, operation = _keras.operation_name(node.operation), node.operation
        variables = [self._variables.get(id(value)) for value in args]
        whole = not any(isinstance(variable, _Part) for variable in variables)
        if _multiplies(node, self._variables):
            kernel, units = variables[1], variables[1].shape[1]
            dense = keras.layers.Dense(units, use_bias=bias is not None, dtype=self._dtype)
            return self._layer(dense, [kernel, *([] if bias is None else [bias])], args[0].shape)(args[0])
        if name == "Einsum" and len(args) == 2 and variables[0] is None and whole and "->" in operation.subscripts:
            letters, shape = operation.subscripts.split("->")[1], node.output_tensors[0].shape[1:]
            shape = shape[len(shape) - len(letters.strip(" .")) :] if "..." in letters else shape
            dense = keras.layers.EinsumDense(operation.subscripts, shape, dtype=self._dtype)
            return self._layer(dense, variables[1:], args[0].shape)(args[0])
        if (
            name == "Take"
            and whole
            and variables[0] is not None
            and operation.axis == 0
            and len(variables[0].shape) == 2
        ):
            table = keras.layers.Embedding(*variables[0].shape, dtype=self._dtype)
            return self._layer(table, variables[:1], args[1].shape)(args[1])
        if name == "BroadcastTo":
            return self._rows(variables[0], len(operation.shape), inputs)
        tensors = [value for value in tree.flatten((args, kwargs)) if isinstance(value, keras.KerasTensor)]
        rank = max((len(t.shape) for t in tensors if id(t) not in self._variables), default=None)
        args, kwargs = tree.map_structure(
            lambda v: self._rows(self._variables[id(v)], rank, inputs) if id(v) in self._variables else v,
            (args, kwargs),
        )
        if name == "Add" and any(v is not None and math.prod(v.shape) == 1 for v in variables[1:]):
            args = args[::-1]  # as a second term Keras may take a number of each row for a bias
        return operation(*args, **kwargs)

    def _rows(self, variable, rank, inputs):
        """Returns a weight once for each row, with as many axes as what it meets."""
        shape = tuple(variable.shape)
        for_rows = shape[:1] == (1,) and len(shape) == (rank or len(shape))
        rank = rank or len(shape) + (not for_rows)
        inner = shape[1:] if for_rows else ((1,) * (rank - 1 - len(shape)) + shape)
        if len(inner) != rank - 1:
            raise Stays("a weight of its own has an axis in the place of the rows")
        if isinstance(variable, _Part):
            tensor = self._rows(variable.of, len(variable.of.shape) + 1, inputs)[(slice(None), *variable.key)]
        else:
            tensor = self._layer(Weight(shape, dtype=self._dtype), [variable], inputs.shape)(inputs)
        return tensor if inner == shape else ops.reshape(tensor, (-1, *inner))

    def _layer(self, layer, variables, input_shape):
        """Builds a layer of weights that exist; returns the one that holds them where there is one."""
        key = (type(layer), *map(id, variables))
        if key not in self._made:
            if any(v is None for v in variables) or not self._taken.isdisjoint(map(id, variables)):
                raise Stays("it uses a weight of its own in several ways")
            self._taken.update(map(id, variables))
            given = iter(variables)
            vars(layer)["add_weight"] = lambda *args, **kwargs: next(given)
            layer.build(input_shape)
            del vars(layer)["add_weight"]
            self._made[key] = layer
        return self._made[key]


class _Part(NamedTuple):
    """What a key picks of a weight, or of another part."""

    of: Any
    key: tuple
    shape: tuple


class _Symbol(keras.KerasTensor):
    """A symbolic tensor that takes `w[:n]` as tensors do: those of Keras want a tuple."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__((key,) if isinstance(key, slice) or key is Ellipsis or key is None else key)


def for_each_row(array: Any, tensor: Any) -> Any:
    """Returns a constant once for each row of a tensor; a first axis of one stands for the rows already."""
    array = ops.convert_to_numpy(array)
    array = array[0] if array.shape[0] == 1 else array
    truth = array.dtype == bool
    rows = repeated(array.astype("int32") if truth else array, tensor)
    return ops.greater(rows, 0) if truth else rows


def _with_rows(node, args, kwargs, inputs):
    """Calls one step on tensors that have rows."""
    operation = node.operation
    if _keras.operation_name(operation) == "Reshape" and operation.newshape[:1] == (None,):
        # The number of rows, as users spell it: (ops.shape(x)[0], ...). It has no value here.
        inner, sizes = args[0].shape[1:], operation.newshape[1:]
        if None not in inner and -1 in sizes:
            left = math.prod(inner) // math.prod(size for size in sizes if size != -1)
            sizes = tuple(left if size == -1 else size for size in sizes)
        return ops.reshape(args[0], (-1, *sizes))
    if isinstance(operation, keras.layers.Layer):
        args, kwargs = tree.map_structure(lambda v: for_each_row(v, inputs) if is_array(v) else v, (args, kwargs))
    return operation(*args, **kwargs)


def _multiplies(node, variables) -> bool:
    """Whether a step is a product `x @ w` with a matrix of the layer's own."""
    args = node.arguments.args
    if _keras.operation_name(node.operation) not in ("Matmul", "Dot") or len(args) != 2:
        return False
    kernel = variables.get(id(args[1]))
    return (
        isinstance(kernel, keras.Variable)
        and len(kernel.shape) == 2
        and id(args[0]) not in variables
        and len(args[0].shape) > 1
    )


def _bias(node, nodes, outputs, variables) -> tuple | None:
    """Returns the step that adds a vector of the layer's own to a product, and nothing else reads, with the vector."""
    product = node.output_tensors[0]
    readers = [other for other in nodes if any(tensor is product for tensor in other.input_tensors)]
    if not _multiplies(node, variables) or len(readers) != 1 or any(t is product for t in tree.flatten(outputs)):
        return None
    (reader,) = readers
    found = [v for t in reader.input_tensors if isinstance(v := variables.get(id(t)), keras.Variable)]
    adds = _keras.operation_name(reader.operation) == "Add" and len(reader.input_tensors) == 2
    return (reader, found[0]) if adds and found and tuple(found[0].shape) == product.shape[-1:] else None
