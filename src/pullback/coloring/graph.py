"""A pattern seen from both sides: the columns of each row, and the rows of each column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pullback.errors import ValueMismatch

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Pattern(Protocol):
    """What is looked at of a SciPy CSR matrix: sorted, without duplicates; values do not matter."""

    @property
    def indptr(self) -> NDArray[Any]:
        """Where each row starts in ``indices``."""

    @property
    def indices(self) -> NDArray[Any]:
        """The columns of all nonzeros, row by row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(m, n)``."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The bipartite graph of a pattern: an edge (row i, column j) for each nonzero.

    One integer type throughout, so that each compiled kernel is compiled once.

    Attributes:
        row_starts: Where each row starts in ``columns``.
        columns: The column of each nonzero, row by row.
        column_starts: Where each column starts in ``rows``.
        rows: The row of each nonzero, column by column.
        place: For each nonzero in the order of ``rows``, its place in the order of ``columns``.
    """

    row_starts: Ints
    columns: Ints
    column_starts: Ints
    rows: Ints
    place: Ints

    @classmethod
    def of(cls, pattern: Pattern) -> Graph:
        """The graph of a CSR pattern."""
        from scipy.sparse import csr_array  # noqa: PLC0415  import pullback does without SciPy

        starts, columns = _int64(pattern.indptr), _int64(pattern.indices)
        m, n = pattern.shape
        flipped = csr_array((np.arange(len(columns)), columns, starts), shape=(m, n)).tocsc()
        return cls(starts, columns, _int64(flipped.indptr), _int64(flipped.indices), _int64(flipped.data))

    @property
    def m(self) -> int:
        """The number of rows."""
        return len(self.row_starts) - 1

    @property
    def n(self) -> int:
        """The number of columns."""
        return len(self.column_starts) - 1

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return len(self.columns)

    @cached_property
    def row_degrees(self) -> Ints:
        """The number of nonzeros in each row."""
        return np.diff(self.row_starts)

    @cached_property
    def column_degrees(self) -> Ints:
        """The number of nonzeros in each column."""
        return np.diff(self.column_starts)

    @cached_property
    def row_of(self) -> Ints:
        """The row of each nonzero, in the order of ``columns``."""
        return np.repeat(np.arange(self.m), self.row_degrees)

    @cached_property
    def transposed(self) -> Graph:
        """The same graph with rows and columns exchanged."""
        back = np.empty_like(self.place)
        back[self.place] = np.arange(self.nnz)
        return Graph(self.column_starts, self.rows, self.row_starts, self.columns, back)

    @property
    def is_symmetric(self) -> bool:
        """Whether (i, j) is a nonzero wherever (j, i) is."""
        return np.array_equal(self.row_starts, self.column_starts) and np.array_equal(self.columns, self.rows)

    def pairs_in_rows(self) -> int:
        """The number of ordered pairs of nonzeros that share a row: the work of looking at every neighbour."""
        return int((self.row_degrees.astype(np.float64) ** 2).sum())


def symmetric_graph(pattern: Pattern) -> Graph:
    """The graph of a pattern that must be symmetric.

    Raises:
        ValueMismatch: It is not square, or not symmetric.
    """
    m, n = pattern.shape
    graph = Graph.of(pattern) if m == n else None
    if graph is None or not graph.is_symmetric:
        raise ValueMismatch(
            "a symmetric coloring needs a symmetric pattern",
            got=f"a pattern of shape {(m, n)}" + ("" if graph is None else " where some (i, j) has no (j, i)"),
            fix="color_columns or color_rows; or pattern + pattern.T where the values are symmetric",
        )
    return graph


def present(lines: NDArray[np.signedinteger[Any]], size: int) -> Ints:
    """Which of ``size`` lines occur, in order."""
    return np.flatnonzero(np.bincount(lines, minlength=size))


def _int64(array: NDArray[Any]) -> Ints:
    """The array as contiguous, writeable int64: read-only arrays would be another type to the compiler."""
    return np.require(array, dtype=np.int64, requirements=["C", "W"])
