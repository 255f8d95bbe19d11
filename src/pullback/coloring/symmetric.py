"""Columns of a symmetric matrix that share a pass: H[i, j] = H[j, i], so each value may be read in two places.

Direct reading needs a star coloring (Coleman and Moré 1984), substitution only an acyclic one (Coleman and Cai
1986); both are found greedily (Gebremedhin, Tarafdar, Manne, Pothen 2007).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pullback.coloring.columns import search
from pullback.coloring.graph import Graph, Ints, Mask, Pattern, present, symmetric_graph
from pullback.coloring.greedy import ALL_NEEDED
from pullback.coloring.kernels import Clock, is_compiled
from pullback.coloring.orders import class_orders, orders
from pullback.data.coloring import Coloring, Colors, Kind, SymmetricColoring
from pullback.errors import ValueMismatch

# Vertices are colored by their neighbours' neighbours: so many such pairs, or the densest get a color each.
MOST_PAIRS = {True: 5e8, False: 1e7}
# Reorderings by colors give up after so many rounds; star colorings may become worse by them.
ROUNDS = 12


def color_symmetric(pattern: Pattern, kind: Kind = "star", budget: float = 0.2) -> SymmetricColoring:
    """Partition the columns of a symmetric matrix.

    With seeds ``d_c = Σ e_j over columns j of color c`` and answers ``B[c] = H d_c``: for ``"star"`` each H[i, j] or
    H[j, i] is the only nonzero of its row in its color, so it stands in B; for ``"acyclic"`` the values follow one
    after another, see :func:`~pullback.coloring.substitute.substitution`.

    Args:
        pattern: A CSR matrix with a symmetric pattern, sorted and without duplicates. The diagonal may be empty.
        kind: ``"star"`` or ``"acyclic"``.
        budget: Seconds after which no better coloring is looked for.

    Raises:
        ValueMismatch: The pattern is not symmetric, or there is no such kind.

    Example:
        >>> from scipy.sparse import diags_array
        >>> H = diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(9, 9), format="csr")
        >>> color_symmetric(H, "star").count, color_symmetric(H, "acyclic").count
        (3, 2)
    """
    if kind not in {"star", "acyclic"}:
        raise ValueMismatch("there is no such symmetric coloring", got=repr(kind), fix="kind='star' or 'acyclic'")
    graph = symmetric_graph(pattern)
    clock = Clock(budget)
    bound = symmetric_bound(graph, kind)
    best: SymmetricColoring | None = None
    for tried, (name, colors) in enumerate(_candidates(graph, kind, bound, clock)):
        kept, count = _without_unread(graph, colors)
        if best is None or count < best.count:
            best = SymmetricColoring(kind, kept, count, bound, name)
        # The first candidate is by columns alone; one of the kind that was asked for is tried whatever the time.
        if best.count <= bound or (clock.is_over and tried):
            break
    assert best is not None
    return best


def symmetric_bound(graph: Graph, kind: Kind) -> int:
    """A number of colors that no coloring of a kind goes below.

    Every answer gives one value, so count x rows >= values. Among the vertices with a diagonal entry neighbours
    must differ, any two colors hold a forest, so edges <= (count - 1) n - count (count - 1) / 2; and two star colors
    are enough only if no edge has other edges at both ends.
    """
    i, j = graph.row_of, graph.columns
    on_diagonal = i == j
    values = (graph.nnz + int(on_diagonal.sum())) // 2
    rows = int(np.count_nonzero(graph.row_degrees))
    bound = -(-values // rows) if rows else 0
    full = np.zeros(graph.n, np.bool_)
    full[i[on_diagonal]] = True
    inside = full[i] & full[j] & ~on_diagonal
    edges, vertices = int(inside.sum()) // 2, int(full.sum())
    if edges:
        k = np.arange(1, vertices + 1)
        bound = max(bound, int(k[np.argmax((k - 1) * vertices - k * (k - 1) // 2 >= edges)]))
        degree = np.bincount(i[inside], minlength=graph.n)
        if kind == "star" and bool(((degree[i] > 1) & (degree[j] > 1) & inside).any()):
            bound = max(bound, 3)
    return bound


def _candidates(graph: Graph, kind: Kind, bound: int, clock: Clock) -> Iterator[tuple[str, Colors]]:
    """Colorings of a kind by name: by columns alone, by the kernel in several orders, then in orders by color."""
    which = np.flatnonzero(graph.row_degrees)
    widest = int(graph.row_degrees.max(initial=0))
    if widest <= max(4 * bound, 8):
        plain = search(graph, which, ALL_NEEDED, widest, 0.0 if kind == "acyclic" else clock.budget / 4)
        if plain is not None:
            yield f"columns, {plain.order}", plain.colors
    inner, heavy = _without_heavy(graph)
    best: Coloring | None = None
    for name, order in orders(graph, which, clock):
        colors = _run(inner, heavy, kind, order(), clock)
        count = int(colors.max(initial=-1)) + 1
        if best is None or count < best.count:
            best = Coloring("columns", colors, count, bound, name)
        yield name, colors
    if kind == "acyclic":
        for name, order in orders(graph, which, clock):
            yield f"star, {name}", _run(inner, heavy, "star", order(), clock)
    for seed in range(ROUNDS):
        assert best is not None
        name, again = class_orders(best.colors, best.count, seed)
        colors = _run(inner, heavy, kind, again, clock)
        count = int(colors.max(initial=-1)) + 1
        if count <= best.count:
            best = replace(best, colors=colors, count=count)
        yield name, colors


def _run(graph: Graph, heavy: Mask, kind: Kind, order: Ints, clock: Clock) -> Colors:
    """Color the graph in an order, and each heavy vertex, which is not in the graph, by itself."""
    colors: Colors = clock.kernel(kind)(graph.row_starts, graph.columns, graph.place, order[~heavy[order]])
    count = int(colors.max(initial=-1)) + 1
    colors[heavy] = np.arange(count, count + int(heavy.sum()))
    return colors


def _without_heavy(graph: Graph) -> tuple[Graph, Mask]:
    """The graph without its densest vertices, where looking at all neighbours' neighbours would take too long.

    A vertex with a color of its own is in no path or cycle of two colors, so the rest is colored without it.
    """
    degrees = np.sort(graph.row_degrees)
    light = np.cumsum(degrees.astype(np.float64) ** 2) <= MOST_PAIRS[is_compiled()]
    if bool(light.all()):
        return graph, np.zeros(graph.n, np.bool_)
    from scipy.sparse import csr_array  # noqa: PLC0415

    longest = degrees[np.argmin(light)]
    heavy = graph.row_degrees >= longest
    keep = ~(heavy[graph.row_of] | heavy[graph.columns])
    ends = (graph.row_of[keep], graph.columns[keep])
    return Graph.of(csr_array((np.ones(len(ends[0]), np.int8), ends), shape=(graph.n, graph.n))), heavy


def _without_unread(graph: Graph, colors: Colors) -> tuple[Colors, int]:
    """The coloring with -1 for vertices that no value is read from, and the count of the colors left.

    A vertex is read for its diagonal entry, and for edges that can be read from it alone. Where there is a choice
    the earlier colors are read. Every edge must be readable: this is for star colorings, and a coloring in which
    some edge is not is returned as it is.
    """
    count = int(colors.max(initial=-1)) + 1
    i, j = graph.row_of, graph.columns
    diagonal = np.zeros(graph.n, np.bool_)
    diagonal[i[i == j]] = True
    if bool(diagonal[graph.row_degrees > 0].all()):
        return colors, count
    key = i * count + colors[j]
    alone = np.bincount(key, minlength=1)[key] == 1
    other = alone[graph.place]
    if not bool((alone | other).all()):
        return colors, count
    read = diagonal
    read[j[alone & ~other]] = True
    undecided = alone & other & ~read[i] & ~read[j]
    while undecided.any():
        first = int(np.minimum(colors[i[undecided]], colors[j[undecided]]).min())
        read[j[undecided & (colors[j] == first)]] = True
        undecided &= ~read[i] & ~read[j]
    kept = present(colors[read], 0)
    renumbered = np.full(max(count, 1), -1, np.int32)
    renumbered[kept] = np.arange(len(kept))
    return np.where(read, renumbered[colors], -1).astype(np.int32), len(kept)
