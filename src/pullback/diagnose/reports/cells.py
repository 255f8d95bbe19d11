"""How wide text is in a terminal, and how it is wrapped and cut there: a Chinese character takes two cells."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

TAB = 4
CUT = "…"
# A word, white space, or one East Asian character with the punctuation that may not begin a line.
_WIDE = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_CLOSING = "，。、；：！？）」』”》】"
_TOKENS = re.compile(rf"\s+|[{_WIDE}][{_CLOSING}]*|[^\s{_WIDE}]+[{_CLOSING}]*")


@cache
def cell(character: str) -> int:
    """The cells that one character takes: 0 for marks that combine with the one before."""
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def cells(text: str) -> int:
    """The cells that a text takes."""
    return len(text) if text.isascii() else sum(map(cell, text))


def padded(text: str, width: int) -> str:
    """A text, filled up with spaces to a width."""
    return text + " " * (width - cells(text))


def expanded(text: str, span: tuple[int, int] | None) -> tuple[str, tuple[int, int] | None]:
    """A line with its tabs as spaces, and a span of it moved along."""
    places, line = [], ""
    for character in text:
        places.append(len(line))
        line += " " * (TAB - cells(line) % TAB) if character == "\t" else character
    places.append(len(line))
    if span is None:
        return line, None
    start, end = (places[min(max(at, 0), len(text))] for at in span)
    return line, (start, end)


def window(text: str, span: tuple[int, int], width: int) -> tuple[str, tuple[int, int]]:
    """As much of a long line as fits into a width, with the span in it; what was cut shows as an ellipsis."""
    if cells(text) <= width or width < 8:
        return text, span
    start, end = span
    end = max(end, start + 1)
    first = last = start
    used = 2  # an ellipsis on each side
    while last < end and last < len(text) and used + cell(text[last]) <= width:
        used += cell(text[last])
        last += 1
    # What is left goes to both sides, the line's beginning first.
    before = (width - used) // 2
    while first > 0 and cells(text[first - 1 : start]) <= before:
        first -= 1
    used += cells(text[first:start])
    while last < len(text) and used + cell(text[last]) <= width:
        used += cell(text[last])
        last += 1
    while first > 0 and used + cell(text[first - 1]) <= width:
        first -= 1
        used += cell(text[first])
    left = CUT if first else ""
    right = CUT if last < len(text) else ""
    shift = len(left) - first
    return left + text[first:last] + right, (start + shift, min(end, last) + shift)


def wrapped(text: str, width: int) -> list[str]:
    """A text as lines of at most a width, broken at spaces and between East Asian characters."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        indent = paragraph[: len(paragraph) - len(paragraph.lstrip())]
        line, gap = indent, ""
        for token in _TOKENS.findall(paragraph.strip()):
            if token.isspace():
                gap = " "
            elif line.strip() and cells(line + gap + token) > width:
                lines.append(line)
                line, gap = indent + token, ""
            else:
                line, gap = line + gap + token if line.strip() else indent + token, ""
        lines.append(line)
    return lines
