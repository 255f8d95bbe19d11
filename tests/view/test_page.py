"""The page in a real browser: what it draws, tells, finds, folds, colours, replays, speaks and prints."""

from __future__ import annotations

import json
import re

import pytest

from pullback.errors import ValueMismatch
from pullback.view.page import embedded, page
from pullback.view.picture import Box, Picture

from .pictures import NASTY, layered, nasty, small

# What has the focus, and whether that can be seen.
FOCUSED = """() => {
  const e = document.activeElement;
  if (e === document.body) return ['page', true];
  const name = e.id || e.value || e.getAttribute('aria-label') || e.className;
  return [name, getComputedStyle(e).outlineStyle !== 'none' || e.matches('#world *, input[type=radio]')];
}"""
# Every word that the page itself has.
WORDS = """() => [
  ...document.querySelectorAll('[data-word], [data-label], [data-hint], #said, #hits, #legend *, .badge')]
  .flatMap(e => [
    e.dataset.word ? e.textContent : '', e.getAttribute('aria-label') ?? '', e.placeholder ?? '',
    e.matches('#said, #hits, #legend *, .badge') && !e.children.length ? e.textContent : '',
  ])"""


def labels(shown):
    """The first lines of the visible boxes and frames."""
    return shown.eval_on_selector_all(
        "#world [data-index]", "all => all.map(e => e.querySelector('.label').childNodes[0]?.textContent ?? '')"
    )


def node(shown, name):
    """The visible node of this name."""
    return shown.locator(f'#world [data-index][aria-label^="{name}, "]')


def colours(shown):
    """The fill of each visible box, as it is painted."""
    return shown.eval_on_selector_all(
        "#world .node:not(.open)", "all => all.map(e => getComputedStyle(e.querySelector('.shape')).fill)"
    )


def test_everything_that_is_visible_is_drawn_once(show):
    shown = show(small())
    assert sorted(labels(shown)) == sorted(["x", "weight", "bias", "Addmm", "Swish", "Mean", "loss", "model", "linear"])
    assert shown.locator("#world .arrow").count() == 7
    assert shown.title() == "a small net"
    assert shown.locator("h1").inner_text() == "a small net"
    assert shown.locator(".facts").inner_text().split() == ["nodes", "7", "device", "cpu"]


def test_an_empty_picture_is_a_page(show):
    shown = show(Picture("nothing", (), (), (), ()))
    assert labels(shown) == []
    assert shown.locator("#replay").is_hidden()
    assert shown.locator("#tables-tab").is_hidden()


def test_a_card_tells_what_the_picture_holds(show):
    picture = small()
    shown = show(picture)
    node(shown, "Addmm").click()
    box = next(box for box in picture.boxes if box.key == "addmm")
    card = shown.locator("#card")
    assert card.locator("h2").inner_text() == box.label
    assert card.locator(".sub").inner_text() == box.detail
    assert card.locator(".around").inner_text() == "model › linear"
    facts = card.locator("dl").first
    assert list(zip(facts.locator("dt").all_inner_texts(), facts.locator("dd").all_inner_texts(), strict=True)) == list(
        box.card.facts
    )
    assert card.locator("figcaption").inner_text() == "train.py:12 in forward"
    assert card.locator("code").inner_text() == "return self.linear(x)"
    rows = [row.locator("td").all_inner_texts() for row in card.locator("tbody tr").all()]
    assert rows == [list(row) for row in box.card.tables[0].rows]
    assert card.locator("th").all_inner_texts() == list(box.card.tables[0].head)
    assert card.locator(".amounts dd").all_inner_texts() == ["9 KiB", "2", "30 µs"]
    assert card.locator(".near").nth(0).locator(".link").all_inner_texts() == ["x", "weight", "bias"]
    assert card.locator(".near").nth(1).locator(".link").all_inner_texts() == ["Swish", "Mean"]
    card.get_by_role("button", name="Swish").click()
    assert card.locator("h2").inner_text() == "Swish"


def test_a_group_has_a_card_that_folds_it(show):
    shown = show(small())
    node(shown, "linear").locator(".label").click(force=True, position={"x": 2, "y": 2})
    assert shown.locator("#card h2").inner_text() == "linear"
    assert shown.locator("#card dd").first.inner_text() == "9,216"
    shown.click("#cardfold")
    assert "Addmm" not in labels(shown)
    assert node(shown, "linear").get_attribute("aria-expanded") == "false"
    assert shown.locator("#cardfold").inner_text() == "unfold"


