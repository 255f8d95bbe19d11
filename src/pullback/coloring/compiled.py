"""The inner loops, compiled by Numba where it is installed (``pip install pullback[fast]``).

Each kernel is plain Python on int64 arrays, so that without Numba it still runs, only slower. This module is
imported when the first coloring is asked for, not before: importing Numba takes longer than importing Pullback.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pullback.coloring.graph import Ints, Mask
from pullback.data.coloring import Colors

F = TypeVar("F", bound=Callable[..., Any])
Bits = NDArray[np.uint64]

try:
    numba: Any = importlib.import_module("numba")
except ImportError:
    numba = None


def jit(function: F) -> F:
    """The function, compiled at its first call and cached on disk where there is a place for that."""
    if numba is None:
        return function
    try:
        compiled: F = numba.njit(cache=True)(function)
    except RuntimeError:  # no writeable place for the cache
        compiled = numba.njit(function)
    return compiled


@jit
def first_fit(
    starts: Ints, rows: Ints, needed: Mask, order: Ints, strict: Bits, all_: Bits, words: int, colors: Colors
) -> int:
    """Give each column in turn the smallest color that no conflicting column has.

    Each row keeps the set of its colors as bits, so a column is one OR over its rows (not a walk over all its
    neighbours). Where ``needed`` is given, two columns that meet in a row conflict only if one of the two
    nonzeros must be read there.

    Args:
        starts: Where each column starts in ``rows``.
        rows: The row of each nonzero, column by column.
        needed: Whether each of these nonzeros must be read from its column; empty: all of them.
        order: The columns to color.
        strict: The colors of needed nonzeros, ``words`` words a row, all zero at first.
        all_: The colors of all nonzeros; the same array as ``strict`` where ``needed`` is empty.
        words: How many words of 64 colors a row has.
        colors: The colors, written here.

    Returns:
        The number of colors, or -1 if ``words`` are too few.
    """
    count = 0
    one = np.uint64(1)
    full = ~np.uint64(0)
    some = needed.size > 0
    for k in range(order.size):
        j = order[k]
        word = 0
        taken = full
        while word < words:
            taken = np.uint64(0)
            for p in range(starts[j], starts[j + 1]):
                at = rows[p] * words + word
                if some and not needed[p]:
                    taken |= strict[at]
                else:
                    taken |= all_[at]
            if taken != full:
                break
            word += 1
        if word == words:
            return -1
        bit = 0
        while taken & one:
            taken >>= one
            bit += 1
        color = 64 * word + bit
        colors[j] = color
        count = max(count, color + 1)
        mark = one << np.uint64(bit)
        for p in range(starts[j], starts[j + 1]):
            at = rows[p] * words + word
            all_[at] |= mark
            if some and needed[p]:
                strict[at] |= mark
    return count


@jit
def smallest_last(row_starts: Ints, columns: Ints, starts: Ints, rows: Ints) -> Ints:
    """Columns so that each has few neighbours among those before it (Matula and Beck 1983).

    Repeatedly the column with the fewest neighbours is taken out and put last. A neighbour counts as often as
    rows are shared. Buckets of equal degree are doubly linked lists.
    """
    n = starts.size - 1
    degree = np.zeros(n, np.int64)
    for j in range(n):
        for p in range(starts[j], starts[j + 1]):
            degree[j] += row_starts[rows[p] + 1] - row_starts[rows[p]] - 1
    top = 0
    for j in range(n):
        top = max(top, degree[j])
    head = np.full(top + 1, -1, np.int64)
    after = np.full(n, -1, np.int64)
    before = np.full(n, -1, np.int64)
    for j in range(n):
        _link(head, after, before, degree[j], j)
    order = np.empty(n, np.int64)
    low = 0
    for k in range(n - 1, -1, -1):
        while head[low] < 0:
            low += 1
        j = head[low]
        _unlink(head, after, before, low, j)
        degree[j] = -1
        order[k] = j
        for p in range(starts[j], starts[j + 1]):
            for q in range(row_starts[rows[p]], row_starts[rows[p] + 1]):
                x = columns[q]
                if degree[x] > 0:
                    _unlink(head, after, before, degree[x], x)
                    degree[x] -= 1
                    _link(head, after, before, degree[x], x)
                    low = min(low, degree[x])
    return order


@jit
def _link(head: Ints, after: Ints, before: Ints, degree: int, j: int) -> None:
    """Put j at the front of the bucket of its degree."""
    after[j] = head[degree]
    before[j] = -1
    if head[degree] >= 0:
        before[head[degree]] = j
    head[degree] = j


@jit
def _unlink(head: Ints, after: Ints, before: Ints, degree: int, j: int) -> None:
    """Take j out of the bucket of its degree."""
    if before[j] >= 0:
        after[before[j]] = after[j]
    else:
        head[degree] = after[j]
    if after[j] >= 0:
        before[after[j]] = before[j]


@jit
def star(starts: Ints, ends: Ints, reverse: Ints, order: Ints) -> Colors:
    """A star coloring: neighbours differ, and no path of four vertices has only two colors.

    The edges between two colors form stars. Each edge knows its star and each star its hub (none while it is a
    single edge), so one look at the neighbours' neighbours decides (Gebremedhin, Tarafdar, Manne, Pothen 2007).

    Args:
        starts: Where each vertex's edges start in ``ends``.
        ends: The other end of each edge.
        reverse: The place in ``ends`` of each edge seen from its other end.
        order: The vertices to color; others stay -1.
    """
    n = starts.size - 1
    colors = np.full(n, -1, np.int32)
    star_of = np.full(ends.size, -1, np.int64)
    hub = np.full(ends.size, -1, np.int64)
    stars = 0
    forbidden = np.full(n + 1, -1, np.int64)
    treated = np.full(n, -1, np.int64)
    seen_by = np.full(n, -1, np.int64)  # the vertex that met this color last ...
    seen_at = np.full(n, -1, np.int64)  # ... and along which edge first
    for k in range(order.size):
        v = order[k]
        for p in range(starts[v], starts[v + 1]):
            w = ends[p]
            c = colors[w]
            if w == v or c < 0:
                continue
            forbidden[c] = v
            if seen_by[c] == v:
                q = ends[seen_at[c]]
                if treated[q] != v:
                    _forbid_around(starts, ends, colors, forbidden, v, q)
                    treated[q] = v
                _forbid_around(starts, ends, colors, forbidden, v, w)
                treated[w] = v
                continue
            seen_by[c] = v
            seen_at[c] = p
            for r in range(starts[w], starts[w + 1]):
                x = ends[r]
                if x != v and colors[x] >= 0 and x != w and hub[star_of[r]] == x:
                    forbidden[colors[x]] = v
        color = 0
        while forbidden[color] == v:
            color += 1
        colors[v] = color
        for p in range(starts[v], starts[v + 1]):
            w = ends[p]
            if w == v or colors[w] < 0:
                continue
            joined = _star_between(starts, ends, colors, v, w, color)
            if joined >= 0:
                s = star_of[joined]
                hub[s] = w
            elif seen_at[colors[w]] != p:
                s = star_of[seen_at[colors[w]]]
                hub[s] = v
            else:
                s = stars
                stars += 1
            star_of[p] = s
            star_of[reverse[p]] = s
    return colors


@jit
def _forbid_around(starts: Ints, ends: Ints, colors: Colors, forbidden: Ints, v: int, w: int) -> None:
    """Forbid v every color next to w."""
    for r in range(starts[w], starts[w + 1]):
        if ends[r] != w and colors[ends[r]] >= 0:
            forbidden[colors[ends[r]]] = v


@jit
def _star_between(starts: Ints, ends: Ints, colors: Colors, v: int, w: int, color: int) -> int:
    """An edge from w to another vertex of v's color, or -1."""
    for r in range(starts[w], starts[w + 1]):
        x = ends[r]
        if x != v and x != w and colors[x] == color:
            return r
    return -1


