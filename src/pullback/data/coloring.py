"""Colorings: which columns or rows of a sparse Jacobian share a pass.

A color is the number of a pass. Columns of one color go into one tangent, rows of one color into one cotangent,
and the nonzeros can still be told apart in the answers. ``-1`` stands for "in no pass".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Axis = Literal["columns", "rows"]
Kind = Literal["star", "acyclic"]
Colors = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, eq=False)
class Coloring:
    """A partition of the columns, or of the rows, into passes.

    Attributes:
        axis: ``"columns"`` (forward passes) or ``"rows"`` (reverse passes).
        colors: The pass of each column or row; -1 where it holds no nonzero.
        count: How many passes.
        bound: No partition of this axis has fewer: the most nonzeros in a line of the other axis.
        order: What found it: the order in which columns or rows were colored.
    """

    axis: Axis
    colors: Colors
    count: int
    bound: int
    order: str

    @property
    def gap(self) -> int:
        """How many passes above the lower bound; 0 is proven optimal."""
        return self.count - self.bound

    def __str__(self) -> str:
        return f"{_passes(self)} for {len(self.colors):,} {self.axis} ({_quality(self)})"

    def __repr__(self) -> str:
        return f"Coloring({self})"

    def __eq__(self, other: object) -> bool:
        return _same(self, other, "axis", "colors")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class SymmetricColoring:
    """A partition of the columns of a symmetric matrix, where each value may be read in two places.

    Attributes:
        kind: ``"star"``: each value stands alone in some answer; ``"acyclic"``: values follow one after another,
            by substitution.
        colors: The pass of each column; -1 where no value is read from it.
        count: How many passes.
        bound: No partition of this kind has fewer.
        order: What found it.
    """

    kind: Kind
    colors: Colors
    count: int
    bound: int
    order: str

    @property
    def gap(self) -> int:
        """How many passes above the lower bound; 0 is proven optimal."""
        return self.count - self.bound

    def __str__(self) -> str:
        return f"{_passes(self)} for {len(self.colors):,} symmetric columns, {self.kind} ({_quality(self)})"

    def __repr__(self) -> str:
        return f"SymmetricColoring({self})"

    def __eq__(self, other: object) -> bool:
        return _same(self, other, "kind", "colors")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Bicoloring:
    """Passes on both sides: each nonzero stands alone in the answer of its row's or of its column's pass.

    Attributes:
        row_colors: The reverse pass of each row; -1 where its nonzeros are all read from columns.
        column_colors: The forward pass of each column; -1 where its nonzeros are all read from rows.
        row_count: How many reverse passes.
        column_count: How many forward passes.
        bound: No pair of partitions has fewer passes in all.
        order: What found it.
    """

    row_colors: Colors
    column_colors: Colors
    row_count: int
    column_count: int
    bound: int
    order: str

    @property
    def count(self) -> int:
        """How many passes on both sides together."""
        return self.row_count + self.column_count

    @property
    def gap(self) -> int:
        """How many passes above the lower bound; 0 is proven optimal."""
        return self.count - self.bound

    def __str__(self) -> str:
        shape = f"{len(self.row_colors):,} x {len(self.column_colors):,}"
        return f"{self.row_count:,} reverse + {self.column_count:,} forward passes for {shape} ({_quality(self)})"

    def __repr__(self) -> str:
        return f"Bicoloring({self})"

    def __eq__(self, other: object) -> bool:
        return _same(self, other, "row_colors", "column_colors")

    __hash__ = None  # type: ignore[assignment]


def _passes(coloring: Coloring | SymmetricColoring) -> str:
    return f"{coloring.count:,} pass" + ("" if coloring.count == 1 else "es")


def _quality(coloring: Coloring | SymmetricColoring | Bicoloring) -> str:
    return f"{'optimal' if coloring.gap == 0 else f'at least {coloring.bound:,}'}, by {coloring.order}"


def _same(one: Any, other: object, *names: str) -> bool:
    return type(one) is type(other) and all(np.array_equal(getattr(one, k), getattr(other, k)) for k in names)
