"""A picture as one page that opens from disk: its words, its style, its script and its data are all inside it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pullback.errors import ValueMismatch
from pullback.view.compose import METRICS
from pullback.view.layout import Rows, layouts
from pullback.view.picture import Card, Picture, Table
from pullback.view.shapes import bar, lines, outline, width, writable
from pullback.view.style import KINDS, variables
from pullback.view.tree import Node, Tree, open_at_first, tree
from pullback.view.words import LANGUAGES, Language, chinese, word

HERE = Path(__file__).parent
SAMPLE = 72.0  # the width of a box in the legend


def page(picture: Picture, *, language: Language = "en") -> str:
    """The picture as a page: it folds, pans, zooms, searches, colours and replays, without a network or a server.

    Args:
        picture: What to draw.
        language: What the page speaks at first, ``"en"`` or ``"zh"``; a switch on it changes that. What the user
            wrote is never translated.

    Returns:
        HTML that refers to nothing outside itself. No string of the picture can become markup or a script: all are
        escaped, and the page's own policy lets nothing run but its own script.

    Raises:
        StrategyError: If the layout library is not installed.
        ValueMismatch: If the picture contradicts itself, or the language is not one of the two.

    Example:
        >>> from pullback.view.picture import Box, Picture
        >>> html = page(Picture("one", (), (Box("a", "Mul", "(2,) float32", "operation"),), (), ()))
        >>> html[:15], "http://" in html.replace("http://www.w3.org/2000/svg", "")
        ('<!doctype html>', False)
    """
    import jinja2  # noqa: PLC0415 (heavy)
    import markupsafe  # noqa: PLC0415 (jinja2's own)

    if language not in LANGUAGES:
        raise ValueMismatch(
            "A page speaks English or Chinese.", got=repr(language), fix='language="en" or language="zh"'
        )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["word"] = lambda english: writable(word(english, language))
    environment.filters["writable"] = writable
    template = environment.from_string((HERE / "page.html.j2").read_text(encoding="utf-8"))
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("compose.js", "page.js"))
    style = variables() + (HERE / "page.css").read_text(encoding="utf-8")
    trusted = markupsafe.Markup
    return template.render(
        picture=picture,
        language=language,
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src 'unsafe-inline'",
        style=trusted(style),
        script=trusted(script),
        data=trusted(embedded(_data(picture, language))),
    )


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def embedded(value: Any) -> str:
    """JSON that can stand in a ``script`` element: ASCII only, and without the signs that begin or end markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(picture: Picture, language: Language) -> dict[str, Any]:
    numbered = tree(picture)
    rows = layouts(numbered)
    labels = {label: i for i, label in enumerate(dict.fromkeys(label for _, _, label in numbered.arrows))}
    sizes = {(_shape(node), width(node)) for node in numbered.nodes} | {(kind, SAMPLE) for kind in KINDS}
    return {
        "language": language,
        "words": chinese(),
        "metrics": METRICS | {"sample": SAMPLE},
        "shapes": {f"{kind}:{w:g}": outline(kind, w) for kind, w in sorted(sizes)},
        "nodes": [_node(node) for node in numbered.nodes],
        "layouts": {group: _rows(one) for group, one in rows.items()},
        "labels": list(labels),
        "arrows": [(source, target, labels[label]) for source, target, label in numbered.arrows],
        "open": open_at_first(numbered),
        "steps": _steps(picture, numbered),
        "tables": [_table(table) for table in picture.tables],
    }


def _shape(node: Node) -> str:
    return "group" if node.holds else node.kind


def _node(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {
        "label": node.label,
        "detail": node.detail,
        "kind": node.kind,
        "parent": node.parent,
        "w": width(node),
    }
    cut = lines(node)
    if cut != (node.label, node.detail):
        out["cut"] = cut
    if node.holds:
        out["boxes"] = node.boxes
        out["bar"] = bar(node)
    if node.amounts:
        out["amounts"] = _amounts(node.amounts)
    if card := _card(node.card):
        out["card"] = card
    return out


def _amounts(amounts: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers as JSON; those that are not finite, which it does not have, as the words that JavaScript reads."""
    words = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return {name: float(value) if math.isfinite(value) else words.get(value, "NaN") for name, value in amounts.items()}


def _card(card: Card) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if card.facts:
        out["facts"] = card.facts
    if card.source:
        out["source"] = (card.source.file, card.source.line, card.source.function, card.source.text)
    if card.tables:
        out["tables"] = [_table(table) for table in card.tables]
    return out


def _table(table: Table) -> tuple[Any, ...]:
    return table.title, table.head, table.rows


def _rows(rows: Rows) -> dict[str, Any]:
    return {
        "items": [(item.what, item.x, item.row) for item in rows.items],
        "legs": [(leg.source, leg.target, leg.over) for leg in rows.legs],
    }


def _steps(picture: Picture, numbered: Tree) -> list[dict[str, Any]]:
    return [
        {"box": box, "text": step.text, "card": _card(step.card)}
        for box, step in zip(numbered.steps, picture.steps, strict=True)
    ]
