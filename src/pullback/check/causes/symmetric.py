"""A square matrix of which a function reads one triangle, or that it takes to be symmetric."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example


@cause("symmetric matrix", priority=72)
def symmetric(evidence: Evidence) -> Cause | None:
    """Reverse mode is the derivative made symmetric, cut to a triangle, or with its diagonal scaled."""
    block = Block.of(evidence)
    shape = evidence.input_shape
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 2:
        return None
    m = block.numeric.shape[0]
    whole = block.numeric.reshape((m, *shape))
    at = evidence.at.detach().reshape(shape)
    if bool((at - at.mH).abs().max() <= 1e-12 * at.abs().max()):
        half = (whole + (whole.mH if whole.is_complex() else whole.mT)) / 2
        if block.says(half.reshape(m, -1)):
            return Cause(
                "gradient of a symmetric matrix",
                f"{evidence.input} is symmetric, and the backward spreads the derivative evenly over both triangles: "
                f"{example(evidence, block)}",
                "nothing, as long as the matrix stays symmetric",
                harmless=True,
            )
    for candidate, what, fix in _candidates(whole):
        if block.says(candidate.reshape(m, -1)):
            return Cause("triangles confused", f"{what}: {example(evidence, block)}", fix)
    return None


def _candidates(whole: Tensor) -> Iterator[tuple[Tensor, str, str]]:
    flipped = whole.mT
    yield whole.tril(), "the backward has the lower triangle only", "do not cut the gradient with tril()"
    yield whole.triu(), "the backward has the upper triangle only", "do not cut the gradient with triu()"
    yield whole + flipped, "the backward is the derivative and its transpose, added", "do not add the transpose"
    yield (whole + flipped) / 2, "the backward is made symmetric, the matrix is not", "do not make it symmetric"
    diagonal = torch.diag_embed(whole.diagonal(dim1=-2, dim2=-1))
    for factor in (2, 0.5, 0):
        word = f"the diagonal of the matrix has {factor} times its derivative, the rest is right"
        yield whole + (factor - 1) * diagonal, word, "halve the diagonal once: tril() with its diagonal times 1/2"
        if factor:
            word = f"everything but the diagonal of the matrix has {factor} times its derivative"
            yield factor * whole + (1 - factor) * diagonal, word, "count each off-diagonal element once"
