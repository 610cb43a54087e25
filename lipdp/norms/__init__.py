"""Spectral norms: certified projections for training, exact norms for tests and certificates."""

from lipdp.norms.exact import conv_multiplicity as conv_multiplicity
from lipdp.norms.exact import conv_operator_norm as conv_operator_norm
from lipdp.norms.exact import spectral_norm as spectral_norm
from lipdp.norms.filter_bank import filter_bank_norm as filter_bank_norm
from lipdp.norms.fourier import conv_fourier_bound as conv_fourier_bound
from lipdp.norms.projection import L2Ball as L2Ball
from lipdp.norms.projection import RowBall as RowBall
from lipdp.norms.projection import SpectralBall as SpectralBall
from lipdp.norms.projection import project as project
