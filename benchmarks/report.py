"""What is printed of a run, and the JSON that holds it."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from benchmarks.dense_ours import CALLED
from benchmarks.jax_peer import Peer
from benchmarks.targets import Entry, Target, way
from benchmarks.timing import verdict

SCHEMA = 1
LIBRARIES = ("torchjd", "backpack-for-pytorch", "asdfghjkl", "numba", "torchviz", "torchview")


def about(peer: Peer | None, *, quick: bool) -> dict[str, Any]:
    """What a reader has to know of a run, and nothing of whose machine it was."""
    versions = {"torch": torch.__version__}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "schema": SCHEMA,
        "quick": quick,
        "complete": False,
        "processor": processor(),
        "threads": 1,
        "python": platform.python_version(),
        "versions": versions | (peer.versions if peer else {}),
    }


def processor() -> str:
    """The processor's model."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def rounded(value: Any) -> Any:
    """The same with four digits of every number that is measured."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def write(record: dict[str, Any], path: Path) -> None:
    """Write a run's record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(rounded(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def read(path: Path) -> dict[str, Any]:
    """A run's record.

    Raises:
        ValueError: It was written by another version of the benchmarks.
    """
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = record.get("about", {}).get("schema")
    if found != SCHEMA:
        raise ValueError(f"{path.name} has schema {found!r}, not {SCHEMA}: run python -m benchmarks again")
    return record


def milliseconds(seconds: float | None) -> str:
    """Milliseconds with three digits."""
    if seconds is None:
        return ""
    number = seconds * 1e3
    digits = 3 if number < 1 else 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:,.{digits}f}"


def megabytes(each: Entry) -> str:
    """Megabytes of tensors, Python and NumPy together."""
    if each["tensor_bytes"] is None:
        return ""
    total = (each["tensor_bytes"] + each["python_bytes"]) / 1e6
    return f"{total:,.0f}" if total >= 10 else f"{total:.2f}"


def table_of(entries: list[Entry], base: str = CALLED) -> Table:
    """One problem: the contestants, the fastest first, in each dtype that was run.

    Args:
        entries: The problem in each dtype.
        base: Which of Pullback's ways the others are compared with.
    """
    first = entries[0]
    shape = " x ".join(f"{size:,}" for size in first["shape"])
    plan = "\n".join(dict.fromkeys(escape(each["plan"]) for each in entries if each.get("plan")))
    name = "" if first["title"].startswith(first["key"]) or len(first["key"]) > 2 else f"{first['key']}: "
    table = Table(title=f"{name}{first['title']} ({shape})", title_justify="left", caption=plan, caption_justify="left")
    table.add_column("milliseconds, megabytes")
    for entry in entries:
        bits = entry["dtype"].removeprefix("float")
        for header in (f"min {bits}", "median", f"/ {base.removeprefix('pullback, ')}", "MB"):
            table.add_column(header, justify="right")
    names: dict[str, Entry] = {}
    for entry in entries:
        for each in sorted(entry["ways"], key=lambda each: (each["min"] is None, each["min"])):
            names.setdefault(each["name"], each)
    for name, one in names.items():
        cells = [cell for entry in entries for cell in _cells(entry, name, base)]
        table.add_row(escape(name), *cells, style="bold" if one["kind"] == "ours" else None)
    return table


def _cells(entry: Entry, name: str, base: str) -> list[str]:
    """The four cells of one contestant in one dtype."""
    each = next((each for each in entry["ways"] if each["name"] == name), None)
    if each is None:
        return [""] * 4
    if each["status"] != "right":
        return [f"[red]{each['status']}[/]", "", "", ""]
    ours = way(entry, base)
    ratio = f"{each['min'] / ours['min']:.2f}" if ours and each["min"] else ""
    return [milliseconds(each["min"]), milliseconds(each["median"]), ratio, megabytes(each)]


def failures(entries: list[Entry]) -> Table | None:
    """The contestants that were wrong or raised, with what they said."""
    table = Table(title="Wrong, or raised: not timed", title_justify="left")
    for header in ("problem", "way", "what"):
        table.add_column(header)
    for entry in entries:
        for each in entry["ways"]:
            if each["status"] != "right":
                what = each["why"] or f"greatest error {each['error']} of the greatest entry"
                table.add_row(f"{entry['key']} {entry['dtype']}", escape(each["name"]), escape(what))
    return table if table.row_count else None


def summary(targets: list[Target], *, quick: bool) -> Table:
    """Which targets a run meets."""
    title = "Targets" + (", which are for the full sizes: these are small ones" if quick else "")
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for header in ("needed", "measured", "", "in float64"):
        table.add_column(header, justify="right" if header else "left")
    for target in targets:
        said = "[yellow]not measured[/]" if target.met is None else verdict(target.met)
        measured = "" if target.measured is None else f"{target.measured:.3g}{target.unit}"
        other = "" if target.other is None else f"{target.other:.3g}{target.unit}"
        table.add_row(escape(target.what), target.told()["needed"], measured, said, other)
    return table


def missing() -> str:
    """The peers that are not installed, in a line."""
    modules = {"TorchJD": "torchjd", "BackPACK": "backpack", "ASDL": "asdl",
               "torchviz": "torchviz", "torchview": "torchview"}  # fmt: skip
    names = [name for name, module in modules.items() if importlib.util.find_spec(module) is None]
    return f"Not installed, and so not measured: {', '.join(names)}" if names else ""
