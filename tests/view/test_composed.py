"""Where things stand: nothing overlaps, arrows keep out of boxes, and page and static drawing agree."""

from __future__ import annotations

import random
import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pullback.errors import StrategyError, ValueMismatch
from pullback.view import compose as composing
from pullback.view import layout as laying
from pullback.view.layout import Item, Rows
from pullback.view.picture import Arrow, Box, Group, Picture, Step
from pullback.view.tree import AT_FIRST, CROWD, ROOT, open_at_first, tree

from .pictures import layered, small, tangled

PLACES = """all => all.map(e => {
  const m = e.transform.baseVal.consolidate().matrix, b = e.querySelector('.shape').getBBox();
  return {index: Number(e.dataset.index), x: m.e, y: m.f, w: b.width, h: b.height, frame: e.matches('.open')};
})"""
ENDS = "all => all.map(e => [e.dataset.source, e.dataset.target, e.dataset.count].map(Number))"
CLICK = """i => document.querySelector(`#world [data-index='${i}'] .fold`)
  .dispatchEvent(new MouseEvent('click', {bubbles: true}))"""


def parts(numbered):
    """The nodes that fold."""
    return [node.index for node in numbered.nodes if node.holds]


def some(numbered, seed):
    """A random set of unfolded groups, each with what is around it."""
    draw = random.Random(seed)
    chosen = set()
    for index in parts(numbered):
        if draw.random() < 0.6:
            chosen |= {index, *numbered.above(index)} - {ROOT}
    return chosen


def apart(places, above):
    """Any two visible nodes are apart, or one is a frame around the other and holds it wholly."""
    for a, b in combinations(places, 2):
        if b["index"] in above(a["index"]):
            a, b = b, a
        inside = a["index"] in above(b["index"])
        if inside:
            assert a["frame"]
            assert a["x"] <= b["x"]
            assert a["y"] < b["y"]
            assert b["x"] + b["w"] <= a["x"] + a["w"] + 0.1
            assert b["y"] + b["h"] <= a["y"] + a["h"] + 0.1
        else:
            gaps = (
                b["x"] - a["x"] - a["w"],
                a["x"] - b["x"] - b["w"],
                b["y"] - a["y"] - a["h"],
                a["y"] - b["y"] - b["h"],
            )
            assert max(gaps) > 5


def points(path, steps=12):
    """Points along a path of M, L, V and C."""
    out, x, y = [], 0.0, 0.0
    for letter, text in re.findall(r"([MLVC])([^MLVC]*)", path):
        n = [float(word) for word in text.split()]
        if letter == "C":
            for i in range(1, steps + 1):
                t = i / steps
                weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
                xs, ys = (x, n[0], n[2], n[4]), (y, n[1], n[3], n[5])
                out.append(
                    (
                        sum(w * v for w, v in zip(weights, xs, strict=True)),
                        sum(w * v for w, v in zip(weights, ys, strict=True)),
                    )
                )
            x, y = n[4], n[5]
            continue
        to_x, to_y = (x, n[0]) if letter == "V" else (n[0], n[1])
        if letter != "M":
            out += [(x + (to_x - x) * i / steps, y + (to_y - y) * i / steps) for i in range(1, steps + 1)]
        else:
            out.append((to_x, to_y))
        x, y = to_x, to_y
    return out


