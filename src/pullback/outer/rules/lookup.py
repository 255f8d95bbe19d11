"""Lookups: the gradient of what was looked up in a table is added to the rows it came from."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.autodiff.program import Step, View
from pullback.outer.contraction import Contraction, OneHot
from pullback.outer.rule import Around, Sample, named, rule

_AT = torch.tensor([[2, 0, 2], [1, 3, 0]])


@rule(
    "embedding_dense_backward",
    samples=(
        Sample(lambda g: torch.ops.aten.embedding_dense_backward(g, _AT, 5, -1, False), (2, 3, 4)),
        Sample(lambda g: torch.ops.aten.embedding_dense_backward(g, _AT, 5, 2, False), (2, 3, 4)),
    ),
)
def embedding(step: Step, result: View, program: Around) -> Contraction | None:
    """The gradient of an embedding's table; what was padded adds nothing to it."""
    arguments = named(step)
    grad = arguments["grad_output"]
    index = program.number(arguments["indices"])
    if index is None or arguments["scale_grad_by_freq"]:
        return None
    flat = index.detach().flatten().long()
    kept = (flat != arguments["padding_idx"]).nonzero().flatten()
    width = result.shape[1]
    lead = len(grad.shape)

    def layout(g: Tensor) -> Tensor:
        rows = g.reshape(*g.shape[: g.ndim - lead], len(flat), 1, width)
        return rows if len(kept) == len(flat) else rows.index_select(-3, kept.to(g.device))

    return Contraction(grad, layout, OneHot(flat[kept]), lambda r: r.unsqueeze(0))


@rule(
    "index_put",
    "_index_put_impl",
    "_unsafe_index_put",
    samples=(
        Sample(lambda g: torch.zeros(5, 4, dtype=g.dtype).index_put((_AT,), g, accumulate=True), (2, 3, 4)),
        Sample(lambda g: torch.zeros(5, 4, 2, dtype=g.dtype).index_put((_AT, _AT), g, accumulate=True), (2, 3, 2)),
        Sample(lambda g: torch.zeros(5, dtype=g.dtype).index_put((_AT,), g, accumulate=True), (2, 3)),
    ),
)
def put(step: Step, result: View, program: Around) -> Contraction | None:
    """What is added at indices of the first dimensions to a tensor of zeros."""
    arguments = named(step)
    grad, indices = arguments["values"], arguments["indices"]
    if not arguments["accumulate"] or program.is_seeded(arguments["self"]) or not program.is_seeded(grad):
        return None
    found = [program.number(index) for index in indices]
    if any(index is None or index.dtype in {torch.bool, torch.uint8} for index in found):
        return None
    at = torch.broadcast_tensors(*(index.detach().long() for index in found if index is not None))  # type: ignore[no-untyped-call]
    if tuple(grad.shape) != (*at[0].shape, *result.shape[len(at) :]):
        return None
    flat = torch.zeros_like(at[0])
    for index, size in zip(at, result.shape, strict=False):
        flat = flat * size + torch.where(index < 0, index + size, index)
    return _added(grad, flat, result, len(at))


@rule(
    "index_add",
    samples=(Sample(lambda g: torch.zeros(5, 4, dtype=g.dtype).index_add(0, _AT[0], g, alpha=1), (3, 4)),),
)
def add(step: Step, result: View, program: Around) -> Contraction | None:
    """What is added at indices of the first dimension to a tensor of zeros."""
    arguments = named(step)
    grad = arguments["source"]
    index = program.number(arguments["index"])
    plain = arguments["alpha"] == 1 and (arguments["dim"] == 0 or arguments["dim"] == -len(result.shape))
    if index is None or not plain or program.is_seeded(arguments["self"]) or not result.shape:
        return None
    return _added(grad, index.detach().long().reshape(-1), result, 1)


def _added(grad: View, index: Tensor, result: View, dims: int) -> Contraction:
    """Rows of ``grad`` added to the rows of a result whose first dimensions are counted as one."""
    flat = index.flatten()
    count, lead = len(flat), len(grad.shape)
    rows = 1
    for size in result.shape[:dims]:
        rows *= size
    width = result.numel // max(rows, 1)
    return Contraction(
        grad,
        lambda g: g.reshape(*g.shape[: g.ndim - lead], count, 1, width),
        OneHot(flat),
        lambda r: r.reshape(1, rows, width),
    )
