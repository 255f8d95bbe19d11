"""Colors by arithmetic: on bands and on grids stored row by row they reach what no greedy order does.

A banded matrix of bandwidth b is colored by ``j mod b``. A column of a grid is ``j = x + width y + plane z``, and
``(x + a y + b z) mod p`` is a lattice coloring; written with j it is ``(j + a (j // width) + b (j // plane)) mod p``
for other a and b. Width and plane are read off the pattern: they are the diagonals that are full. Checking one
candidate takes one look at the nonzeros, all at once, and most fail within the first few.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from pullback.coloring.graph import Graph, Ints
from pullback.coloring.kernels import Clock
from pullback.data.coloring import Coloring

# Most candidates fail within so many nonzeros.
SAMPLE = 2048
# Lattices are tried up to this p: there are p² of them for each pair of strides.
WIDEST_LATTICE = 16
STRIDES = 3

Terms = tuple[tuple[int, int], ...]


def modular(graph: Graph, best: Coloring, clock: Clock) -> Coloring:
    """The coloring by arithmetic with the fewest colors, or the given one where none has fewer."""
    strides = _strides(graph)
    for p in range(max(best.bound, 1), best.count):
        for name, terms in _lattices(p, strides):
            if clock.is_over:
                return best
            if _is_valid(graph, terms, p, SAMPLE) and _is_valid(graph, terms, p, graph.nnz):
                colors = np.where(graph.column_degrees > 0, _colors(np.arange(graph.n), terms, p), -1)
                used = np.bincount(colors[colors >= 0], minlength=1) > 0
                if used.all():
                    return Coloring(best.axis, colors.astype(np.int32), len(used), best.bound, name)
    return best


def _strides(graph: Graph) -> list[int]:
    """The distances of full diagonals from the main one, the fullest first; none for a pattern that is not square."""
    if graph.m != graph.n:
        return []
    distance = np.abs(graph.columns - graph.row_of)
    often = np.bincount(distance, minlength=2)
    often[:2] = 0
    fullest = np.argsort(-often, kind="stable")[:STRIDES]
    return [int(stride) for stride in fullest if 2 * often[stride] >= graph.n]


def _lattices(p: int, strides: list[int]) -> Iterator[tuple[str, Terms]]:
    """Names and terms (stride, factor) of the candidates with p colors; ``j`` itself is the term (1, 1)."""
    yield f"j mod {p}", ((1, 1),)
    if p > WIDEST_LATTICE:
        return
    for stride, factor in product(strides, range(1, p)):
        yield f"(j + {factor} (j // {stride})) mod {p}", ((1, 1), (stride, factor))
    for (one, two), a, b in product(combinations(sorted(strides), 2), range(1, p), range(1, p)):
        yield f"(j + {a} (j // {one}) + {b} (j // {two})) mod {p}", ((1, 1), (one, a), (two, b))


def _colors(columns: Ints, terms: Terms, p: int) -> Ints:
    total = np.zeros_like(columns)
    for stride, factor in terms:
        total += columns // stride * factor
    return total % p


def _is_valid(graph: Graph, terms: Terms, p: int, size: int) -> bool:
    """Whether the first nonzeros have different colors within each row."""
    keys = graph.row_of[:size] * p + _colors(graph.columns[:size], terms, p)
    return int(np.bincount(keys, minlength=1).max()) <= 1