def composed(picture, opened=None):
    numbered = tree(picture)
    chosen = set(open_at_first(numbered)) if opened is None else opened(numbered)
    return numbered, composing.compose(numbered, laying.layouts(numbered), chosen)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_overlaps_and_arrows_keep_out_of_boxes_in_any_state_of_folding(seed):
    pytest.importorskip("graphlay")
    picture = tangled(seed) if seed % 2 else layered(120, seed)
    numbered, out = composed(picture, lambda t: some(t, seed))
    places = [{name: getattr(p, name) for name in ("index", "x", "y", "w", "h", "frame")} for p in out.places]
    apart(places, numbered.above)
    at = {p.index: p for p in out.places}
    boxes = [p for p in out.places if not p.frame]
    assert sum(numbered.nodes[p.index].boxes for p in boxes) == len(picture.boxes)
    for curve in out.curves:
        way = points(curve.path)
        first, last = at[curve.source], at[curve.target]
        assert way[0][1] == pytest.approx(first.y + first.h, abs=0.11)
        assert first.x <= way[0][0] <= first.x + first.w
        assert way[-1][1] == pytest.approx(last.y, abs=0.11)
        assert last.x <= way[-1][0] <= last.x + last.w
        for p in boxes:
            hits = [(x, y) for x, y in way if p.x + 0.5 < x < p.x + p.w - 0.5 and p.y + 0.5 < y < p.y + p.h - 0.5]
            assert hits == []
    for p in out.places:
        assert p.x >= -0.1
        assert p.y >= -0.1
        assert p.x + p.w <= out.w + 0.1
        assert p.y + p.h <= out.h + 0.1


@pytest.mark.parametrize("seed", range(20))
def test_each_arrow_is_drawn_between_what_is_visible_of_its_ends(seed):
    pytest.importorskip("graphlay")
    picture = tangled(seed)
    numbered, out = composed(picture, lambda t: some(t, seed))
    shown = {p.index for p in out.places}

    def visible(key):
        index = next(n.index for n in numbered.nodes if n.key == key)
        return next(i for i in (index, *numbered.above(index)) if i in shown)

    wanted = {}
    for arrow in picture.arrows:
        pair = visible(arrow.source), visible(arrow.target)
        if pair[0] != pair[1]:
            wanted[pair] = wanted.get(pair, 0) + 1
    assert {(c.source, c.target): c.count for c in out.curves} == wanted


