"""A static drawing of a picture as it is folded at first, for documents and for print."""

from __future__ import annotations

import math
from xml.etree import ElementTree as Xml

from pullback.view.compose import PAD, Composed, Place, compose
from pullback.view.layout import layouts
from pullback.view.picture import Picture
from pullback.view.shapes import HEIGHT, lines, outline, rounded, writable
from pullback.view.style import sheet
from pullback.view.tree import Node, Tree, open_at_first, tree

MARGIN = 24.0


def svg(picture: Picture) -> str:
    """The picture as an SVG of its own: groups are unfolded while few boxes are visible, colours follow the reader's.

    Raises:
        StrategyError: If the layout library is not installed.
        ValueMismatch: If the picture contradicts itself.

    Example:
        >>> from pullback.view.picture import Box, Picture
        >>> svg(Picture("one", (), (Box("a", "Mul", "(2,) float32", "operation"),), (), ()))[:4]
        '<svg'
    """
    numbered = tree(picture)
    return draw(numbered, compose(numbered, layouts(numbered), set(open_at_first(numbered))), picture.title)


def draw(numbered: Tree, composed: Composed, title: str) -> str:
    """Write what has been composed."""
    w, h = math.ceil(composed.w + 2 * MARGIN), math.ceil(composed.h + 2 * MARGIN)
    size = {"width": f"{w}", "height": f"{h}", "viewBox": f"0 0 {w} {h}"}
    root = Xml.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size})
    _add(root, "title", writable(title))
    _add(root, "style", sheet())
    head = _add(_add(root, "defs"), "marker", id="head", viewBox="0 0 8 8", refX="7", refY="4")
    head.attrib |= {"markerWidth": "8", "markerHeight": "8", "markerUnits": "userSpaceOnUse", "orient": "auto"}
    _add(head, "path", d="M0 .8 7.5 4 0 7.2 1.6 4z", **{"class": "head"})
    _add(root, "rect", width=f"{w}", height=f"{h}", **{"class": "paper"})
    world = _add(root, "g", transform=f"translate({MARGIN:g} {MARGIN:g})")
    for place in composed.places:
        if place.frame:
            shape = rounded(place.w, place.h, 12)
            _add(world, "path", d=shape, transform=f"translate({place.x:.1f} {place.y:.1f})", **{"class": "frame"})
    for curve in composed.curves:
        stroke = min(5.0, 1.2 + 0.8 * math.log2(curve.count))
        arrow = _add(world, "path", d=curve.path, **{"class": "arrow", "marker-end": "url(#head)"})
        arrow.set("stroke-width", f"{stroke:.1f}")
    for place in composed.places:
        _draw_node(world, numbered.nodes[place.index], place)
    return Xml.tostring(root, encoding="unicode")


def _draw_node(world: Xml.Element, node: Node, place: Place) -> None:
    """A box with its two lines, or the name of a frame."""
    box = _add(world, "g", transform=f"translate({place.x:.1f} {place.y:.1f})")
    name = f"part {node.label}" if node.kind == "part" else node.label
    _add(box, "title", writable(f"{name}\n{node.detail}".strip()))
    label, detail = lines(node)
    if node.kind == "part":
        label = name
    if place.frame:
        text = _add(box, "text", writable(label), x=f"{PAD / 2:g}", y="21")
        _add(text, "tspan", writable(detail), dx="10", **{"class": "detail"})
        return
    kind = "group" if node.holds else node.kind
    if node.holds:  # a second sheet behind the first: there is more inside
        _add(box, "path", d=outline(kind, place.w), transform="translate(4 4)", **{"class": kind})
    _add(box, "path", d=outline(kind, place.w), **{"class": kind})
    middle = place.w / 2 - (12 if node.holds else 0)
    both = {"x": f"{middle:g}", "text-anchor": "middle"}
    _add(box, "text", writable(label), y=f"{HEIGHT / 2 - 3 if detail else HEIGHT / 2 + 5:g}", **both)
    if detail:
        _add(box, "text", writable(detail), y=f"{HEIGHT / 2 + 13:g}", **both, **{"class": "detail"})
    if node.holds:
        count = {"x": f"{place.w - 12:g}", "y": f"{HEIGHT / 2 + 4:g}", "text-anchor": "end", "class": "count"}
        _add(box, "text", f"+{node.boxes}", **count)


def _add(parent: Xml.Element, tag: str, text: str = "", **attributes: str) -> Xml.Element:
    child = Xml.SubElement(parent, tag, attributes)
    if text:
        child.text = text
    return child
