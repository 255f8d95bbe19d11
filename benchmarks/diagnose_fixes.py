"""Whether suggested fixes mend: ``python -m benchmarks.diagnose_fixes ../shared/triggers``.

Each program of the folder is run under watch. Where its report has a fix with edits that is said to be sure, they are
applied to a copy, which is run as Python would, and its gradients are compared with those of the right twin.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.table import Table
from torch import Tensor

from benchmarks.diagnose_runs import Ran, ran
from benchmarks.diagnose_score import EXPECTED
from benchmarks.timing import console
from pullback.diagnose.session import Level
from pullback.diagnose.values import Edit, applied


def contained(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor]) -> bool:
    """Whether each of the gradients that are wanted is among the others, each of which counts once."""
    rest = list(got.values())
    for one in wanted.values():
        for number, other in enumerate(rest):
            if _alike(one, other):
                del rest[number]
                break
        else:
            return False
    return True


def _alike(one: Tensor, other: Tensor) -> bool:
    same_kind = one.shape == other.shape and one.dtype == other.dtype
    return same_kind and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def sure_fix(report: Mapping[str, Any], codes: Sequence[str]) -> dict[str, Any] | None:
    """The diagnosis with a fix that is said to be sure and has edits: the first, or the finding with the right code."""
    first = report.get("diagnoses", [])[:1]
    for each in first or [one for one in report.get("findings", []) if one["code"] in codes]:
        if each["fix"]["edits"] and each["fix"]["confidence"] == "high":
            return dict(each)
    return None


def mended(diagnosis: Mapping[str, Any], program: Path) -> Path:
    """A file beside the program with its text after the edits of a diagnosis."""
    edits = [Edit(**each) for each in diagnosis["fix"]["edits"]]
    if elsewhere := {each.file for each in edits} - {str(program)}:
        raise click.ClickException(f"edits of other files: {sorted(elsewhere)}")
    file = program.with_name(f"mended_{program.name}")
    file.write_text(applied(edits, str(program)))
    return file


@dataclass(frozen=True)
class Outcome:
    """What became of one fix."""

    program: str
    code: str
    error: str
    verdict: str
    text: str


def outcome(program: Path, twin: Path, level: Level, codes: Sequence[str]) -> Outcome | None:
    """Mend one program as its report says; None if there is no sure fix with edits."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(program, Path(folder).resolve()))
        diagnosis = sure_fix(ran(copy, level).report, codes)
        if diagnosis is None:
            return None
        after = mended(diagnosis, copy)
        result = ran(after, None)
        text = after.read_text()
        verdict = compared(result, ran(twin.resolve(), None)) if twin.exists() else "no twin"
        return Outcome(program.name, diagnosis["code"], result.error, verdict, text)


def compared(result: Ran, twin: Ran) -> str:
    """How the gradients of a mended program stand to those of the right one."""
    if result.error:
        return "fails"
    if twin.error:
        return f"the twin fails: {twin.error}"
    if not twin.gradients:
        return "runs" + (", the twin keeps no gradient" if result.gradients else ", no gradients")
    return "equal" if contained(twin.gradients, result.gradients) else "differ"


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only programs whose file contains this.")
@click.option("--show", is_flag=True, help="Print the programs that were mended without the right gradients.")
def main(folder: Path, only: str, show: bool) -> None:
    """Apply the sure fixes of all programs, and compare their gradients with those of their right twins."""
    expected = json.loads(EXPECTED.read_text())
    outcomes = []
    entries = [each for each in json.loads((folder / "manifest.json").read_text()) if only in each["file"]]
    for entry in entries:
        level: Level = "trace" if entry["kind"] == "error" else "audit"
        codes = expected[entry["file"]]["codes"]
        outcomes.append(outcome(folder / entry["file"], folder / "fixed" / entry["file"], level, codes))
    table = Table(title="Sure fixes with edits, applied", title_justify="left")
    for header in ("program", "code", "runs", "gradients"):
        table.add_column(header)
    sure = [each for each in outcomes if each is not None]
    for each in sure:
        table.add_row(each.program, each.code, "no" if each.error else "yes", each.error or each.verdict)
    console().print(table)
    runs = sum(not each.error for each in sure)
    verdicts = Counter(each.verdict for each in sure)
    count = "; ".join(f"{verdict}: {number}" for verdict, number in sorted(verdicts.items()))
    console().print(f"{len(entries)} programs, {len(sure)} sure fixes with edits, of which {runs} run. {count}")
    for each in sure:
        if show and (each.error or each.verdict in {"differ", "no twin"}):
            console().print(f"--- {each.program} {each.code}: {each.error or each.verdict}\n{each.text}", markup=False)


if __name__ == "__main__":
    main()