def test_groups_fold_and_unfold(show):
    shown = show(small())
    node(shown, "linear").locator(".fold").click()
    assert sorted(labels(shown)) == sorted(["x", "linear", "Swish", "Mean", "loss", "model"])
    assert {path.get_attribute("data-count") for path in shown.locator("#world .arrow").all()} == {"1"}
    node(shown, "model").locator(".fold").click()
    assert sorted(labels(shown)) == sorted(["x", "model", "Mean", "loss"])
    counts = sorted(path.get_attribute("data-count") for path in shown.locator("#world .arrow").all())
    assert counts == ["1", "1", "2"]
    thick = shown.locator("#world .arrow[data-count='2']").get_attribute("stroke-width")
    assert float(thick) > float(shown.locator("#world .arrow[data-count='1']").first.get_attribute("stroke-width"))
    shown.click("#unfoldall")
    assert "weight" in labels(shown)
    assert shown.locator("#said").inner_text() == "All 7 boxes are visible."
    shown.click("#foldall")
    assert sorted(labels(shown)) == sorted(["x", "model", "Mean", "loss"])
    node(shown, "model").dblclick()
    assert "Swish" in labels(shown)


def test_unfolding_all_of_very_much_stops_and_says_so(show):
    shown = show(layered(2500))
    shown.click("#unfoldall")
    said = shown.locator("#said").inner_text()
    visible = int(said.split()[0])
    assert 1000 < visible <= 1500
    assert said == f"{visible} boxes are visible; unfold the others one by one."
    shown.click("#fit")
    # So far away, all boxes of one colour are one path.
    drawn = shown.eval_on_selector_all("#world .far:not(.frame)", "all => all.map(e => e.getAttribute('d')).join('')")
    assert drawn.count("M") == visible


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("addmm", ["Addmm"]),
        ("(64, 8)", ["Addmm", "Swish"]),
        ("linear", ["linear", "Addmm"]),
        ("train.py:14", ["Swish"]),
        ("swish.apply", ["Swish"]),
    ],
)
def test_search_finds_labels_details_groups_places_and_source(show, text, found):
    shown = show(small())
    shown.click("#foldall")
    shown.fill("#search", text)
    assert shown.locator("#hits").inner_text() == f"{len(found)} found"
    shown.focus("#search")
    for number, name in enumerate([*found, found[0]]):
        shown.keyboard.press("Enter")
        assert shown.locator("#hits").inner_text() == f"{number % len(found) + 1} of {len(found)}"
        assert shown.locator("#card h2").inner_text() == name
        hit = shown.locator("#world .thishit")
        assert hit.get_attribute("aria-label").startswith(name)
        box, stage = hit.bounding_box(), shown.locator("#stage").bounding_box()
        assert stage["x"] <= box["x"]
        assert box["x"] + box["width"] <= stage["x"] + stage["width"]
        assert stage["y"] <= box["y"] <= stage["y"] + stage["height"]
        shown.focus("#search")
    shown.fill("#search", "not there")
    assert shown.locator("#hits").inner_text() == "nothing found"
    shown.keyboard.press("Escape")
    assert shown.locator("#hits").inner_text() == ""
    assert shown.locator("#world .hit").count() == 0


def test_colours_follow_the_amounts_and_the_legend_gives_their_numbers(show):
    shown = show(small())
    by_kind = colours(shown)
    assert shown.locator("#legend").inner_text().split() == [
        "input",
        "parameter",
        "buffer",
        "operation",
        "custom",
        "output",
        "group",
    ]
    shown.check("input[value=memory]")
    assert colours(shown) != by_kind
    assert shown.locator("#legend .ticks span").all_inner_texts() == ["0 B", "5.5 KiB", "11 KiB"]
    shown.check("input[value=gradient]")
    assert shown.locator("#legend .ticks span").all_inner_texts() == ["1.00e-9", "4.47e-5", "2"]
    assert "not finite" in shown.locator("#legend").inner_text()
    mean = node(shown, "Mean").locator(".shape").evaluate("e => getComputedStyle(e).fill")
    assert mean == "rgb(214, 40, 40)"
    shown.check("input[value=kind]")
    assert colours(shown) == by_kind


