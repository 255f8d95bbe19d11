"""A picture as text for Graphviz: groups are clusters, and every string is quoted."""

from __future__ import annotations

from collections import defaultdict

from pullback.view.picture import Box, Group, Picture
from pullback.view.shapes import writable
from pullback.view.style import LIGHT
from pullback.view.tree import find, numbered

SHAPES = {"custom": "octagon", "input": "invtrapezium", "output": "trapezium"}
STYLES = {"operation": "rounded,filled", "parameter": "rounded,filled", "buffer": "rounded,filled,dashed"}


def dot(picture: Picture) -> str:
    r"""The picture in Graphviz's language; it needs no layout library, and takes time in proportion to the picture.

    Raises:
        ValueMismatch: If two boxes or groups have one key, or one is named that is not there.

    Example:
        >>> from pullback.view.picture import Arrow, Box, Picture
        >>> boxes = Box("a", "Mul", "(2,) float32", "operation"), Box("b", "Sum", "() float32", "operation")
        >>> print(dot(Picture("two", (), boxes, (), (Arrow("a", "b"),))))
        digraph {
          label="two"
          ...
          n0 [label="Mul\n(2,) float32",class="operation",...]
          n1 [label="Sum\n() float32",class="operation",...]
          n0 -> n1
        }
    """
    groups, boxes = numbered(picture)
    inside: dict[int | None, list[str]] = defaultdict(list)
    for box in picture.boxes:
        parent = None if box.group is None else find(groups, box.group, "group")
        inside[parent].append(_box(boxes[box.key], box))
    below: dict[int | None, list[int]] = defaultdict(list)
    for group in picture.groups:
        below[None if group.group is None else find(groups, group.group, "group")].append(groups[group.key])
    lines = [
        "digraph {",
        f"  label={quoted(picture.title)}",
        '  graph [fontname="sans-serif",rankdir=TB]',
        '  node [shape=box,fontname="sans-serif",fontsize=11]',
        '  edge [color="#8c97aa",fontname="sans-serif",fontsize=9]',
    ]
    _clusters(lines, picture.groups, inside, below)
    for arrow in picture.arrows:
        label = f" [label={quoted(arrow.label)}]" if arrow.label else ""
        lines.append(f"  n{find(boxes, arrow.source, 'arrow')} -> n{find(boxes, arrow.target, 'arrow')}{label}")
    lines.append("}\n")
    return "\n".join(lines)


def _clusters(
    lines: list[str],
    groups: tuple[Group, ...],
    inside: dict[int | None, list[str]],
    below: dict[int | None, list[int]],
) -> None:
    """Write the groups and what stands in them, from the outside in, however deep they nest."""
    pending: list[int | str | None] = [None]
    while pending:
        now = pending.pop()
        if isinstance(now, str):
            lines.append(now)
            continue
        if now is not None:
            label = quoted(groups[now].label, groups[now].detail)
            lines.append(f'  subgraph cluster_{now} {{\n  label={label}\n  style="rounded"\n  color="#c9d0db"')
            pending.append("  }")
        lines += inside[now]
        pending += reversed(below[now])


def _box(number: int, box: Box) -> str:
    style, shape = STYLES.get(box.kind, "filled"), SHAPES.get(box.kind)
    fill, line = LIGHT[box.kind], LIGHT[f"{box.kind}-line"]
    return (
        f'  n{number} [label={quoted(box.label, box.detail)},class="{box.kind}",style="{style}",'
        f'fillcolor="{fill}",color="{line}"{f",shape={shape}" if shape else ""}]'
    )


def quoted(*lines: str) -> str:
    """Lines of text as one quoted string in which nothing has a meaning of its own."""
    text = "\\n".join(
        writable(line).replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
        for line in lines
        if line
    )
    return f'"{text}"'
