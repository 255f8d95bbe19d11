"""The call of ``clip_grad_norm_`` that runs now, found among the frames."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch import Tensor

from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import moved
from pullback.diagnose.values import Fix
from pullback.graph.frames import variables
from pullback.language import say

# What clipping calls of torch, to hear of it.
NORMS = frozenset({"_foreach_norm", "linalg_vector_norm"})
# What it calls if there is no gradient.
NOTHING = "tensor"
FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_")


def clipping_now() -> Mapping[str, Any] | None:
    """The variables of the ``clip_grad_norm_`` that runs now, or None."""
    here: FrameType | None = sys._getframe(1)
    depth = 0
    while here is not None and depth < 40:
        if here.f_code.co_name in FUNCTIONS and here.f_code.co_filename.endswith("clip_grad.py"):
            return variables(here)
        here, depth = here.f_back, depth + 1
    return None


def clipped(local: Mapping[str, Any]) -> list[Tensor]:
    """What is clipped."""
    given = local.get("parameters")
    if isinstance(given, Tensor):
        return [given]
    return [each for each in given if isinstance(each, Tensor)] if isinstance(given, list | tuple) else []


def between(clip: Spot, other: Spot, *, after: bool) -> Fix:
    """Have the clipping run after a pass, or before a step, where its line can be moved there."""
    blocks = {clip.source.parent(each) for each in (clip.statement, other.statement) if each is not None}
    edits = moved(clip, other, after=after) if len(blocks) == 1 else ()
    return Fix(
        say("Clip between backward() and step()."),
        "loss.backward()\ntorch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\noptimizer.step()",
        edits,
        "high" if edits else "medium",
    )
