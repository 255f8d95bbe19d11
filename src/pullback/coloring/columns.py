"""Columns that share a forward pass, or rows that share a reverse pass.

Several orders are tried, the best is kept, and reordering by colors (iterated greedy) then lowers the count until it
meets the lower bound, the time is over, or nothing has changed for long.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pullback.coloring.graph import Graph, Ints, Mask, Pattern
from pullback.coloring.greedy import ALL_NEEDED, first_fit, split_off_heavy_rows
from pullback.coloring.kernels import Clock
from pullback.coloring.modular import modular
from pullback.coloring.orders import class_orders, orders
from pullback.data.coloring import Axis, Coloring

# Iterated greedy gives up after so many rounds without a better coloring.
PATIENCE = 150


def color_columns(pattern: Pattern, budget: float = 0.2) -> Coloring:
    """Partition the columns so that no two of one color have a nonzero in a common row.

    With seeds ``d_c = Σ e_j over columns j of color c``, the nonzero ``J[i, j]`` is entry i of ``J d_c``.

    Args:
        pattern: A CSR matrix whose values do not matter, sorted and without duplicates.
        budget: Seconds after which no better coloring is looked for. The result is the same in every run as
            long as the budget is not used up.

    Example:
        >>> from scipy.sparse import diags_array
        >>> color_columns(diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(9, 9), format="csr"))
        Coloring(3 passes for 9 columns (optimal, by natural order))
    """
    return _color(Graph.of(pattern), "columns", budget)


def color_rows(pattern: Pattern, budget: float = 0.2) -> Coloring:
    """Partition the rows so that no two of one color have a nonzero in a common column.

    With seeds ``u_c = Σ e_i over rows i of color c``, the nonzero ``J[i, j]`` is entry j of ``u_cᵀ J``. Arguments
    as for :func:`color_columns`.
    """
    return _color(Graph.of(pattern).transposed, "rows", budget)


def column_bound(pattern: Pattern) -> int:
    """The fewest forward passes that can do: the most nonzeros in a row."""
    return int(np.diff(pattern.indptr).max(initial=0))


def row_bound(pattern: Pattern) -> int:
    """The fewest reverse passes that can do: the most nonzeros in a column."""
    return int(np.bincount(pattern.indices, minlength=1).max())


def _color(graph: Graph, axis: Axis, budget: float) -> Coloring:
    which = np.flatnonzero(graph.column_degrees)
    bound = int(graph.row_degrees.max(initial=0))
    if bound == len(which):
        colors = np.full(graph.n, -1, np.int32)
        colors[which] = np.arange(bound)
        return Coloring(axis, colors, bound, bound, "natural order")
    best = search(graph, which, ALL_NEEDED, bound, budget)
    if best is None:
        colors, count = split_off_heavy_rows(graph, which)
        best = Coloring(axis, colors, count, bound, "long rows split off")
    return replace(best, axis=axis)


def search(graph: Graph, which: Ints, needed: Mask, bound: int, budget: float) -> Coloring | None:
    """The best coloring of some columns that the budget allows.

    Args:
        graph: The pattern.
        which: The columns to color.
        needed: As for :func:`first_fit`.
        bound: A lower bound of the count, at which the search ends.
        budget: Seconds; at least one order is tried whatever it is.

    Returns:
        None where the pattern is too large for first fit.
    """
    clock = Clock(budget)
    best: Coloring | None = None
    for name, order in orders(graph, which, clock):
        if best is not None and (best.count == bound or clock.is_over):
            return best
        found = first_fit(graph, order(), needed, bound, clock)
        if found is None:
            return None
        if best is None or found[1] < best.count:
            first, best = best is None, Coloring("columns", *found, bound, name)
            if first and best.count > bound and not len(needed):
                # A lattice is found in little time or not at all, and beats every order where there is one.
                best = modular(graph, best, Clock(budget))
    assert best is not None
    return _iterate(graph, best, needed, clock)


def _iterate(graph: Graph, best: Coloring, needed: Mask, clock: Clock) -> Coloring:
    """Iterated greedy from a coloring, until its bound, the time, or patience is reached."""
    current, waited, seed = best, 0, 0
    while best.count > best.bound and waited < PATIENCE and not clock.is_over:
        name, order = class_orders(current.colors, current.count, seed)
        found = first_fit(graph, order, needed, best.bound)
        if found is None:
            break
        current = Coloring("columns", *found, best.bound, name)
        waited, seed = waited + 1, seed + 1
        if current.count < best.count:
            best, waited = current, 0
    return best
