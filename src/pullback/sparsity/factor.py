"""Factor: split a program where only constant operations follow.

The tail of a pass often moves, scales and sums elements by constants: slices, rolls, gathers and concatenations of the
function become pads, rolls and scatters of its reverse pass. The answers are then ``T z`` with a constant matrix T
and z, the tensors at the *frontier*, so ``J = T (dz/du)``, and dz/du takes fewer colours than J: each copy of a
gathered element is an element of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from pullback.autodiff.program import Program, Step, View
from pullback.sparsity.call import RULES
from pullback.sparsity.detect import Trust, Walk, base_name, is_alias, is_factory_like
from pullback.sparsity.memory import Memory
from pullback.sparsity.sets import Root, Sets, entries, merged

# The frontier may have so many times the elements of both ends; beyond, the answers would be too long.
LARGEST_FRONTIER = 24

# Linear in their seeded operands with coefficients that are constants if their other operands are.
LINEAR = {
    "add", "sub", "rsub", "neg", "mul", "div", "where", "masked_fill", "sum", "mean", "index_put", "_index_put_impl",
    "_unsafe_index_put", "scatter_add", "index_add", "index", "gather", "index_select", "_unsafe_index", "scatter",
    "embedding_dense_backward", "zero", "fill", "clone", "copy", "_to_copy", "roll", "flip", "rot90",
    "constant_pad_nd", "slice_backward", "select_backward", "diagonal_backward", "cat", "stack", "repeat", "tril", "triu",
    "diag_embed", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "_unsafe_view",
    "unfold_backward", "_reshape_copy", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Frontier:
    """A tensor at which a program is split.

    Attributes:
        view: The tensor.
        start: The position of its first element among those of all frontier tensors.
        rows: What its elements depend on, ``(elements, size of the seed)``; bool.
    """

    view: View
    start: int
    rows: sp.csr_matrix


@dataclass(frozen=True, eq=False)
class Factors:
    """``answers = T z + C u``, where z is a function of the seed u that takes passes, and T and C are constants.

    Attributes:
        frontier: The tensors that make up z.
        inner: The pattern of dz/du, ``(elements of z, size of the seed)``.
        element: For each entry of T: the element of the answers, laid end to end.
        position: For each entry of T: the element of z.
        weight: For each entry of T: its value.
        constant: C, ``(elements of the answers, size of the seed)``.
        unknown: Operations without a rule, by name, with the line of the first.
    """

    frontier: tuple[Frontier, ...]
    inner: sp.csr_matrix
    element: np.ndarray
    position: np.ndarray
    weight: np.ndarray
    constant: sp.coo_matrix
    unknown: dict[str, str]


Node = tuple[int, int]


def tail_of(program: Program, trust: Trust) -> tuple[set[int], list[Node]]:
    """The steps after which only constant linear operations follow, and what they read that others wrote."""
    seeded = seeded_nodes(program)
    consumers: dict[Node, list[int]] = {}
    for index, step in enumerate(program.steps):
        if not is_alias(step):
            for view in step.reads:
                if (view.storage, view.version) in seeded:
                    consumers.setdefault((view.storage, view.version), []).append(index)
    tail: set[int] = set()
    for index in range(len(program.steps) - 1, -1, -1):
        step = program.steps[index]
        nodes = [(view.storage, view.version) for view in step.results]
        if is_alias(step) or not any(node in seeded for node in nodes) or not _is_constant_linear(step, seeded, trust):
            continue
        if all(follower in tail for node in nodes for follower in consumers.get(node, ())):
            tail.add(index)
    made = {(view.storage, view.version) for index in tail for view in program.steps[index].results}
    read: dict[Node, None] = {}
    for index in sorted(tail):
        for view in program.steps[index].reads:
            node = view.storage, view.version
            if node in seeded and node not in made:
                read[node] = None
    for answer in program.answers:
        if answer is not None and (node := (answer.storage, answer.version)) in seeded and node not in made:
            read[node] = None
    return tail, list(read)


def factors(program: Program, trust: Trust) -> Factors | str:
    """The factors of a program, or why it is not split."""
    if any(view.dtype.is_complex for step in program.steps for view in step.results):
        return "complex numbers on the way"
    tail, nodes = tail_of(program, trust)
    wholes = producers(program)
    missing = [node for node in nodes if node not in wholes]
    if missing:
        return "a tensor at the cut was written in parts"
    seeds = {(view.storage, view.version) for view in program.seeds}
    inner = [node for node in nodes if node not in seeds]
    sizes = [wholes[node].numel for node in inner]
    ends = sum(view.numel for view in (*program.seeds, *(answer for answer in program.answers if answer)))
    if sum(sizes) > LARGEST_FRONTIER * max(ends, 1):
        return "the tensors at the cut would be longer than what is saved"
    starts = dict(zip(inner, np.cumsum([0, *sizes]).tolist(), strict=False))
    return _walk(program, trust, tail, inner, wholes, starts)


def _walk(
    program: Program, trust: Trust, tail: set[int], inner: list[Node], wholes: dict[Node, View], starts: dict[Node, int]
) -> Factors | str:
    rules = RULES.all()
    walk = Walk(program, trust)
    roots = {node: Root(f"cut {node}", wholes[node].numel) for node in inner}
    for seed in program.seeds:
        roots[seed.storage, seed.version] = walk.root
    behind = _Behind(program, walk, roots, wholes, starts)
    frontier = []
    waiting = set(inner)
    for index, step in enumerate(program.steps):
        if index in tail:
            behind.advance(step, rules)
            continue
        walk.advance(step, rules)
        for view in step.results:
            node = view.storage, view.version
            if node in waiting:
                waiting.discard(node)
                found = walk.memory.read(wholes[node])
                rows = merged(found or Sets(wholes[node].shape, ()), walk.root.size)
                frontier.append(Frontier(wholes[node], starts[node], rows))
    frontier.sort(key=lambda each: each.start)
    stacked = [each.rows for each in frontier] or [sp.csr_matrix((0, walk.root.size), dtype=bool)]
    return behind.collect(tuple(frontier), sp.vstack(stacked, format="csr", dtype=bool))


class _Behind:
    """The walk behind the frontier, in weighted sets over its tensors."""

    def __init__(
        self, program: Program, walk: Walk, roots: dict[Node, Root], producers: dict[Node, View], starts: dict[Node, int]
    ) -> None:
        self._program, self._walk, self._roots = program, walk, roots
        self._producers, self._starts = producers, starts
        self._memory = Memory(program.sizes)
        self._now: dict[int, int] = {}
        self._seed_starts: dict[Node, int] = {}
        start = 0
        for seed in program.seeds:
            self._seed_starts[seed.storage, seed.version] = start
            start += seed.numel

    def read(self, view: View) -> Sets | None:
        node = view.storage, view.version
        if node in self._roots and self._now.get(view.storage) != view.version:
            whole = self._producers[node]
            self._memory.write(whole, Sets.identity(whole.shape, self._roots[node], self._seed_starts.get(node, 0)))
            self._now[view.storage] = view.version
        elif self._now.get(view.storage) != view.version:
            return None
        return self._memory.read(view)

    def advance(self, step: Step, rules: dict[str, Any]) -> None:
        sets = {view: self.read(view) for view in step.reads}
        call = self._walk.call(step, sets)
        for view, found in zip(step.results, self._walk.results(call, rules), strict=True):
            self._memory.write(view, found)
            self._now[view.storage] = view.version

    def collect(self, frontier: tuple[Frontier, ...], inner: sp.csr_matrix) -> Factors | str:
        starts = {self._roots[node]: start for node, start in self._starts.items()}
        elements, positions, weights = [], [], []
        constants = []
        offset = 0
        for answer, size in zip(self._program.answers, self._program.sizes_of_answers, strict=True):
            found = self.read(answer) if answer is not None else None
            for term in found.terms if found is not None else ():
                if term.weight is None:
                    return "an operation behind the cut has no constant weights"
                element, position, weight = entries(term)
                weight = weight if isinstance(weight, np.ndarray) else np.full(len(element), float(weight))
                if term.root is self._walk.root:
                    constants.append((element + offset, position, weight))
                else:
                    elements.append(element + offset)
                    positions.append(position.astype(np.int64) + starts[term.root])
                    weights.append(weight)
            offset += size
        rows, columns, values = (
            np.concatenate([part[k] for part in constants]) if constants else np.zeros(0, dtype=kind)
            for k, kind in enumerate((np.int32, np.int32, np.float64))
        )
        return Factors(
            frontier,
            inner,
            np.concatenate(elements) if elements else np.zeros(0, dtype=np.int32),
            np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64),
            np.concatenate(weights) if weights else np.zeros(0),
            sp.coo_matrix((values, (rows, columns)), shape=(offset, self._walk.root.size)),
            self._walk.unknown,
        )


def seeded_nodes(program: Program) -> dict[Node, None]:
    """The storages, with their versions, that depend on the seed, in order."""
    seeded = {(view.storage, view.version): None for view in program.seeds}
    for step in program.steps:
        if is_alias(step) or is_factory_like(step.op):
            continue
        if any((view.storage, view.version) in seeded for view in step.reads):
            seeded.update(((view.storage, view.version), None) for view in step.results)
    return seeded


def producers(program: Program) -> dict[Node, View]:
    """For each storage and version the view that covers all of it, as its operation returned it."""
    found = {(view.storage, view.version): view for view in program.seeds}
    for step in program.steps:
        if is_alias(step):
            continue
        for view in step.results:
            if view.numel * view.dtype.itemsize == program.sizes[view.storage]:
                found.setdefault((view.storage, view.version), view)
    return found


def _is_constant_linear(step: Step, seeded: dict[Node, None], trust: Trust) -> bool:
    if base_name(step.op) not in LINEAR or torch.Tag.nondeterministic_seeded in step.op.tags:
        return False
    hits = [view for view in step.reads if (view.storage, view.version) in seeded]
    if base_name(step.op) in {"mul", "div", "where", "masked_fill"} and len(hits) != 1 and base_name(step.op) != "where":
        return False
    return all(
        (view.storage, view.version) in seeded or view.storage not in trust.varying or _only_shape(step, view)
        for view in step.reads
    ) and all(view.dtype.is_floating_point for view in (*hits, *step.results))


def _only_shape(step: Step, view: View) -> bool:
    """Whether an in-place operation overwrites this operand without reading it."""
    return base_name(step.op) in {"copy", "fill", "zero"} and bool(step.writes) and view is step.reads[0]
