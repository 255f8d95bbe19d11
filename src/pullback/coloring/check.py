"""Whether a coloring does what it promises, straight from the definitions: slow, and obvious.

Plain loops over dictionaries, sharing nothing with the code that they judge.
"""

from __future__ import annotations

from pullback.coloring.graph import Pattern
from pullback.data.coloring import Bicoloring, Coloring, SymmetricColoring

Entries = set[tuple[int, int]]


def entries(pattern: Pattern) -> Entries:
    """The nonzeros as pairs (i, j)."""
    found = set()
    for i in range(pattern.shape[0]):
        for p in range(int(pattern.indptr[i]), int(pattern.indptr[i + 1])):
            found.add((i, int(pattern.indices[p])))
    return found


def is_valid_columns(pattern: Pattern, coloring: Coloring) -> bool:
    """Whether every nonzero's column has a color, and no color occurs twice in a row."""
    if coloring.axis != "columns" or len(coloring.colors) != pattern.shape[1]:
        return False
    return _lines_differ(entries(pattern), coloring)


def is_valid_rows(pattern: Pattern, coloring: Coloring) -> bool:
    """Whether every nonzero's row has a color, and no color occurs twice in a column."""
    if coloring.axis != "rows" or len(coloring.colors) != pattern.shape[0]:
        return False
    return _lines_differ({(j, i) for i, j in entries(pattern)}, coloring)


def is_valid_star(pattern: Pattern, coloring: SymmetricColoring) -> bool:
    """Whether each H[i, j] is alone in row i among the columns of color[j], or in row j among those of color[i]."""
    nonzeros, colors = entries(pattern), coloring.colors.tolist()
    if not _counts_right(colors, coloring.count) or len(colors) != pattern.shape[1]:
        return False
    met = _columns_by_row_and_color(nonzeros, colors)
    return all(
        (colors[j] >= 0 and met[i, colors[j]] == [j]) or (colors[i] >= 0 and met[j, colors[i]] == [i])
        for i, j in nonzeros
    )


def is_valid_acyclic(pattern: Pattern, coloring: SymmetricColoring) -> bool:
    """Whether all values become known one after another, each as the only unknown in a sum of one row and color."""
    nonzeros, colors = entries(pattern), coloring.colors.tolist()
    if not _counts_right(colors, coloring.count) or len(colors) != pattern.shape[1]:
        return False
    sums = _columns_by_row_and_color(nonzeros, colors)
    known: Entries = set()
    progress = True
    while progress:
        progress = False
        for (i, _), columns in sums.items():
            unknown = [j for j in columns if (i, j) not in known]
            if len(unknown) == 1:
                known |= {(i, unknown[0]), (unknown[0], i)}
                progress = True
    return nonzeros <= known


def is_two_colored_forest(pattern: Pattern, coloring: SymmetricColoring) -> bool:
    """Whether neighbours differ and no cycle has only two colors: the definition of an acyclic coloring."""
    colors = coloring.colors.tolist()
    edges = [(i, j) for i, j in entries(pattern) if i < j]
    if any(colors[i] == colors[j] or min(colors[i], colors[j]) < 0 for i, j in edges):
        return False
    group: dict[tuple[tuple[int, int], int], set[int]] = {}
    for i, j in edges:
        pair = (min(colors[i], colors[j]), max(colors[i], colors[j]))
        one = group.setdefault((pair, i), {i})
        two = group.setdefault((pair, j), {j})
        if one is two:
            return False
        one |= two
        for k in two:
            group[pair, k] = one
    return True


def is_valid_bidirectional(pattern: Pattern, coloring: Bicoloring) -> bool:
    """Whether each nonzero is alone in its row among columns of one color, or in its column among rows of one."""
    nonzeros = entries(pattern)
    rows, columns = coloring.row_colors.tolist(), coloring.column_colors.tolist()
    if (len(rows), len(columns)) != tuple(pattern.shape):
        return False
    if not (_counts_right(rows, coloring.row_count) and _counts_right(columns, coloring.column_count)):
        return False
    in_row = _columns_by_row_and_color(nonzeros, columns)
    in_column = _columns_by_row_and_color({(j, i) for i, j in nonzeros}, rows)
    return all(
        (columns[j] >= 0 and in_row[i, columns[j]] == [j]) or (rows[i] >= 0 and in_column[j, rows[i]] == [i])
        for i, j in nonzeros
    )


def _lines_differ(nonzeros: Entries, coloring: Coloring) -> bool:
    colors = coloring.colors.tolist()
    met = _columns_by_row_and_color(nonzeros, colors)
    return (
        _counts_right(colors, coloring.count)
        and all(colors[j] >= 0 for _, j in nonzeros)
        and all(len(columns) == 1 for columns in met.values())
    )


def _columns_by_row_and_color(nonzeros: Entries, colors: list[int]) -> dict[tuple[int, int], list[int]]:
    met: dict[tuple[int, int], list[int]] = {}
    for i, j in sorted(nonzeros):
        if colors[j] >= 0:
            met.setdefault((i, colors[j]), []).append(j)
    return met


def _counts_right(colors: list[int], count: int) -> bool:
    """Whether the colors are 0 to count - 1, each of them used, and -1."""
    return set(colors) - {-1} == set(range(count))
