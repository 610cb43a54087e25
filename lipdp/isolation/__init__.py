"""Layers, functions and losses that are neither Keras' nor lipdp's run one row at a time: no row can see another."""

from lipdp.isolation import hub
from lipdp.isolation.alone import (
    Arguments,
    alone,
    is_alone,
    isolated,
    refuse_keeping,
    refuse_mixing,
    row_states,
    seeds_of,
    synthetic,
    together,
    tokens,
)
from lipdp.isolation.declared import is_declared, row_wise
from lipdp.isolation.known import advice, at_once, foreign, root, stock_activation, suspects, trust_family, used

__all__ = ["Arguments", "advice", "alone", "at_once", "foreign", "hub", "is_alone", "is_declared", "isolated"]
__all__ += [
    "refuse_keeping",
    "refuse_mixing",
    "root",
    "row_states",
    "row_wise",
    "seeds_of",
    "stock_activation",
    "suspects",
    "synthetic",
    "tokens",
    "together",
    "trust_family",
]
__all__ += ["used"]
