"""Who is in a batch."""

from lipdp.accounting.schemes import Sampling
from lipdp.sampling.arrays import as_arrays, split
from lipdp.sampling.batches import Batches, PaddedSize, take_rows
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler, noise_key
from lipdp.sampling.proposal import Proposal, kept, proposal_rng, statistics_rng
from lipdp.sampling.schemes import get, make_sampler, register

__all__ = [
    "Batches",
    "EpochSampler",
    "FixedSizeSampler",
    "PaddedSize",
    "PoissonSampler",
    "Proposal",
    "Sampling",
    "as_arrays",
    "get",
    "kept",
    "make_sampler",
    "noise_key",
    "proposal_rng",
    "register",
    "split",
    "statistics_rng",
    "take_rows",
]
