"""Explain: why an entry of a Jacobian can be non-zero: the operations and lines that lead from input to output.

The reverse pass goes from the output to the input. It is walked once with that one output element as its seed, and
then back from the input element: at every step the rule itself says which operand's element the result came from.
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.autodiff.program import Program, Step, View, base_name, is_alias, where
from pullback.autodiff.replay import SAME
from pullback.data.space import Leaf, Space
from pullback.sparsity.call import RULES
from pullback.sparsity.detect import Trust, Walk
from pullback.sparsity.sets import Root, Sets, entries
from pullback.sparsity.structure import Structure


@dataclass(frozen=True)
class Visit:
    """A step that the seed element reached, and what each of its operands then depended on."""

    step: Step
    sets: dict[View, Sets | None]


def explain(found: Structure, rows: Space, columns: Space, i: int, j: int) -> str:
    """The chain of operations that makes entry (i, j) non-zero, from the input to the output.

    Args:
        found: The structure of the Jacobian.
        rows: The Space of its rows, for names.
        columns: The Space of its columns.
        i: The row.
        j: The column.
    """
    row, column = _place(rows, i), _place(columns, j)
    lines = [f"entry ({i}, {j}) can be non-zero: {row} depends on {column}", f"  {column}"]
    last = ""
    for step in chain(found, i, j):
        text = _described(step)
        if text != last and not _only_accumulates(step):
            lines.append(f"  → {text}")
            last = text
    lines.append(f"  = {row}")
    return "\n".join(lines)


def chain(found: Structure, i: int, j: int) -> Iterator[Step]:
    """One path of steps that carry seed element i to answer element j, the last first."""
    program = found.program
    walk = Walk(program, Trust(found.local, found.about.varying))
    visits = _visits(walk, i)
    view, element = _answer(program, j)
    seeds = {(seed.storage, seed.version) for seed in program.seeds}
    storage, version = view.storage, view.version
    position = _positions(view, program)[element]
    looks = {result.tensor: step for step in program.steps if is_alias(step) for result in step.results}
    yield from _looks(looks, view)
    while (storage, version) not in seeds:
        visit = visits.get((storage, version))
        if visit is None:
            return
        result = next(each for each in visit.step.results if (each.storage, each.version) == (storage, version))
        inside = (_positions(result, program) == position).nonzero().flatten()
        if not len(inside):  # a write elsewhere in the same storage
            version -= 1
            continue
        source = _source(walk, visit, result, int(inside[0]))
        if source is None:
            return
        yield visit.step
        view, element = source
        yield from _looks(looks, view)
        storage, version = view.storage, view.version
        position = _positions(view, program)[element]


def _looks(looks: dict[int, Step], view: View) -> Iterator[Step]:
    """The views through which an operand was seen, the last first."""
    tensor = view.tensor
    while tensor in looks:
        step = looks[tensor]
        if step.op._schema.name not in SAME:
            yield step
        tensor = step.reads[0].tensor


def fingerprint(found: Structure) -> str:
    """A text that differs for programs with other operations, shapes or constants."""
    digest, program = hashlib.sha256(), found.program
    for index, tensor in sorted(program.captured.items()):
        if id(tensor) in found.about.constants:
            digest.update(f"t{index}{_numbers(tensor)}".encode())
    for step in program.steps:
        digest.update(f"{step.op}{_plain(step.args)}{_plain(tuple(step.kwargs.items()))}".encode())
    digest.update(repr([(view.shape, str(view.dtype)) for view in (*program.points, *program.seeds)]).encode())
    return digest.hexdigest()[:16]


def _visits(walk: Walk, i: int) -> dict[tuple[int, int], Visit]:
    """For each storage and version that the seed element reaches the step that wrote it."""
    start = 0
    for seed in walk.program.seeds:
        inside = start <= i < start + seed.numel
        alone = torch.arange(start, start + seed.numel).reshape(seed.shape) == i
        walk.memory.write(seed, Sets.identity(seed.shape, walk.root, start).only(alone) if inside else None)
        start += seed.numel
    rules = RULES.all()
    visits = {}
    for step in walk.program.steps:
        if not is_alias(step):
            visit = Visit(step, {view: walk.memory.read(view) for view in step.reads})
            visits.update({(view.storage, view.version): visit for view in step.results})
        walk.advance(step, rules)
    return visits


def _source(walk: Walk, visit: Visit, result: View, element: int) -> tuple[View, int] | None:
    """An operand, and its element, that an element of the result came from."""
    for view, sets in visit.sets.items():
        if sets is None:
            continue
        reached = torch.zeros(view.shape, dtype=torch.bool)
        for term in sets.terms:
            reached |= term.labels != 0
        root = Root("operand", view.numel)
        alone = dict.fromkeys(visit.sets) | {view: Sets.identity(view.shape, root).only(reached)}
        outs = walk.results(walk.call(visit.step, alone), RULES.all())
        out = outs[visit.step.results.index(result)]
        for term in out.terms if out is not None else ():
            places, sources, _ = entries(term)
            hits = (places == element).nonzero()[0]
            if len(hits):
                return view, int(sources[hits[0]])
    return None


def _answer(program: Program, j: int) -> tuple[View, int]:
    start = 0
    for answer in program.answers:
        if answer is not None:
            if j < start + answer.numel:
                return answer, j - start
            start += answer.numel
    raise AssertionError("no answer has this element")


def _positions(view: View, program: Program) -> torch.Tensor:
    """Where the elements of a view stand in its storage."""
    length = program.sizes[view.storage] // view.dtype.itemsize
    return torch.arange(length).as_strided(view.shape, view.stride, view.offset).reshape(-1)


def _place(space: Space, position: int) -> str:
    """An element of a Space in words: ``x[2, 0]``."""
    leaf: Leaf = next(leaf for leaf in space.leaves if position < leaf.offset + leaf.numel)
    index = torch.unravel_index(torch.tensor(position - leaf.offset), leaf.shape)
    return leaf.name + (f"[{', '.join(str(int(each)) for each in index)}]" if leaf.shape else "")


def _only_accumulates(step: Step) -> bool:
    """Whether autograd itself adds up what came by several ways."""
    return base_name(step.op) == "add" and not re.search("Add|Sub", step.node) and bool(step.node)


def _described(step: Step) -> str:
    """A step in words: the operation whose derivative it is, its line, and what is written there."""
    name = re.sub(r"Backward\d*$", "", step.node.rpartition("::")[2]) or base_name(step.op)
    text = f"{name:<16} {where(step.line)}"
    source = linecache.getline(step.line.file, step.line.number).strip() if step.line else ""
    return f"{text}  {source}".rstrip()


def _numbers(tensor: Tensor) -> str:
    """The numbers of a tensor, as a digest."""
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    bytes_of = plain.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(bytes_of).hexdigest()


def _plain(value: object) -> str:
    if isinstance(value, View):
        return f"t{value.tensor}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return "(" + ",".join(_plain(each) for each in value) + ")"
    return repr(value)
