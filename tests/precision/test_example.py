"""The example and the benchmark of precision run, and show what they are there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import precision_cost

ROOT = Path(__file__).parents[2]


def test_the_example_shows_what_is_lost_and_what_saves_it():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, str(ROOT / "examples" / "float16_seed.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    kept, seeds, small, first, second = _parts(done.stdout)
    assert "nothing is lost" in kept
    assert "overflows in float16, which ends at 6.55e+04" in seeds
    assert "scale 1 is not safe" in small
    assert "loss scale 2^0 is not safe" in first
    assert "is safe; headroom" in second


def _parts(text: str) -> list[str]:
    """The five reports of the example."""
    heads = ("precision of a backward pass", "float32, float16 inside", "autocast watch")
    parts: list[str] = []
    for line in text.splitlines():
        if line.startswith(heads):
            parts.append("")
        parts[-1] += line + "\n"
    return parts


def test_the_benchmark_prints_what_a_look_costs(capsys):
    precision_cost.main(quick=True)
    said = capsys.readouterr().out
    assert "A training step inside autocast_watch()" in said
    assert all(name.split(",")[0] in said for name in precision_cost.PROGRAMS)
