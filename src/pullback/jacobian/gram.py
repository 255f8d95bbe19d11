"""Products of a Jacobian with itself: by layers where it is by parameters that examples share, else from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from pullback.data.space import Space
from pullback.jacobian import by_layers
from pullback.jacobian.by_layers import gram_in_parts
from pullback.jacobian.passes import Passes
from pullback.jacobian.verify import precise
from pullback.plan import Plan
from pullback.strategies.blocks import common_lead

# A smaller Jacobian is built before a program could be recorded.
FEWEST_ENTRIES = 2**17
# A Jacobian of so many bytes is built whole where its rows are needed.
WHOLE = 2**26

Made = tuple[Any, Plan]


class Rows(Protocol):
    """A Jacobian, as far as it is needed here."""

    @property
    def inputs(self) -> Space: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    def plan(self) -> Plan: ...

    def matrix(self) -> Tensor: ...

    def rows(self, index: Any) -> Tensor: ...

    def iter_rows(self) -> Iterator[tuple[range, Tensor]]: ...


def gram(J: Rows, passes: Passes, wanted: str) -> tuple[Tensor, Plan]:
    """``J Jᴴ``, ``(m, m)``."""
    found = _by_layers(passes, wanted, by_layers.gram)
    if not isinstance(found, str):
        total, plan = found
        return _spread(passes, total), plan
    lin, (m, n) = passes.linearization, J.shape
    each = n * J.inputs.dtype.itemsize
    if _is_kept(passes) or m * each <= passes.executor.limit(lin.inputs.device):
        matrix = J.matrix()
        total = matrix @ matrix.mH
    else:
        limit = passes.executor.limit(lin.inputs.device)
        total = gram_in_parts(lambda start, stop: J.rows(range(start, stop)), m, each, limit)
    return total, _noted(J, found)


def row_norms(J: Rows, passes: Passes, wanted: str) -> tuple[Tensor, Plan]:
    """The norms of the rows, ``(m,)``, in at least single precision."""
    found = _by_layers(passes, wanted, by_layers.squares_of_rows)
    if not isinstance(found, str):
        total, plan = found
        return _spread(passes, total).sqrt(), plan
    parts = [torch.linalg.vector_norm(precise(rows), dim=1) for rows in _in_parts(J, passes)]
    norms = torch.cat(parts) if parts else precise(torch.zeros(0, dtype=J.inputs.dtype).abs())
    return norms, _noted(J, found)


def column_squares(J: Rows, passes: Passes, wanted: str) -> tuple[Tensor, Plan]:
    """The squares of the columns' norms, ``(n,)``."""
    found = _by_layers(passes, wanted, by_layers.squares_of_columns)
    if not isinstance(found, str):
        made, plan = found
        live = dict(zip(passes.linearization.live_inputs, made, strict=True))
        zeros = (zero.flatten() for zero in J.inputs.zeros())
        parts = [live.get(index, zero) for index, zero in enumerate(zeros)]
        return J.inputs.join([part.to(J.inputs.dtype) for part in parts]), plan
    total = precise(torch.zeros(J.shape[1], dtype=J.inputs.dtype, device=J.inputs.device)).abs()
    for rows in _in_parts(J, passes):
        total = total + precise(rows).abs().square().sum(dim=0)
    return total.to(J.inputs.dtype), _noted(J, found)


def normal_matrix(J: Rows, passes: Passes, wanted: str) -> tuple[Tensor, Plan]:
    """``JᴴJ``, ``(n, n)``."""
    found = _by_layers(passes, wanted, by_layers.normal_matrix)
    total = torch.zeros((J.shape[1],) * 2, dtype=J.inputs.dtype, device=J.inputs.device)
    if not isinstance(found, str):
        made, plan = found
        lin = passes.linearization
        parts = [torch.arange(J.shape[1])[lin.inputs.leaves[index].slice] for index in lin.live_inputs]
        at = torch.cat(parts).to(total.device)
        if len(at) == J.shape[1]:
            return made.to(total), plan
        total[at[:, None], at] = made.to(total)
        return total, plan
    exact = precise(total)
    for rows in _in_parts(J, passes):
        part = precise(rows)
        exact = exact + part.mH @ part
    return exact.to(total.dtype), _noted(J, found)


def _by_layers(passes: Passes, wanted: str, make: Callable[[Passes], Made | str]) -> Made | str:
    """What is made by layers, or why it is not."""
    lin = passes.linearization
    if wanted not in {"auto", "outer"}:
        return f"strategy {wanted!r} was asked for"
    if not lin.rows.size or not lin.columns.size:
        return "every derivative is zero"
    if wanted == "auto" and lin.rows.size * lin.columns.size < FEWEST_ENTRIES:
        return "too few entries to be worth looking for outer products"
    if wanted == "auto" and common_lead(lin.rows, lin.columns):
        return "the inputs have the outputs' leading dimension: they are no parameters that examples share"
    return make(passes)


def _spread(passes: Passes, live: Tensor) -> Tensor:
    """What belongs to the live rows (and columns) among zeros for the others."""
    lin = passes.linearization
    if len(lin.live_outputs) == len(lin.outputs.leaves):
        return live
    parts = [torch.arange(lin.outputs.size)[lin.outputs.leaves[index].slice] for index in lin.live_outputs]
    at = torch.cat(parts).to(live.device)
    whole = torch.zeros((lin.outputs.size,) * live.ndim, dtype=live.dtype, device=live.device)
    whole[(at[:, None], at) if live.ndim == 2 else at] = live
    return whole


def _is_kept(passes: Passes) -> bool:
    """Whether all of J is needed at once, since results are to be differentiated."""
    return passes.linearization.create_graph or passes.linearization.transformed


def _in_parts(J: Rows, passes: Passes) -> Iterator[Tensor]:
    """The rows of J, some at a time where nothing hinders it."""
    size = math.prod(J.shape) * J.inputs.dtype.itemsize
    if _is_kept(passes) or size <= min(WHOLE, passes.executor.limit(J.inputs.device)):
        yield J.matrix()
        return
    for _, block in J.iter_rows():
        yield block


def _noted(J: Rows, why: str) -> Plan:
    plan = J.plan()
    plan.note(f"from the rows of J: {why}")
    return plan
