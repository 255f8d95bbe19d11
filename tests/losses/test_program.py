"""The example runs as a user runs it, and the benchmark's contestants find the same gradients."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_tasks.py"


def test_weights_decide_which_task_is_learned():
    pytest.importorskip("sklearn")
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, str(EXAMPLE), "--seeds", "1", "--epochs", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    rows = re.findall(r"^  (\S.*?)  +(\d+\.\d)  +(\d+\.\d)  +\d+\.\d *$", done.stdout, flags=re.MULTILINE)
    digit = {name: float(right) for name, right, _ in rows}
    parity = {name: float(right) for name, _, right in rows}
    assert {"Uncertainty", "GradNorm", "DynamicWeightAverage"} <= set(digit)
    even, uneven = "fixed, 1 : 1, both losses in one unit", "fixed, 1 : 1, which is 1 : 100"
    assert digit[even] > digit[uneven] + 20
    assert digit["GradNorm"] > digit[uneven] + 10
    assert all(right > 80 for right in parity.values())
    assert "2 losses over 4 shared parameters in 2 layers" in done.stdout


def test_everyone_in_the_benchmark_is_right():
    losses = pytest.importorskip("benchmarks.losses")
    if not losses.INSTALLED:
        pytest.skip("TorchJD is not installed")
    record = []
    losses.run("losses-small", record, quick=True)
    (entry,) = record
    by_name = {each["name"]: each for each in entry["ways"]}
    assert [*by_name] == [losses.OURS, losses.WHOLE, losses.GRAM, losses.SINGLE, losses.PLAIN]
    assert all(each["status"] == "right" and each["turns"] and each["bytes"] > 0 for each in by_name.values())
    assert by_name[losses.PLAIN]["error"] > losses.TOLERANCE  # a sum is not what UPGrad finds
    time, memory = losses.targets(record)
    assert time.measured > 0
    assert memory.measured == by_name[losses.OURS]["bytes"] / min(
        by_name[name]["bytes"] for name in (losses.WHOLE, losses.GRAM, losses.SINGLE)
    )
    assert entry["title"] in str([*losses.table(record).columns[0].cells])
