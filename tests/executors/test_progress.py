"""The progress bar: only where somebody can see it, and only for work that takes a while."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.executors import progress
from pullback.executors.progress import Progress


def work(show):
    with Progress(3, "3 passes, by hand", show) as bar:
        for done in range(1, 4):
            bar.update(done)


def test_nothing_is_shown_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    work(None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("show", "shown"), [(None, False), (True, True)])
def test_a_program_whose_stderr_is_piped_is_not_written_to_unless_asked(show, shown):
    program = (
        "import torch, pullback as pb; from pullback.executors import progress; progress.PATIENCE = 0.0; "
        f"pb.jacobian(torch.sin, torch.ones(20), strategy='rows', progress={show}).dense()"
    )
    source = str(Path(progress.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": source},
        check=True,
    )
    assert done.stdout == ""
    assert ("passes" in done.stderr) is shown
    assert shown or done.stderr == ""


def test_it_is_shown_on_demand_and_on_stderr(capsys):
    work(True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 passes, by hand" in err
    assert "3/3" in err


def test_it_is_forbidden_even_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    work(False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (60.0, False)])
def test_on_a_terminal_it_waits_to_see_whether_the_work_is_long(capsys, monkeypatch, patience, shown):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    work(None)
    assert ("3 passes, by hand" in capsys.readouterr().err) is shown


def test_work_of_one_step_has_no_bar(capsys):
    with Progress(1, "one pass", True) as bar:
        bar.update(1)
    assert capsys.readouterr() == ("", "")


def test_it_is_closed_when_the_work_fails(capsys):
    def fail(bar):
        with bar:
            bar.update(1)
            raise ZeroDivisionError

    bar = Progress(3, "3 passes, by hand", True)
    with pytest.raises(ZeroDivisionError):
        fail(bar)
    assert not bar._bar.live.is_started
    assert "1/3" in capsys.readouterr().err