def test_a_colouring_that_no_box_has_cannot_be_chosen(show):
    shown = show(layered(20))
    assert shown.locator("input[value=memory]").is_enabled()
    assert shown.locator("input[value=gradient]").is_disabled()
    assert shown.locator("input[value=time]").is_disabled()


def test_the_largest_amount_has_the_far_end_of_the_scale(show):
    from playwright.sync_api import expect

    shown = show(layered(20, depth=0))
    picture = layered(20, depth=0)
    shown.check("input[value=memory]")
    largest = max(range(20), key=lambda i: picture.boxes[i].amounts["memory"])
    expect(shown.locator(f"[data-index='{largest}'] .shape")).to_have_css("fill", "rgb(68, 1, 84)")
    shown.emulate_media(color_scheme="dark")
    expect(shown.locator(f"[data-index='{largest}'] .shape")).to_have_css("fill", "rgb(253, 231, 37)")


def test_the_replay_visits_every_step(show):
    picture = small()
    shown = show(picture)
    shown.click("#foldall")
    for number, step in enumerate(picture.steps, 1):
        shown.click("#next")
        assert shown.locator("#steptext").inner_text() == step.text
        assert shown.locator("#stepcount").inner_text() == f"{number} / {len(picture.steps)}"
        assert shown.locator("#card .step .text").inner_text() == step.text
        assert shown.locator("#card .step dd").inner_text() == step.card.facts[0][1]
        now = shown.locator("#world .now")
        box = next(box for box in picture.boxes if box.key == step.box)
        assert now.get_attribute("aria-label").startswith(f"{box.label}, ")
        assert now.get_attribute("aria-current") == "step"
        assert shown.locator("#card h2").inner_text() == box.label
    shown.click("#previous")
    assert shown.locator("#stepcount").inner_text() == "4 / 5"
    shown.focus("#slider")
    shown.keyboard.press("Home")
    assert shown.locator("#stepcount").inner_text() == "0 / 5"
    assert shown.locator("#world .now").count() == 0


def test_the_replay_plays_and_pauses(show):
    from playwright.sync_api import expect

    shown = show(small())
    shown.click("#play")
    assert shown.locator("#play").get_attribute("aria-label") == "pause"
    expect(shown.locator("#slider")).to_have_value("2")
    shown.click("#play")
    assert shown.locator("#play").get_attribute("aria-label") == "play"


def test_a_picture_without_steps_has_no_replay(show):
    shown = show(layered(5))
    assert shown.locator("#replay").is_hidden()


def test_everything_is_reached_by_keyboard(show):
    shown = show(small())
    reached = []
    for _ in range(60):
        shown.keyboard.press("Tab")
        at = shown.evaluate(FOCUSED)
        if at[0] == "page":
            break
        reached.append(at)
    names = [name for name, _ in reached]
    assert [name for name, visible in reached if not visible] == []
    wanted = [
        "skip",
        "language",
        "theme",
        "search",
        "kind",
        "foldall",
        "unfoldall",
        "farther",
        "nearer",
        "fit",
        "drawing",
    ]
    assert [name for name in names if name in wanted] == wanted
    boxes = [name for name in names if ", " in name and not name.startswith("drawing")]
    assert len(boxes) == 9
    assert (
        names.index("drawing")
        < names.index(boxes[0])
        < names.index("card-tab")
        < names.index("previous")
        < names.index("slider")
    )


def test_keys_pan_zoom_fold_and_choose(show):
    shown = show(small())

    def where():
        return shown.locator("#world").get_attribute("transform")

    shown.focus("#drawing")
    seen = [where()]
    for key in ("ArrowLeft", "ArrowUp", "+", "-", "-", "0"):
        shown.keyboard.press(key)
        seen.append(where())
    assert len(set(seen)) == 5
    assert seen[4] == seen[2]  # in and out again
    assert seen[6] == seen[0]
    node(shown, "Addmm").focus()
    shown.keyboard.press("Enter")
    assert shown.locator("#card h2").inner_text() == "Addmm"
    node(shown, "linear").focus()
    shown.keyboard.press("Space")
    assert "Addmm" not in labels(shown)
    assert shown.evaluate("document.activeElement.getAttribute('aria-label')") == "linear, Linear, group"
    shown.keyboard.press("Space")
    assert "Addmm" in labels(shown)
    shown.keyboard.press("/")
    assert shown.evaluate("document.activeElement.id") == "search"


