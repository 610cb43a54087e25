"""Who is in a batch."""

from lipdp.accounting.schemes import Sampling
from lipdp.sampling.allocation import AllocationSampler
from lipdp.sampling.arrays import as_arrays, split
from lipdp.sampling.batches import Batches, PaddedSize
from lipdp.sampling.columns import as_rows
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.persons import Chooser, Persons
from lipdp.sampling.poisson import PoissonSampler
from lipdp.sampling.proposal import Proposal, kept
from lipdp.sampling.reading import Reader, take_rows
from lipdp.sampling.schemes import get, make_sampler, register
from lipdp.sampling.source import Source
from lipdp.sampling.weighted import WeightedLabels, weight_and_labels, with_weights

__all__ = ["Batches", "PaddedSize", "Reader", "Source", "as_arrays", "as_rows", "split", "take_rows"]
__all__ += [
    "AllocationSampler",
    "EpochSampler",
    "FixedSizeSampler",
    "PoissonSampler",
    "get",
    "make_sampler",
    "register",
]
__all__ += ["Chooser", "Persons", "Proposal", "Sampling", "WeightedLabels", "kept", "weight_and_labels", "with_weights"]
