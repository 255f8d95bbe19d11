"""A function that gives other numbers each time has no derivative to compare with."""

from __future__ import annotations

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import figure


@cause("random function", priority=5)
def random_function(evidence: Evidence) -> Cause | None:
    """Two evaluations at the same point that differ."""
    first, second = evidence.f(evidence.at.clone()).detach(), evidence.f(evidence.at.clone()).detach()
    gap = float((first - second).abs().nan_to_num(0).max()) if first.numel() else 0.0
    scale = float(first.abs().nan_to_num(0).max()) if first.numel() else 0.0
    if gap <= 1e-12 * scale:
        return None
    return Cause(
        "random function",
        f"two evaluations of {evidence.output} at the same {evidence.input} differ by {figure(gap)}, so differences"
        " say nothing",
        "draw the random numbers outside the function and hand them in, or fix the generator's seed inside it",
    )
