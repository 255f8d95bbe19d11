"""Drawing the graph of a network, side by side with torchviz and torchview: what is shown, seconds, and size.

Each makes its text: DOT, a page, or a drawing (torchviz's by the graphviz binary, where there is one). torchviz and
Pullback draw what torch recorded of a value that is there; torchview draws the modules and functions that a forward
pass calls, and has to run one.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.table import Table

import pullback as pb
from benchmarks.graph_models import KEYS, Drawn, suite
from benchmarks.report import milliseconds
from benchmarks.targets import Entry, Target, ratio, way
from benchmarks.timing import console, in_turns, one_thread

DOT, SVG, HTML = "pullback, dot", "pullback, svg", "pullback, html"
VIZ, SAVED, VIEW = "torchviz, dot", "torchviz, show_saved", "torchview, dot"
DRAWN = "torchviz, svg by graphviz"
PEERS = {VIZ: "torchviz", SAVED: "torchviz", DRAWN: "torchviz", VIEW: "torchview"}
REPEATS, BUDGET, QUICK_BUDGET = 30, 3.0, 0.3
# What a text shows of the first network, told by what is in it: no claim is made by hand.
SIGNS = {
    "backward operations": r"Addmm",
    "shapes of results": r"\(32, 128\)",
    "parameter names": r"\bweight\b",
    "source lines": r"graph_models\.py:\d+",
    "module names": r"\bLinear\b",
    "bytes kept": r"\d [kKMG]?i?B\b",
    "cotangents": r"[Cc]otangent",
    "folds and opens": r"aria-expanded",
    "interactive": r"<script",
}


def text_makers(drawn: Drawn, folder: Path) -> dict[str, Callable[[], str]]:
    """What makes each text, by contestant; those that are not installed are left out."""
    with pb.record():
        value = drawn.value()
    parameters = dict(drawn.model.named_parameters())
    page = folder / f"{drawn.key}.html"

    def html() -> str:
        return pb.graph(value, names=drawn.model).html(page).read_text(encoding="utf-8")

    def svg() -> str:
        return pb.graph(value, names=drawn.model).svg()

    def torchviz(*, saved: bool) -> str:
        from torchviz import make_dot

        return str(make_dot(value, params=parameters, show_saved=saved).source)

    def torchviz_drawn() -> str:
        from torchviz import make_dot

        return str(make_dot(value, params=parameters).pipe(format="svg", encoding="utf-8"))

    def torchview() -> str:
        from torchview import draw_graph

        return str(draw_graph(drawn.model, input_data=drawn.x, mode="train").visual_graph.source)

    ours = {DOT: lambda: pb.graph(value, names=drawn.model).dot(), SVG: svg, HTML: html}
    peers = {VIZ: partial(torchviz, saved=False), SAVED: partial(torchviz, saved=True), VIEW: torchview}
    if shutil.which("dot"):
        peers[DRAWN] = torchviz_drawn
    return ours | {name: make for name, make in peers.items() if importlib.util.find_spec(PEERS[name])}


def run(drawn: Drawn, record: list[Entry], *, quick: bool = False) -> None:
    """Measure one network, and put what is found into the record."""
    entry: Entry = {"key": drawn.key, "title": drawn.title, "ways": []}
    record.append(entry)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = text_makers(drawn, Path(folder))
        entry["nodes"] = len(pb.graph(drawn.value(), names=drawn.model).nodes)
        entry["ways"] = [first_turn(name, make, drawn.key) for name, make in makers.items()]
        running = {each["name"]: makers[each["name"]] for each in entry["ways"] if each["status"] == "right"}
        seconds = in_turns(running, repeats=REPEATS, budget=QUICK_BUDGET if quick else BUDGET)
    for each in entry["ways"]:
        if times := seconds.get(each["name"]):
            each |= {"min": min(times), "median": statistics.median(times), "turns": len(times)}


def first_turn(name: str, make: Callable[[], str], key: str) -> dict[str, Any]:
    """What the text is, or what the contestant raised: torchviz recurses, and not far enough for a long graph."""
    told: dict[str, Any] = {"name": name, "kind": "peer" if name in PEERS else "ours", "status": "right", "why": ""}
    told |= {"min": None, "median": None, "turns": 0, "bytes": None, "shows": []}
    try:
        text = make()
    except Exception as problem:
        why = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
        return told | {"status": "raises", "why": why}
    signs = SIGNS if key == KEYS[0] else {}
    shows = [what for what, sign in signs.items() if re.search(sign, text.replace("\\n", "\n"))]
    return told | {"bytes": len(text.encode()), "shows": shows}


def targets(record: list[Entry]) -> Iterator[Target]:
    """The transformer in no more time than torchviz: the text, the text with saved tensors, and the drawing."""
    for entry in record:
        if entry["key"] == "graph-transformer":
            title = f"graph of the {entry['title']}: torchviz"
            yield Target(f"{title} / ours, dot", 1.0, ratio(way(entry, VIZ), way(entry, DOT)))
            yield Target(f"{title} with saved tensors / ours, dot", 1.0, ratio(way(entry, SAVED), way(entry, DOT)))
            if any(each["name"] == DRAWN for each in entry["ways"]):
                yield Target(f"{title} and graphviz / ours, svg", 1.0, ratio(way(entry, DRAWN), way(entry, SVG)))


def table(record: list[Entry]) -> Table:
    """Milliseconds and kilobytes of each network."""
    found = Table(title="Drawing a graph: milliseconds (least of many turns) and kilobytes", title_justify="left")
    found.add_column("network")
    found.add_column("nodes", justify="right")
    names = list(dict.fromkeys(each["name"] for entry in record for each in entry["ways"]))
    for name in names:
        found.add_column(name, justify="right")
    for entry in record:
        by_name = {each["name"]: each for each in entry["ways"]}
        cells = [_cell(by_name[name]) if name in by_name else "" for name in names]
        found.add_row(entry["title"], f"{entry['nodes']:,}", *cells)
    return found


def _cell(each: dict[str, Any]) -> str:
    if each["why"]:
        return f"[red]{each['why'].partition(':')[0]}[/]"
    return f"{milliseconds(each['min'])} ms\n{each['bytes'] / 1e3:,.0f} kB"


def shown(record: list[Entry]) -> Table | None:
    """What each text shows of the first network, if that was drawn."""
    entry = next((entry for entry in record if entry["key"] == KEYS[0]), None)
    if entry is None:
        return None
    found = Table(title=f"What is shown of the {entry['title']}", title_justify="left")
    found.add_column("")
    for each in entry["ways"]:
        found.add_column(each["name"], justify="center")
    for what in SIGNS:
        found.add_row(what, *("yes" if what in each["shows"] else "" for each in entry["ways"]))
    return found


def tables(record: list[Entry]) -> list[Table]:
    """All that is printed of a record."""
    first = shown(record)
    return [table(record)] if first is None else [first, table(record)]


def main(*, quick: bool = False) -> None:
    record: list[Entry] = []
    with one_thread():
        for drawn in suite(quick=quick):
            torch.manual_seed(0)
            run(drawn, record, quick=quick)
    console().print(*tables(record), sep="\n")


if __name__ == "__main__":
    main()
