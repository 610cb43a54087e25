"""The table of what can be drawn, and what is known about it."""

import dataclasses

ADD_OR_REMOVE, ZERO_OUT, REPLACE = "add_or_remove_one", "zero_out_one", "replace_one"
RELATIONS = (ADD_OR_REMOVE, ZERO_OUT, REPLACE)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """What the library knows about one way to draw batches.

    Args:
        relations: neighboring relations with a known cost, the one that `fit` states first.
        group_relations: the same for groups of examples; empty where no sound cost of groups is known.
        announcement: how `fit` calls it.
        statement: how the privacy statement calls it.
        by_epoch: each example once per epoch: charged by the epoch, without amplification unless it allocates.
        has_capacity: larger draws are cut to a capacity, on which the cost depends.
        allocates: which update of an epoch an example is in is drawn uniformly, for each example by itself: an epoch is
            one release, which is amplified.
    """

    relations: tuple[str, ...]
    group_relations: tuple[str, ...]
    announcement: str
    statement: str
    by_epoch: bool = False
    has_capacity: bool = False
    allocates: bool = False


SCHEMES = {
    "poisson": Scheme(
        (ADD_OR_REMOVE, ZERO_OUT, REPLACE),
        (ADD_OR_REMOVE, ZERO_OUT),
        "Poisson sampling",
        "Poisson, as executed: each example enters each batch independently, with probability q.",
    ),
    "truncated_poisson": Scheme(
        (ZERO_OUT, REPLACE),
        (),
        "truncated Poisson sampling",
        "truncated Poisson, as executed: each example enters each batch independently, with "
        "probability q; from a batch that is too large a uniformly random part is dropped.",
        has_capacity=True,
    ),
    "fixed_size": Scheme(
        (REPLACE, ZERO_OUT, ADD_OR_REMOVE),
        (ADD_OR_REMOVE,),
        "batches of constant size",
        "fixed size, as executed: each batch is a uniformly random set of B examples.",
    ),
    "random_allocation": Scheme(
        (ADD_OR_REMOVE, ZERO_OUT),
        (),
        "random allocation, once per epoch",
        "random allocation, as executed: in each epoch of ceil(N / B) updates each example enters exactly one, "
        "drawn uniformly and independently of all others.",
        by_epoch=True,
        allocates=True,
    ),
    "shuffle": Scheme(
        (ZERO_OUT, REPLACE),
        (ZERO_OUT, REPLACE),
        "shuffled epochs, NOT amplified",
        "shuffled epochs, as executed: each example once per epoch, in a new random order each time.",
        by_epoch=True,
    ),
    "fixed_order": Scheme(
        (ZERO_OUT, REPLACE),
        (ZERO_OUT, REPLACE),
        "epochs in fixed order, NOT amplified",
        "epochs in a fixed order, as executed: each example once per epoch.",
        by_epoch=True,
    ),
}
SAMPLERS = tuple(SCHEMES)
# Refused by name, with the reason.
WITHOUT_ACCOUNTANT = {
    "balls_in_bins": "for bins that are kept from epoch to epoch only Monte Carlo estimates are known to us, which "
    "certify nothing; with fresh bins in each epoch it is 'random_allocation', which is charged by the bounds of arXiv "
    "2502.08202 and 2602.17284"
}
