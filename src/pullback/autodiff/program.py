"""Program: one pass through a function, as the list of operations that torch ran for it.

A pass is linear in its seed. :func:`record` runs the function and one pass under a dispatch mode, below autograd, so
what is recorded is what torch differentiates: custom autograd functions, ``detach`` and ``no_grad`` have already had
their effect. Operations see memory as it is: a :class:`View` says which elements of which storage an operand is, so
views, in-place writes and ``out=`` need no rules of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = str(Path(__file__).parent.parent)
TORCH = str(Path(torch.__file__).parent)
# Methods by which numbers leave torch for Python or NumPy without an operation that could be recorded.
ESCAPES = {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr"}


# A storage and its version: what one write made of it.
Node = tuple[int, int]


class View(NamedTuple):
    """A tensor as an operand: these elements of that storage, at that time.

    Attributes:
        tensor: The index of the tensor in the program.
        storage: The index of its storage.
        version: How often the storage had been written before.
        shape: Its shape.
        stride: Its strides, in elements.
        offset: Its first element in the storage.
        dtype: Its dtype.
        device: Its device.
    """

    tensor: int
    storage: int
    version: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class Line(NamedTuple):
    """A line of the user's program."""

    file: str
    number: int
    function: str


@dataclass(slots=True)
class Step:
    """One operation.

    Attributes:
        op: Which.
        args: Its arguments, tensors as Views.
        kwargs: Its keyword arguments, tensors as Views.
        reads: The Views among them.
        outs: Its results, tensors as Views, others as they are.
        writes: The Views of what it wrote in place, after the write.
        line: The line of the user's program that it belongs to.
        node: The autograd node whose derivative it computes, or ``""``.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[View, ...]
    outs: tuple[Any, ...]
    writes: tuple[View, ...]
    line: Line | None
    node: str

    @property
    def results(self) -> tuple[View, ...]:
        """The tensors it made or wrote."""
        return tuple(out for out in self.outs if isinstance(out, View)) or self.writes


@dataclass
class Program:
    """The operations of one pass, from points and seeds to answers.

    Attributes:
        side: ``"reverse"`` or ``"forward"``.
        steps: The operations in order.
        points: The inputs, one View for each.
        seeds: The seeds, one View for each.
        answers: What the pass returns, one View for each; None where it is zero.
        sizes_of_answers: For each answer its number of elements.
        captured: The tensors that were there before: ``index -> tensor``.
        literals: Those among them that the function makes anew each time, as ``torch.tensor([1, 2])`` does.
        tensors: The values that the pass had, by index; those that depend on the seed are not kept.
        sizes: For each storage its number of bytes.
        versions: For each storage how often it was written in all.
        escaped: Where numbers left torch on the way, in words.
    """

    side: str
    steps: list[Step] = field(default_factory=list)
    points: tuple[View, ...] = ()
    seeds: tuple[View, ...] = ()
    answers: tuple[View | None, ...] = ()
    sizes_of_answers: tuple[int, ...] = ()
    captured: dict[int, Tensor] = field(default_factory=dict)
    literals: set[int] = field(default_factory=set)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    escaped: list[str] = field(default_factory=list)


class NotRecordable(Exception):
    """Why a pass cannot be seen as a program."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations that run inside it."""

    def __init__(self, side: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program = Program(side)
        self._indices: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._lines: dict[int, Line | None] = {}

    def view(self, tensor: Tensor) -> View:
        """The View of a tensor now; one that is new here was there before."""
        index = self._indices.get(id(tensor))
        if index is None:
            index = self._add(tensor)
            self.program.captured[index] = tensor
        return self._view(tensor, index)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(tensor.is_meta for tensor in tensors_in((args, tuple(kwargs.values())))):
            return func(*args, **kwargs)  # only the shape of something is worked out
        reads: list[View] = []
        seen_args = self._replace(args, reads)
        seen_kwargs = {name: self._replace(value, reads) for name, value in kwargs.items()}
        if func._schema.name in {"aten::lift_fresh", "aten::lift"}:
            self.program.literals.update(view.tensor for view in reads if view.tensor in self.program.captured)
        node = torch._C._current_autograd_node()
        number = torch._C._autograd._get_sequence_nr() - 1
        out = func(*args, **kwargs)
        if any(tensor.is_meta for tensor in tensors_in(out)):
            return out
        targets = [
            args[place] if isinstance(place, int) and place < len(args) else kwargs.get(str(place))
            for place in written_arguments(func)
        ]
        for target in targets:
            for each in target if isinstance(target, list | tuple) else [target]:
                if isinstance(each, Tensor):
                    self.program.versions[self._storages[each.untyped_storage()._cdata]] += 1
        writes: list[View] = []
        for target in targets:
            self._replace(target, writes)
        outs: list[Any] = []
        for each in out if isinstance(out, list | tuple) else (out,):
            outs.extend(self._result(part) for part in (each if isinstance(each, list | tuple) else (each,)))
        line = self._line_of(node._sequence_nr()) if node is not None else user_line()
        # The first operation after a node was made is the node's; those that follow may need none.
        self._lines.setdefault(number, line)
        name = node.name() if node is not None else ""
        self.program.steps.append(
            Step(func, seen_args, seen_kwargs, tuple(reads), tuple(outs), tuple(writes), line, name)
        )
        return out

    def _line_of(self, number: int) -> Line | None:
        """The line of an autograd node, by its number; a write into a view makes a second node for one operation."""
        return next((self._lines[n] for n in (number, number - 1, number - 2) if n in self._lines), None)

    def _replace(self, value: Any, reads: list[View]) -> Any:
        if isinstance(value, Tensor):
            view = self.view(value)
            reads.append(view)
            return view
        if isinstance(value, list | tuple):
            return type(value)([self._replace(each, reads) for each in value])
        return value

    def _result(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        index = self._indices.get(id(value))
        return self._view(value, self._add(value) if index is None else index)

    def _add(self, tensor: Tensor) -> int:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise NotRecordable(f"a tensor of layout {tensor.layout} has no elements to follow")
        index = len(self._alive)
        self._alive.append(tensor)
        self._indices[id(tensor)] = index
        self.program.tensors[index] = tensor
        return index

    def _view(self, tensor: Tensor, index: int) -> View:
        memory = tensor.untyped_storage()
        storage = self._storages.get(memory._cdata)
        if storage is None:
            storage = self._storages[memory._cdata] = len(self._storages)
            self.program.versions[storage] = 0
            self.program.sizes[storage] = memory.nbytes()
        return View(
            index,
            storage,
            self.program.versions[storage],
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
        )


class Escapes(TorchFunctionMode):
    """Notices where numbers leave torch: what comes back from there cannot be traced to what went out."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ESCAPES:
            line = user_line()
            self.program.escaped.append(f"Tensor.{name} ({where(line)})")
        return func(*args, **(kwargs or {}))


def user_line(frame: FrameType | None = None) -> Line | None:
    """The innermost line outside torch and Pullback, from a frame outwards."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((PACKAGE, TORCH, "<")):
            return Line(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def where(line: Line | None) -> str:
    """A line in words: ``model.py:12``."""
    return f"{Path(line.file).name}:{line.number}" if line else "unknown line"


@cache
def written_arguments(op: Any) -> tuple[int | str, ...]:
    """Which arguments an operation writes in place: positions, or names where they are keyword-only."""
    return tuple(
        argument.name if argument.kwarg_only else place
        for place, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def views_in(value: Any) -> Iterable[View]:
    """The Views in an argument."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from views_in(each)


def tensors_in(value: Any) -> Iterable[Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def base_name(op: Any) -> str:
    """An operation's name, without namespace, overload and the underscore of in-place variants."""
    namespace, _, name = op._schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if namespace in {"aten", "prims"} else f"{namespace}::{name}"


def is_factory_like(op: Any) -> bool:
    """Whether an operation uses its operand's shape only."""
    return base_name(op) in FACTORIES


# The shape of their operand is all that they use.
FACTORIES = {
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_empty_strided",
}  # fmt: skip


def is_alias(step: Step) -> bool:
    """Whether a step only looks at memory that was there: a view."""
    if step.writes:
        return False
    storages = {view.storage for view in step.reads}
    return bool(step.results) and all(view.storage in storages for view in step.results)


def seeded_nodes(program: Program) -> dict[Node, None]:
    """The storages, with their versions, that depend on the seed, in order."""
    seeded = {(view.storage, view.version): None for view in program.seeds}
    for step in program.steps:
        if is_alias(step) or is_factory_like(step.op):
            continue
        if any((view.storage, view.version) in seeded for view in step.reads):
            seeded.update(((view.storage, view.version), None) for view in step.results)
    return seeded


def seeded_storages(program: Program) -> set[int]:
    """The storages that the seed reaches at any time."""
    reached = {view.storage for view in program.seeds}
    while True:
        before = len(reached)
        for step in program.steps:
            if any(view.storage in reached for view in step.reads):
                reached.update(view.storage for view in step.results)
        if len(reached) == before:
            return reached


def forget_seeded(program: Program) -> None:
    """Let go of the values that depend on the seed: another seed has others."""
    seeded = seeded_nodes(program)
    kept = {view.tensor for view in (*program.points, *program.seeds)}
    for step in program.steps:
        for view in step.results:
            if (view.storage, view.version) in seeded and view.tensor not in kept:
                program.tensors.pop(view.tensor, None)


def fingerprint(program: Program) -> Hashable:
    """The operations and their results: two programs that agree in them have the same structure."""
    return tuple((step.op, step.reads, step.results) for step in program.steps), program.seeds, program.answers


def as_views(recorder: Recorder, tensors: Sequence[Tensor | None]) -> tuple[View | None, ...]:
    """The Views of what a pass returned."""
    return tuple(None if tensor is None else recorder.view(tensor) for tensor in tensors)