def test_the_mouse_drags_and_the_wheel_zooms(show):
    shown = show(small())

    def place():
        return shown.evaluate(
            "(({a, e, f}) => [a, e, f])(document.getElementById('world').transform.baseVal.consolidate().matrix)"
        )

    k, x, y = place()
    stage = shown.locator("#stage").bounding_box()
    shown.mouse.move(stage["x"] + 30, stage["y"] + 200)
    shown.mouse.down()
    shown.mouse.move(stage["x"] + 130, stage["y"] + 250, steps=5)
    shown.mouse.up()
    moved = place()
    assert moved == pytest.approx([k, x + 100, y + 50], abs=0.1)
    shown.mouse.wheel(0, -300)
    zoomed = place()
    assert zoomed[0] > k
    under = [(stage_at - at) / scale for stage_at, at, scale in ((130, moved[1], moved[0]), (250, moved[2], moved[0]))]
    after = [(stage_at - at) / zoomed[0] for stage_at, at in ((130, zoomed[1]), (250, zoomed[2]))]
    assert after == pytest.approx(under, abs=0.5)  # what is under the pointer stays there
    shown.click("#fit")
    assert place()[0] != zoomed[0]


def test_the_page_speaks_chinese_and_leaves_the_users_words(show):
    shown = show(small())
    node(shown, "Addmm").click()
    shown.click("#language")
    assert shown.locator("html").get_attribute("lang") == "zh-Hans"
    assert shown.locator("#foldall").inner_text() == "全部折叠"
    assert shown.locator("#search").get_attribute("placeholder") == "搜索"
    assert shown.locator("#drawing").get_attribute("aria-label").startswith("图形")
    assert shown.locator("#card h2").inner_text() == "Addmm"
    assert shown.locator("#card code").inner_text() == "return self.linear(x)"
    assert shown.locator("#card .badge").inner_text() == "运算"
    assert "运算" in shown.locator("#legend").inner_text()
    assert "model" in labels(shown)
    shown.click("#language")
    assert shown.locator("#foldall").inner_text() == "Fold all"
    assert shown.locator("#card .badge").inner_text() == "operation"


def test_no_word_of_the_page_is_left_in_english(show):
    shown = show(small(), language="zh")
    shown.click("#unfoldall")
    shown.click("#next")
    shown.fill("#search", "e")
    for name in ("kind", "memory", "gradient", "time"):
        shown.check(f"input[value={name}]")
        words = shown.locator("body").evaluate(WORDS)
        left = [text for text in words if re.search("[A-Za-z]{3}", text) and not re.search("^[0-9.e+-]+|English", text)]
        assert left == []


def test_light_and_dark_follow_the_system_until_the_switch_says_otherwise(show):
    shown = show(small(), color_scheme="dark")

    def paper():
        return shown.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")

    assert paper() == "rgb(19, 22, 27)"
    shown.emulate_media(color_scheme="light")
    assert paper() == "rgb(252, 252, 251)"
    shown.click("#theme")
    assert paper() == "rgb(19, 22, 27)"
    shown.click("#theme")
    shown.emulate_media(color_scheme="dark")
    assert paper() == "rgb(252, 252, 251)"


def test_on_paper_the_whole_drawing_is_there_on_white_and_the_tables_below(show):
    from playwright.sync_api import expect

    shown = show(small(), color_scheme="dark")
    node(shown, "Addmm").click()
    for _ in range(8):
        shown.click("#nearer")
    before = shown.locator("#world").get_attribute("transform")
    shown.emulate_media(media="print")
    assert shown.locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in (".tools", "#replay", ".tabs", ".corner"):
        assert shown.locator(hidden).is_hidden()
    sheet = shown.locator("#drawing").bounding_box()
    for box in (one.bounding_box() for one in shown.locator("#world .node").all()):
        assert sheet["x"] <= box["x"]
        assert sheet["y"] <= box["y"]
        assert box["x"] + box["width"] <= sheet["x"] + sheet["width"]
        assert box["y"] + box["height"] <= sheet["y"] + sheet["height"]
    assert shown.locator("#tables").is_visible()
    assert shown.locator("#card").bounding_box()["y"] >= sheet["y"] + sheet["height"]
    ink = shown.locator("#world .label").first.evaluate("e => getComputedStyle(e).fill")
    assert ink == "rgb(29, 35, 48)"
    assert shown.pdf()[:5] == b"%PDF-"
    shown.emulate_media(media="screen")
    expect(shown.locator("#world")).to_have_attribute("transform", before)  # the browser tells of it a moment later


