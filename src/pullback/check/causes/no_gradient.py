"""No gradient at all: the path from the input to the output is cut."""

from __future__ import annotations

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, several


@cause("detached", priority=40)
def no_gradient(evidence: Evidence) -> Cause | None:
    """Reverse mode is zero everywhere, differences are not."""
    block = Block.of(evidence)
    if bool((block.ours != 0).any()) or not bool(block.told.any()):
        return None
    return Cause(
        "detached path",
        f"the gradient by {evidence.input} is 0 everywhere, but {evidence.output} depends on it: "
        f"{several(int(block.told.sum()), 'entry')} of {block.told.numel():,} by differences; "
        f"{example(evidence, block)}",
        f"look for .detach(), .data, .item(), numpy or no_grad on the way from {evidence.input} to {evidence.output};"
        " in a custom Function, for None or zeros returned in its place",
    )
