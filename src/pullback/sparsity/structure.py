"""Structure: what is known of a Jacobian from its program, and the colorings that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from pullback.autodiff.program import Line, Program, View, base_name, where
from pullback.autodiff.replay import Replay, replay
from pullback.coloring import (
    Substitution,
    bidirectional_bound,
    color_bidirectional,
    color_columns,
    color_rows,
    color_symmetric,
    column_bound,
    row_bound,
    substitution,
)
from pullback.coloring.graph import Graph
from pullback.data.coloring import Bicoloring, Coloring, SymmetricColoring
from pullback.sparsity.detect import Trust, Walk, decisions, varying_storages
from pullback.sparsity.factor import Factors, factors
from pullback.sparsity.gather import Gather
from pullback.sparsity.sets import Term, check_count, count_entries, entries, pattern_matrix, ranges
from pullback.sparsity.waist import Waist, waist


@dataclass(frozen=True, eq=False)
class Contributions:
    """The entries of J as sums over elements of the frontier: ``J[i, j] += weight * (dz/dw)[z, w]``.

    Attributes:
        entry: For each contribution the entry of J, counted along its rows; rising.
        w: The element of w, which is the row i itself where the program has no head.
        z: The element of the frontier.
        weight: The constant factor.
        constant: What each entry is beside them.
    """

    entry: np.ndarray
    w: np.ndarray
    z: np.ndarray
    weight: np.ndarray
    constant: np.ndarray


@dataclass(frozen=True)
class About:
    """What a structure rests on, for its use at other points.

    Attributes:
        constants: The ids of captured tensors whose numbers the pattern relies on.
        watched: What the program's course depended on ...
        lines: ... and the lines where it did.
        no_replay: Why the program's numbers do not follow from the inputs at another point, or ``""``.
        varying: The storages of the program whose numbers differ from call to call.
    """

    constants: frozenset[int] = frozenset()
    watched: tuple[View, ...] = ()
    lines: tuple[Line | None, ...] = ()
    no_replay: str = ""
    varying: frozenset[int] = frozenset()


@dataclass(eq=False)
class Structure:
    """Where a Jacobian can be non-zero, of the live outputs by the live inputs.

    Attributes:
        program: The reverse pass that it was found from.
        terms: What the answers depend on, and where each begins among all of them.
        local: Whether it holds at this point only.
        about: What it rests on.
        notes: What a reader of the plan should know.
        unknown: Operations without a rule, by name, with the line of the first.
        gathers: How each strategy picks the entries from its answers, once it was asked.
    """

    program: Program
    terms: list[tuple[Term, int]]
    local: bool
    about: About
    notes: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    gathers: dict[Any, Gather] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (m, n) of the Jacobian."""
        return sum(seed.numel for seed in self.program.seeds), sum(self.program.sizes_of_answers)

    @cached_property
    def roundoff(self) -> float:
        """The unit roundoff of the coarsest dtype on the way: autocast leaves no trace in inputs and outputs."""
        dtypes = {view.dtype for step in self.program.steps for view in step.results}
        return max((torch.finfo(each).eps for each in dtypes if each.is_floating_point or each.is_complex), default=0.0)

    @cached_property
    def most_entries(self) -> int:
        """The pattern has no more entries than this; known before it is put together."""
        return sum(count_entries(term) for term, _ in self.terms)

    @cached_property
    def pattern(self) -> sp.csr_matrix:
        """The pattern: bool, ``(m, n)``, sorted, without duplicates."""
        check_count(self.most_entries)
        rows, columns = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int32)]
        for term, start in self.terms:
            element, seed, _ = entries(term)
            rows.append(seed)
            columns.append(element + start)
        return pattern_matrix(np.concatenate(rows), np.concatenate(columns), self.shape)

    @cached_property
    def factors(self) -> Factors | str:
        """The program split where only constant operations follow, or why it is not split."""
        if self.local:
            return "a local pattern is not split"
        return factors(self.program, Trust(False, self.about.varying))

    @cached_property
    def contributions(self) -> Contributions:
        """How the entries are put together from the frontier, where the program is split."""
        assert isinstance(self.factors, Factors)
        return _contributions(self.factors, self.pattern)

    def without_numbers(self) -> Structure:
        """The same pattern, with its colorings, for another point: the tensors of this one are let go."""
        program = replace(self.program, captured={}, tensors={}, steps=[])
        light = Structure(program, self.terms, self.local, self.about, list(self.notes))
        vars(light).update({name: value for name, value in vars(self).items() if name in OF_THE_PATTERN})
        light.roundoff = self.roundoff
        return light

    def coordinates(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The row and the column of each entry."""
        rows = np.repeat(np.arange(self.pattern.shape[0], dtype=np.int64), np.diff(self.pattern.indptr))
        columns = self.pattern.indices.astype(np.int64)
        return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)

    def flat_positions(self, device: torch.device) -> Tensor:
        """Where the entries stand in the matrix, row after row."""
        row, column = self.coordinates(device)
        width: int = self.pattern.shape[1]
        return row * width + column

    @cached_property
    def rows(self) -> Coloring:
        """Rows that can share a reverse pass."""
        return color_rows(self.pattern)

    @cached_property
    def columns(self) -> Coloring:
        """Columns that can share a forward pass."""
        return color_columns(self.pattern)

    @cached_property
    def bidirectional(self) -> Bicoloring:
        """Rows and columns that can share passes on both sides."""
        return color_bidirectional(self.pattern)

    @cached_property
    def bidirectional_bound(self) -> int:
        """No coloring of both sides takes fewer passes."""
        return bidirectional_bound(Graph.of(self.pattern))

    @cached_property
    def star(self) -> SymmetricColoring:
        """Columns of a symmetric matrix that can share a pass, recovered directly."""
        return color_symmetric(self.pattern, "star")

    @cached_property
    def acyclic(self) -> SymmetricColoring:
        """Columns of a symmetric matrix that can share a pass, recovered by substitution."""
        return color_symmetric(self.pattern, "acyclic")

    @cached_property
    def substitution(self) -> Substitution:
        """In which order the answers of the acyclic coloring give the entries."""
        return substitution(self.pattern, self.acyclic)

    @cached_property
    def inner(self) -> Coloring:
        """Seeds that can share a reverse pass to the frontier."""
        assert isinstance(self.factors, Factors)
        return color_columns(self.factors.inner)

    @cached_property
    def row_bound(self) -> int:
        """No row coloring takes fewer passes: the most nonzeros in a column."""
        return row_bound(self.pattern)

    @cached_property
    def column_bound(self) -> int:
        """No column coloring takes fewer passes: the most nonzeros in a row."""
        return column_bound(self.pattern)

    @cached_property
    def inner_bound(self) -> int:
        """No coloring of the cut takes fewer passes."""
        return self.factors.bound if isinstance(self.factors, Factors) else 0

    @cached_property
    def waist(self) -> Waist | None:
        """The narrowest place of the program, if it is narrower than both ends."""
        return waist(self.program)

    @property
    def frontier(self) -> tuple[View, ...]:
        """The tensors at which the program is split."""
        assert isinstance(self.factors, Factors)
        return self.factors.frontier

    @property
    def sums(self) -> tuple[View, ...]:
        """One tensor like each part of z."""
        assert isinstance(self.factors, Factors)
        return tuple(self.frontier[parts[0][0]] for parts in self.factors.sums)

    @property
    def inner_seeds(self) -> tuple[View, ...]:
        """The tensors where the seeds of the split program go in."""
        assert isinstance(self.factors, Factors)
        return self.factors.head.views if self.factors.head is not None else self.program.seeds

    @cached_property
    def to_frontier(self) -> Replay:
        """The program cut down to what is between its head and the frontier."""
        return replay(replace(self.program, seeds=self.inner_seeds), self.frontier, stand_ins=self.program.seeds)

    @cached_property
    def to_answers(self) -> Replay:
        """The program as it is."""
        return replay(self.program, [view for view in self.program.answers if view])

    @cached_property
    def course(self) -> Replay:
        """The program cut down to what its course depends on."""
        return replay(self.program, [], self.about.watched)

    @cached_property
    def to_waist(self) -> Replay:
        """The program from the seed to its narrowest place."""
        assert self.waist is not None
        return replay(self.program, self.waist.views)

    @cached_property
    def from_waist(self) -> Replay:
        """The program from its narrowest place to the answers."""
        assert self.waist is not None
        answers = [view for view in self.program.answers if view]
        return replay(replace(self.program, seeds=self.waist.views), answers, stand_ins=self.program.seeds)


# What a structure has that follows from its pattern alone.
OF_THE_PATTERN = {"most_entries", "pattern", "rows", "columns", "bidirectional", "star", "acyclic", "substitution"}


def structure(program: Program, *, local: bool, fixed: Callable[[int, Tensor], bool]) -> Structure:
    """Find where the Jacobian of a recorded reverse pass can be non-zero.

    Args:
        program: The pass.
        local: At this point only, rather than at every point that takes the same branches.
        fixed: Whether a captured tensor is a constant: not a parameter that is trained, nor a buffer.
    """
    varying = varying_storages(program, fixed)
    course = decisions(program, varying)
    about = About(
        frozenset(id(tensor) for index, tensor in program.captured.items() if fixed(index, tensor)),
        tuple(view for view, _ in course),
        tuple(line for _, line in course),
        _no_replay(program),
        varying,
    )
    walk = Walk(program, Trust(local, varying))
    walk.run()
    terms = []
    start = 0
    for answer, size in zip(program.answers, program.sizes_of_answers, strict=True):
        found = walk.memory.in_order(answer) if answer is not None else None
        if found is not None:
            # Where elements repeat (channels, say) their union is made once, and then repeated.
            repeats = any(0 in term.labels.stride() for term in found.terms)
            terms += [(term, start) for term in (found.merged() if repeats else found).terms]
        start += size
    return Structure(program, terms, local, about, unknown=walk.unknown)


def _no_replay(program: Program) -> str:
    """Why the program, run at another point, would not be the function there."""
    found = {view.storage for step in program.steps for view in step.reads if view.tensor in program.captured}
    for step in program.steps:
        if torch.Tag.nondeterministic_seeded in step.op.tags:
            return f"random numbers ({base_name(step.op)}, {where(step.line)})"
        if any(view.storage in found for view in step.writes):
            return f"the function changes a tensor that it holds ({base_name(step.op)}, {where(step.line)})"
    return ""


def nothing() -> Structure:
    """The structure of a Jacobian without live outputs or inputs."""
    return Structure(Program("reverse"), [], local=False, about=About())


def _contributions(split: Factors, pattern: sp.csr_matrix) -> Contributions:
    """Where each entry of ``(T (dz/dw) + C) H``, transposed, comes from."""
    inner = split.inner
    which, w = _expanded(inner, split.position)
    element, z, weight = split.element[which], split.position[which], split.weight[which]
    row, constant = w, split.constant
    if split.head is not None:
        again, row = _expanded(split.head.matrix, w)
        factor = split.head.matrix.data[ranges(split.head.matrix.indptr[w], np.diff(split.head.matrix.indptr)[w])]
        element, z, w, weight = element[again], z[again], w[again], weight[again] * factor
        constant = (constant.tocsr() @ split.head.matrix).tocoo()
    # Entries are looked up by their numbers, from 1 on, as the values of the pattern.
    numbers = np.arange(1, pattern.nnz + 1, dtype=np.int64)
    numbered = sp.csr_matrix((numbers, pattern.indices, pattern.indptr), shape=pattern.shape)
    entry = _looked_up(numbered, row, element)
    fixed = _looked_up(numbered, constant.col, constant.row)
    order = _counting_order(entry, pattern.nnz)
    total = np.bincount(fixed, weights=constant.data, minlength=pattern.nnz)
    return Contributions(entry[order], w[order], z[order], weight[order], total)


def _expanded(matrix: sp.csr_matrix, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All entries of some rows, one row after the other: which of the rows, and the column."""
    counts = np.diff(matrix.indptr)[rows]
    return np.repeat(np.arange(len(rows)), counts), matrix.indices[ranges(matrix.indptr[rows], counts)]


def _looked_up(numbered: sp.csr_matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The places of coordinates among the entries of a pattern."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    found = np.asarray(numbered[rows, columns]).reshape(-1) - 1
    assert found.min() >= 0, "the cut has an entry that the pattern lacks"
    return found


def _counting_order(keys: np.ndarray, size: int) -> np.ndarray:
    """A stable order of small integers, by one counting sort (that of a sparse transpose)."""
    ones = np.ones(len(keys), dtype=np.int8)
    order: np.ndarray = sp.csr_matrix((ones, keys, np.arange(len(keys) + 1)), shape=(len(keys), size)).tocsc().indices
    return order