@given(
    st.lists(st.tuples(st.floats(-200, 200), st.floats(10, 200)), min_size=1, max_size=12),
    st.lists(st.floats(-300, 300), min_size=12, max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_a_row_moves_as_little_as_it_can(items, wanted):
    """Against scipy's isotonic regression."""
    from scipy.optimize import isotonic_regression

    rows = Rows(tuple(Item(i, x, 0) for i, (x, _) in enumerate(sorted(items))), ())
    sizes = [(w, 10.0) for _, w in sorted(items)]
    row, goal = list(range(len(items))), wanted[: len(items)]
    x = [0.0] * len(items)
    composing._apart(rows, sizes, x, row, goal)
    distances = [(sizes[i][0] + sizes[i - 1][0]) / 2 + composing.APART for i in range(1, len(items))]
    shift = np.cumsum([0.0, *distances])
    assert x == pytest.approx(list(isotonic_regression(np.array(goal) - shift).x + shift), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_page_places_everything_as_the_static_drawing_does(show, seed):
    """Random folds by clicks in the browser; after each, the page and `compose` agree and nothing overlaps."""
    picture = tangled(2 * seed + 1) if seed % 2 else layered(60, seed)
    numbered = tree(picture)
    rows = laying.layouts(numbered)
    opened = set(open_at_first(numbered))
    shown = show(picture)
    draw = random.Random(seed)
    for _ in range(8):
        places = shown.eval_on_selector_all(
            "#world [data-index]",
            PLACES,
        )
        apart(places, numbered.above)
        out = composing.compose(numbered, rows, opened)
        assert [p["index"] for p in places] == [p.index for p in out.places]
        for p, q in zip(places, out.places, strict=True):
            assert (p["x"], p["y"], p["w"], p["h"]) == pytest.approx((q.x, q.y, q.w, q.h), abs=0.2)
        paths = shown.eval_on_selector_all("#world .arrow", ENDS)
        assert [tuple(p) for p in paths] == [(c.source, c.target, c.count) for c in out.curves]
        texts = shown.eval_on_selector_all("#world .arrow", "all => all.map(e => e.getAttribute('d'))")
        for text, curve in zip(texts, out.curves, strict=True):
            assert np.array(points(text)) == pytest.approx(np.array(points(curve.path)), abs=0.2)
        folds = [p["index"] for p in places if numbered.nodes[p["index"]].holds]
        if not folds:
            break
        index = draw.choice(folds)
        opened ^= {index}
        shown.evaluate(CLICK, index)


def test_a_drawing_begins_with_few_boxes():
    pytest.importorskip("graphlay")
    for picture in (layered(1000), layered(1000, depth=0), small()):
        _, out = composed(picture)
        assert 2 <= sum(not p.frame for p in out.places) <= AT_FIRST


def test_what_nobody_grouped_gets_parts_of_consecutive_boxes():
    picture = layered(10_000, depth=0)
    numbered = tree(picture)
    for index in (ROOT, *parts(numbered)):
        assert 0 < len(numbered.children(index)) <= CROWD
    order = []
    pending = list(reversed(numbered.top))
    while pending:
        node = numbered.nodes[pending.pop()]
        pending += reversed(node.children)
        order += [] if node.holds else [node.key]
    assert order == [box.key for box in picture.boxes]
    total = sum(numbered.nodes[i].amounts["memory"] for i in numbered.top)
    assert total == pytest.approx(sum(box.amounts["memory"] for box in picture.boxes))
    assert sum(numbered.nodes[i].boxes for i in numbered.top) == 10_000


def test_the_amounts_of_a_part_add_up_except_norms():
    boxes = tuple(
        Box(
            f"b{i}", "a", "", "operation", None, amounts={"time": 1.0, "gradient": float(i) if i != 7 else float("nan")}
        )
        for i in range(CROWD + 1)
    )
    numbered = tree(Picture("p", (), boxes, (), ()))
    first, *_, last = (numbered.nodes[i] for i in numbered.top)
    assert first.amounts["time"] == len(first.children)
    assert np.isnan(first.amounts["gradient"])
    assert last.amounts["gradient"] == CROWD


def test_repeated_layers_look_alike():
    pytest.importorskip("graphlay")
    groups = tuple(Group(f"g{i}", f"layers.{i}", "Block") for i in range(4))
    boxes = tuple(Box(f"{i}.{j}", "ab"[j % 2], "", "operation", f"g{i}") for i in range(4) for j in range(6))
    arrows = tuple(Arrow(boxes[i].key, boxes[i + 1].key) for i in range(23))
    numbered = tree(Picture("p", (), boxes, groups, arrows))
    rows = laying.layouts(numbered)
    looks = [[(item.x, item.row) for item in rows[i].items] for i in (1, 2)]
    assert looks[0] == looks[1]


A = Box("a", "a", "", "operation")


@pytest.mark.parametrize(
    ("picture", "what", "got"),
    [
        (Picture("p", (), (A, A), (), ()), "Two boxes or groups of a picture have the same key", "'a'"),
        (
            Picture("p", (), (A,), (Group("a", "a", ""),), ()),
            "Two boxes or groups of a picture have the same key",
            "'a'",
        ),
        (Picture("p", (), (A,), (), (Arrow("a", "z"),)), "no box of this key, which its arrows name", "'z'"),
        (Picture("p", (), (A,), (), (), (Step("y", ""),)), "no box of this key, which its steps name", "'y'"),
        (
            Picture("p", (), (Box("b", "", "", "input", "x"),), (), ()),
            "no group of this key, which its groups name",
            "'x'",
        ),
        (
            Picture("p", (), (), (Group("g", "", "", "h"), Group("h", "", "", "g")), ()),
            "stands inside itself",
            "'g'|'h'",
        ),
    ],
)
def test_a_picture_that_contradicts_itself_is_refused(picture, what, got):
    with pytest.raises(ValueMismatch, match=what) as caught:
        tree(picture)
    assert re.fullmatch(got, caught.value.got)


def test_without_the_layout_library_a_drawing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "graphlay", None)
    with pytest.raises(StrategyError, match="needs the layout library graphlay") as caught:
        laying.layouts(tree(small()))
    assert "pip install 'pullback[graph]'" in caught.value.fix
