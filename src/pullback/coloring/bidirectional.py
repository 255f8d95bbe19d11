"""Passes on both sides: a few dense rows and columns are taken out, and what is left needs few passes.

Each nonzero is given to its row or to its column. Columns then need different colors where they meet in a row and
one of the two nonzeros there is given to its column; likewise the rows (star bicoloring: Coleman and Verma 1998,
Hossain and Steihaug 1998; Gebremedhin, Manne, Pothen 2005, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pullback.coloring.columns import color_columns, color_rows, column_bound, row_bound, search
from pullback.coloring.graph import Graph, Ints, Mask, Pattern, present
from pullback.coloring.kernels import Clock
from pullback.coloring.recover import is_alone
from pullback.data.coloring import Bicoloring, Coloring, Colors

# At how many degrees, on each side, a line may be taken for dense.
THRESHOLDS = 8


def color_bidirectional(pattern: Pattern, budget: float = 0.2) -> Bicoloring:
    """Partition rows and columns so that each nonzero can be read from its row's or its column's pass.

    Never more passes than the better of :func:`color_columns` and :func:`color_rows`, which are tried first. A
    row or column from which nothing is read has color -1.

    Args:
        pattern: A CSR matrix whose values do not matter, sorted and without duplicates.
        budget: Seconds after which no better coloring is looked for.

    Example:
        >>> import numpy as np
        >>> from scipy.sparse import csr_array
        >>> arrow = np.eye(50)
        >>> arrow[0, :] = arrow[:, 0] = 1
        >>> color_bidirectional(csr_array(arrow)).count
        3
    """
    graph = Graph.of(pattern)
    bound = bidirectional_bound(graph)
    best = _one_sided(pattern, bound, budget / 2)
    if best.count == bound:
        return best
    clock = Clock(budget / 2)
    wanted = best.count - 1 if best.count > 2 * bound else graph.nnz
    splits = sorted(_splits(graph, clock, wanted), key=lambda each: each.estimate)
    for tried, split in enumerate(splits):
        if best.count == bound or split.estimate >= best.count or (clock.is_over and tried):
            break
        found = _color_split(graph, split, max(clock.left / 4, 0.0))
        if found is not None and found.count < best.count:
            best = replace(found, bound=bound)
    return best


def bidirectional_bound(graph: Graph) -> int:
    """A number of passes that no pair of partitions goes below.

    With c column passes a row gives up at most c of its nonzeros to columns, with r row passes a column gives up at
    most r to rows: ``nnz <= Σ_i min(row degree, c) + Σ_j min(column degree, r)``.
    """
    by_columns, by_rows = _most_read(graph.row_degrees), _most_read(graph.column_degrees)
    rest = graph.nnz - by_columns
    return int((np.arange(len(by_columns)) + np.searchsorted(by_rows, rest)).min())


def _most_read(degrees: Ints) -> Ints:
    """For each number of passes from 0 on, how many nonzeros it can read at most: ``Σ min(degree, passes)``."""
    longer = len(degrees) - np.cumsum(np.bincount(degrees, minlength=1))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(longer[:-1])])


def _one_sided(pattern: Pattern, bound: int, budget: float) -> Bicoloring:
    """The better of columns alone and rows alone, as a bicoloring."""
    m, n = pattern.shape
    sides = [(column_bound(pattern), color_columns), (row_bound(pattern), color_rows)]
    best: Coloring | None = None
    for fewest, color in sorted(sides, key=lambda side: side[0]):
        if best is None or fewest < best.count:
            found = color(pattern, budget)
            best = found if best is None or found.count < best.count else best
    assert best is not None
    if best.axis == "columns":
        none = np.full(m, -1, np.int32)
        return Bicoloring(none, best.colors, 0, best.count, bound, f"columns alone, {best.order}")
    none = np.full(n, -1, np.int32)
    return Bicoloring(best.colors, none, best.count, 0, bound, f"rows alone, {best.order}")


@dataclass(frozen=True, eq=False)
class Split:
    """A choice for each nonzero between its row and its column.

    Attributes:
        by_column: Whether it is read from its column, in CSR order.
        estimate: A lower bound of the passes this takes.
        name: Which lines were taken for dense.
    """

    by_column: Mask
    estimate: int
    name: str


def _splits(graph: Graph, clock: Clock, wanted: int) -> Iterator[Split]:
    """Splits by degree: rows above one, columns above another are dense, and the rest is read from either side.

    They end when the time is over and one of them may take no more passes than are wanted.
    """
    i, j = graph.row_of, graph.columns
    fewest = graph.nnz
    for high in _thresholds(graph.row_degrees):
        dense_row = graph.row_degrees > high
        in_row = dense_row[i]
        left = np.bincount(j[~in_row], minlength=graph.n)
        for wide in _thresholds(left):
            dense_column = left > wide
            in_column = dense_column[j]
            name = f"{int(dense_row.sum()):,} rows and {int(dense_column.sum()):,} columns taken out first"
            for by_column in (~in_row, in_column & ~in_row, in_column, ~in_row | in_column):
                estimate = _estimate(graph, by_column)
                fewest = min(fewest, estimate)
                yield Split(by_column, estimate, name)
            if clock.is_over and fewest <= wanted:
                return


def _thresholds(degrees: Ints) -> list[int]:
    """Some of the degrees, from the greatest (above which nothing lies) down."""
    found = present(degrees, 0)[::-1]
    at = np.unique(np.geomspace(1, max(len(found), 1), THRESHOLDS).astype(np.int64)) - 1
    return [int(degree) for degree in found[at[at < len(found)]]]


def _estimate(graph: Graph, by_column: Mask) -> int:
    columns = np.bincount(graph.row_of[by_column], minlength=1).max()
    rows = np.bincount(graph.columns[~by_column], minlength=1).max()
    return int(columns + rows)


def _color_split(graph: Graph, split: Split, budget: float) -> Bicoloring | None:
    """Color both sides of a split; None where the pattern is too large for that."""
    by_column = split.by_column
    columns = _color_side(graph, by_column, budget)
    rows = _color_side(graph.transposed, ~by_column[graph.place], budget)
    if columns is None or rows is None:
        return None
    return _without_unread(graph, rows.colors, columns.colors, split.name)


def _color_side(graph: Graph, mine: Mask, budget: float) -> Coloring | None:
    """Color the columns that some nonzero is read from; ``mine`` in CSR order."""
    which = present(graph.columns[mine], graph.n)
    bound = int(np.bincount(graph.row_of[mine], minlength=1).max())
    if not len(which):
        return Coloring("columns", np.full(graph.n, -1, np.int32), 0, 0, "")
    return search(graph, which, mine[graph.place], bound, budget)


def _without_unread(graph: Graph, rows: Colors, columns: Colors, name: str) -> Bicoloring:
    """The bicoloring without rows, and then columns, whose nonzeros can all be read from the other side."""
    i, j = graph.row_of, graph.columns
    by_column = is_alone(i, columns[j], int(columns.max(initial=-1)) + 1)
    rows, row_count = _only(rows, i[~by_column])
    by_row = is_alone(j, rows[i], row_count)
    columns, column_count = _only(columns, j[~by_row])
    return Bicoloring(rows, columns, row_count, column_count, 0, name)


def _only(colors: Colors, read: Ints) -> tuple[Colors, int]:
    """The colors of some lines, numbered anew, and -1 for the others."""
    read = present(read, len(colors))
    used = present(colors[read], 0)
    number = np.full(int(colors.max(initial=-1)) + 1, -1, np.int32)
    number[used] = np.arange(len(used))
    kept = np.full_like(colors, -1)
    kept[read] = number[colors[read]]
    return kept, len(used)
