"""Reductions: an element of the result depends on all elements that were reduced to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pullback.sparsity.call import Call, Operand, rule


@rule("sum", "mean")
def total(call: Call) -> Any:
    """A sum, or a sum times a constant: weights are kept."""
    named = call.named
    source = named["self"]
    dims = reduced_dims(source.ndim, named.get("dim"))
    factor = 1.0
    if call.op._schema.name == "aten::mean":
        count = source.numel // max(_numel(call.shapes[0]), 1)
        factor = 1.0 / max(count, 1)
    return source.sets.reduce(dims, keepdim=len(call.shapes[0]) == source.ndim, factor=factor)


@rule("nansum", "prod", "amax", "amin", "max", "min", "norm", "linalg_vector_norm", "var", "std", "var_mean",
      "std_mean", "logsumexp", "median", "nanmedian", "mode", "kthvalue", "aminmax", "special_logsumexp")  # fmt: skip
def reduction(call: Call) -> Any:
    """Any other function of the elements along some dimensions, or of two tensors on each element."""
    named = call.named
    if isinstance(named.get("other"), Operand):
        return NotImplemented
    source = named["self"]
    dims = reduced_dims(source.ndim, named.get("dim"))
    found = source.sets.scaled(None)
    return [found.reduce(dims, keepdim=len(shape) == source.ndim) for shape in call.shapes]


@rule("sort", "topk", "renorm", "_softmax", "_log_softmax", "softmax", "log_softmax", "msort")
def along(call: Call) -> Any:
    """Each element depends on all elements along a dimension (of ``renorm``: on all others, for one place along it)."""
    named = call.named
    source = named["self"]
    dims = reduced_dims(source.ndim, named.get("dim", 0))
    if call.op._schema.name == "aten::renorm":
        dims = [dim for dim in range(source.ndim) if dim not in dims]
    return [source.sets.scaled(None).reduce(dims, keepdim=True).expand(shape) for shape in call.shapes]


@rule("trace")
def trace(call: Call) -> Any:
    """The sum of the diagonal."""
    return call.args[0].sets.move(lambda part: part.diagonal()).reduce((0,), keepdim=False)


@rule("argmax", "argmin", "argsort", "all", "any", "count_nonzero", "bincount", "histc", "searchsorted", "bucketize",
      "nonzero", "unique_dim", "_unique2", "isin", "equal", "is_nonzero", "allclose", "is_same_size",
      "_has_same_storage_numel")  # fmt: skip
def discrete(call: Call) -> Any:
    """Piecewise constant: there is no derivative."""
    return [None for _ in call.shapes]


def reduced_dims(ndim: int, dim: Any) -> Iterable[int]:
    """The dimensions in an argument: one, several, or all where there is none."""
    if not ndim or dim is None or (isinstance(dim, list | tuple) and not dim):
        return range(ndim)
    return [dim % ndim] if isinstance(dim, int) else [each % ndim for each in dim]


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
