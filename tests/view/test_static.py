"""The static drawing and Graphviz's text."""

from __future__ import annotations

import re
import shutil
import subprocess
from xml.etree import ElementTree as Xml

import pytest

from pullback.errors import ValueMismatch
from pullback.view.dot import dot, quoted
from pullback.view.picture import Arrow, Box, Picture
from pullback.view.shapes import cut, letters, writable
from pullback.view.style import DARK, LIGHT
from pullback.view.svg import svg

from .pictures import NASTY, layered, nasty, small, tangled

SVG = "{http://www.w3.org/2000/svg}"


def test_a_static_drawing_shows_every_visible_label():
    pytest.importorskip("graphlay")
    root = Xml.fromstring(svg(small()))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for name in ("x", "weight", "bias", "Addmm", "Swish", "Mean", "loss", "model", "linear"):
        assert texts.count(name) == 1
    assert len(root.findall(f".//{SVG}path[@marker-end]")) == 7
    left, top, w, h = map(float, root.get("viewBox").split())
    assert (left, top) == (0, 0)
    assert (w, h) == (float(root.get("width")), float(root.get("height")))
    assert root.find(f"{SVG}title").text == "a small net"


def test_a_static_drawing_has_colours_for_light_dark_and_print():
    pytest.importorskip("graphlay")
    text = svg(small())
    dark = text[text.index("@media screen and (prefers-color-scheme:dark)") :]
    assert LIGHT["operation"] in text
    assert LIGHT["operation"] not in dark
    assert DARK["operation"] in dark


def test_hostile_texts_are_text_in_a_static_drawing():
    pytest.importorskip("graphlay")
    root = Xml.fromstring(svg(nasty()))
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg",
        "title",
        "style",
        "defs",
        "marker",
        "path",
        "rect",
        "g",
        "text",
        "tspan",
    }
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on") or "href" in name]
    titles = {title.text for title in root.iter(f"{SVG}title")}
    for text in NASTY:
        # XML reads every end of a line as "\n".
        assert re.sub("\r\n?", "\n", writable(f"{text}\n{text}")).strip() in titles


@pytest.mark.parametrize("seed", range(6))
def test_any_picture_is_well_formed(seed):
    pytest.importorskip("graphlay")
    Xml.fromstring(svg(tangled(seed)))


def test_a_static_drawing_in_a_browser(chromium, tmp_path):
    pytest.importorskip("graphlay")
    file = tmp_path / "drawing.svg"
    file.write_text(svg(small()), encoding="utf-8")
    shown = chromium.new_page()
    try:
        shown.goto(file.as_uri())
        assert shown.evaluate("document.documentElement.localName") == "svg"
        sheet = shown.locator("rect.paper").bounding_box()
        for box in (one.bounding_box() for one in shown.locator("g > path").all()):
            assert sheet["x"] <= box["x"]
            assert box["x"] + box["width"] <= sheet["x"] + sheet["width"]
        fill = shown.locator(".operation").first.evaluate("e => getComputedStyle(e).fill")
        shown.emulate_media(color_scheme="dark")
        assert shown.locator(".operation").first.evaluate("e => getComputedStyle(e).fill") != fill
    finally:
        shown.close()


def tokens(text):
    """The tokens of Graphviz's language: strings, words, numbers and signs; anything else is an error."""
    pattern = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|->|[A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+|[{}\[\]=,;]', re.DOTALL)
    out, at = [], 0
    while at < len(text):
        found = pattern.match(text, at)
        assert found, text[at : at + 40]
        at = found.end()
        if found[0].strip():
            out.append(found[0])
    return out


@pytest.mark.parametrize("picture", [small(), nasty(), layered(200), tangled(3)], ids=lambda p: p.title[:8])
def test_graphviz_text_has_every_box_group_and_arrow(picture):
    found = tokens(dot(picture))
    assert found[:2] == ["digraph", "{"]
    assert found.count("{") == found.count("}") == len(picture.groups) + 1
    assert found.count("subgraph") == len(picture.groups)
    assert found.count("->") == len(picture.arrows)
    assert len({one for one in found if re.fullmatch(r"n\d+", one)}) == len(picture.boxes)
    strings = [one for one in found if one.startswith('"')]
    for box in picture.boxes:
        assert quoted(box.label, box.detail) in strings
    depth = 0
    for one in found:
        depth += {"{": 1, "}": -1}.get(one, 0)
        assert depth >= 0


def test_boxes_stand_in_the_clusters_of_their_groups():
    text = dot(small())
    outer, inner = text.index("subgraph cluster_0"), text.index("subgraph cluster_1")
    assert outer < inner
    end = text.index("}", inner)
    assert inner < text.index('label="Addmm') < end
    assert text.index('label="loss\\n') < outer


@pytest.mark.parametrize("text", NASTY)
def test_a_quoted_text_is_one_string_that_says_the_same(text):
    string = quoted(text)
    assert len(tokens(string)) == 1
    plain = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], string[1:-1])
    assert plain == writable(text).replace("\r", " ")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it():
    for picture in (small(), nasty(), tangled(5)):
        subprocess.run(["dot", "-Tcanon"], input=dot(picture).encode(), check=True, capture_output=True)


def test_graphviz_text_of_a_contradiction_is_refused():
    box = Box("a", "a", "", "operation")
    with pytest.raises(ValueMismatch, match="no box of this key, which its arrows name"):
        dot(Picture("p", (), (box,), (), (Arrow("a", "b"),)))
    with pytest.raises(ValueMismatch, match="no group of this key, which its groups name"):
        dot(Picture("p", (), (Box("a", "a", "", "operation", "g"),), (), ()))


def test_texts_are_cut_to_fit():
    assert cut("short", 10) == "short"
    assert cut("a long text", 6) == "a lon…"
    assert letters("中文") > letters("ab")
    assert letters(cut("很长的中文标签很长的中文标签", 8)) <= 8
    assert cut("", 0) == ""
