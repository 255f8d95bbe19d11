"""Products: of matrices, of batches of matrices, and of a column with a row."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.outer.contraction import Contraction, Dense, Layout, unchanged
from pullback.outer.rule import Around, Sample, named, rule, sample_tensor


def _columns(tensor: Tensor) -> Tensor:
    """A left factor ``(..., h, i, p)`` as ``(..., p, h, i)``."""
    return tensor.movedim(-1, -3)


def _rows(tensor: Tensor) -> Tensor:
    """A right factor ``(..., h, p, j)`` as ``(..., p, h, j)``."""
    return tensor.transpose(-2, -3)


def _one(layout: Layout) -> Layout:
    """The layout of a matrix as that of a batch of one."""
    return lambda tensor: layout(tensor.unsqueeze(-3))


def _several(layout: Layout) -> Layout:
    """The layout of a batch of matrices."""
    return layout


@rule(
    "mm",
    "bmm",
    samples=(
        Sample(lambda g: torch.mm(g, sample_tensor(3, 4)), (5, 3)),
        Sample(lambda g: torch.mm(sample_tensor(5, 3), g), (3, 4)),
        Sample(lambda g: torch.bmm(g, sample_tensor(2, 3, 4)), (2, 5, 3)),
        Sample(lambda g: torch.bmm(sample_tensor(2, 5, 3), g), (2, 3, 4)),
        Sample(lambda g: torch.mm(g, sample_tensor(0, 4)), (5, 0)),
    ),
)
def product(step: Step, result: View, program: Around) -> Contraction | None:
    """A product of matrices: what is summed over are the positions; a batch of them counts h."""
    left, right = step.args[:2]
    lift = _one if len(result.shape) == 2 else _several
    add = lift(unchanged)
    if program.is_seeded(right):
        number = program.number(left)
        if number is None:
            return None
        return Contraction(right, lift(_rows), Dense(number, lift(_columns)), add)
    number = program.number(right)
    if number is None:
        return None
    return Contraction(left, lift(_columns), Dense(number, lift(_rows)), lambda r: add(r).transpose(-1, -2))


@rule(
    "mul",
    samples=(
        Sample(lambda g: g * sample_tensor(4), (3, 1)),
        Sample(lambda g: sample_tensor(4, 1) * g, (3,)),
        Sample(lambda g: g * sample_tensor(4, 2), ()),
        Sample(lambda g: g * sample_tensor(2, 1, 3), (4, 1)),
    ),
)
def broadcast(step: Step, result: View, program: Around) -> Contraction | None:
    """An outer product by broadcasting: no dimension that both factors have."""
    first, second = step.args[:2]
    seeded, other = (first, second) if program.is_seeded(first) else (second, first)
    number = program.number(other)
    if number is None or not result.numel:
        return None
    ndim = len(result.shape)
    own = [1] * (ndim - len(seeded.shape)) + list(seeded.shape)
    given = [1] * (ndim - number.ndim) + list(number.shape)
    shared = [dim for dim in range(ndim) if own[dim] > 1 and given[dim] > 1]
    if shared:
        return None
    along_j = [dim for dim in range(ndim) if own[dim] > 1]
    along_i = [dim for dim in range(ndim) if own[dim] == 1]
    width, height = seeded.numel, number.numel()

    def place(r: Tensor) -> Tensor:
        return r.permute(*along_i, *along_j).reshape(1, height, width)

    return Contraction(
        seeded,
        lambda g: g.reshape(*g.shape[: g.ndim - len(seeded.shape)], 1, 1, width),
        Dense(number, lambda a: a.reshape(1, 1, height)),
        place,
    )


@rule(
    "sum",
    samples=(
        Sample(lambda g: g.sum(), (3, 4)),
        Sample(lambda g: g.sum((0, 2), keepdim=True), (3, 4, 2)),
        Sample(lambda g: g.sum(1), (3, 4, 2)),
        Sample(lambda g: g.sum(0), (3, 4, 2)),
    ),
)
def total(step: Step, result: View, program: Around) -> Contraction | None:
    """A sum: the positions are the dimensions that it runs over, or all that a batch of products below it does."""
    arguments = named(step)
    summed = arguments["self"]
    ndim = len(summed.shape)
    dims = arguments.get("dim")
    over = sorted({dim % ndim for dim in dims} if dims and ndim else set(range(ndim)))
    kept = [dim for dim in range(ndim) if dim not in over]
    below = program.source(summed)
    if below is not None and over == [0] and below[0].op is torch.ops.aten.bmm.default and _is_all(summed, below[1]):
        inner = product(below[0], below[1], program)
        if inner is not None and isinstance(inner.coefficient, Dense):
            return _summed(inner, inner.coefficient)
    width = 1
    for dim in kept:
        width *= summed.shape[dim]
    count = 1
    for dim in over:
        count *= summed.shape[dim]

    def layout(g: Tensor) -> Tensor:
        lead = g.ndim - ndim
        ordered = g.permute(*range(lead), *(lead + dim for dim in (*over, *kept)))
        return ordered.reshape(*g.shape[:lead], count, 1, width)

    return Contraction(summed, layout, None, lambda r: r.reshape(1, 1, width))


def _is_all(view: View, result: View) -> bool:
    return (view.shape, view.stride, view.offset) == (result.shape, result.stride, result.offset)


def _summed(inner: Contraction, coefficient: Dense) -> Contraction:
    """A batch of products whose results are added up: the batch counts positions too."""

    def merged(layout: Layout) -> Layout:
        return lambda tensor: layout(tensor).flatten(-3, -2).unsqueeze(-2)

    def place(r: Tensor) -> Tensor:
        return inner.place(r.reshape(1, *r.shape[-2:]))

    return Contraction(inner.seeded, merged(inner.layout), Dense(coefficient.source, merged(coefficient.layout)), place)
