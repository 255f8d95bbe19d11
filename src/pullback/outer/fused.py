"""Fused operations, followed through torch's own decompositions of them.

The backward of a normalisation is one operation to a recorder. torch knows what it consists of: run on its operands and
recorded, that becomes a part of the program, beside the operation itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.autodiff.program import Program, Recorder, Step, View, views_in


@dataclass(frozen=True, eq=False)
class Decomposed:
    """The parts of an operation, in the program's own numbering.

    Attributes:
        steps: What it consists of.
        results: For each of its results an equal tensor; None where there is none.
        tensors: All tensors that were made.
        next_tensor: The number of the next tensor.
    """

    steps: list[Step]
    results: list[View | None]
    tensors: list[View]
    next_tensor: int


def decomposed(step: Step, program: Program, is_seeded: Callable[[Any], bool], next_tensor: int) -> Decomposed | None:
    """The parts of an operation, entered into a program's tensors and storages; None where torch knows none.

    Args:
        step: The operation.
        program: The program.
        is_seeded: Whether an argument depends on the seed.
        next_tensor: The first number that no tensor has.
    """
    from torch._decomp import decomposition_table  # noqa: PLC0415  `import torch` does without it

    decomposition = decomposition_table.get(step.op)
    if decomposition is None:
        return None
    try:
        recorder, given, out = _run(decomposition, step, program, is_seeded)
        results = [recorder.view(each) if isinstance(each, Tensor) else None for each in out]
    except Exception:
        # Decompositions are written for compilers; one may not cover the arguments at hand.
        return None
    inner = recorder.program
    if len(out) != len(step.outs) or any(inner.versions[stand_in.storage] for _, stand_in in given):
        return None
    move = _Numbering(program, given, next_tensor)
    steps = [move.step(each, step) for each in inner.steps]
    for index, tensor in inner.tensors.items():
        program.tensors[move.tensor(index)] = tensor
    for index in inner.captured:
        program.captured[move.tensor(index)] = inner.tensors[index]
    for storage, size in inner.sizes.items():
        if storage not in move.operands:
            program.sizes[move.storage(storage)] = size
            program.versions[move.storage(storage)] = inner.versions[storage]
    made = [view for each in steps for view in each.results]
    ends = [None if view is None else move.view(view) for view in results]
    return Decomposed(steps, ends, made, move.next_tensor)


def _run(
    decomposition: Callable[..., Any], step: Step, program: Program, is_seeded: Callable[[Any], bool]
) -> tuple[Recorder, list[tuple[View, View]], list[Any]]:
    """Record a decomposition on the operands' numbers, and 1 for what depends on the seed.

    Returns:
        The recorder; the operands with the Views of their stand-ins; and the results.
    """
    recorder = Recorder("reverse")
    given: list[tuple[View, View]] = []
    stand_ins: dict[View, Tensor] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, View):
            if value not in stand_ins:
                stand_ins[value] = tensor = _stand_in(value, program, is_seeded)
                given.append((value, recorder.view(tensor)))
            return stand_ins[value]
        if isinstance(value, list | tuple):
            return type(value)(stand_in(each) for each in value)
        return value

    args = stand_in(step.args)
    kwargs = {name: stand_in(value) for name, value in step.kwargs.items()}
    recorder.program.captured.clear()
    with warnings.catch_warnings(), torch.no_grad(), recorder:
        warnings.simplefilter("ignore")
        out = decomposition(*args, **kwargs)
    return recorder, given, list(out) if isinstance(out, list | tuple) else [out]


def _stand_in(view: View, program: Program, is_seeded: Callable[[Any], bool]) -> Tensor:
    """A tensor of its own, laid out like an operand."""
    tensor = torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device=view.device)
    if is_seeded(view):
        return tensor.fill_(1)
    if program.versions[view.storage] != view.version:
        raise LookupError("the operand was overwritten since")
    return tensor.copy_(program.tensors[view.tensor].detach())


class _Numbering:
    """From the numbers of tensors and storages in a decomposition to new ones in the program.

    Args:
        program: The program.
        given: Its operands, and the Views of their stand-ins.
        next_tensor: The first number that no tensor has.
    """

    def __init__(self, program: Program, given: list[tuple[View, View]], next_tensor: int) -> None:
        self.next_tensor = next_tensor
        self.operands = {stand_in.storage: operand for operand, stand_in in given}
        self._tensors = {stand_in.tensor: operand.tensor for operand, stand_in in given}
        self._first_storage = 1 + max(program.sizes, default=0)
        self._storages: dict[int, int] = {}

    def tensor(self, index: int) -> int:
        """The number of a tensor."""
        if index not in self._tensors:
            self._tensors[index] = self.next_tensor
            self.next_tensor += 1
        return self._tensors[index]

    def storage(self, index: int) -> int:
        """The number of a storage that is no operand's."""
        return self._storages.setdefault(index, self._first_storage + len(self._storages))

    def view(self, view: View) -> View:
        """A View of the decomposition as one of the program."""
        operand = self.operands.get(view.storage)
        if operand is None:
            return view._replace(tensor=self.tensor(view.tensor), storage=self.storage(view.storage))
        return view._replace(
            tensor=self.tensor(view.tensor),
            storage=operand.storage,
            version=operand.version,
            offset=operand.offset + view.offset,
        )

    def step(self, step: Step, outer: Step) -> Step:
        """A step of the decomposition as one of the program, at the place of the operation."""
        args, outs = self._value(step.args), self._value(step.outs)
        kwargs = {name: self._value(value) for name, value in step.kwargs.items()}
        reads = tuple(views_in((args, tuple(kwargs.values()))))
        writes = tuple(self.view(view) for view in step.writes)
        return replace(
            step, args=args, kwargs=kwargs, reads=reads, outs=outs, writes=writes, line=outer.line, node=outer.node
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, View):
            return self.view(value)
        if isinstance(value, list | tuple):
            return type(value)([self._value(each) for each in value])
        return value
