"""Contractions: products of matrices and tensors, summed over shared dimensions.

An element of the result depends on all elements of an operand along the contracted dimension, and not at all on where
it stands in the other operand: it is broadcast there. Where the other operand is a known constant, its zeros count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.sparsity.call import Call, Operand, rule
from pullback.sparsity.sets import Sets, union

# The zeros of a known matrix count up to so many products of single elements.
MOST_PRODUCTS = 2**25


@rule("mm", "bmm", "mv", "dot", "vdot", "matmul", "linear", "mkldnn_linear", "ger", "outer", "inner", "addmm",
      "baddbmm", "addmv", "addbmm", "addr", "_addmm_activation")  # fmt: skip
def product(call: Call) -> Any:
    """A product, and what is added to it."""
    named = call.named
    name = call.op._schema.name.removeprefix("aten::").rstrip("_")
    names = _FACTORS.get(name)
    if names is None or not all(isinstance(named.get(each), Operand) for each in names):
        return NotImplemented
    left, right = (named[each] for each in names)
    shape = call.shapes[0]
    added = named["self"] if name.startswith("add") or name in {"baddbmm", "_addmm_activation"} else named.get("bias")
    alpha, beta = named.get("alpha", 1), named.get("beta", 1)
    if name in {"ger", "outer", "addr"}:
        parts = _outer(left, right)
    elif name in {"linear", "mkldnn_linear"}:
        parts = _matrices(_sided(left), _swapped(_sided(right)))
    else:
        parts = _matrices(*_pair(left, right))
    parts = [part if alpha == 1 else part.scaled(_number(alpha)) for part in parts]
    if name == "addbmm":
        parts = [part.reduce((0,), keepdim=False) for part in parts]
    if isinstance(added, Operand) and added.sets is not None and beta != 0:
        parts.append(added.sets if beta == 1 else added.sets.scaled(_number(beta)))
    found = union(shape, [_fitted(part, shape) for part in parts])
    return found.scaled(None) if name == "_addmm_activation" else found


@rule("_trilinear")
def trilinear(call: Call) -> Any:
    """A product of three tensors, expanded along dimensions of their own, summed over some."""
    *factors, first, second, third, over = call.args[:7]
    expands = (first, second, third)
    ndim = factors[0].ndim + len(first)
    shapes = []
    for factor, new in zip(factors, expands, strict=True):
        sizes = list(factor.shape)
        for dim in sorted(new):
            sizes.insert(dim, 1)
        shapes.append(tuple(sizes))
    full = tuple(np.broadcast_shapes(*shapes))
    parts = []
    for factor, shape in zip(factors, shapes, strict=True):
        if factor.sets is not None:
            found = factor.sets.move(lambda part, shape=shape: part.reshape(shape)).scaled(None)
            parts.append(found.expand(full).reduce([dim % ndim for dim in over], keepdim=False))
    return union(call.shapes[0], parts)


@rule("linalg_cross")
def cross(call: Call) -> Any:
    """Each component depends on the two others."""
    named = call.named
    dim, shape = named["dim"], call.shapes[0]
    new, old = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 2, 0, 2, 0, 1])
    parts = [named[name].sets for name in ("self", "other") if named[name].sets is not None]
    return union(shape, [part.scaled(None).expand(shape).relate(dim, new, old, 3) for part in parts])


@rule("_cdist_forward")
def cdist(call: Call) -> Any:
    """Distances of all pairs of rows."""
    parts = []
    for place, operand in enumerate(call.args[:2]):
        if operand.sets is not None:
            rows = operand.sets.scaled(None).reduce((-1,), keepdim=True)
            parts.append(rows if place == 0 else rows.move(lambda part: part.transpose(-1, -2)))
    return union(call.shapes[0], parts)


@rule("_cdist_backward")
def cdist_backward(call: Call) -> Any:
    """The gradient of each row of the first from its distances, from the row itself, and from all of the second."""
    grad, first, second = call.args[:3]
    distances = call.args[4]
    shape = call.shapes[0]
    parts = [each.sets.scaled(None).reduce((-1,), keepdim=True) for each in (grad, distances) if each.sets is not None]
    if first.sets is not None:
        parts.append(first.sets.scaled(None))
    if second.sets is not None:
        parts.append(second.sets.scaled(None).reduce((-2,), keepdim=True))
    return union(shape, parts)


_FACTORS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "mv": ("self", "vec"), "dot": ("self", "tensor"),
    "vdot": ("self", "other"), "matmul": ("self", "other"), "linear": ("input", "weight"),
    "mkldnn_linear": ("self", "weight"), "ger": ("self", "vec2"), "outer": ("self", "vec2"), "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"), "addbmm": ("batch1", "batch2"), "addr": ("vec1", "vec2"),
    "_addmm_activation": ("mat1", "mat2"),
}  # fmt: skip

Side = tuple["Sets | None", "Tensor | None", tuple[int, ...]]


def _sided(operand: Operand) -> Side:
    value = operand.value
    known = value is not None and operand.sets is None and not value.is_complex()
    return operand.sets, value.detach().cpu() if value is not None and known else None, operand.shape


def _swapped(side: Side) -> Side:
    sets, value, shape = side
    moved = None if sets is None else sets.move(lambda part: part.transpose(-1, -2))
    return moved, None if value is None else value.transpose(-1, -2), (*shape[:-2], shape[-1], shape[-2])


def _pair(left: Operand, right: Operand) -> tuple[Side, Side]:
    """Both as (batches of) matrices."""
    first, second = _sided(left), _sided(right)
    if left.ndim == 1:
        first = _lifted(first, 0)
    if right.ndim == 1:
        second = _lifted(second, 1)
    return first, second


def _lifted(side: Side, dim: int) -> Side:
    sets, value, shape = side
    moved = None if sets is None else sets.move(lambda part: part.unsqueeze(dim))
    return moved, None if value is None else value.unsqueeze(dim), (*shape[:dim], 1, *shape[dim:])


def _matrices(left: Side, right: Side) -> list[Sets]:
    """What a product of (batches of) matrices depends on through each side."""
    parts = []
    if left[0] is not None:
        parts.append(_one_sided(left[0], left[2], right))
    if right[0] is not None:
        turned = _one_sided(_swapped(right)[0], _swapped(right)[2], _swapped(left))  # type: ignore[arg-type]
        parts.append(turned.move(lambda part: part.transpose(-1, -2)))
    return parts


def _one_sided(sets: Sets, shape: tuple[int, ...], other: Side) -> Sets:
    """``sets @ other``: sums over the last dimension of the first, by the known or unknown entries of the second."""
    _, value, sizes = other
    batch = tuple(np.broadcast_shapes(shape[:-2], sizes[:-2]))
    full = (*batch, shape[-2], sizes[-1])
    if value is not None:
        used = int(torch.count_nonzero(value))
        if used < value.numel() and used * shape[-2] <= MOST_PRODUCTS:
            return _by_matrix(sets, value, full, shape)
    return sets.scaled(None).reduce((-1,), keepdim=True).expand(full)


def _by_matrix(sets: Sets, value: Tensor, full: tuple[int, ...], shape: tuple[int, ...]) -> Sets:
    constant = value.to(torch.float64)
    rows, inner, columns = shape[-2], shape[-1], full[-1]
    if constant.ndim == 2:
        old, new = constant.nonzero().numpy().T
        return sets.relate(-1, new, old, columns, constant.numpy()[old, new]).expand(full)
    count = int(np.prod(full[:-2]))
    flat = constant.expand(*full[:-2], inner, columns).reshape(count, inner, columns)
    each, old, new = flat.nonzero().numpy().T
    weight = flat.numpy()[each, old, new]

    def laid(part: Tensor) -> Tensor:
        return part.expand(*full[:-2], rows, inner).reshape(count, rows, inner).transpose(0, 1).reshape(rows, -1)

    found = sets.move(laid).relate(1, each * columns + new, each * inner + old, count * columns, weight)
    return found.move(lambda part: part.reshape(rows, count, columns).transpose(0, 1).reshape(full))


def _outer(left: Operand, right: Operand) -> list[Sets]:
    shape = (left.numel, right.numel)
    parts = []
    if left.sets is not None:
        parts.append(left.sets.scaled(None).move(lambda part: part.unsqueeze(1)).expand(shape))
    if right.sets is not None:
        parts.append(right.sets.scaled(None).move(lambda part: part.unsqueeze(0)).expand(shape))
    return parts


def _fitted(part: Sets, shape: tuple[int, ...]) -> Sets:
    """Without the dimensions that vectors were given."""
    if len(part.shape) <= len(shape):
        return part
    return part.move(lambda each: each.reshape(shape))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
