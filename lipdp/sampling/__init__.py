"""Who is in a batch."""

from lipdp.accounting.schemes import Sampling as Sampling
from lipdp.sampling.arrays import as_arrays as as_arrays
from lipdp.sampling.arrays import split as split
from lipdp.sampling.batches import Batches as Batches
from lipdp.sampling.batches import PaddedSize as PaddedSize
from lipdp.sampling.batches import take_rows as take_rows
from lipdp.sampling.epochs import EpochSampler as EpochSampler
from lipdp.sampling.fixed_size import FixedSizeSampler as FixedSizeSampler
from lipdp.sampling.poisson import PoissonSampler as PoissonSampler
from lipdp.sampling.poisson import noise_key as noise_key
from lipdp.sampling.proposal import Proposal as Proposal
from lipdp.sampling.proposal import kept as kept
from lipdp.sampling.proposal import proposal_rng as proposal_rng
from lipdp.sampling.proposal import statistics_rng as statistics_rng
from lipdp.sampling.schemes import get as get
from lipdp.sampling.schemes import make_sampler as make_sampler
from lipdp.sampling.schemes import register as register
