"""The chart of a run: how many times as long as Pullback the best peer takes, problem by problem."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dense_ours import CALLED, COMPILED, PREPARED
from benchmarks.targets import Entry, best, ratio, way

# Okabe and Ito's blue and vermilion, which everyone can tell apart; the marks differ in shape too.
BLUE, VERMILION, INK, PALE = "#0072B2", "#D55E00", "#333333", "#cccccc"
DTYPE = "float32"


@dataclass(frozen=True)
class Row:
    """One problem of the chart.

    Attributes:
        label: What it is called.
        called: How many times as long as one call the best peer takes.
        prepared: The same for the faster of what is prepared, and compiled where that was asked for.
    """

    label: str
    called: float | None
    prepared: float | None


def fastest_prepared(entry: Entry) -> Entry | None:
    """The faster of what is prepared and what is prepared and compiled."""
    found = [each for each in (way(entry, PREPARED), way(entry, COMPILED)) if each]
    return min(found, key=lambda each: float(each["min"]), default=None)


def rows(record: dict[str, Any]) -> tuple[list[Row], list[Row]]:
    """The dense problems, and the sparse ones."""
    dense = [
        Row(
            f"{each['key']}  {each['title'].removesuffix(', small')}",
            ratio(best(each, "peer"), way(each, CALLED)),
            ratio(best(each, "peer"), fastest_prepared(each)),
        )
        for each in record["dense"]
        if each["dtype"] == DTYPE
    ]
    sparse = [Row(each["title"], None, ratio(sparse_peer(each), fastest_prepared(each))) for each in record["sparse"]]
    return [row for row in dense if row.called or row.prepared], [row for row in sparse if row.prepared]


def sparse_peer(entry: Entry) -> Entry | None:
    """The fastest that is not ours: asdex, a coloring by hand, or the dense Jacobians of torch.func."""
    found = [each for kind in ("jax", "hand", "peer") if (each := best(entry, kind))]
    return min(found, key=lambda each: float(each["min"]), default=None)


def draw(record: dict[str, Any], path: Path) -> bool:
    """Draw the chart; False where Matplotlib is missing or there is nothing to draw."""
    dense, sparse = rows(record)
    if importlib.util.find_spec("matplotlib") is None or not dense + sparse:
        return False
    from matplotlib.figure import Figure

    groups = [(title, each) for title, each in (("dense", dense), ("sparse", sparse)) if each]
    count = len(dense) + len(sparse)
    figure = Figure(figsize=(8.6, 1.5 + 0.3 * count + 0.35 * len(groups)), layout="constrained", facecolor="white")
    axes = figure.subplots(
        len(groups), 1, sharex=True, squeeze=False, height_ratios=[len(each) + 0.6 for _, each in groups]
    )[:, 0]
    for ax, (title, each) in zip(axes, groups, strict=True):
        _group(ax, title, each)
    _legend(figure, axes[0])
    about = record["about"]
    small = "small sizes, not to be quoted; " if about["quick"] else ""
    figure.supxlabel(
        "time of the best library on PyTorch (sparse: asdex on JAX and coloring by hand too) / time of Pullback, "
        "log scale;\nright of 1, Pullback is faster; dense in float32, sparse in float64; least of many turns\n"
        f"{small}one thread, {about['processor']}, torch {about['versions']['torch']}",
        fontsize=8,
        color="#555555",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True


def _group(ax: Any, title: str, rows: list[Row]) -> None:
    """One group of problems, from the top down."""
    from matplotlib.ticker import LogLocator, NullLocator

    for y, row in enumerate(rows):
        for value, color, mark, size in ((row.called, BLUE, "o", 7), (row.prepared, VERMILION, "D", 6)):
            if value:
                ax.plot([1, value], [y, y], color=PALE, lw=1.2, zorder=1)
                ax.plot(value, y, mark, color=color, ms=size, mec="white", mew=0.6, zorder=3)
        _numbers(ax, y, [value for value in (row.called, row.prepared) if value])
    ax.axvline(1, color=INK, lw=1, zorder=2)
    ax.set_xscale("log")
    ax.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=9, color=INK)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", which="both", colors="#777777", labelsize=8)
    ax.grid(axis="x", which="major", color="#eeeeee", lw=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(PALE)
    ax.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")


def _numbers(ax: Any, y: int, values: list[float]) -> None:
    """The greatest ratio, right of its mark, or of the line at 1."""
    greatest = max(values)
    text = f"{greatest:.2g}x" if greatest < 9.95 else f"{greatest:,.0f}x"
    at = max(greatest, 1), y
    ax.annotate(text, at, xytext=(8, 0), textcoords="offset points", va="center", fontsize=8, color=INK)


def _legend(figure: Any, ax: Any) -> None:
    """What the marks mean."""
    marks = [
        ax.plot([], [], "o", color=BLUE, ms=7, label="one call, nothing chosen: pb.jacobian(f, x).dense()")[0],
        ax.plot([], [], "D", color=VERMILION, ms=6, label="prepared, compiled where asked: pb.prepare(f, x)")[0],
    ]
    figure.legend(handles=marks, loc="outside upper left", ncols=2, frameon=False, fontsize=9, handletextpad=0.3)
