"""Norms: certified projections for training, exact norms for tests and certificates."""

from lipdp.norms.exact import conv_multiplicity, conv_operator_norm, spectral_norm
from lipdp.norms.filter_bank import filter_bank_norm
from lipdp.norms.fourier import conv_fourier_bound
from lipdp.norms.projection import L2Ball, RowBall, SpectralBall, project

__all__ = ["L2Ball", "RowBall", "SpectralBall", "project"]
__all__ += ["conv_fourier_bound", "conv_multiplicity", "conv_operator_norm", "filter_bank_norm", "spectral_norm"]
