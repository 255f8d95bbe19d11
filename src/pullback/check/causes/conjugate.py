"""Complex numbers: a forgotten conjugate, or an imaginary part that is lost."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, several


@cause("missing conjugate", priority=46)
def conjugate(evidence: Evidence) -> Cause | None:
    """Reverse mode is the conjugate of the differences, or their real part."""
    block = Block.of(evidence)
    if not block.numeric.is_complex() or not bool((block.numeric.imag.abs() > 100 * block.slack).any()):
        return None
    count = several(int(block.told.sum()), "entry")
    if block.says(block.numeric.conj()):
        return Cause(
            "missing conjugate",
            f"the backward is the conjugate of what it should be in {count}: {example(evidence, block)}",
            "torch's gradient is conjugate: grad_input = grad * derivative.conj() for a holomorphic function; for a"
            " real output, twice its derivative by the conjugate of the input",
        )
    if block.says(torch.complex(block.numeric.real, torch.zeros_like(block.numeric.real))):
        return Cause(
            "imaginary part lost",
            f"the backward is the real part of what it should be in {count}: {example(evidence, block)}",
            "keep the gradient complex: no .real, no cast to a real dtype on the way",
        )
    return None
