"""How boxes look: their sizes, the outline that tells a kind where colour cannot, and texts cut to fit."""

from __future__ import annotations

import re
import unicodedata

from pullback.view.tree import Node

HEIGHT = 46.0
WIDEST, NARROWEST, STEP = 312.0, 96.0, 24.0
LABEL, DETAIL = 7.6, 6.4  # pixels of a letter of the first and the second line
ROOM = 32.0  # left and right of the text
FOLD = 48.0  # for the sign that unfolds a group, and the number of boxes in it

# What XML 1.0 cannot hold, not even escaped, and halves of surrogate pairs, which no file can.
UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def writable(text: str) -> str:
    """The text with a replacement sign for what cannot be written to a file."""
    return UNWRITABLE.sub("\ufffd", text)


def letters(text: str) -> float:
    """The width of a text in letters of average width; those of East Asia are about two wide."""
    if text.isascii():
        return len(text)
    return sum(1.75 if unicodedata.east_asian_width(c) in "WF" else 1.0 for c in text)


def cut(text: str, room: float) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    if letters(text) <= room:
        return text
    while text and letters(text) > room - 1:
        text = text[: min(len(text) - 1, int(room))]
    return text + "…"


def width(node: Node) -> float:
    """The width of a folded node, in steps, so that repeated layers have one layout."""
    label = f"part {node.label}" if node.kind == "part" else node.label
    text = max(letters(label) * LABEL, letters(node.detail) * DETAIL)
    need = text + ROOM + (FOLD if node.holds else 0.0)
    return min(WIDEST, max(NARROWEST, -(-need // STEP) * STEP))


def bar(node: Node) -> float:
    """The width of an unfolded node, at least: both its lines beside each other in its title bar."""
    label, detail = lines(node)
    name = f"part {label}" if node.kind == "part" else label
    return max(width(node), letters(name) * LABEL + letters(detail) * DETAIL + ROOM + FOLD)


def lines(node: Node) -> tuple[str, str]:
    """The two lines of a node, cut to its width."""
    room = width(node) - ROOM - (FOLD if node.holds else 0.0)
    return cut(node.label, room / LABEL), cut(node.detail, room / DETAIL)


def outline(kind: str, w: float, h: float = HEIGHT) -> str:
    """The outline of a box of this kind and size, as the path of an SVG, with its upper left corner at 0, 0."""
    if kind in {"parameter", "buffer"}:
        return rounded(w, h, h / 2)
    if kind == "custom":
        return _polygon((9, 0), (w - 9, 0), (w, 9), (w, h - 9), (w - 9, h), (9, h), (0, h - 9), (0, 9))
    if kind == "input":
        return _polygon((0, 0), (w, 0), (w - 14, h), (14, h))
    if kind == "output":
        return _polygon((14, 0), (w - 14, 0), (w, h), (0, h))
    return rounded(w, h, 8)


def rounded(w: float, h: float, r: float) -> str:
    """A rectangle with round corners."""
    arc = f"a{r:g} {r:g} 0 0 1 "
    return (
        f"M{r:g} 0h{w - 2 * r:g}{arc}{r:g} {r:g}v{h - 2 * r:g}{arc}{-r:g} {r:g}"
        f"h{2 * r - w:g}{arc}{-r:g} {-r:g}v{2 * r - h:g}{arc}{r:g} {-r:g}z"
    )


def _polygon(*corners: tuple[float, float]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in corners) + "z"
