"""Operations on each element: all that torch tags as pointwise."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.sparsity.call import Call, Operand, all_of, rule
from pullback.sparsity.sets import Sets, union


@rule("pointwise")
def pointwise(call: Call) -> list[Sets | None]:
    """Each element depends on the elements of the operands in its place, whatever the operation is."""
    return [all_of(call, shape).scaled(None) for shape in call.shapes]


@rule("add", "sub")
def add(call: Call) -> Sets:
    """A sum: weights are kept, ``alpha`` multiplies the second."""
    alpha = call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1)
    sign = -1.0 if call.op._schema.name.startswith("aten::sub") else 1.0
    parts = []
    for place, operand in enumerate(call.args[:2]):
        if isinstance(operand, Operand) and operand.sets is not None:
            parts.append(operand.sets.scaled(_number(alpha, sign)) if place else operand.sets)
    return union(call.shapes[0], parts)


@rule("rsub")
def rsub(call: Call) -> Sets:
    """``other - alpha * self``."""
    alpha = call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1)
    parts = []
    for place, operand in enumerate(call.args[:2]):
        if isinstance(operand, Operand) and operand.sets is not None:
            parts.append(operand.sets if place else operand.sets.scaled(_number(alpha, -1.0)))
    return union(call.shapes[0], parts)


@rule("neg")
def neg(call: Call) -> Sets:
    """``-self``."""
    return all_of(call, call.shapes[0]).scaled(-1.0)


@rule("mul", "div")
def mul(call: Call) -> Sets:
    """A product: zero where a constant factor is zero; weighted where it is constant."""
    left, right = call.args[0], call.args[1]
    divides = "div" in call.op._schema.name
    if divides and call.kwargs.get("rounding_mode") is not None:
        return all_of(call, call.shapes[0]).scaled(None)
    if not isinstance(right, Operand):
        return _by_factor(call, left, right, divides)
    if left.sets is not None and right.sets is not None:
        return all_of(call, call.shapes[0]).scaled(None)
    if left.sets is not None:
        return _by_factor(call, left, right.value, divides)
    if divides:
        return all_of(call, call.shapes[0]).scaled(None)
    return _by_factor(call, right, left.value, divides=False)


@rule("where")
def where(call: Call) -> Sets | None:
    """Both sides, each only where a constant condition takes it."""
    if len(call.args) < 3:
        return None
    condition, *sides = call.args
    parts = []
    for side, taken in zip(sides, (True, False), strict=True):
        if isinstance(side, Operand) and side.sets is not None:
            found = side.sets.expand(call.shapes[0])
            if condition.value is not None:
                mask = condition.value.cpu() if taken else ~condition.value.cpu()
                found = found.only(mask.expand(call.shapes[0]))
            parts.append(found.scaled(None) if condition.value is None else found)
    return union(call.shapes[0], parts)


@rule("masked_fill")
def masked_fill(call: Call) -> Sets:
    """Where a constant mask is set, the filling value's dependencies; elsewhere the tensor's."""
    tensor, mask, value = call.args[:3]
    parts = []
    for side, taken in ((tensor, False), (value, True)):
        if isinstance(side, Operand) and side.sets is not None:
            found = side.sets.expand(call.shapes[0])
            if mask.value is not None:
                keep = mask.value.cpu() if taken else ~mask.value.cpu()
                found = found.only(keep.expand(call.shapes[0]))
            parts.append(found if mask.value is not None else found.scaled(None))
    return union(call.shapes[0], parts)


@rule("fill", "zero")
def fill(call: Call) -> Sets | None:
    """Everything is overwritten by one value."""
    value = call.args[1] if len(call.args) > 1 else None
    if isinstance(value, Operand) and value.sets is not None:
        return value.sets.expand(call.shapes[0])
    return None


def _number(alpha: object, sign: float) -> float | None:
    return sign * float(alpha) if isinstance(alpha, int | float) else None


def _by_factor(call: Call, seeded: Operand, factor: object, divides: bool) -> Sets:
    """A tensor times something constant: a number or a tensor, or None where its value varies."""
    shape = call.shapes[0]
    assert seeded.sets is not None
    found = seeded.sets.expand(shape)
    if isinstance(factor, bool | int | float):
        weight = 1.0 / factor if divides and factor else float(factor)
        if divides and not factor:
            return found.scaled(None)
        return found.scaled(weight) if factor else Sets(shape, ())
    if not isinstance(factor, Tensor) or factor.is_complex():
        return found.scaled(None)
    constant = factor.detach().cpu()
    if divides:
        return found.scaled(None)
    if constant.numel() == 1:
        number = float(constant)
        return found.scaled(number) if number else Sets(shape, ())
    zeros = constant == 0
    if bool(zeros.any()):
        found = found.only(~zeros.expand(shape))
    return found.scaled(constant.to(torch.float64).expand(shape))
