"""Who is in a batch."""

from lipdp.accounting.schemes import Sampling
from lipdp.sampling.arrays import as_arrays, split
from lipdp.sampling.batches import Batches, PaddedSize, take_rows
from lipdp.sampling.epochs import EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler
from lipdp.sampling.proposal import Proposal, kept
from lipdp.sampling.schemes import get, make_sampler, register

__all__ = ["Batches", "PaddedSize", "as_arrays", "split", "take_rows"]
__all__ += ["EpochSampler", "FixedSizeSampler", "PoissonSampler", "get", "make_sampler", "register"]
__all__ += ["Proposal", "Sampling", "kept"]
