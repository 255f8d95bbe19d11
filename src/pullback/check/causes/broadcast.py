"""An input that was broadcast: its gradient is the sum over all that it became, no less and no more."""

from __future__ import annotations

import torch

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example


@cause("missing sum over a broadcast dimension", priority=54)
def missing(evidence: Evidence) -> Cause | None:
    """Only the first or last of the broadcast elements reached the gradient."""
    block = Block.of(evidence)
    out, n = evidence.output_shape, block.numeric.shape[1]
    whole = block.numeric.reshape((*out, n))
    told = block.told.reshape((*out, n))
    for dim, size in enumerate(out):
        shared = told.any(dim=[each for each in range(len(out)) if each != dim]) if size > 1 else None
        if shared is None or not bool((shared.sum(0) > 1).any()):
            continue
        for index in (0, size - 1):
            kept = torch.zeros_like(whole)
            kept.select(dim, index).copy_(whole.select(dim, index))
            if block.says(kept.reshape(block.numeric.shape)):
                return Cause(
                    "missing sum over a broadcast dimension",
                    f"only index {index} of dimension {dim} of {evidence.output}, of size {size}, reaches the gradient"
                    f" by {evidence.input}, which stands behind all {size}: {example(evidence, block)}",
                    f"sum the gradient over that dimension: grad.sum({dim}), or"
                    f" grad.sum_to_size({evidence.input}.shape)",
                )
    return None


@cause("sum over too many dimensions", priority=64)
def surplus(evidence: Evidence) -> Cause | None:
    """The gradient was summed, or averaged, over a dimension that the input has."""
    block = Block.of(evidence)
    m, into = block.numeric.shape[0], evidence.input_shape
    whole = block.numeric.reshape((m, *into))
    dims: list[tuple[int, ...]] = [(dim,) for dim in range(len(into)) if into[dim] > 1]
    if len(dims) > 1:
        dims.append(tuple(each[0] for each in dims))
    for over in dims:
        reduced = [dim + 1 for dim in over]
        for candidate, word in ((whole.sum(reduced, keepdim=True), "sum"), (whole.mean(reduced, keepdim=True), "mean")):
            if block.says(candidate.expand(whole.shape).reshape(block.numeric.shape)):
                where = " and ".join(map(str, over))
                return Cause(
                    "sum over too many dimensions",
                    f"the gradient by {evidence.input} is the same along its dimension {where}: the {word} of what it"
                    f" should be there; {example(evidence, block)}",
                    f"keep dimension {where} of {evidence.input}: grad.sum_to_size({evidence.input}.shape)",
                )
    return None
