"""What the strategies that know the pattern share: bids, colored seeds, and entries picked from answers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.program import View
from pullback.data.space import Leaf, Space
from pullback.sparsity.gather import Gather
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Grid, Refusal, Strategy, Want, tiled
from pullback.strategies.outer import layers_of

# A dense result of fewer passes is made before a program could be recorded.
WORTH_RECORDING = 512
# A dense result is built from a pattern where at most one in so many entries can be non-zero.
WORTH_COLORING = 4


def worth_recording(facts: Facts) -> bool:
    """Whether a dense result takes so many passes that a recorded program may save time."""
    return facts.recorded or min(facts.rows.size, facts.columns.size) >= WORTH_RECORDING


class Compressed(Strategy):
    """Sends seeds that several rows or columns share, and picks the entries from the answers.

    Attributes:
        from_pattern: Whether it needs the pattern, which costs as much as it has entries.
    """

    gives: ClassVar[frozenset[Want]] = frozenset({"matrix", "sparse"})
    from_pattern: ClassVar[bool] = True

    def bid(self, facts: Facts) -> Bid | Refusal:
        unasked = facts.want == "matrix" and facts.wanted != self.name
        if unasked and not worth_recording(facts):
            return Refusal("too few passes to be worth looking for zeros")
        if facts.want == "matrix" and (facts.rows.is_complex or facts.columns.is_complex):
            return Refusal("complex functions are built by rows or columns")
        if unasked and not isinstance(layers_of(facts), str):
            return Refusal("rows are made of outer products, which leaves no zeros to look for")
        found = facts.structure()
        if isinstance(found, str):
            return Refusal(found)
        if unasked and self.from_pattern and found.most_entries * WORTH_COLORING > math.prod(found.shape):
            return Refusal("too few zeros for a dense result to profit")
        return self.offer(facts, found)

    @abstractmethod
    def offer(self, facts: Facts, structure: Structure) -> Bid | Refusal:
        """The bid, where there is a pattern."""

    @abstractmethod
    def entries(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        """The entries of the pattern from the answers of all passes."""

    def values(self, facts: Facts, bid: Bid, structure: Structure, answers: Sequence[Tensor]) -> Tensor:
        """The entries of the pattern; none where it is empty."""
        if not structure.pattern.nnz:
            return torch.zeros(0, dtype=facts.columns.dtype, device=facts.columns.device)
        return self.entries(facts, bid, structure, answers)

    def entries_of(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Tensor | None:
        return self.values(facts, bid, known(facts), answers)

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        structure = known(facts)
        values = self.values(facts, bid, structure, answers)
        return values if facts.want == "sparse" else spread(facts, structure, values)

    def recover_into(self, facts: Facts, bid: Bid, answers: Sequence[Tensor], grid: Grid) -> None:
        structure = known(facts)
        spread_into(facts, structure, self.values(facts, bid, structure, answers), grid)


def known(facts: Facts) -> Structure:
    """The structure, which there is once a strategy has bid on it."""
    found = facts.structure()
    assert isinstance(found, Structure)
    return found


def space_of(views: Sequence[View]) -> Space:
    """Tensors of a program as a Space."""
    leaves: list[Leaf] = []
    start = 0
    for k, view in enumerate(views):
        leaves.append(Leaf(f"z{k}", torch.Size(view.shape), view.dtype, view.device, start))
        start += leaves[-1].numel
    return Space(tuple(leaves), pytree.tree_structure([0] * len(leaves)), tuple(range(len(leaves))), start)


def colored_seeds(space: Space, colors: np.ndarray, start: int, stop: int) -> tuple[Tensor, ...]:
    """For each color from ``start`` to ``stop`` one seed: 1 where an element has it, 0 elsewhere."""
    wanted = torch.arange(start, stop)
    seeds = []
    for leaf in space.leaves:
        here = torch.from_numpy(colors[leaf.slice]).to(leaf.device)
        seed = here[None] == wanted[:, None].to(leaf.device)
        seeds.append(seed.to(leaf.dtype).reshape(len(wanted), *leaf.shape))
    return tuple(seeds)


def picked(structure: Structure, name: str, source: Any, device: torch.device) -> Gather:
    """The Gather of a strategy, made once for a structure and device."""
    key = name, device
    if key not in structure.gathers:
        structure.gathers[key] = Gather.of(source().astype(np.int64, copy=False), device)
    return structure.gathers[key]


def spread(facts: Facts, structure: Structure, values: Tensor) -> Grid:
    """The entries of the pattern in a matrix of zeros."""
    m, n = structure.shape
    if structure.pattern.nnz == m * n:
        return as_grid(facts, values.reshape(m, n))
    flat = structure.flat_positions(values.device)
    zeros = torch.zeros(m * n, dtype=values.dtype, device=values.device)
    # In place where nothing has to be differentiable: a matrix of zeros is not worth a copy.
    matrix = zeros.index_copy(0, flat, values) if values.requires_grad else zeros.index_copy_(0, flat, values)
    return as_grid(facts, matrix.reshape(m, n))


def spread_into(facts: Facts, structure: Structure, values: Tensor, grid: Grid) -> None:
    """The entries of the pattern among zeros, over what stands in a grid."""
    whole = tiled(grid)
    row, column = structure.coordinates(values.device)
    parts = [(row, column, values, whole)] if whole is not None else _by_part(facts, row, column, values, grid)
    for at, across, entries, target in parts:
        target.zero_()
        target[at.to(target.device), across.to(target.device)] = entries.to(dtype=target.dtype, device=target.device)


def _by_part(
    facts: Facts, row: Tensor, column: Tensor, values: Tensor, grid: Grid
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The entries of each pair of an output and an input, and the matrix that they belong to."""
    for k, high in enumerate(facts.rows.leaves):
        # The entries are sorted by rows.
        ends = torch.tensor([high.offset, high.offset + high.numel], device=row.device)
        first, last = torch.searchsorted(row, ends).tolist()
        for j, wide in enumerate(facts.columns.leaves):
            across = column[first:last] - wide.offset
            inside = (across >= 0) & (across < wide.numel)
            yield row[first:last][inside] - high.offset, across[inside], values[first:last][inside], grid[k][j]


def as_grid(facts: Facts, matrix: Tensor) -> Grid:
    """A matrix of all live outputs by all live inputs, as one matrix for each pair of them."""
    return [
        [matrix[row.slice, column.slice].to(column.dtype) for column in facts.columns.leaves]
        for row in facts.rows.leaves
    ]
