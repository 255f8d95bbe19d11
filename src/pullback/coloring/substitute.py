"""Substitution: the values of a symmetric matrix from the answers of an acyclic coloring.

An answer is a sum of values; where all but one are known, it gives the last. The plan orders the values by levels:
those of level 0 stand alone in some answer, those of level k need values of lower levels only (Coleman and Cai 1986;
Gebremedhin, Tarafdar, Pothen, Walther 2009). Rounding errors add up along the levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pullback.coloring.graph import Ints, Pattern, symmetric_graph
from pullback.coloring.kernels import is_compiled, kernel
from pullback.data.coloring import SymmetricColoring
from pullback.errors import ValueMismatch


@dataclass(frozen=True, eq=False)
class Substitution:
    """How to solve for the values, level by level. All arrays are int64.

    A symmetric pair of nonzeros is one value. Values are numbered by level, so a level is a slice. To run it::

        values = answers.flat[read]
        for k in 1 .. depth - 1:
            s = slice(step_starts[k], step_starts[k + 1])
            values[target[s]] -= values[source[s]]    (adding up over equal targets)
        nonzeros = values[entry]

    Attributes:
        read: For each value, the place in the answers ``(count, n)``, read flat, of the sum that gives it.
        target: For each subtraction, the value it is subtracted from, ...
        source: ... and the value that is subtracted, which is of a lower level.
        level_starts: Where each level starts among the values, and the number of values.
        step_starts: Where each level starts among the subtractions, and their number.
        entry: For each nonzero in CSR order, its value.
    """

    read: Ints
    target: Ints
    source: Ints
    level_starts: Ints
    step_starts: Ints
    entry: Ints

    @property
    def depth(self) -> int:
        """The number of levels: steps that must be taken one after another; 1 is direct."""
        return len(self.level_starts) - 1

    def recover(self, answers: NDArray[Any]) -> NDArray[Any]:
        """The nonzeros in CSR order from the answers ``(count, n)``."""
        values = answers.reshape(-1)[self.read]
        for low, high in zip(self.step_starts[1:-1].tolist(), self.step_starts[2:].tolist(), strict=True):
            np.subtract.at(values, self.target[low:high], values[self.source[low:high]])
        return values[self.entry]


def substitution(pattern: Pattern, coloring: SymmetricColoring) -> Substitution:
    """The order in which the answers of a symmetric coloring give the values.

    Works for every coloring that determines the values one after another: acyclic, star, or by columns alone. Look
    at ``depth`` before using it: a chain of n values in two colors takes n/2 steps.

    Raises:
        ValueMismatch: Some values never become known: the coloring is of another pattern.
    """
    graph = symmetric_graph(pattern)
    n, colors = graph.n, coloring.colors.astype(np.int64)
    twin = np.minimum(np.arange(graph.nnz), graph.place)
    upper = np.flatnonzero(twin == np.arange(graph.nnz))
    number = np.empty(graph.nnz, np.int64)
    number[upper] = np.arange(len(upper))
    entry = number[twin]
    i, j = graph.row_of, graph.columns
    sums = np.where(colors[j] >= 0, colors[j] * n + i, -1)
    second = np.where(i[upper] == j[upper], -1, sums[graph.place[upper]])
    level, via = _levels(sums[upper], second, sums, entry, coloring.count * n)
    if (level < 0).any():
        raise ValueMismatch(
            "the coloring does not determine this symmetric matrix",
            got=f"{coloring!r}; {int((level < 0).sum()):,} of {len(level):,} values stay unknown",
            fix="color_symmetric of this very pattern",
        )
    return _plan(level, via, sums, entry)


def _plan(level: Ints, via: Ints, sums: Ints, entry: Ints) -> Substitution:
    """Number the values by level and list the subtractions by level."""
    by_level = np.argsort(level, kind="stable")
    number = np.empty_like(by_level)
    number[by_level] = np.arange(len(level))
    depth = int(level.max(initial=-1)) + 1
    solves = np.full(max(int(sums.max(initial=-1)), int(via.max(initial=-1))) + 2, -1, np.int64)
    solves[via] = np.arange(len(level))
    gives = np.where(sums >= 0, solves[sums], -1)
    step = (gives >= 0) & (gives != entry)
    target, source = number[gives[step]], number[entry[step]]
    order = np.argsort(target, kind="stable")
    target, source = target[order], source[order]
    level_starts = np.searchsorted(level[by_level], np.arange(depth + 1))
    return Substitution(
        via[by_level], target, source, level_starts, np.searchsorted(target, level_starts), number[entry]
    )


def _levels(first: Ints, second: Ints, sums: Ints, entry: Ints, size: int) -> tuple[Ints, Ints]:
    """The level of each value and the sum that gives it; level -1 where none does.

    Each sum keeps how many unknowns it has and the total of their numbers, which names the last one.
    """
    inside = sums >= 0
    left = np.bincount(sums[inside], minlength=size)
    total = np.zeros(size, np.int64)
    np.add.at(total, sums[inside], entry[inside])
    level, via = np.full(len(first), -1, np.int64), np.full(len(first), -1, np.int64)
    if is_compiled():
        kernel("peel")(first, second, left, total, level, via)
    else:
        _peel_in_numpy(first, second, left, total, level, via)
    return level, via


def _peel_in_numpy(first: Ints, second: Ints, left: Ints, total: Ints, level: Ints, via: Ints) -> None:
    """What the kernel ``peel`` does, a level at a time."""
    ready, depth = np.flatnonzero(left == 1), 0
    while len(ready):
        solved, at = np.unique(total[ready], return_index=True)
        level[solved], via[solved] = depth, ready[at]
        both = np.concatenate([first[solved], second[solved]])
        value = np.concatenate([solved, solved])[both >= 0]
        touched = both[both >= 0]
        np.subtract.at(left, touched, 1)
        np.subtract.at(total, touched, value)
        ready, depth = np.unique(touched[left[touched] == 1]), depth + 1
