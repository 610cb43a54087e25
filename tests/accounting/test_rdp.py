"""RDP of sampled Gaussians at fractional orders, where the series of the library is loose or diverges."""

import pytest

from lipdp.accounting import Mechanism, rdp

pytestmark = pytest.mark.backend_free

# Rate, noise multiplier, order; the integral that defines the RDP in 40 digits (mpmath.quad).
EXACT = [
    (0.01, 1.0, 1.5, 0.00012725374332744983),
    (0.01, 1.0, 2.5, 0.00021757533228188047),
    (0.01, 0.6, 5.5, 2.01083103420008),
    (0.5, 1.0, 1.1, 0.156130475685493),
    (0.5, 2.0, 10.5, 0.6585099503800528),
    (0.9, 1.5, 3.7, 0.7240741719677547),
    (1e-4, 0.8, 12.5, 0.005022068234652203),
    (1e-3, 0.4, 1.9, 0.00041419632646707687),
    (0.2, 5.0, 62.5, 0.09611395131676492),
    (0.3, 0.5, 2.2, 2.2563217643273275),
]


@pytest.mark.parametrize(("rate", "noise", "order", "exact"), EXACT)
def test_fractional_orders_are_bounded_from_above_and_tightly(rate, noise, order, exact):
    (found,) = rdp.tight(rdp.kind(Mechanism(rate, noise, 1)), (order,))
    assert exact <= found <= exact * (1.0 + 2e-4) + 1e-14
