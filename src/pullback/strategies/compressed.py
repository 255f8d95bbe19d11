"""What the strategies that know the pattern share: bids, colored seeds, and entries picked from answers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.autodiff.linearize import Pass, Tensors
from pullback.autodiff.program import View
from pullback.autodiff.replay import Replay, transposed
from pullback.data.space import Leaf, Space
from pullback.sparsity.gather import Gather
from pullback.sparsity.structure import Structure
from pullback.strategies.base import Bid, Facts, Grid, Refusal, Strategy, Want

# A dense result of fewer passes is made before a program could be recorded.
WORTH_RECORDING = 512
# A dense result is built from a pattern where at most one in so many entries can be non-zero.
WORTH_COLORING = 4


@dataclass(frozen=True, eq=False)
class Sender:
    """How one part of a strategy's passes runs through a recorded program.

    Attributes:
        graph: The program, cut down to what this part needs.
        transposed: Whether the seeds go in where it ends.
        sums: Which of its results are added up, with which weights (0 for one alone); empty: none.
    """

    graph: Replay
    transposed: bool = False
    sums: tuple[tuple[tuple[int, float], ...], ...] = ()

    def one(self, coefficients: Sequence[Tensor]) -> Pass:
        """One pass at a point, given the coefficients there."""

        def run(*seeds: Tensor) -> Tensors:
            answers: Tensors = self.graph.linear(*coefficients, *seeds)
            return tuple(_sum(answers, parts) for parts in self.sums) if self.sums else answers

        if self.transposed:
            return transposed(run, self.graph.seeds)
        return lambda seeds: run(*seeds)


def _sum(answers: Tensors, parts: tuple[tuple[int, float], ...]) -> Tensor:
    total: Tensor | None = None
    for index, weight in parts:
        part = answers[index] if weight in {0.0, 1.0} else answers[index] * weight
        total = part if total is None else total + part
    assert total is not None
    return total


class Compressed(Strategy):
    """Sends seeds that several rows or columns share, and picks the entries from the answers.

    Attributes:
        from_pattern: Whether it needs the pattern, which costs as much as it has entries.
    """

    gives: ClassVar[frozenset[Want]] = frozenset({"matrix", "sparse"})
    from_pattern: ClassVar[bool] = True

    def bid(self, facts: Facts) -> Bid | Refusal:
        unasked = facts.want == "matrix" and facts.wanted != self.name
        if unasked and min(facts.rows.size, facts.columns.size) < WORTH_RECORDING:
            return Refusal("too few passes to be worth looking for zeros")
        if facts.want == "matrix" and (facts.rows.is_complex or facts.columns.is_complex):
            return Refusal("complex functions are built by rows or columns")
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

    def senders(self, facts: Facts, structure: Structure) -> list[Sender]:
        """For each part of the bid how a recorded program can take its place; empty where it cannot."""
        return []

    def recover(self, facts: Facts, bid: Bid, answers: Sequence[Tensor]) -> Grid | Tensor:
        structure = known(facts)
        values = self.values(facts, bid, structure, answers)
        return values if facts.want == "sparse" else spread(facts, structure, values)


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
    matrix = torch.zeros(m * n, dtype=values.dtype, device=values.device).index_copy(0, flat, values).reshape(m, n)
    return as_grid(facts, matrix)


def as_grid(facts: Facts, matrix: Tensor) -> Grid:
    """A matrix of all live outputs by all live inputs, as one matrix for each pair of them."""
    return [
        [matrix[row.slice, column.slice].to(column.dtype) for column in facts.columns.leaves]
        for row in facts.rows.leaves
    ]