def test_tables_have_a_tab_of_their_own(show):
    picture = small()
    shown = show(picture)
    assert shown.locator("#tables").is_hidden()
    shown.click("#tables-tab")
    assert shown.locator("#card").is_hidden()
    assert shown.locator("#tables caption").inner_text() == picture.tables[0].title
    rows = [tuple(row.locator("td").all_inner_texts()) for row in shown.locator("#tables tbody tr").all()]
    assert tuple(rows) == picture.tables[0].rows
    shown.keyboard.press("ArrowLeft")
    assert shown.locator("#card").is_visible()


def test_without_a_script_the_facts_and_tables_are_told(show):
    shown = show(small(), java_script_enabled=False)
    text = shown.locator("body").inner_text()
    assert "nodes" in text
    assert "Memory by module" in text
    assert "9,216" in text
    assert shown.locator(".tools").is_hidden()


def test_on_a_narrow_window_nothing_sticks_out(show):
    shown = show(small(), viewport={"width": 390, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert shown.locator("#panel").bounding_box()["y"] > shown.locator("#stage").bounding_box()["y"]
    assert shown.locator("#stage").bounding_box()["height"] > 150


def test_hostile_texts_are_shown_and_nothing_of_them_runs(show):
    picture = nasty()
    shown = show(picture)
    shown.click("#unfoldall")
    for _ in picture.steps:
        shown.click("#next")
        shown.click("#language")
    shown.fill("#search", NASTY[0])
    shown.focus("#search")
    shown.keyboard.press("Enter")
    node_text = shown.locator("#card h2").evaluate("e => e.textContent")
    assert node_text == NASTY[0]
    shown.click("#tables-tab")
    captions = shown.eval_on_selector_all("#tables caption", "all => all.map(e => e.textContent)")
    assert captions == list(NASTY)
    titles = shown.eval_on_selector_all("#world title", "all => all.map(e => e.textContent)")
    for text in NASTY:
        assert f"{text}\n{text}" in titles
    assert shown.evaluate("window.hacked") is None
    assert shown.locator("img, iframe, object, embed, a:not(.skip), body script script").count() == 0
    assert shown.locator("script").count() == 2
    assert shown.evaluate(
        "[...document.querySelectorAll('*')].every(e => ![...e.attributes].some(a => a.name.startsWith('on')))"
    )
    assert shown.title() == NASTY[0]


def test_what_is_embedded_cannot_end_its_element():
    text = embedded(list(NASTY))
    assert json.loads(text) == list(NASTY)
    assert not set("<>&") & set(text)
    assert text.isascii()


def test_a_page_refers_to_nothing_outside_itself():
    pytest.importorskip("graphlay")
    html = page(small())
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", html)
    assert "@import" not in html
    assert "url(" not in html.replace("url(#head)", "")
    assert set(re.findall(r"https?://[^\"' ]*", html)) == {"http://www.w3.org/2000/svg"}
    assert "default-src &#39;none&#39;" in html


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueMismatch, match="A page speaks English or Chinese") as caught:
        page(Picture("p", (), (Box("a", "a", "", "operation"),), (), ()), language="fr")
    assert caught.value.got == "'fr'"
    assert 'language="en"' in caught.value.fix


def test_two_fingers_pinch(show):
    shown = show(small(), has_touch=True)
    stage = shown.locator("#stage").bounding_box()
    x, y = stage["x"] + 200, stage["y"] + 200
    touch = shown.context.new_cdp_session(shown)

    def scale():
        return shown.evaluate("document.getElementById('world').transform.baseVal.consolidate().matrix.a")

    def fingers(kind, apart):
        points = [] if apart is None else [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    before = scale()
    fingers("touchStart", 40)
    for apart in range(44, 81, 4):
        fingers("touchMove", apart)
    fingers("touchEnd", None)
    assert scale() == pytest.approx(2 * before, rel=0.15)
