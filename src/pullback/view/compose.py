"""Where everything stands when some groups are unfolded: the same arithmetic as in ``compose.js``.

An unfolded group takes the place of its box. Its row grows as high as it needs, and within a row all items move as
little as is needed, in the sense of least squares, to keep their distances: an isotonic regression. What hangs
together moves together: rows below and above then follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pullback.view.layout import IN, NARROW, OUT, Leg, Rows
from pullback.view.shapes import HEIGHT, bar, width
from pullback.view.tree import ROOT, Tree

GAP = 38.0  # between rows, where arrows bend
DOOR_GAP = 20.0  # between a row of doors and the next
APART, BESIDE = 26.0, 12.0  # between two boxes; between ways, or a way and a box
PAD, TITLE = 22.0, 34.0  # around what a frame holds, and for its name
LANE = 12.0  # between the lanes of arrows that run back
PORTS = 12.0  # between arrows at one side of a box, at most

METRICS = {
    "height": HEIGHT,
    "gap": GAP,
    "doorGap": DOOR_GAP,
    "apart": APART,
    "beside": BESIDE,
    "pad": PAD,
    "title": TITLE,
    "lane": LANE,
    "ports": PORTS,
    "narrow": NARROW,
}


@dataclass(slots=True)
class Frame:
    """What an unfolded group (or the whole drawing) holds, in coordinates of its own.

    Attributes:
        rows: Its layout.
        x: The centre of each item.
        sizes: The width and height of each item.
        tops: The upper edge of each row.
        bottoms: The lower edge of each row.
        inner: The frames of the children that are unfolded.
        w: Its width.
        h: Its height.
        lanes: Where each leg that runs back goes up, by its place in the list of legs.
        ports: For each leg, how far from the centres of its ends it begins and ends.
    """

    rows: Rows
    x: list[float]
    sizes: list[tuple[float, float]]
    tops: list[float]
    bottoms: list[float]
    inner: dict[int, Frame]
    w: float = 0.0
    h: float = 0.0
    lanes: dict[int, float] = field(default_factory=dict)
    ports: dict[int, tuple[float, float]] = field(default_factory=dict)

    def door(self, which: int) -> float:
        """The centre of a door; the middle where there is none."""
        return next((x for x, item in zip(self.x, self.rows.items, strict=True) if item.what == which), self.w / 2)

    def back(self, leg: Leg) -> bool:
        """Whether a leg runs against the rows."""
        return self.rows.items[leg.source].row >= self.rows.items[leg.target].row


@dataclass(frozen=True, slots=True)
class Place:
    """A visible node: a box or folded group, or the frame of an unfolded one; ``x``, ``y`` is its upper left corner."""

    index: int
    x: float
    y: float
    w: float
    h: float
    frame: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """All arrows from one visible node to another, as one path."""

    source: int
    target: int
    count: int
    path: str


@dataclass(frozen=True, slots=True)
class Composed:
    """All that is visible: places from the outside in, curves, and the size of the whole."""

    places: tuple[Place, ...]
    curves: tuple[Curve, ...]
    w: float
    h: float


def compose(tree: Tree, layouts: Mapping[int, Rows], opened: Container[int]) -> Composed:
    """Place what is visible when the groups in ``opened`` are unfolded."""
    whole = _frame(tree, layouts, opened, ROOT)
    places: list[Place] = []
    origins = {ROOT: (0.0, 0.0)}
    frames = {ROOT: whole}
    _collect(whole, ROOT, origins, frames, places)
    at = {place.index: place for place in places}
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for source, target, _ in tree.arrows:
        counts[_visible(tree, at, source), _visible(tree, at, target)] += 1
    finder = _Finder(tree, frames, origins, at)
    curves = []
    for (source, target), count in counts.items():
        path = finder.path(source, target)
        if path:
            curves.append(Curve(source, target, count, path))
    return Composed(tuple(places), tuple(curves), whole.w, whole.h)


def _visible(tree: Tree, at: Mapping[int, Place], index: int) -> int:
    """The node itself if it is visible, or the outermost folded group around it."""
    while index not in at:
        index = tree.nodes[index].parent
    return index


def _frame(tree: Tree, layouts: Mapping[int, Rows], opened: Container[int], group: int) -> Frame:
    rows = layouts[group]
    inner = {i.what: _frame(tree, layouts, opened, i.what) for i in rows.items if i.what >= 0 and i.what in opened}
    sizes = []
    for item in rows.items:
        if item.what in inner:
            sizes.append((inner[item.what].w, inner[item.what].h))
        else:
            sizes.append((NARROW, 0.0) if item.what < 0 else (width(tree.nodes[item.what]), HEIGHT))
    frame = Frame(rows, _settle(rows, sizes), sizes, [], [], inner)
    _stack(frame, group)
    _widen(frame, 0.0 if group == ROOT else bar(tree.nodes[group]))
    _spread(frame)
    return frame


def _lines(rows: Rows) -> list[list[int]]:
    """The items of each row, by their places."""
    out: list[list[int]] = []
    for i, item in enumerate(rows.items):
        while len(out) <= item.row:
            out.append([])
        out[item.row].append(i)
    return out


def _settle(rows: Rows, sizes: list[tuple[float, float]]) -> list[float]:
    """Centres of all items: each row apart, then what hangs together follows, downwards and upwards."""
    x = [item.x for item in rows.items]
    lines = _lines(rows)
    above, below = _neighbours(rows)
    for row in lines:
        _apart(rows, sizes, x, row, [rows.items[i].x for i in row])
    for order, linked in ((lines, above), (lines[::-1], below)):
        for row in order:
            wanted = []
            for i in row:
                near = linked[i] or [i]
                wanted.append(rows.items[i].x + sum(x[j] - rows.items[j].x for j in near) / len(near))
            _apart(rows, sizes, x, row, wanted)
    return x


def _neighbours(rows: Rows) -> tuple[list[list[int]], list[list[int]]]:
    """For each item those in the row above and in the row below that a leg joins to it."""
    above: list[list[int]] = [[] for _ in rows.items]
    below: list[list[int]] = [[] for _ in rows.items]
    for leg in rows.legs:
        if rows.items[leg.source].row < rows.items[leg.target].row:
            path = (leg.source, *leg.over, leg.target)
            for a, b in pairwise(path):
                above[b].append(a)
                below[a].append(b)
    return above, below


def _apart(rows: Rows, sizes: list[tuple[float, float]], x: list[float], row: list[int], wanted: list[float]) -> None:
    """Put the items of a row as near to where they are wanted as their distances allow (pool adjacent violators)."""
    shift, blocks = 0.0, list[list[float]]()
    shifts = []
    for place, i in enumerate(row):
        if place:
            before = row[place - 1]
            ways = rows.items[i].what < 0 or rows.items[before].what < 0
            shift += (sizes[i][0] + sizes[before][0]) / 2 + (BESIDE if ways else APART)
        shifts.append(shift)
        blocks.append([wanted[place] - shift, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            blocks[-1][0] = (blocks[-1][0] * blocks[-1][1] + mean * count) / (blocks[-1][1] + count)
            blocks[-1][1] += count
    fitted = [mean for mean, count in blocks for _ in range(int(count))]
    for i, mean, own in zip(row, fitted, shifts, strict=True):
        x[i] = mean + own


def _stack(frame: Frame, group: int) -> None:
    """Rows one below the other, each as high as its highest item."""
    y = 0.0 if group == ROOT else TITLE
    high = 0.0
    for number, row in enumerate(_lines(frame.rows)):
        before, high = high, max(frame.sizes[i][1] for i in row)
        if number:
            y += GAP if before and high else DOOR_GAP
        frame.tops.append(y)
        y += high
        frame.bottoms.append(y)
    frame.h = y if group == ROOT else y + (PAD if high else 0.0)


def _widen(frame: Frame, least: float) -> None:
    """Move everything to the right of the left edge, add lanes for what runs back, and take the width."""
    pad = PAD if least else 0.0
    half = [size[0] / 2 for size in frame.sizes]
    left = min((x - h for x, h in zip(frame.x, half, strict=True)), default=0.0)
    right = max((x + h for x, h in zip(frame.x, half, strict=True)), default=0.0)
    back = [i for i, leg in enumerate(frame.rows.legs) if frame.back(leg)]
    content = right - left + LANE * len(back)
    frame.w = max(content + 2 * pad, least)
    move = (frame.w - content) / 2 - left
    frame.x = [x + move for x in frame.x]
    frame.lanes = {i: right + move + LANE * (number + 1) for number, i in enumerate(back)}


def _spread(frame: Frame) -> None:
    """Let the legs at one side of a box begin or end beside each other, in the order in which they go on."""
    ends: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for number, leg in enumerate(frame.rows.legs):
        frame.ports[number] = (0.0, 0.0)
        path = (leg.source, *leg.over, leg.target)
        lane = frame.lanes.get(number)
        ends[leg.source, 0].append((frame.x[path[1]] if lane is None else lane, number))
        ends[leg.target, 1].append((frame.x[path[-2]] if lane is None else lane, number))
    for (item, side), found in ends.items():
        what = frame.rows.items[item].what
        if what < 0 or what in frame.inner:
            continue
        step = min(PORTS, 0.6 * frame.sizes[item][0] / len(found))
        for place, (_, number) in enumerate(sorted(found)):
            begin, end = frame.ports[number]
            offset = (place - (len(found) - 1) / 2) * step
            frame.ports[number] = (offset, end) if side == 0 else (begin, offset)


def _collect(
    frame: Frame,
    group: int,
    origins: dict[int, tuple[float, float]],
    frames: dict[int, Frame],
    places: list[Place],
) -> None:
    """Absolute places of all that is visible in a frame, each frame before what it holds."""
    left, top = origins[group]
    for item, x, (w, h) in zip(frame.rows.items, frame.x, frame.sizes, strict=True):
        if item.what < 0:
            continue
        middle = (frame.tops[item.row] + frame.bottoms[item.row]) / 2
        at = (left + x - w / 2, top + middle - h / 2)
        places.append(Place(item.what, *at, w, h, item.what in frame.inner))
        if item.what in frame.inner:
            origins[item.what], frames[item.what] = at, frame.inner[item.what]
            _collect(frame.inner[item.what], item.what, origins, frames, places)


@dataclass(slots=True)
class _Finder:
    """Paths of arrows: vertical through every row, bent between rows."""

    tree: Tree
    frames: dict[int, Frame]
    origins: dict[int, tuple[float, float]]
    at: dict[int, Place]
    known: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)

    def path(self, source: int, target: int) -> str:
        """The path from the lower edge of one visible node to the upper edge of another; empty where there is none."""
        up, down = [source, *self.tree.above(source)], [target, *self.tree.above(target)]
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            up.pop()
            down.pop()
        if len(up) == 1 or len(down) == 1:
            return ""
        pieces: list[str] = []
        for child, group in pairwise(up[:-1]):
            self._leg(pieces, group, child, OUT)
        self._leg(pieces, up[-1], up[-2], down[-2])
        for child, group in zip(down[:-2][::-1], down[1:-1][::-1], strict=True):
            self._leg(pieces, group, IN, child)
        return "".join(pieces)

    def _leg(self, pieces: list[str], group: int, source: int, target: int) -> None:
        """Add the path of one leg."""
        frame, (left, top) = self.frames[group], self.origins[group]
        items = frame.rows.items
        if group not in self.known:
            self.known[group] = {
                (items[leg.source].what, items[leg.target].what): i for i, leg in enumerate(frame.rows.legs)
            }
        number = self.known[group][source, target]
        leg = frame.rows.legs[number]
        first, last = items[leg.source].row, items[leg.target].row
        x, y = self._end(group, leg.source, frame.ports[number][0], OUT)
        pieces.append(f"{'L' if pieces else 'M'}{x:.1f} {y:.1f}")
        _down(pieces, y, y := top + frame.bottoms[first])
        end_x, end_y = self._end(group, leg.target, frame.ports[number][1], IN)
        if number in frame.lanes:
            lane, turn = left + frame.lanes[number], top + frame.tops[last]
            low, high = y + DOOR_GAP * 0.75, turn - DOOR_GAP * 0.75
            pieces.append(f"C{x:.1f} {low:.1f} {lane:.1f} {low:.1f} {lane:.1f} {y:.1f}V{turn:.1f}")
            pieces.append(f"C{lane:.1f} {high:.1f} {end_x:.1f} {high:.1f} {end_x:.1f} {turn:.1f}")
            y = turn
        for i in () if number in frame.lanes else (*leg.over, leg.target):
            row = items[i].row
            to_x, to_y = end_x if i == leg.target else left + frame.x[i], top + frame.tops[row]
            half = (y + to_y) / 2
            pieces.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
            x, y = to_x, to_y
            if i != leg.target:
                _down(pieces, y, y := top + frame.bottoms[row])
        _down(pieces, y, end_y)

    def _end(self, group: int, item: int, port: float, door: int) -> tuple[float, float]:
        """Where a leg begins (``door`` is ``OUT``) or ends (``IN``): at a box, or at a door of a frame or our own."""
        frame, (left, top) = self.frames[group], self.origins[group]
        what = frame.rows.items[item].what
        if what == IN:
            return left + frame.x[item], top
        if what == OUT:
            return left + frame.x[item], top + frame.h
        place = self.at[what]
        x = frame.inner[what].door(door) if what in frame.inner else place.w / 2 + port
        return place.x + x, place.y + (place.h if door == OUT else 0.0)


def _down(pieces: list[str], y: float, to: float) -> None:
    """A vertical line, unless it has no length: an arrow head needs a direction."""
    if to - y > 0.05:
        pieces.append(f"V{to:.1f}")