@jit
def acyclic(starts: Ints, ends: Ints, reverse: Ints, order: Ints) -> Colors:
    """An acyclic coloring: neighbours differ, and no cycle has only two colors.

    The edges between two colors form trees, kept as disjoint sets; a color that would join one tree with itself
    is forbidden (Gebremedhin, Tarafdar, Manne, Pothen 2007). Arguments as for :func:`star`.
    """
    n = starts.size - 1
    colors = np.full(n, -1, np.int32)
    parent = np.arange(ends.size)
    visited_by = np.full(ends.size, -1, np.int64)
    visited_from = np.full(ends.size, -1, np.int64)
    forbidden = np.full(n + 1, -1, np.int64)
    seen_by = np.full(n, -1, np.int64)
    seen_at = np.full(n, -1, np.int64)
    for k in range(order.size):
        v = order[k]
        for p in range(starts[v], starts[v + 1]):
            if ends[p] != v and colors[ends[p]] >= 0:
                forbidden[colors[ends[p]]] = v
        for p in range(starts[v], starts[v + 1]):
            w = ends[p]
            if w == v or colors[w] < 0:
                continue
            for r in range(starts[w], starts[w + 1]):
                x = ends[r]
                if x in (v, w) or colors[x] < 0 or forbidden[colors[x]] == v:
                    continue
                tree = _find(parent, min(r, reverse[r]))
                if visited_by[tree] != v:
                    visited_by[tree] = v
                    visited_from[tree] = w
                elif visited_from[tree] != w:
                    forbidden[colors[x]] = v
        color = 0
        while forbidden[color] == v:
            color += 1
        colors[v] = color
        for p in range(starts[v], starts[v + 1]):
            w = ends[p]
            if w == v or colors[w] < 0:
                continue
            edge = min(p, reverse[p])
            if seen_by[colors[w]] == v:
                parent[_find(parent, edge)] = _find(parent, seen_at[colors[w]])
            else:
                seen_by[colors[w]] = v
                seen_at[colors[w]] = edge
            for r in range(starts[w], starts[w + 1]):
                x = ends[r]
                if x != v and x != w and colors[x] == color:
                    parent[_find(parent, edge)] = _find(parent, min(r, reverse[r]))
    return colors


