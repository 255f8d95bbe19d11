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

from pullback.autodiff.program import Line, Program, View, where
from pullback.autodiff.replay import Replay, replay
from pullback.coloring import (
    Substitution,
    bidirectional_bound,
    color_bidirectional,
    color_columns,
    color_rows,
    color_symmetric,
    substitution,
)
from pullback.coloring.graph import Graph
from pullback.data.coloring import Bicoloring, Coloring, SymmetricColoring
from pullback.sparsity.detect import Trust, Walk, base_name, decisions, varying_storages
from pullback.sparsity.factor import Factors, factors
from pullback.sparsity.gather import Gather
from pullback.sparsity.sets import Term, count_entries, entries, pattern_matrix, ranges
from pullback.sparsity.waist import Waist, waist


@dataclass(frozen=True, eq=False)
class Contributions:
    """The entries of J as sums over elements of the frontier: ``J[i, j] += weight * (dz/du)[z, i]``.

    Attributes:
        entry: For each contribution the entry of J, counted along its rows; rising.
        seed: The row i.
        z: The element of the frontier.
        weight: The constant factor.
        constant: What each entry is beside them.
    """

    entry: np.ndarray
    seed: np.ndarray
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
        factors: The program split where only constant operations follow, or why it is not split.
        terms: Where it is not split, what the answers depend on, and where each begins among all of them.
        local: Whether it holds at this point only.
        about: What it rests on.
        notes: What a reader of the plan should know.
        unknown: Operations without a rule, by name, with the line of the first.
        gathers: How each strategy picks the entries from its answers, once it was asked.
    """

    program: Program
    factors: Factors | str
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
        if isinstance(self.factors, Factors):
            counts = np.diff(self.factors.inner.indptr)
            return int(counts[self.factors.position].sum()) + int(self.factors.constant.nnz)
        return sum(count_entries(term) for term, _ in self.terms)

    @cached_property
    def pattern(self) -> sp.csr_matrix:
        """The pattern: bool, ``(m, n)``, sorted, without duplicates."""
        if isinstance(self.factors, Factors):
            return self._assembled[0]
        rows, columns = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int32)]
        for term, start in self.terms:
            element, seed, _ = entries(term)
            rows.append(seed)
            columns.append(element + start)
        return pattern_matrix(np.concatenate(rows), np.concatenate(columns), self.shape)

    @property
    def contributions(self) -> Contributions:
        """How the entries are put together from the frontier, where the program is split."""
        return self._assembled[1]

    @cached_property
    def _assembled(self) -> tuple[sp.csr_matrix, Contributions]:
        assert isinstance(self.factors, Factors)
        return _put_together(self.factors)

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
        return int(np.bincount(self.pattern.indices, minlength=1).max()) if self.pattern.nnz else 0

    @cached_property
    def column_bound(self) -> int:
        """No column coloring takes fewer passes: the most nonzeros in a row."""
        return int(np.diff(self.pattern.indptr).max(initial=0))

    @cached_property
    def inner_bound(self) -> int:
        """No coloring of the cut takes fewer passes: the most seeds that one element of the frontier depends on."""
        return int(np.diff(self.factors.inner.indptr).max(initial=0)) if isinstance(self.factors, Factors) else 0

    @cached_property
    def waist(self) -> Waist | None:
        """The narrowest place of the program, if it is narrower than both ends."""
        return waist(self.program)

    @property
    def frontier(self) -> tuple[View, ...]:
        """The tensors at which the program is split."""
        assert isinstance(self.factors, Factors)
        return tuple(each.view for each in self.factors.frontier)

    @cached_property
    def to_frontier(self) -> Replay:
        """The program cut down to the frontier."""
        return replay(self.program, self.frontier)

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
    split = factors(program, Trust(False, varying)) if not local else "a local pattern is not split"
    if isinstance(split, Factors):
        return Structure(program, split, [], local, about, unknown=split.unknown)
    walk = Walk(program, Trust(local, varying))
    walk.run()
    terms = []
    start = 0
    for answer, size in zip(program.answers, program.sizes_of_answers, strict=True):
        found = walk.memory.read(answer) if answer is not None else None
        terms += [(term, start) for term in found.terms] if found is not None else []
        start += size
    return Structure(program, split, terms, local, about, unknown=walk.unknown)


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
    return Structure(Program("reverse"), "there is nothing to split", [], local=False, about=About())


def _put_together(split: Factors) -> tuple[sp.csr_matrix, Contributions]:
    """The pattern of ``T (dz/du) + C``, transposed, and where each of its entries comes from."""
    inner = split.inner
    counts = np.diff(inner.indptr)[split.position]
    where = ranges(inner.indptr[split.position], counts)
    seed = inner.indices[where]
    element = np.repeat(split.element, counts)
    constant = split.constant
    rows = np.concatenate([seed, constant.col])
    columns = np.concatenate([element, constant.row])
    shape = (constant.shape[1], constant.shape[0])
    pattern, entry, order = grouped(rows, columns, shape)
    is_constant = order >= len(seed)
    summands = constant.data[order[is_constant] - len(seed)]
    fixed = np.bincount(entry[is_constant], weights=summands, minlength=pattern.nnz)
    chosen = order[~is_constant]
    z = np.repeat(split.position, counts)[chosen]
    weight = np.repeat(split.weight, counts)[chosen]
    return pattern, Contributions(entry[~is_constant], seed[chosen], z, weight, fixed)


def grouped(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> tuple[sp.csr_matrix, Any, Any]:
    """A pattern from coordinates that may repeat, and where they went.

    Returns:
        The pattern; for each coordinate, in sorted order, its entry; and the sorted order.
    """
    by_column = _counting_order(columns, shape[1])
    order = by_column[_counting_order(rows[by_column], shape[0])]
    row, column = rows[order], columns[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
    entry = np.cumsum(new) - 1
    indptr = np.zeros(shape[0] + 1, dtype=np.int64)
    np.cumsum(np.bincount(row[new], minlength=shape[0]), out=indptr[1:])
    pattern = sp.csr_matrix((np.ones(int(new.sum()), dtype=bool), column[new], indptr), shape=shape)
    pattern.has_canonical_format = True
    return pattern, entry, order


def _counting_order(keys: np.ndarray, size: int) -> np.ndarray:
    """A stable order of small integers, by one counting sort (that of a sparse transpose)."""
    ones = np.ones(len(keys), dtype=np.int8)
    order: np.ndarray = sp.csr_matrix((ones, keys, np.arange(len(keys) + 1)), shape=(len(keys), size)).tocsc().indices
    return order
