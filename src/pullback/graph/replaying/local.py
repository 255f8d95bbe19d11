"""The local Jacobian of one node: the matrix that a backward pass multiplies its cotangent with there.

A node computes ``uᵀJ`` for the ``u`` it is given and never makes ``J``; one-hot vectors fed to it give the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from pullback.graph.saved import is_packed

SMALL = 16  # Elements on each side: what fits on a screen.
Matrix = tuple[tuple[float, ...], ...]
Cotangents = Sequence[Tensor | None]

_PACKED = "what it keeps is packed by a hook (checkpointing, say), which would have to run again for each row"
_ROUNDINGS = 32  # A product of at most 16 terms, each rounded a few times.


@dataclass(frozen=True, slots=True)
class Form:
    """What a cotangent must look like where it arrives."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    nested: bool


@dataclass(frozen=True, slots=True)
class Local:
    """A local Jacobian, or why there is none.

    Attributes:
        matrix: One row for each element of the incoming cotangents, one column for each of the outgoing ones, in
            order and flattened; None if there is none.
        note: Why there is none, or what is to be known about it; empty if ``uᵀJ`` is what the engine computed.
    """

    matrix: Matrix | None
    note: str = ""


def is_small(incoming: Cotangents, outgoing: Cotangents) -> bool:
    """Whether both sides are real dense numbers and few enough for a matrix."""
    return all(_is_small([each for each in side if each is not None]) for side in (incoming, outgoing))


def local_jacobian(node: Node, incoming: Cotangents, outgoing: Cotangents) -> Local:
    """The matrix ``J`` of a node with ``uᵀJ`` equal to what the engine computed for ``u``.

    The node itself is called, once for each row, outside the engine: no hook of it runs. The ``backward`` of a custom
    ``autograd.Function`` is the user's code and runs as often; what it raises is told in the note.

    Args:
        node: The node; its saved tensors are needed.
        incoming: The cotangent for each of its outputs as the engine brought it; None where none came.
        outgoing: What the engine passed on for each of its arguments; None where nothing was.

    Returns:
        The matrix, or the reason why there is none: the node cannot be called alone, or it is not linear in ``u``, or
        a hook changed what it returned.

    Example:
        >>> import torch
        >>> x = torch.tensor([2.0, 3.0], requires_grad=True)
        >>> node = (x * x).grad_fn
        >>> local_jacobian(node, [torch.ones(2)], [torch.tensor([2.0, 3.0]), torch.tensor([2.0, 3.0])]).matrix
        ((2.0, 0.0, 2.0, 0.0), (0.0, 3.0, 0.0, 3.0))
    """
    if not is_small(incoming, outgoing):
        return Local(None, f"more than {SMALL} elements on a side, or not real dense numbers")
    if is_packed(node):
        return Local(None, _PACKED)
    forms = forms_of(node)
    targets = [
        (number, forms_of(child)[output])
        for number, (child, output) in enumerate(node.next_functions)
        if child is not None and outgoing[number] is not None
    ]
    rows = []
    try:
        with torch.no_grad():
            for cotangents in _one_hots(node, forms, incoming):
                passed = _call(node, cotangents)
                rows.append(torch.cat([_sent(passed[number], form) for number, form in targets]))
            matrix = torch.stack(rows)
    except Exception as error:  # a custom backward may raise anything when it is called once more
        return Local(None, f"the node cannot be called alone: {type(error).__name__}: {error}")
    return _checked(matrix.cpu(), incoming, outgoing)


def forms_of(node: Node) -> tuple[Form, ...]:
    """What a backward pass must bring a node: a cotangent like each of its outputs."""
    metadata: Any = node._input_metadata
    return tuple(
        Form(() if each.is_nested_tensor else tuple(each.shape), each.dtype, each.device, each.is_nested_tensor)
        for each in metadata
    )


def conform(value: Tensor, form: Form) -> Tensor:
    """The cotangent as it arrives: the engine sums up what was broadcast and casts to the dtype of the value."""
    if form.nested or value.is_nested:
        return value
    if value.shape != form.shape:
        value = value.sum_to_size(form.shape)
    if value.dtype != form.dtype:
        value = (value.real if value.is_complex() and not form.dtype.is_complex else value).to(form.dtype)
    return value


def _sent(value: Tensor | None, form: Form) -> Tensor:
    if value is None:
        return torch.zeros(form.shape, dtype=form.dtype, device=form.device).reshape(-1)
    return conform(value, form).reshape(-1)


def _is_small(tensors: Sequence[Tensor]) -> bool:
    return 0 < sum(each.numel() for each in tensors) <= SMALL and all(
        each.dtype.is_floating_point and each.layout is torch.strided and not each.is_nested for each in tensors
    )


def _one_hots(node: Node, forms: Sequence[Form], incoming: Cotangents) -> list[list[Tensor | None]]:
    """The cotangents for each row. A custom Function is given zeros, as the engine does, where none came."""
    custom = isinstance(node, BackwardCFunction)
    found = []
    for number, arrived in enumerate(incoming):
        for element in range(0 if arrived is None else arrived.numel()):
            row = [
                None if each is None and not custom else torch.zeros(form.shape, dtype=form.dtype, device=form.device)
                for each, form in zip(incoming, forms, strict=True)
            ]
            hot = row[number]
            assert hot is not None
            hot.view(-1)[element] = 1
            found.append(row)
    return found


def _call(node: Node, cotangents: Cotangents) -> list[Tensor | None]:
    """What a node returns, one entry for each of its edges."""
    edges = node.next_functions
    callee: Any = node  # torch declares none of its nodes callable
    custom = isinstance(node, BackwardCFunction)
    if not custom:
        returned = callee(*cotangents)
        return list(returned) if isinstance(returned, tuple) else [returned]
    returned = callee.apply(*cotangents)
    by_argument = returned if isinstance(returned, tuple) else (returned,)
    # Arguments that are no tensors have no edge; those that need a gradient stand in the same order in both.
    needed = (by_argument[number] for number, needs in enumerate(callee.needs_input_grad) if needs)
    return [None if child is None else next(needed) for child, _ in edges]


def _flat(tensors: Cotangents) -> Tensor:
    return torch.cat([each.detach().reshape(-1).cpu().to(torch.float64) for each in tensors if each is not None])


def _checked(matrix: Tensor, incoming: Cotangents, outgoing: Cotangents) -> Local:
    """The matrix, if its product with what came in is what went out, to the rounding of their dtypes."""
    rows: Any = matrix.tolist()
    shown = tuple(tuple(row) for row in rows)
    matrix, u, v = matrix.to(torch.float64), _flat(incoming), _flat(outgoing)
    if not all(bool(each.isfinite().all()) for each in (matrix, u, v)):
        return Local(shown, "not all numbers are finite: uᵀJ was not compared with what the engine passed on")
    dtypes = [each.dtype for each in (*incoming, *outgoing) if each is not None]
    coarse = max(torch.finfo(dtype).eps for dtype in dtypes)
    tiny = max(torch.finfo(dtype).tiny for dtype in dtypes)
    allowed = _ROUNDINGS * coarse * (u.abs() @ matrix.abs() + v.abs()) + tiny
    if bool(((u @ matrix - v).abs() > allowed).any()):
        return Local(None, "called alone it gives something else: it is not linear, is random, or a hook changed it")
    return Local(shown)
