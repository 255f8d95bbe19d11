"""Blame in forward mode: the call whose tangents disagree with reverse passes, or with themselves when batched.

A forward pass is bisected along the function's calls: the tangents of their results against reverse passes from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback.autodiff.attention import by_math, no_fast_path
from pullback.autodiff.linearize import Recorded, Tensors, batched, looped
from pullback.autodiff.program import Line, where
from pullback.autodiff.reach import nodes
from pullback.autodiff.watch import Made, Watched
from pullback.data.space import Space
from pullback.jacobian.compare import differ, pulled, stacks_of, tolerance_for, unequal
from pullback.jacobian.second import gradient, product_of
from pullback.jacobian.verify import inner, precise, random_vector


def forward_formula(lin: Recorded, until: float) -> str:
    """The first call whose result has another tangent than a reverse pass says."""
    if any("CompiledFunction" in name for name in {node.name() for node in nodes(lin.results)}):
        return "forward mode does not see what torch.compile compiled"
    tangent = random_vector(lin.columns, seed=100)
    watched = Watched(lin)
    with lin.again(), by_math(), no_fast_path(), torch.no_grad(), forward_ad.dual_level():
        pushed = watched.run(list(map(_dual, watched.points(), tangent)))
        tangents = [_tangent(made.value) for made in pushed]
    # A reverse pass has to draw the same random numbers.
    with lin.again(), by_math():
        leaves = [point.requires_grad_() for point in watched.points()]
        made = watched.run(leaves)
    if [each.value.shape for each in made] != [each.value.shape for each in pushed]:
        return ""
    tolerance = tolerance_for(tangents)
    seeds = random_vector(Space.of(tuple(tangents)), seed=5)
    weights = [seed / _size(part) for seed, part in zip(seeds, tangents, strict=True)]

    def wrong(some: slice) -> bool:
        """Whether any of some results is wrong: one reverse pass for all of them."""
        forward = inner(weights[some], tangents[some])
        chosen = [(each.value, weight) for each, weight in zip(made[some], weights[some], strict=True)]
        return unequal(forward, inner(pulled(chosen, leaves), tangent), tolerance)

    first = _first(wrong, len(tangents), until)
    return "" if first is None else _described(made[first], tangents[first], watched.hooks)


def derivative_of_forward(lin: Recorded, until: float) -> str:
    """The first call whose tangent has another derivative than by reverse passes."""
    if not lin.create_graph:
        return ""
    tangent = random_vector(lin.columns, seed=100)
    watched = Watched(lin)
    with lin.again(), by_math(), forward_ad.dual_level():
        points = [point.requires_grad_() for point in watched.points()]
        made = watched.run(list(map(_dual, points, tangent)))
        tangents = [_tangent(each.value) for each in made]
    tolerance = tolerance_for(tangents)
    seeds = random_vector(Space.of(tuple(each.detach() for each in tangents)), seed=5)
    weights = [seed / _size(part.detach()) for seed, part in zip(seeds, tangents, strict=True)]

    def wrong(some: slice) -> bool:
        chosen = [(each.value, weight) for each, weight in zip(made[some], weights[some], strict=True)]
        reverse = product_of(pulled(chosen, points, create_graph=True), tangent)
        forward = product_of(weights[some], tangents[some])
        return differ(gradient(forward, points), gradient(reverse, points), tolerance)

    first = _first(wrong, len(tangents), until)
    if first is None:
        return ""
    return f"the forward formula of {made[first].name} ({where(made[first].line)}) has a wrong derivative"


def batched_forward(lin: Recorded, until: float) -> str:
    """A call whose result has other tangents when they are sent at once."""
    watched = Watched(lin)
    calls: list[Made] = []

    def spread(*points: Tensor) -> Tensors:
        calls[:] = watched.run(points)
        return tuple(each.value for each in calls)

    def one(tangents: Tensors) -> Tensors:
        pushed: Any = torch.func.jvp(spread, watched.points(), tangents)
        return tuple(pushed[1])

    stacks = stacks_of(lin.columns)
    found = []
    for many in (batched(one), looped(one)):
        with lin.again(), by_math():
            found.append(many(stacks))
        if time.perf_counter() > until:
            return ""
    for call, at_once, alone in zip(calls, *found, strict=True):
        if differ([at_once], [alone]):
            return f"the batching rule in the forward formula of {call.name} ({where(call.line)}) is wrong"
    return ""


def _described(made: Made, tangent: Tensor, hooks: Sequence[Line | None]) -> str:
    """Why forward and reverse mode disagree by one result."""
    place = f"{made.name} ({where(made.line)})"
    if not made.recorded:
        return f"torch.no_grad() stops reverse passes at {place}, and forward mode does not see it"
    if hooks:
        lines = ", ".join(dict.fromkeys(map(where, hooks)))
        return f"a hook ({lines}) changes the gradient that reaches {place}, and forward mode does not see it"
    if not bool(tangent.isfinite().all()):
        return f"the tangent of {place} is infinite or NaN, its gradient is not"
    if not bool(tangent.any()):
        return f"forward mode gives zeros for {place}, a reverse pass does not"
    return f"the forward formula of {place} disagrees with its backward"


def _first(wrong: Callable[[slice], bool], count: int, until: float) -> int | None:
    """The first result that is wrong, by bisection over how many of them are looked at."""
    if not wrong(slice(count)):
        # A small error may drown among the others.
        alone = (k for k in range(count) if wrong(slice(k, k + 1)) or time.perf_counter() > until)
        found = next(alone, count)
        return found if found < count and time.perf_counter() < until else None
    right, found = 0, count
    while found - right > 1:
        if time.perf_counter() > until:
            return None
        middle = (right + found) // 2
        right, found = (right, middle) if wrong(slice(middle)) else (middle, found)
    return found - 1


def _dual(point: Tensor, tangent: Tensor) -> Tensor:
    """A dual number, which a gradient inside the function can be taken by."""
    dual: Tensor = forward_ad.make_dual(point.requires_grad_(), tangent)  # type: ignore[no-untyped-call]
    return dual


def _tangent(dual: Tensor) -> Tensor:
    """The tangent of a dual number; zeros where it has none."""
    primal, tangent = forward_ad.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return torch.zeros_like(primal) if tangent is None else tangent


def _size(tensor: Tensor) -> Tensor:
    """The size of a tensor's finite numbers, or 1."""
    size = torch.linalg.vector_norm(torch.nan_to_num(precise(tensor), posinf=0.0, neginf=0.0))
    return size if float(size) else torch.ones_like(size)
