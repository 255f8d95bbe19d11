"""The right numbers at the wrong elements: shifted by an index, reversed, or in another order."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.evidence import Cause, Evidence
from pullback.check.registries import cause
from pullback.check.signature import Block, example, several

_FAR = 3
_LEAST = 3
_MOST = 512


@cause("reversed", priority=57)
def flipped(evidence: Evidence) -> Cause | None:
    """Reverse mode is the derivative with a dimension in reversed order."""
    block = Block.of(evidence)
    into, out = evidence.input_shape, evidence.output_shape
    whole = block.numeric.reshape((*out, *into))
    if int(block.told.sum()) < 2:
        return None
    rows = [(dim,) for dim in range(len(out)) if out[dim] > 1]
    columns = [(len(out) + dim,) for dim in range(len(into)) if into[dim] > 1]
    for dims in [*columns, *rows, *(row + column for row in rows for column in columns)]:
        if block.says(whole.flip(dims).reshape(block.numeric.shape)):
            what = " and ".join(_name(evidence, dim) for dim in dims)
            return Cause(
                "reversed",
                f"the backward has the right numbers in reversed order along {what}, in "
                f"{several(int(block.told.sum()), 'entry')}: {example(evidence, block)}",
                "flip once more, or once less: the backward of a convolution uses the flipped kernel, that of a"
                " cumulative sum runs from the end",
            )
    return None


@cause("shifted", priority=58)
def shifted(evidence: Evidence) -> Cause | None:
    """Reverse mode is the derivative a few elements further along a dimension."""
    block = Block.of(evidence)
    shape = (*evidence.output_shape, *evidence.input_shape)
    whole, ours, told = block.numeric.reshape(shape), block.ours.reshape(shape), block.told.reshape(shape)
    if int(block.told.sum()) < _LEAST or not bool(block.wrong.any()):
        return None
    for dim in reversed(range(whole.dim())):
        for by in _shifts(whole.shape[dim]):
            rolled = whole.roll(by, dim)
            cut, edge = rolled.clone(), told.roll(by, dim).clone()
            at = 0 if by > 0 else cut.shape[dim] + by
            cut.narrow(dim, at, abs(by)).copy_(ours.narrow(dim, at, abs(by)))
            edge.narrow(dim, at, abs(by)).fill_(value=False)
            for candidate, word in ((rolled, "rolled"), (cut, "shifted")):
                if int(edge.sum()) >= _LEAST and block.says(candidate.reshape(block.numeric.shape)):
                    return Cause(
                        "off by one" if abs(by) == 1 else "shifted",
                        f"the backward has the right numbers {word} by {by:+d} along {_name(evidence, dim)}: "
                        f"{example(evidence, block)}",
                        f"move the gradient by {-by:+d} along that dimension: see the slices, the padding and the index"
                        " of the step before",
                    )
    return None


@cause("permuted", priority=59)
def permuted(evidence: Evidence) -> Cause | None:
    """Each column of reverse mode is another column of the derivative."""
    block = Block.of(evidence)
    n = block.numeric.shape[1]
    if not 3 <= n <= _MOST or int(block.told.any(0).sum()) < 3:
        return None
    order = _order(block)
    if order is None or not block.says(block.numeric[:, order]):
        return None
    moved = int((order != torch.arange(n, device=order.device)).sum())
    return Cause(
        "permuted",
        f"the backward has the right columns in another order: {moved} of {n} elements of {evidence.input} have the"
        f" gradient of another one; {example(evidence, block)}",
        "the backward of x[index] puts gradients to the same index: zeros.index_add_(0, index, grad)",
    )


def _order(block: Block) -> Tensor | None:
    """For each column of ours the only column of the differences that it equals; None if there is none."""
    away = (block.ours.mT[:, None, :] - block.numeric.mT[None, :, :]).abs() if block.ours.numel() < 2**16 else None
    if away is None:
        return None
    equal = (away <= 2 * block.slack.mT[:, None, :]).all(-1)
    single = bool((equal.sum(0) == 1).all()) and bool((equal.sum(1) == 1).all())
    return equal.to(torch.int8).argmax(1) if single else None


def _shifts(size: int) -> list[int]:
    far = min(_FAR, (size - 1) // 2)
    return [sign * by for by in range(1, far + 1) for sign in (1, -1)]


def _name(evidence: Evidence, dim: int) -> str:
    rank = len(evidence.output_shape)
    return f"dimension {dim} of {evidence.output}" if dim < rank else f"dimension {dim - rank} of {evidence.input}"
