"""Decompose: an operation without a rule is followed through what torch says it consists of.

torch keeps decompositions of its operations into simpler ones. One is run on stand-in values and recorded, and its
steps are walked like those of the program itself. Where it would look at numbers that may differ from call to call, to
decide what to do, it proves nothing and is not used.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from pullback.autodiff.program import Escapes, NotRecordable, Program, Recorder, Step, View
from pullback.sparsity.call import Call, Operand

if TYPE_CHECKING:
    from pullback.sparsity.detect import Walk

# Decompositions into decompositions go no deeper.
DEEPEST = 6
# Above so many elements the stand-ins would cost more than the rule is worth.
LARGEST = 2**26
# Operations that do not round, or look at no number.
EXACT = {"clone", "_to_copy", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full",
         "new_empty"}  # fmt: skip


def by_decomposition(call: Call, walk: Walk) -> Any:
    """What the results of a call depend on, or NotImplemented: it cannot be decomposed."""
    decomposition = decomposition_table.get(call.op)
    if decomposition is None or walk.depth >= DEEPEST or sum(operand.numel for operand in call.operands) > LARGEST:
        return NotImplemented
    try:
        program, given, results = _run(decomposition, call, walk.program)
    except Exception:
        # Decompositions are written for compilers; one may not cover the arguments at hand.
        return NotImplemented
    if tuple(view.shape for view in results) != call.shapes:
        return NotImplemented
    untrusted = (view for view, operand in given if operand.value is None or operand.sets is not None)
    program.points = (*untrusted, *_rounded(program, given))
    inner = walk.inside(program)
    if inner is None:
        return NotImplemented
    for view, operand in given:
        if operand.sets is not None:
            inner.memory.write(view, operand.sets)
    inner.run()
    for name, line in inner.unknown.items():
        walk.unknown.setdefault(name, line)
    return [inner.memory.read(view) for view in results]


def _run(
    decomposition: Callable[..., Any], call: Call, program: Program
) -> tuple[Program, list[tuple[View, Operand]], list[View]]:
    """Record a decomposition; with the Views of the operands' stand-ins and of the results."""
    recorder = Recorder("reverse")
    operands = iter(call.operands)
    given: list[tuple[View, Operand]] = []
    generator: dict[torch.device, torch.Generator] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, View):
            operand = next(operands)
            tensor = _stand_in(value, operand, program, generator)
            given.append((recorder.view(tensor), operand))
            return tensor
        if isinstance(value, list | tuple):
            return type(value)(stand_in(each) for each in value)
        return value

    args = stand_in(call.step.args)
    kwargs = {name: stand_in(value) for name, value in call.step.kwargs.items()}
    recorder.program.captured.clear()
    with warnings.catch_warnings(), torch.no_grad(), _unseen_random(given), Escapes(recorder.program), recorder:
        warnings.simplefilter("ignore")
        out = decomposition(*args, **kwargs)
    if recorder.program.escaped:
        raise NotRecordable(recorder.program.escaped[0])
    # An operation may leave out results that were not asked for; decompositions do not always.
    flat = _flattened(out)
    wanted = [isinstance(each, View) for each in call.step.outs]
    if any(wanted) and len(wanted) == len(flat):
        flat = [each for each, asked in zip(flat, wanted, strict=True) if asked]
    results = [recorder.view(each) for each in flat if isinstance(each, Tensor)]
    return recorder.program, given, results


def _stand_in(
    view: View, operand: Operand, program: Program, generators: dict[torch.device, torch.Generator]
) -> Tensor:
    """A tensor like an operand: its numbers where there are any, random ones else."""
    known = operand.value if operand.value is not None else program.tensors.get(view.tensor)
    if known is not None and operand.sets is None:
        return known.detach().clone(memory_format=torch.contiguous_format)
    if not (view.dtype.is_floating_point or view.dtype.is_complex):
        return torch.zeros(view.shape, dtype=view.dtype, device=view.device)
    generator = generators.setdefault(view.device, torch.Generator(view.device).manual_seed(0))
    return torch.rand(view.shape, dtype=view.dtype, device=view.device, generator=generator)


def _flattened(out: Any) -> list[Any]:
    if isinstance(out, list | tuple):
        return [part for each in out for part in _flattened(each)]
    return [out]


def _rounded(program: Program, given: list[tuple[View, Operand]]) -> Iterator[View]:
    """The numbers that a decomposition computes from the operands': the operation itself may round otherwise.

    What is exactly zero here may not be there.
    """
    numbers = {view.storage for view, operand in given if view.dtype.is_floating_point or view.dtype.is_complex}
    for step in program.steps:
        if any(view.storage in numbers for view in step.reads) and not _is_exact(step):
            yield from (view for view in step.results if view.dtype.is_floating_point or view.dtype.is_complex)


def _is_exact(step: Step) -> bool:
    if step.writes:
        return False
    storages = {view.storage for view in step.reads}
    return step.op._schema.name.partition("::")[2] in EXACT or all(view.storage in storages for view in step.results)


@contextlib.contextmanager
def _unseen_random(given: list[tuple[View, Operand]]) -> Iterator[None]:
    """Leave the generators as they were: a decomposition may draw random numbers."""
    devices = {view.device for view, _ in given if view.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        yield
