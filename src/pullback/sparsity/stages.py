"""Stages: split a reverse pass at a tensor through which all of it flows, and whose elements depend on few outputs.

Where a network ends with layers that keep tokens, pixels or examples apart, the first part of the reverse pass can
serve many outputs at once: ``Jᵀ = A B`` with B, from the seed to the gate, compressed by a coloring, and A run on its
rows. Only the second part takes one pass for each output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pullback.autodiff.program import Node, Program, Step, View, base_name, is_alias, seeded_nodes
from pullback.autodiff.replay import Replay, replay
from pullback.coloring import color_columns
from pullback.data.coloring import Coloring
from pullback.sparsity.call import RULES
from pullback.sparsity.detect import Trust, Walk, varying_storages
from pullback.sparsity.factor import producers
from pullback.sparsity.sets import Sets, count_entries, merged

# The first part has to take so many times fewer passes than there are outputs, and both together so much less work.
FEWER = 4
LESS_WORK = 0.8
# A product adds numbers so many times as fast as an operation on elements moves them.
FLOPS_PER_ELEMENT = 50
CONTRACTIONS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward"}


@dataclass(frozen=True, eq=False)
class Stages:
    """A reverse pass in two parts.

    Attributes:
        program: The pass.
        gate: The tensor between them.
        inner: What the elements of the gate depend on, ``(elements, outputs)``; bool.
        coloring: Outputs that can share a pass to the gate.
        before: The share of the work that comes before the gate.
    """

    program: Program
    gate: View
    inner: sp.csr_matrix
    coloring: Coloring
    before: float

    @cached_property
    def first(self) -> Replay:
        """The pass from the seed to the gate."""
        return replay(self.program, [self.gate])

    @cached_property
    def second(self) -> Replay:
        """The pass from the gate to the answers."""
        answers = [view for view in self.program.answers if view]
        return replay(replace(self.program, seeds=(self.gate,)), answers, stand_ins=self.program.seeds)

    @cached_property
    def by_output(self) -> sp.csr_matrix:
        """The elements of the gate that each output reaches, ``(outputs, elements)``."""
        return self.inner.T.tocsr()


def stages(program: Program) -> Stages | str:
    """Split a program where that takes the least work, or say why it is not split."""
    if not all(program.answers):
        return "an answer is not in the program"
    outputs = sum(seed.numel for seed in program.seeds)
    total = sum(map(_work, program.steps))
    best: tuple[float, float, View, sp.csr_matrix] | None = None
    for gate, sets, work in _gates(program, outputs):
        inner = merged(sets, outputs)
        bound = int(np.diff(inner.indptr).max(initial=0))
        cost = (bound * work + outputs * (total - work)) / max(outputs * total, 1)
        if bound * FEWER <= outputs and (best is None or cost < best[0]):
            best = cost, work / max(total, 1), gate, inner
    if best is None or best[0] > LESS_WORK:
        return "no place that all outputs flow through keeps enough of them apart"
    _, before, gate, inner = best
    return Stages(program, gate, inner, color_columns(inner), before)


def _gates(program: Program, outputs: int) -> Iterator[tuple[View, Sets, float]]:
    """The tensors that alone carry all that the seed brings, with their dependencies and the work up to there."""
    seeded, wholes = seeded_nodes(program), producers(program)
    last = _last_reads(program)
    ends = {(view.storage, view.version) for view in program.answers if view is not None}
    walk, rules = Walk(program, Trust(False, varying_storages(program, lambda index, tensor: False))), RULES.all()
    open_nodes: set[Node] = {(view.storage, view.version) for view in program.seeds}
    work = 0.0
    for index, step in enumerate(program.steps):
        made = [(view.storage, view.version) for view in step.results]
        if is_alias(step) or not any(node in seeded for node in made):
            continue
        work += _work(step)
        walk.advance(step, rules)
        open_nodes = {node for node in {*open_nodes, *made} if last.get(node, -1) > index and node in seeded}
        found = [(view, walk.memory.read(view)) for view in step.results]
        if any(sets is not None and _entries(sets) * FEWER > outputs * view.numel for view, sets in found):
            return
        if len(open_nodes) == 1:
            (node,) = open_nodes
            inside = node in wholes and node in made and node not in ends
            sets = walk.memory.read(wholes[node]) if inside else None
            if sets is not None and wholes[node].dtype.is_floating_point:
                yield wholes[node], sets, work


def _last_reads(program: Program) -> dict[Node, float]:
    """For each storage and version the last step that reads it; the answers are read at the end."""
    last: dict[Node, float] = {}
    for index, step in enumerate(program.steps):
        if not is_alias(step):
            last.update(((view.storage, view.version), float(index)) for view in step.reads)
    last.update(((view.storage, view.version), math.inf) for view in program.answers if view is not None)
    return last


def _entries(sets: Sets) -> int:
    return sum(count_entries(term) for term in sets.terms)


def _work(step: Step) -> float:
    """About how long a step of the reverse pass takes, in elements moved."""
    if is_alias(step) or not step.node:
        return 0.0
    moved = float(sum(view.numel for view in step.results))
    if base_name(step.op) not in CONTRACTIONS or len(step.reads) < 2:
        return moved
    one, other = sorted(step.reads[-2:], key=lambda view: view.numel)
    # (m, k) by (k, n): m k n multiplications, the root of the product of all three sizes.
    return moved + math.sqrt(one.numel * other.numel * max(moved, 1.0)) / FLOPS_PER_ELEMENT
