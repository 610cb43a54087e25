"""Fixed layers without a Lipschitz constant."""

from typing import Any

from lipdp.layers.base import LipschitzLayer


class Unbounded(LipschitzLayer):
    """Base of the fixed layers that have no Lipschitz constant of use; whatever follows reads them as unbounded.

    **Guarantee.** None of its own: each row of the output is a function of the same row of the input, as the subclass
    says.
    """

    # Why there is none, and what to do instead.
    unbounded_because = ""
    unbounded_way_out = ""

    def input_lipschitz(self, input_bounds: tuple[float, ...]) -> tuple[float, ...]:
        return (float("inf"),)

    def output_bound(self, input_bounds: tuple[float, ...]) -> float:
        return float("inf")

    def trained_lipschitz(self, input_bounds: tuple[float, ...]) -> Any:
        raise ValueError(
            f"Layer '{self.name}' of type {type(self).__name__} has no Lipschitz constant{self.unbounded_because}, so "
            f"no certificate holds in front of it. {self.unbounded_way_out}"
        )
