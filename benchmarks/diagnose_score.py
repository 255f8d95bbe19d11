"""How many failing programs are explained: ``python -m benchmarks.diagnose_score ../shared/triggers``.

A folder of programs, each with one fault, is run under ``pullback run``; a report is right if it names a code that the
reviewed table ``diagnose_expected.json`` accepts for the program, and its lines if one of those that made the fault is
among them. The twins in ``fixed/`` must draw nothing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from benchmarks.diagnose_runs import ran
from benchmarks.timing import console
from pullback.diagnose.session import Level

EXPECTED = Path(__file__).with_name("diagnose_expected.json")
LEVELS: dict[str, tuple[Level, ...]] = {"error": ("default", "trace"), "warning": ("audit",), "silent": ("audit",)}
TARGETS = {"default": 0.85, "trace": 0.95, "audit": 0.75}


@dataclass(frozen=True)
class Told:
    """What was said of one program.

    Attributes:
        codes: Of an error: those of the diagnoses, the likeliest first. Otherwise those of the findings.
        sure: The confidence of the first.
        lines: The lines of the program that are named.
        trouble: What went wrong in looking.
    """

    codes: tuple[str, ...]
    sure: str
    lines: frozenset[int]
    trouble: tuple[str, ...]


def told(program: Path, level: Level) -> Told:
    """What is said of a program at a level."""
    report = ran(program.resolve(), level).report
    of_errors, of_faults = report.get("diagnoses", []), report.get("findings", [])
    everything = [*of_errors, *of_faults]
    lines = {
        mark["line"]
        for each in (of_errors[:1] or of_faults)
        for mark in each["lines"]
        if Path(mark["file"]).name == program.name
    }
    trouble = tuple(report.get("trouble", ["no report"]))
    sure = everything[0]["confidence"] if everything else ""
    return Told(tuple(each["code"] for each in everything), sure, frozenset(lines), trouble)


def right(said: Told, expected: dict[str, Any], *, is_error: bool) -> tuple[bool, bool]:
    """Whether the cause is right (of an error: the first one named), and whether a line that made it is named."""
    codes = said.codes[:1] if is_error else said.codes
    cause = bool(set(codes) & set(expected["codes"]))
    return cause, cause and bool(said.lines & set(expected["lines"]))


def score(folder: Path, entries: Sequence[dict[str, Any]], expected: dict[str, Any], only: str | None) -> list[str]:
    """Run all programs and print the score by category; the programs that were missed."""
    jobs = [
        (entry, level)
        for entry in entries
        for level in LEVELS.get(entry["kind"], ("strict",))
        if only is None or level == only
    ]
    said = [told(folder / entry["file"], level) for entry, level in jobs]
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    missed = []
    for (entry, level), one in zip(jobs, said, strict=True):
        known = expected.get(entry["file"], {"codes": [], "lines": []})
        cause, line = right(one, known, is_error=entry["kind"] == "error")
        group = "errors" if entry["kind"] == "error" else "warnings, silent"
        for key in ((level, f"{group}: all"), (level, f"  {entry['cat']}")):
            counts[key].update(total=1, cause=int(cause), line=int(line))
        if not line or one.trouble:
            wanted = f"wanted {known['codes']} at {known['lines']}"
            got = f"got {one.codes} {one.sure} at {sorted(one.lines)}"
            missed.append(f"{level:8} {entry['file']:44} {got}; {wanted} {' '.join(one.trouble)}")
    table = Table(title="Programs explained: cause, and cause with line", title_justify="left")
    for header in ("level", "category", "programs", "cause", "cause and line", ""):
        table.add_column(header)
    for (level, group), count in sorted(
        counts.items(), key=lambda item: (item[0][0], item[0][1].startswith(" "), item[0])
    ):
        share = count["line"] / count["total"]
        verdict = f"{share:.1%}" + (
            f" (asked {TARGETS[level]:.0%})" if group.endswith("all") and level in TARGETS else ""
        )
        table.add_row(level, group, str(count["total"]), str(count["cause"]), str(count["line"]), verdict)
    console().print(table)
    return missed


def twins(folder: Path, levels: Iterable[str]) -> list[str]:
    """The right twins of which something is said."""
    jobs = [(program, level) for program in sorted((folder / "fixed").glob("*.py")) for level in levels]
    said = [told(*job) for job in jobs]
    wrong = [
        f"{level:8} {program.name}: {one.codes} {' '.join(one.trouble)}"
        for (program, level), one in zip(jobs, said, strict=True)
        if one.codes or one.trouble
    ]
    console().print(f"right twins: {len(jobs)} runs, {len(wrong)} of which something is said")
    return wrong


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--level", type=click.Choice([*TARGETS, "strict"]), help="Only this level.")
@click.option("--only", default="", help="Only programs whose file contains this.")
@click.option("--twins/--no-twins", "with_twins", default=True, help="Run the right twins too.")
def main(folder: Path, level: str | None, only: str, with_twins: bool) -> None:
    """Score the diagnoses over a folder of programs with a manifest."""
    entries = [each for each in json.loads((folder / "manifest.json").read_text()) if only in each["file"]]
    expected = json.loads(EXPECTED.read_text())
    if level == "strict":
        entries = [{**each, "kind": "strict"} for each in entries if each["kind"] == "silent"]
    for line in score(folder, entries, expected, level):
        console().print(line, markup=False, soft_wrap=True)
    if with_twins:
        for line in twins(folder, [level] if level else ["trace", "audit"]):
            console().print(line, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
