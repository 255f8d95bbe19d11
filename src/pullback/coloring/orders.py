"""The orders in which a greedy coloring takes the columns.

None is best everywhere (natural order suits stencils; largest-first and smallest-last suit irregular graphs), so all
are tried and the best is kept (Gebremedhin, Manne, Pothen 2005, section 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pullback.coloring.graph import Graph, Ints
from pullback.coloring.kernels import Clock, is_compiled
from pullback.data.coloring import Colors

# Pairs of nonzeros that smallest-last may look at for each second of the budget.
PAIRS_A_SECOND = {True: 1e8, False: 1e5}

Order = Callable[[], Ints]


def orders(graph: Graph, which: Ints, clock: Clock) -> Iterator[tuple[str, Order]]:
    """The orders to try on some columns, by name, the cheapest first; each is made when called."""
    yield "natural order", lambda: which
    yield "largest-first", lambda: largest_first(graph, which)
    if graph.pairs_in_rows() <= PAIRS_A_SECOND[is_compiled()] * clock.budget:
        yield "smallest-last", lambda: smallest_last(graph, which, clock)


def largest_first(graph: Graph, which: Ints) -> Ints:
    """Columns with the most neighbours first (Welsh and Powell 1967); a neighbour counts once for each shared row."""
    weights = np.repeat(np.arange(graph.n), graph.column_degrees)
    neighbours = np.bincount(weights, weights=graph.row_degrees[graph.rows], minlength=graph.n)
    return which[np.argsort(-neighbours[which], kind="stable")]


def smallest_last(graph: Graph, which: Ints, clock: Clock) -> Ints:
    """Columns so that each has few neighbours among those before it (Matula and Beck 1983)."""
    order: Ints = clock.kernel("smallest_last")(graph.row_starts, graph.columns, graph.column_starts, graph.rows)
    wanted = np.zeros(graph.n, np.bool_)
    wanted[which] = True
    return order[wanted[order]]


def class_orders(colors: Colors, count: int, seed: int) -> tuple[str, Ints]:
    """An order that keeps the columns of each color together, for one round of iterated greedy (Culberson 1992).

    First fit never needs more colors in such an order than the coloring it comes from. The rounds take turns:
    last color first, largest class first, and classes at random.
    """
    sizes = np.bincount(colors[colors >= 0], minlength=count)
    rounds = [np.arange(count)[::-1], np.argsort(-sizes, kind="stable"), np.random.default_rng(seed).permutation(count)]
    rank = np.empty(count, np.int64)
    rank[rounds[seed % len(rounds)]] = np.arange(count)
    colored = np.flatnonzero(colors >= 0)
    return "iterated greedy", colored[np.argsort(rank[colors[colored]], kind="stable")]
