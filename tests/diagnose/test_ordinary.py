"""Right programs of many kinds run as they would, and nothing is said of them."""

from pathlib import Path

import pytest

from tests.diagnose.harness import codes, told

PROGRAMS = sorted((Path(__file__).parent / "ordinary").glob("*.py"))


@pytest.mark.parametrize("level", ["trace", "audit"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_nothing_is_said_of_a_right_program(program, level):
    report = told(program, level)
    assert report["error"] is None
    assert not report["trouble"]
    assert codes(report) == []
