"""The sparse examples run as a user runs them, at sizes that take seconds, and their numbers are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBER = r"\d\.\d+e[-+]\d\d|\de[-+]\d\d"


def _run(name: str, *arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    return done.stdout


@pytest.fixture(scope="module")
def brusselator():
    return _run("brusselator.py", "--quick", "--until", "0.3")


def test_every_way_solves_the_brusselator(brusselator):
    for way in ("Pullback, sparse", "differences, sparse", "differences, dense", "torch.func.jacfwd, dense"):
        assert way in brusselator
    assert "…" not in brusselator.replace("t = 0 … ", "")


def test_all_ways_solve_it_alike(brusselator):
    rows = [line for line in brusselator.splitlines() if "Pullback, sparse" in line or ", dense" in line]
    differences = [float(re.search(rf"({NUMBER})\s*$", line).group(1)) for line in rows]
    assert len(differences) == 4
    assert max(differences) < 1e-5


@pytest.mark.parametrize("solver", ["direct", "iterative", "pyamg"])
def test_newton_converges_to_the_solution_of_the_pde(solver):
    if solver == "pyamg":
        pytest.importorskip("pyamg")
    said = _run("newton_pde.py", "--n", "30", "--solver", solver)
    assert f"linear solver: {solver}" in said
    residuals = [float(number) for number in re.findall(rf"^ +\d+ +({NUMBER})", said, re.MULTILINE)]
    assert residuals[0] == 1.0
    assert residuals[-1] < 1e-8
    assert len(residuals) <= 8
    if solver == "direct":  # the steps are exact: a residual is a constant times the square of the one before
        assert residuals[-1] < 100 * residuals[-2] ** 2 + 1e-12
    error, square = re.search(rf"The largest error is ({NUMBER}); 1/N² is ({NUMBER})", " ".join(said.split())).groups()
    assert float(error) < float(square)


def test_newton_that_does_not_converge_fails():
    command = [sys.executable, str(EXAMPLES / "newton_pde.py"), "--n", "20", "--tolerance", "1e-30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "has not converged" in done.stderr