@jit
def _find(parent: Ints, e: int) -> int:
    """The root of a set, halving the path to it."""
    while parent[e] != e:
        parent[e] = parent[parent[e]]
        e = parent[e]
    return e


@jit
def peel(first: Ints, second: Ints, left: Ints, total: Ints, level: Ints, via: Ints) -> None:
    """Solve sums with one unknown left, which leaves other sums with one unknown, and so on.

    Args:
        first: A sum that holds each unknown, or -1.
        second: Another sum that holds it, or -1.
        left: How many unknowns each sum still has; used up.
        total: The sum of their numbers, so that the last one is known by name; used up.
        level: After how many rounds each unknown is solved; written here, stays -1 where it never is.
        via: The sum that solves it; written here.
    """
    queue = np.empty(left.size, np.int64)
    size = 0
    for e in range(left.size):
        if left[e] == 1:
            queue[size] = e
            size += 1
    low = 0
    depth = 0
    while low < size:
        high = size
        for k in range(low, high):
            e = queue[k]
            if left[e] != 1:
                continue
            u = total[e]
            via[u] = e
            level[u] = depth
            for f in (first[u], second[u]):
                if f >= 0:
                    left[f] -= 1
                    total[f] -= u
                    if left[f] == 1:
                        queue[size] = f
                        size += 1
        low = high
        depth += 1


_none, _starts = np.zeros(0, np.int64), np.zeros(1, np.int64)
_bits = np.zeros(0, np.uint64)
# Arguments on which kernels do nothing: running them is compiling them.
NOTHING: dict[str, tuple[Any, ...]] = {
    "first_fit": (_starts, _none, np.zeros(0, np.bool_), _none, _bits, _bits, 1, np.zeros(0, np.int32)),
    "smallest_last": (_starts, _none, _starts, _none),
    "star": (_starts, _none, _none, _none),
    "acyclic": (_starts, _none, _none, _none),
}
