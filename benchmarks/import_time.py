"""What ``import pullback`` adds to ``import torch``, in fresh interpreters."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.table import Table

import pullback as pb
from benchmarks.timing import console, verdict

TARGET = 100e-3
PAIRS, QUICK_PAIRS = 7, 1
ALONE = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began, 0)"
BOTH = (
    "import time; began = time.perf_counter(); import torch; between = time.perf_counter(); import pullback; "
    "done = time.perf_counter(); print(done - began, done - between)"
)


def seconds(program: str, compiled: str) -> tuple[float, float]:
    """What a program says its imports took, and the last of them, in an interpreter of its own.

    Args:
        program: It prints the two numbers.
        compiled: Where Python keeps what it compiled, as it does for an installed package.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | {"PYTHONPATH": str(Path(pb.__file__).parents[1]), "PYTHONPYCACHEPREFIX": compiled},
        capture_output=True,
        text=True,
        check=True,
    )
    whole, last = map(float, done.stdout.split())
    return whole, last


def main(*, quick: bool = False) -> None:
    pairs = QUICK_PAIRS if quick else PAIRS
    alone, both, last = [], [], []
    with tempfile.TemporaryDirectory() as compiled:
        seconds(BOTH, compiled)  # the files are read, and compiled, once
        for turn in range(pairs):
            for program in (ALONE, BOTH)[:: 1 if turn % 2 == 0 else -1]:
                times = seconds(program, compiled)
                if program == ALONE:
                    alone.append(times[0])
                else:
                    both.append(times[0])
                    last.append(times[1])
    more = [b - a for a, b in zip(alone, both, strict=True)]
    table = Table(title=f"Imports in {pairs} fresh interpreters each, ms", title_justify="left")
    for header in ("", "min", "median", f"target {TARGET * 1e3:.0f}"):
        table.add_column(header, justify="right" if header else "left")
    rows = {"import torch": alone, "import torch, pullback": both, "the difference, pair by pair": more,
            "import pullback, torch being there": last}  # fmt: skip
    for name, times in rows.items():
        middle = statistics.median(times)
        judged = verdict(middle < TARGET) if times is more or times is last else ""
        table.add_row(name, f"{min(times) * 1e3:.0f}", f"{middle * 1e3:.0f}", judged)
    least = min(both) - min(alone)
    table.add_row("the difference of the minima", f"{least * 1e3:.0f}", "", verdict(least < TARGET))
    console().print(table)


if __name__ == "__main__":
    main()
