"""A matrix's nonzeros as a picture: in text, by braille characters two dots wide and four high, or in a plot."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from pullback.data.space import one_line
from pullback.errors import ArgumentError, StrategyError, ValueMismatch

Indices = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]

# The bit of each dot of a character, as Unicode numbers them.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
BLANK = 0x2800
# A plot with more nonzeros than the first draws at most one for each cell of a square grid of the second.
MANY, CELLS = 100_000, 500
# What has no colour is drawn in this one.
GREY = (0.8, 0.8, 0.8)


def picture(rows: Indices, columns: Indices, shape: tuple[int, int], *, width: int, height: int) -> str:
    """The entries of a matrix as dots between brackets.

    A matrix that fits has one dot for each entry; a larger one is scaled down, both sides by the same factor, and a
    dot is set if any entry falls in it.

    Args:
        rows: The rows of the entries.
        columns: Their columns.
        shape: The shape of the matrix.
        width: The most characters in a line, brackets included; at least 3.
        height: The most lines.

    Returns:
        The lines, joined; empty for a matrix without elements.

    >>> print(picture(np.arange(8), np.arange(8), (8, 8), width=60, height=30))
    ⎡⠑⢄⠀⠀⎤
    ⎣⠀⠀⠑⢄⎦
    """
    if 0 in shape:
        return ""
    high, wide = dots(shape, 4 * height, 2 * (width - 2))
    lines, characters = -(-high // 4), -(-wide // 2)
    canvas = np.zeros((4 * lines, 2 * characters), dtype=bool)
    canvas[scaled(rows, shape[0], high), scaled(columns, shape[1], wide)] = True
    codes = np.einsum("lrcd,rd->lc", canvas.reshape(lines, 4, characters, 2), DOTS) + BLANK
    text = ["".join(map(chr, line)) for line in codes]
    if lines == 1:
        return f"[{text[0]}]"
    left, right = "⎡" + "⎢" * (lines - 2) + "⎣", "⎤" + "⎥" * (lines - 2) + "⎦"
    return "\n".join(f"{before}{line}{after}" for before, line, after in zip(left, text, right, strict=True))


def dots(shape: tuple[int, int], high: int, wide: int) -> tuple[int, int]:
    """The dots that a matrix takes of ``high`` x ``wide``: one for each element where it fits, else to scale.

    >>> dots((5, 7), 120, 116), dots((1000, 500), 120, 116)
    ((5, 7), (120, 60))
    """
    m, n = shape
    if m <= high and n <= wide:
        return m, n
    if m * wide <= n * high:
        return -(-m * wide // n), wide
    return high, -(-n * high // m)


def scaled(indices: Indices, size: int, target: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions out of ``size`` as positions out of ``target``, rounded down."""
    return indices.astype(np.int64) * target // size


def spy(rows: Indices, columns: Indices, shape: tuple[int, int], ax: Any = None, coloring: Any = None) -> Any:
    """The entries of a matrix on matplotlib's Axes, as squares that fit their cells.

    Args:
        rows: The rows of the entries.
        columns: Their columns.
        shape: The shape of the matrix.
        ax: The Axes to draw on; None for new ones.
        coloring: Something with ``colors`` and, unless these are the columns', ``axis``; None for one colour.

    Returns:
        The Axes.

    Raises:
        StrategyError: matplotlib is not installed.
    """
    axis, colors = ("columns", None) if coloring is None else _colors(coloring, shape)
    try:
        plt = import_module("matplotlib.pyplot")
    except ImportError as error:
        raise StrategyError(
            "a plot needs matplotlib", got=one_line(error), fix="pip install pullback[plot]; or print(pattern)"
        ) from error
    if ax is None:
        _, ax = plt.subplots()
    m, n = shape
    title = f"{m:,} x {n:,}, {len(rows):,} nonzeros"
    rows, columns = _thinned(rows, columns, shape)
    paint: Any = "C0"
    if colors is not None:
        paint = _paint(colors[rows if axis == "rows" else columns])
        title += f", {len(np.unique(colors[colors >= 0])):,} colours"
    ax.set_xlim(-0.5, max(n, 1) - 0.5)
    ax.set_ylim(max(m, 1) - 0.5, -0.5)
    ax.set_aspect("equal" if max(shape) <= 10 * min(shape) else "auto")
    ax.apply_aspect()
    extent = ax.get_window_extent()
    cell = 72 / ax.figure.dpi * min(extent.width / max(n, 1), extent.height / max(m, 1))
    side = float(np.clip(0.9 * cell, 0.8, 20))
    ax.scatter(columns, rows, s=side**2, c=paint, marker="s", linewidths=0, rasterized=True)
    ax.set_title(title)
    return ax


def _thinned(rows: Indices, columns: Indices, shape: tuple[int, int]) -> tuple[Indices, Indices]:
    """The entries, or of very many those that can be told apart in a plot."""
    if len(rows) <= MANY:
        return rows, columns
    high, wide = dots(shape, CELLS, CELLS)
    _, kept = np.unique(scaled(rows, shape[0], high) * wide + scaled(columns, shape[1], wide), return_index=True)
    return rows[kept], columns[kept]


def _colors(coloring: Any, shape: tuple[int, int]) -> tuple[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The axis of a colouring and its colours, one for each row or column; one without an axis colours columns.

    Raises:
        ArgumentError: It is no colouring.
        ValueMismatch: It is one of another matrix.
    """
    axis, colors = getattr(coloring, "axis", "columns"), np.asarray(getattr(coloring, "colors", None))
    if axis not in {"rows", "columns"} or not np.issubdtype(colors.dtype, np.integer):
        raise ArgumentError(
            "this is not a colouring",
            got=type(coloring).__name__,
            fix="give something with .axis, 'rows' or 'columns', and .colors, an integer for each of these",
        )
    size = shape[0] if axis == "rows" else shape[1]
    if colors.shape != (size,):
        raise ValueMismatch(
            f"the colouring is not one of this pattern's {axis}",
            got=f"colors of shape {colors.shape}",
            fix=f"give one colour for each of the {size} {axis}",
        )
    return axis, colors.astype(np.int64)


def _paint(colors: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Red, green and blue for each colour: matplotlib's ten where these suffice, else hues far apart."""
    if colors.max(initial=-1) < 10:
        table = np.array(import_module("matplotlib").colormaps["tab10"].colors)[np.maximum(colors, 0)]
    else:
        golden = (np.sqrt(5) - 1) / 2
        hue, value = colors * golden % 1, np.where(colors % 2, 0.65, 0.9)
        table = import_module("matplotlib.colors").hsv_to_rgb(np.stack([hue, np.full(len(hue), 0.8), value], axis=-1))
    return np.where(colors[:, None] < 0, GREY, table)
