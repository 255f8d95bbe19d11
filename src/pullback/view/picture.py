"""A picture as plain values: boxes in nested groups, arrows between them, and steps that walk through them.

Every text is the user's or an English word; a page that speaks another language looks words up by the English one
(``view/words``) and leaves what it does not know as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

NOTHING: Mapping[str, float] = MappingProxyType({})
Kind = Literal["operation", "custom", "parameter", "input", "buffer", "output"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head; ``title`` and ``head`` are words, the rows are as they are."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's program."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True)
class Card:
    """What a click on a box or a group tells: named facts in order, where it was written, and tables of numbers."""

    facts: tuple[tuple[str, str], ...] = ()
    source: Source | None = None
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """One thing drawn: an operation, or what it begins or ends in.

    Attributes:
        key: Unique in the picture, among boxes and groups.
        label: Its first line, such as ``Addmm``.
        detail: Its second line, such as ``(64, 256) float32``.
        kind: What it is; the shape and colour follow it.
        group: The key of the group that it stands in, or None at the top.
        card: What a click on it tells.
        amounts: Numbers by which it may be coloured: ``memory`` in bytes, ``gradient`` as a norm, ``time`` in seconds.
    """

    key: str
    label: str
    detail: str
    kind: Kind
    group: str | None = None
    card: Card = Card()
    amounts: Mapping[str, float] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Group:
    """Boxes and groups that fold into one: a module, or the repetitions of a layer.

    Attributes:
        key: Unique in the picture, among boxes and groups.
        label: Its name, such as ``layers.0`` or ``6 × layers``.
        detail: Its second line, such as the class of the module.
        group: The key of the group around it, or None at the top.
        card: What a click on it tells.
        amounts: As for boxes, summed (``memory``, ``time``) or the largest (``gradient``) of what it holds.
    """

    key: str
    label: str
    detail: str
    group: str | None = None
    card: Card = Card()
    amounts: Mapping[str, float] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the box that makes a tensor to a box that uses it; ``label`` is the tensor's shape and dtype."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a walk: the box it visits, a sentence, and what it shows there."""

    box: str
    text: str
    card: Card = Card()


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is drawn. Boxes and groups come in the order in which they were made, producers before users."""

    title: str
    facts: tuple[tuple[str, str], ...]
    boxes: tuple[Box, ...]
    groups: tuple[Group, ...]
    arrows: tuple[Arrow, ...]
    steps: tuple[Step, ...] = ()
    tables: tuple[Table, ...] = ()
