"""Where each nonzero stands in the compressed answers.

The answers of all passes are stacked: those of columns as ``(count, m)``, those of rows as ``(count, n)``. Each
function gives, for every nonzero in CSR order, a place in that array read flat, so recovery is one gather.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pullback.coloring.graph import Ints, Mask, Pattern, symmetric_graph
from pullback.data.coloring import Bicoloring, Coloring, Colors, SymmetricColoring
from pullback.errors import ValueMismatch

Sides = NDArray[np.int8]


def recover_direct(pattern: Pattern, coloring: Coloring | SymmetricColoring) -> Ints:
    """The place of each nonzero, in CSR order, in the answers read flat.

    For columns J[i, j] stands at ``(color[j], i)`` of ``(count, m)``, for rows at ``(color[i], j)`` of ``(count, n)``.
    For a star coloring it stands at ``(color[j], i)`` where it is alone there, else its twin does at
    ``(color[i], j)``.

    Raises:
        ValueMismatch: A nonzero stands nowhere by itself: the coloring is of another pattern, or acyclic.
    """
    m, n = pattern.shape
    columns = pattern.indices.astype(np.int64)
    rows = np.repeat(np.arange(m), np.diff(pattern.indptr))
    if isinstance(coloring, SymmetricColoring):
        _check_sizes((len(coloring.colors),), (n,))
        graph = symmetric_graph(pattern)
        own = _flat(coloring.colors[columns], n, rows)
        alone = is_alone(graph.row_of, coloring.colors[columns], coloring.count)
        twin = _flat(coloring.colors[rows], n, columns)
        _check_all(alone | alone[graph.place])
        return np.where(alone, own, twin)
    length, lines, along = (m, columns, rows) if coloring.axis == "columns" else (n, rows, columns)
    _check_sizes((len(coloring.colors),), (n if coloring.axis == "columns" else m,))
    color = coloring.colors[lines]
    _check_all(color >= 0)
    return _flat(color, length, along)


def recover_bidirectional(pattern: Pattern, coloring: Bicoloring) -> tuple[Sides, Ints]:
    """The side and the place of each nonzero, in CSR order.

    Returns:
        The side: 0 for an answer to a row's pass, ``(row_count, n)``; 1 for one to a column's, ``(column_count, m)``.
        And the place in that side's answers, read flat.

    Raises:
        ValueMismatch: A nonzero stands nowhere by itself: the coloring is of another pattern.
    """
    m, n = pattern.shape
    _check_sizes((len(coloring.row_colors), len(coloring.column_colors)), (m, n))
    columns = pattern.indices.astype(np.int64)
    rows = np.repeat(np.arange(m), np.diff(pattern.indptr))
    by_column = is_alone(rows, coloring.column_colors[columns], coloring.column_count)
    by_row = is_alone(columns, coloring.row_colors[rows], coloring.row_count)
    _check_all(by_column | by_row)
    from_columns = _flat(coloring.column_colors[columns], m, rows)
    from_rows = _flat(coloring.row_colors[rows], n, columns)
    return by_column.astype(np.int8), np.where(by_column, from_columns, from_rows)


def _flat(colors: Colors, length: int, along: Ints) -> Ints:
    """Places in answers of some length, in int64: count times length outgrows int32."""
    return colors.astype(np.int64) * length + along


def is_alone(lines: Ints, colors: Colors, count: int) -> Mask:
    """Whether each nonzero is the only one of its color in its line; never where the color is -1."""
    key = np.where(colors >= 0, lines * np.int64(count) + colors, -1)
    sums = np.bincount(key + 1, minlength=1)
    alone: Mask = (sums[key + 1] == 1) & (key >= 0)
    return alone


def _check_sizes(got: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if got != wanted:
        raise ValueMismatch(
            "the coloring is of a pattern of another size",
            got=f"{got} colors for {wanted} lines",
            fix="color this very pattern",
        )


def _check_all(readable: Mask) -> None:
    if not readable.all():
        missing = int(np.count_nonzero(~readable))
        raise ValueMismatch(
            "some nonzeros cannot be read from the answers",
            got=f"a coloring in which {missing:,} of {len(readable):,} nonzeros stand nowhere by themselves",
            fix="color this very pattern; for an acyclic coloring use substitution()",
        )
