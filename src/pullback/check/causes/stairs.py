"""A function that is constant in steps, and a backward that says otherwise: straight-through, or a surrogate."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.probe import Probe
from pullback.check.registries import cause
from pullback.check.signature import Block, example, figure


@cause("straight-through estimator", priority=20)
def stairs(evidence: Evidence) -> Cause | None:
    """The output does not move at all where the backward says that it does."""
    block = Block.of(evidence)
    probe = Probe.of(evidence)
    if probe is None or bool(block.told.any()) or not bool(block.ours_told.any()):
        return None
    middle = probe.middle[:, None]
    for relative in (1e-4, -1e-4, 1e-6, -1e-6):
        if bool(((probe.values(probe.steps(relative)) != middle) & probe.open).any()):
            return None
    entries = block.ours[block.ours_told]
    text = f"{evidence.output} does not change at all near this {evidence.input}, yet {example(evidence, block)}"
    if bool((entries == 1).all()) and bool((block.ours_told.sum(0) <= 1).all()):
        return Cause(
            "straight-through estimator",
            f"{text}: the gradient is handed through as it came, as if {evidence.output} were {evidence.input}",
            "if that is meant, leave this function out of the check; else return zeros",
        )
    low, high = float(torch.min(entries)), float(torch.max(entries))
    return Cause(
        "surrogate gradient",
        f"{text}; the backward has values from {figure(low)} to {figure(high)}",
        "if a surrogate is meant, as for spikes, leave this function out of the check; else return zeros",
    )
