"""Variables that keep their values whatever code of the user's does with them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from keras import ops


@contextlib.contextmanager
def kept(variables: Sequence[Any]) -> Iterator[None]:
    """Gives variables the values back that they have at the beginning, in a compiled step too."""
    values = [ops.copy(variable.value) for variable in variables]  # not the variable of TensorFlow itself
    yield
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
