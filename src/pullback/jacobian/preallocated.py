"""Output that is there already: checked before anything runs, and seen as the matrices that strategies write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.linearize import Deferred, Linearization
from pullback.data.space import Space, one_line
from pullback.errors import ArgumentError, StrategyError, ValueMismatch
from pullback.strategies.base import Grid

# Whether two views of one memory share an element is an integer problem, which is given up after so many steps.
MOST_WORK = 100_000


@dataclass(frozen=True)
class Room:
    """A tensor that a part of J is to be written to, and what it has to be."""

    name: str
    given: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def dense_grid(out: Any, lin: Linearization) -> Grid:
    """What :meth:`Jacobian.dense` writes to, as a matrix for each output and input.

    Raises:
        ArgumentError: There is no tensor where one is needed.
        ValueMismatch: Structure, shape, dtype, device or memory do not fit.
    """
    nested = [_flatten(lin.inputs, row, lin) for row in _flatten(lin.outputs, out, lin)]
    rooms = [
        Room(f"out for {row.name} by {column.name}", given, row.shape + column.shape, column.dtype, column.device)
        for row, parts in zip(lin.outputs.leaves, nested, strict=True)
        for column, given in zip(lin.inputs.leaves, parts, strict=True)
    ]
    _check(rooms, lin, "out = J.dense() gives one that fits")
    sizes = [(row.numel, column.numel) for row in lin.outputs.leaves for column in lin.inputs.leaves]
    flat = [_as_matrix(room, size) for room, size in zip(rooms, sizes, strict=True)]
    width = len(lin.inputs.leaves)
    return [flat[k * width : (k + 1) * width] for k in range(len(lin.outputs.leaves))]


def check_matrix(out: Any, lin: Linearization) -> None:
    """Refuse what :meth:`Jacobian.matrix` cannot be written to.

    Raises:
        ArgumentError: It is no tensor.
        ValueMismatch: Shape, dtype, device or memory do not fit.
    """
    shape = lin.outputs.size, lin.inputs.size
    _check([Room("out", out, shape, lin.inputs.dtype, lin.inputs.device)], lin, "out = J.matrix() gives one that fits")


def check_blocks(out: Any, lin: Linearization, shape: tuple[int, int, int]) -> None:
    """Refuse what :meth:`Jacobian.blocks` cannot be written to.

    Raises:
        ArgumentError: It is no tensor.
        ValueMismatch: Shape, dtype, device or memory do not fit.
    """
    _check([Room("out", out, shape, lin.inputs.dtype, lin.inputs.device)], lin, "out = J.blocks() gives one that fits")


def refuse_differentiable(lin: Linearization) -> None:
    """Refuse to write over tensors where the result has to be differentiable.

    Raises:
        StrategyError: Inside a torch.func transform.
        ValueMismatch: With ``create_graph=True``.
    """
    if lin.transformed:
        raise StrategyError(
            "out= cannot be written inside a torch.func transform", got="out=...", fix="leave out= away there"
        )
    if lin.create_graph:
        raise ValueMismatch(
            "out= cannot be differentiated: what is written over has no graph",
            got="create_graph=True and out=...",
            fix="leave out= away, or make J without create_graph=True",
        )


def matrix_grid(matrix: Tensor, outputs: Space, inputs: Space) -> Grid:
    """A matrix ``(m, n)`` as views for each output and input."""
    return [[matrix[row.slice, column.slice] for column in inputs.leaves] for row in outputs.leaves]


def _flatten(space: Space, tree: Any, lin: Linearization) -> list[Any]:
    try:
        return space.flatten(tree)
    except ValueMismatch:
        row = lin.inputs.unflatten(["*"] * len(lin.inputs.leaves))
        every = lin.outputs.unflatten([row] * len(lin.outputs.leaves))
        given = pytree.tree_structure(tree)
        raise ValueMismatch(
            "out has another structure than J.dense()",
            got=type(tree).__name__ if given.is_leaf() else one_line(given),
            fix=f"out = J.dense() gives one that fits: {one_line(pytree.tree_structure(every))}",
        ) from None


def _check(rooms: Sequence[Room], lin: Linearization, fix: str) -> None:
    refuse_differentiable(lin)
    for room in rooms:
        _check_room(room, fix)
    tensors = [(room.name, room.given) for room in rooms]
    taken = list(zip(lin.inputs.names, lin.problem.leaves, strict=True))
    if not isinstance(lin, Deferred):
        taken += zip(lin.outputs.names, lin.outputs.flatten(lin.value), strict=True)
    for one, other in _shared(tensors, taken):
        raise ValueMismatch(
            "out shares memory with what must not change while it is written",
            got=f"{one} and {other}",
            fix=f"give memory of its own: {fix}",
        )


def _check_room(room: Room, fix: str) -> None:
    given = room.given
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{room.name} is not a tensor", got=type(given).__name__, fix=fix)
    wanted = f"{_words(room.shape, room.dtype, room.device)}; {fix}"
    if (tuple(given.shape), given.dtype, given.device) != (tuple(room.shape), room.dtype, room.device):
        raise ValueMismatch(
            f"{room.name} does not fit", got=_words(given.shape, given.dtype, given.device), fix=f"give {wanted}"
        )
    reasons: dict[str, Callable[[], bool]] = {
        "a sparse tensor": lambda: given.layout is not torch.strided,
        "a tensor that requires grad": lambda: given.requires_grad,
        "a tensor made in inference mode": lambda: given.is_inference() and not torch.is_inference_mode_enabled(),
        "a tensor whose elements share memory (expanded?)": lambda: not _apart(given),
    }
    for reason, holds in reasons.items():
        if holds():
            raise ValueMismatch(f"{room.name} cannot be written to", got=reason, fix=fix)


def _as_matrix(room: Room, size: tuple[int, int]) -> Tensor:
    try:
        matrix: Tensor = room.given.view(size)
        return matrix
    except RuntimeError:
        raise ValueMismatch(
            f"{room.name} cannot be written as a matrix in its memory layout",
            got=f"shape {tuple(room.shape)}, strides {room.given.stride()}",
            fix="give a contiguous tensor",
        ) from None


def _words(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> str:
    return f"shape {tuple(shape)}, {str(dtype).removeprefix('torch.')}, on {device}"


def _apart(tensor: Tensor) -> bool:
    """Whether no two elements stand in one place, as far as the strides show: each steps over all smaller ones."""
    span = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < span:
            return not tensor.numel()
        span += (size - 1) * stride
    return True


def _shared(tensors: Sequence[tuple[str, Tensor]], taken: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """The names of tensors that share memory with each other or with one that is taken."""
    spans = [(*_span(tensor), name, tensor, own) for own, group in ((True, tensors), (False, taken))
             for name, tensor in group if tensor.numel() and not tensor.is_meta]  # fmt: skip
    spans.sort(key=lambda each: each[:2])
    open_spans: list[Any] = []
    for span in spans:
        start, _, name, tensor, own = span
        open_spans = [each for each in open_spans if each[1] > start]
        for _, _, other, memory, other_own in open_spans:
            if (own or other_own) and tensor.device == memory.device and _meet(tensor, memory):
                yield other, name
        open_spans.append(span)


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor's elements and the one after the last."""
    start = tensor.data_ptr()
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.itemsize


@dataclass(frozen=True)
class _Memory:
    """A tensor's place in memory, for NumPy to reason about; nothing is read."""

    __array_interface__: dict[str, Any]


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in the same place; True where that is too hard to say."""
    places = []
    for tensor in (one, other):
        strides = tuple(stride * tensor.itemsize for stride in tensor.stride())
        interface = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": strides,
            "typestr": f"|V{tensor.itemsize}",
        }
        places.append(np.asarray(_Memory(interface)))
    try:
        return np.shares_memory(places[0], places[1], max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
