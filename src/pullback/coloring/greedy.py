"""First fit: color the columns one after another, each with the smallest color that does not conflict.

This is partial distance-2 coloring of the bipartite graph: columns that meet in a row get different colors (Curtis,
Powell, Reid 1974; Coleman and Moré 1983; Gebremedhin, Manne, Pothen 2005, "What color is your Jacobian?").
"""

from __future__ import annotations

import numpy as np

from pullback.coloring.graph import Graph, Ints, Mask
from pullback.coloring.kernels import Clock, is_compiled
from pullback.data.coloring import Colors

# The colors that rows have met are kept as bits in no more than so many bytes, or so many for each row.
MOST_BYTES = 1 << 29
MOST_BYTES_A_ROW = 64
ALL_NEEDED: Mask = np.zeros(0, np.bool_)


def first_fit(
    graph: Graph, order: Ints, needed: Mask = ALL_NEEDED, guess: int = 0, clock: Clock | None = None
) -> tuple[Colors, int] | None:
    """Color the columns in an order.

    Args:
        graph: The pattern.
        order: The columns to color; all others get -1.
        needed: Whether each nonzero, column by column, must be read from its column; empty: all of them.
        guess: About how many colors it takes.
        clock: The time that is left, which compiling does not count against.

    Returns:
        The colors and their count; None where the sets of colors would not fit into memory.
    """
    colors = np.full(graph.n, -1, np.int32)
    if not is_compiled():
        return colors, _first_fit_in_python(graph, order, needed, colors)
    words = 1 + 5 * guess // 256
    run = (clock or Clock(0.0)).kernel("first_fit")
    while 16 * words * graph.m <= _most_bytes(graph):
        strict = np.zeros(words * graph.m, np.uint64)
        everything = np.zeros_like(strict) if len(needed) else strict
        count = run(graph.column_starts, graph.rows, needed, order, strict, everything, words, colors)
        if count >= 0:
            return colors, int(count)
        words *= 2
    return None


def split_off_heavy_rows(graph: Graph, order: Ints) -> tuple[Colors, int]:
    """A coloring for patterns with rows so long that the sets of colors would not fit into memory.

    Columns that meet a long row get a color each, as most of them must; the rest is colored as usual.
    """
    longest = _most_bytes(graph) // (16 * graph.m) * 16
    heavy_row = graph.row_degrees > longest
    heavy = np.zeros(graph.n, np.bool_)
    heavy[graph.columns[heavy_row[graph.row_of]]] = True
    found = first_fit(graph, order[~heavy[order]], guess=longest)
    colors, count = found if found is not None else (np.full(graph.n, -1, np.int32), 0)
    rest = order[colors[order] < 0]
    colors[rest] = np.arange(count, count + len(rest))
    return colors, count + len(rest)


def _most_bytes(graph: Graph) -> int:
    return max(MOST_BYTES, MOST_BYTES_A_ROW * graph.m)


def _first_fit_in_python(graph: Graph, order: Ints, needed: Mask, colors: Colors) -> int:
    """First fit with Python's long integers as sets of colors: one OR joins whole sets."""
    starts, rows = graph.column_starts.tolist(), graph.rows.tolist()
    taken = [0] * graph.m
    strict = [0] * graph.m if len(needed) else taken
    must = needed.tolist()
    count = 0
    for j in order.tolist():
        forbidden = 0
        places = range(starts[j], starts[j + 1])
        for p in places:
            forbidden |= strict[rows[p]] if must and not must[p] else taken[rows[p]]
        mark = ~forbidden & (forbidden + 1)
        colors[j] = color = mark.bit_length() - 1
        count = max(count, color + 1)
        for p in places:
            taken[rows[p]] |= mark
            if must and must[p]:
                strict[rows[p]] |= mark
    return count
