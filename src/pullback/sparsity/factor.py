"""Factor: split a program where only constant operations follow, and where only constant operations went before.

The tail of a pass often moves, scales and sums elements by constants: slices, rolls, gathers and concatenations of the
function become pads, rolls and scatters of its reverse pass. The answers are then ``T z`` with a constant matrix T
and z, the tensors at the *frontier*. Its head often does the same to the seed u, as sums and scatters at the end of the
function become gathers: ``w = H u``. So ``Jᵀ = T (dz/dw) H``, and dz/dw takes fewer colours than J: each copy of an
element is an element of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from pullback.autodiff.program import Node, Program, Step, View, base_name, is_alias, seeded_nodes
from pullback.sparsity.call import RULES
from pullback.sparsity.detect import Trust, Walk
from pullback.sparsity.memory import Memory
from pullback.sparsity.sets import Root, Sets, entries, merged

# The frontier may have so many times the elements of both ends; beyond, the answers would be too long.
LARGEST_FRONTIER = 24

# Linear in their seeded operands with coefficients that are constants if their other operands are.
LINEAR = {
    "add", "sub", "rsub", "neg", "mul", "div", "where", "masked_fill", "sum", "mean", "index_put",
    "_index_put_impl", "_unsafe_index_put", "scatter_add", "index_add", "index", "gather", "index_select",
    "_unsafe_index", "scatter", "embedding_dense_backward", "zero", "fill", "clone", "copy", "_to_copy", "roll",
    "flip", "rot90", "constant_pad_nd", "slice_backward", "select_backward", "diagonal_backward", "cat", "stack",
    "repeat", "tril", "triu", "diag_embed", "slice_scatter", "select_scatter", "diagonal_scatter",
    "as_strided_scatter", "_unsafe_view", "unfold_backward", "reflection_pad1d_backward",
    "reflection_pad2d_backward", "reflection_pad3d_backward", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward", "_reshape_copy", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle",
}  # fmt: skip

# Those among them that work on each element alone.
ELEMENTWISE = {"add", "sub", "rsub", "neg", "mul", "div"}


@dataclass(frozen=True, eq=False)
class Frontier:
    """A tensor at which a program is split.

    Attributes:
        view: The tensor.
        rows: What its elements depend on, ``(elements, size of the seed)``; bool.
    """

    view: View
    rows: sp.csr_matrix


@dataclass(frozen=True, eq=False)
class Factors:
    """``answers = T z + C w`` with ``w = H u``: z is a function of w that takes passes; T, C and H are constants.

    Attributes:
        frontier: The tensors at the cut.
        sums: z: for each of its parts which of them are added up, and with which weights (a 0 stands for one alone).
        inner: The pattern of dz/dw, ``(elements of z, elements of w)``.
        element: For each entry of T: the element of the answers, laid end to end.
        position: For each entry of T: the element of z.
        weight: For each entry of T: its value.
        constant: C, ``(elements of the answers, elements of w)``.
        head: w and H; None where w is the seed itself.
    """

    frontier: tuple[View, ...]
    sums: tuple[tuple[tuple[int, float], ...], ...]
    inner: sp.csr_matrix
    element: np.ndarray
    position: np.ndarray
    weight: np.ndarray
    constant: sp.coo_matrix
    head: Head | None = None

    @property
    def bound(self) -> int:
        """No coloring takes fewer passes: the most elements of w that one element of z depends on."""
        return int(np.diff(self.inner.indptr).max(initial=0))


@dataclass(frozen=True, eq=False)
class Head:
    """What constant operations make of the seed, before anything else reads it.

    Attributes:
        views: The tensors that make up w.
        matrix: H, ``(elements of w, size of the seed)``.
    """

    views: tuple[View, ...]
    matrix: sp.csr_matrix


Entries = tuple[np.ndarray, np.ndarray, np.ndarray]


def factors(program: Program, trust: Trust) -> Factors | str:
    """The factors of a program, or why it is not split; its head is split off where that takes fewer passes."""
    plain = _behind(program, trust)
    found = _head(program, trust)
    if found is None:
        return plain
    head, rest = found
    split = _behind(replace(program, seeds=head.views, steps=rest), trust)
    if isinstance(split, str) or (isinstance(plain, Factors) and plain.bound <= split.bound):
        return plain
    return replace(split, head=head)


def _head(program: Program, trust: Trust) -> tuple[Head, list[Step]] | None:
    """What constant operations make of the seed, and the steps after them; None where they make nothing new of it."""
    seeded, wholes = seeded_nodes(program), producers(program)
    made = {(view.storage, view.version) for view in program.seeds}
    walk, rules = Walk(program, trust), RULES.all()
    inside: set[int] = set()
    for index, step in enumerate(program.steps):
        reads = [node for view in step.reads if (node := (view.storage, view.version)) in seeded]
        constant = not is_alias(step) and not step.writes and bool(reads) and all(node in made for node in reads)
        if constant and _is_constant_linear(step, seeded, trust):
            walk.advance(step, rules)
            inside.add(index)
            made.update((view.storage, view.version) for view in step.results)
    rest = [step for index, step in enumerate(program.steps) if index not in inside]
    views = [view for step in rest if not is_alias(step) for view in step.reads]
    views += [answer for answer in program.answers if answer is not None]
    nodes = [node for node in dict.fromkeys((view.storage, view.version) for view in views) if node in made]
    if not nodes or any(node not in wholes for node in nodes):
        return None
    tensors = tuple(wholes[node] for node in nodes)
    size, width = sum(view.numel for view in tensors), walk.root.size
    if tensors == program.seeds or size > LARGEST_FRONTIER * max(width + sum(program.sizes_of_answers), 1):
        return None
    matrix = _weighted_rows(walk, tensors)
    return None if matrix is None else (Head(tensors, matrix), rest)


def _weighted_rows(walk: Walk, views: tuple[View, ...]) -> sp.csr_matrix | None:
    """What tensors are of the seed, as a matrix; None where a weight is not constant."""
    parts: list[Entries] = []
    start = 0
    for view in views:
        found = walk.memory.read(view)
        for term in found.terms if found is not None else ():
            if term.weight is None:
                return None
            element, position, weight = entries(term)
            weight = weight if isinstance(weight, np.ndarray) else np.full(len(element), float(weight))
            parts.append((element + start, position, weight))
        start += view.numel
    rows, columns, values = _joined(parts)
    return sp.coo_matrix((values, (rows, columns)), shape=(start, walk.root.size)).tocsr()


def _behind(program: Program, trust: Trust) -> Factors | str:
    """The factors of a program behind its cut, or why it is not split."""
    if any(view.dtype.is_complex for step in program.steps for view in step.results):
        return "complex numbers on the way"
    seeded, wholes = seeded_nodes(program), producers(program)
    readers = _readers(program, seeded)
    tail = _tail(program, trust, seeded, readers)
    cut = _cut(program, tail, seeded)
    if any(node not in wholes for node in cut):
        return "a tensor at the cut was written in parts"
    ends = sum(view.numel for view in (*program.seeds, *(answer for answer in program.answers if answer)))
    if sum(wholes[node].numel for node in cut) > LARGEST_FRONTIER * max(ends, 1):
        return "the tensors at the cut would be longer than what is saved"
    rules = RULES.all()
    walk = Walk(program, trust)
    behind = _Behind(walk, wholes)
    for index, step in enumerate(program.steps):
        if index in tail and not (_is_elementwise(step) and behind.absorbs(step, readers, rules)):
            behind.advance(step, rules)
        else:
            walk.advance(step, rules)
    return behind.collect()


def _readers(program: Program, seeded: dict[Node, None]) -> dict[Node, list[int]]:
    """For each seeded storage and version the steps that read it; -1 stands for the end."""
    found: dict[Node, list[int]] = {}
    for index, step in enumerate(program.steps):
        if not is_alias(step):
            for node in {(view.storage, view.version) for view in step.reads}:
                if node in seeded:
                    found.setdefault(node, []).append(index)
    for answer in program.answers:
        if answer is not None:
            found.setdefault((answer.storage, answer.version), []).append(-1)
    return found


def _tail(program: Program, trust: Trust, seeded: dict[Node, None], readers: dict[Node, list[int]]) -> set[int]:
    """The steps after which only constant linear operations follow."""
    tail = {-1}
    for index in range(len(program.steps) - 1, -1, -1):
        step = program.steps[index]
        nodes = [(view.storage, view.version) for view in step.results]
        if is_alias(step) or not any(node in seeded for node in nodes) or not _is_constant_linear(step, seeded, trust):
            continue
        if all(reader in tail for node in nodes for reader in readers.get(node, ())):
            tail.add(index)
    return tail


def _cut(program: Program, tail: set[int], seeded: dict[Node, None]) -> list[Node]:
    """What the tail reads and did not make, seeds apart."""
    ends = {(view.storage, view.version) for view in program.seeds}
    ends |= {(view.storage, view.version) for index in tail if index >= 0 for view in program.steps[index].results}
    views = [view for index in sorted(tail) if index >= 0 for view in program.steps[index].reads]
    views += [answer for answer in program.answers if answer is not None]
    nodes = dict.fromkeys((view.storage, view.version) for view in views)
    return [node for node in nodes if node in seeded and node not in ends]


class _Behind:
    """The walk behind the cut, in weighted sets over the tensors that are read there first."""

    def __init__(self, walk: Walk, wholes: dict[Node, View]) -> None:
        self._walk, self._wholes = walk, wholes
        self._program = walk.program
        self._memory = Memory(walk.program.sizes)
        self._now: dict[int, int] = {}
        self._frontier: list[Frontier] = []
        self._roots: list[Root] = []
        self._made: set[Node] = set()
        self._seeds: dict[Node, int] = {}
        start = 0
        for seed in self._program.seeds:
            self._seeds[seed.storage, seed.version] = start
            start += seed.numel

    def read(self, view: View) -> Sets | None:
        """What a view depends on, in elements at the cut; a tensor that was not made behind it becomes a part of it."""
        node = view.storage, view.version
        if self._now.get(view.storage) != view.version:
            sets = self._begin(node)
            if sets is None:
                return None
            self._memory.write(self._wholes[node], sets)
            self._now[view.storage] = view.version
        return self._memory.read(view)

    def _begin(self, node: Node) -> Sets | None:
        """A tensor at the cut: each of its elements depends on itself."""
        whole = self._wholes.get(node)
        if whole is None:
            return None
        if node in self._seeds:
            return Sets.identity(whole.shape, self._walk.root, self._seeds[node])
        inner = self._walk.memory.read(whole)
        if inner is None:
            return None
        root = Root(f"cut {node}", whole.numel)
        self._roots.append(root)
        self._frontier.append(Frontier(whole, merged(inner, self._walk.root.size)))
        return Sets.identity(whole.shape, root)

    def advance(self, step: Step, rules: dict[str, Any]) -> None:
        """Carry weighted sets through one step."""
        call = self._walk.call(step, {view: self.read(view) for view in step.reads})
        for view, found in zip(step.results, self._walk.results(call, rules), strict=True):
            self._memory.write(view, found)
            self._now[view.storage] = view.version
            self._made.add((view.storage, view.version))

    def absorbs(self, step: Step, readers: dict[Node, list[int]], rules: dict[str, Any]) -> bool:
        """Move a step on elements to the front of the cut, where its operands depend on the same seeds.

        Two tensors at the cut become one then, at no cost in colors.
        """
        (result,) = step.results
        sets = {view: self._walk.memory.read(view) for view in step.reads}
        for view, found in sets.items():
            node = view.storage, view.version
            if found is None and node not in self._seeds and node not in self._made:
                continue
            alone = len(readers.get(node, ())) == 1 and self._wholes.get(node) == view and view.shape == result.shape
            if found is None or node in self._seeds or node in self._made or not alone:
                return False
        call = self._walk.call(step, sets)
        (out,) = self._walk.results(call, rules)
        if out is None or any(len(found.terms) != len(out.terms) for found in sets.values() if found is not None):
            return False
        self._walk.memory.write(result, out.scaled(None))
        return True

    def collect(self) -> Factors | str:
        """The factors, from what the answers depend on."""
        behind: dict[Root, list[Entries]] = {}
        constants: list[Entries] = []
        offset = 0
        for answer, size in zip(self._program.answers, self._program.sizes_of_answers, strict=True):
            found = self.read(answer) if answer is not None else None
            for term in found.terms if found is not None else ():
                if term.weight is None:
                    return "an operation behind the cut has no constant weights"
                element, position, weight = entries(term)
                weight = weight if isinstance(weight, np.ndarray) else np.full(len(element), float(weight))
                here = constants if term.root is self._walk.root else behind.setdefault(term.root, [])
                here.append((element + offset, position, weight))
            offset += size
        sums = _sums(self._frontier, [_joined(behind.get(root, [])) for root in self._roots])
        varying, inner, start = [], [], 0
        for first, _, (element, position, weight) in sums:
            varying.append((element, position.astype(np.int64) + start, weight))
            inner.append(self._frontier[first].rows)
            start += self._frontier[first].view.numel
        rows, columns, values = _joined(constants)
        return Factors(
            tuple(each.view for each in self._frontier),
            tuple(tuple(parts) for _, parts, _ in sums),
            sp.vstack(inner or [sp.csr_matrix((0, self._walk.root.size), dtype=bool)], format="csr", dtype=bool),
            *_joined(varying),
            sp.coo_matrix((values, (rows, columns)), shape=(offset, self._walk.root.size)),
        )


def _sums(frontier: list[Frontier], behind: list[Entries]) -> list[tuple[int, list[tuple[int, float]], Entries]]:
    """Tensors at the cut that go the same way behind it, and depend on the same seeds before, become one: their sum.

    Returns:
        For each sum the first of its tensors; all of them with their weights; and its entries of T.
    """
    found: list[tuple[int, list[tuple[int, float]], Entries]] = []
    for k, (element, position, weight) in enumerate(behind):
        even = len(weight) > 0 and weight[0] != 0.0 and bool((weight == weight[0]).all())
        for first, parts, (other_element, other_position, _) in found:
            one, other = frontier[k], frontier[first]
            if (
                even
                and parts[0][1] != 0.0
                and (one.view.shape, one.view.dtype) == (other.view.shape, other.view.dtype)
                and np.array_equal(element, other_element)
                and np.array_equal(position, other_position)
                and np.array_equal(one.rows.indptr, other.rows.indptr)
                and np.array_equal(one.rows.indices, other.rows.indices)
            ):
                parts.append((k, float(weight[0])))
                break
        else:
            # Where the weights are all the same they go into the sum, else (marked by 0) nothing is added to it.
            entry = (element, position, np.ones(len(weight)) if even else weight)
            found.append((k, [(k, float(weight[0]) if even else 0.0)], entry))
    return found


def _joined(parts: list[Entries]) -> Entries:
    """Rows, columns and values of all parts."""
    if not parts:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), np.zeros(0)
    rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, columns, values


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
    """Whether a step is linear in what depends on the seed, and all else that it reads is constant."""
    name = base_name(step.op)
    if name not in LINEAR or torch.Tag.nondeterministic_seeded in step.op.tags:
        return False
    hits = [view for view in step.reads if (view.storage, view.version) in seeded]
    if name in {"mul", "div", "masked_fill"} and len(hits) != 1:
        return False
    return all(
        (view.storage, view.version) in seeded or view.storage not in trust.varying or _only_shape(step, view)
        for view in step.reads
    ) and all(view.dtype.is_floating_point for view in (*hits, *step.results))


def _is_elementwise(step: Step) -> bool:
    """Whether a constant linear step works on each element alone."""
    return base_name(step.op) in ELEMENTWISE and not step.writes


def _only_shape(step: Step, view: View) -> bool:
    """Whether an in-place operation overwrites this operand without reading it."""
    return base_name(step.op) in {"copy", "fill", "zero"} and bool(step.writes) and view is step.reads[0]
