"""All faults, by area."""

from tests.mutations.lists import (
    accounting,
    audits,
    bounds,
    certificates,
    clipping,
    diffusion,
    gradients,
    isolation,
    layers,
    ledger,
    losses,
    moments,
    noise,
    norms,
    sampling,
    tables,
    texts,
    training,
)

FAULTS = [
    fault
    for area in (
        training,
        isolation,
        sampling,
        ledger,
        noise,
        clipping,
        diffusion,
        gradients,
        losses,
        moments,
        layers,
        bounds,
        norms,
        certificates,
        accounting,
        tables,
        texts,
        audits,
    )
    for fault in area.FAULTS
]
