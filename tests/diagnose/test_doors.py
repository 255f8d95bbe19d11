"""``explain``, ``explain_errors`` and ``install``: what they say, and what they leave as it was."""

import io
import logging
import sys
import threading
import traceback

import pytest
import torch

import pullback as pb
from pullback.diagnose.doors import explained
from pullback.errors import ValueMismatch
from tests.diagnose.commands import python, written


def fails():
    (torch.ones(3, requires_grad=True) * 2).backward()


def test_explain_takes_the_exception_in_hand():
    try:
        fails()
    except RuntimeError as error:
        report = pb.explain(error)
        assert pb.explain().told() == report.told()
    assert [each.code for each in report.diagnoses] == ["PB101"]
    assert str(report).startswith("error[PB101]: ")
    assert repr(report) == str(report)


def test_explain_knows_nothing_of_other_errors():
    report = pb.explain(KeyError("x"))
    assert not report
    assert str(report) == "no cause that is known here fits this error"


@pytest.mark.parametrize("level", ["default", "trace", "audit", "strict"])
def test_an_exception_passes_with_a_note(level):
    with pytest.raises(RuntimeError, match="only for scalar outputs") as raised, pb.explain_errors(level) as watch:
        fails()
    assert raised.value.args == ("grad can be implicitly created only for scalar outputs",)
    (note,) = raised.value.__notes__
    assert note.startswith("error[PB101]: ")
    assert explained(raised.value)
    assert watch.report.diagnoses[0].code == "PB101"
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.index("only for scalar outputs\n") < shown.index("error[PB101]")
    assert "recorders" not in shown


def test_one_note_is_enough():
    with pytest.raises(RuntimeError) as raised, pb.explain_errors(), pb.explain_errors("trace"):
        fails()
    assert len(raised.value.__notes__) == 1


def test_other_errors_are_left_alone():
    with pytest.raises(KeyError) as raised, pb.explain_errors("trace"):
        {}["x"]
    assert not hasattr(raised.value, "__notes__")


def test_an_unknown_error_of_autograd_is_said_to_be_unknown():
    def backward(*_):
        raise RuntimeError("a gradient of my own")

    with pytest.raises(RuntimeError) as raised, pb.explain_errors():
        torch.autograd.backward(torch.ones((), requires_grad=True), None, inputs=[])
    with pytest.raises(RuntimeError) as own, pb.explain_errors():
        backward()
    assert not hasattr(own.value, "__notes__")
    assert raised.value.__notes__


def test_it_decorates_a_function():
    @pb.explain_errors()
    def wrapped(again):
        return wrapped(False) if again else fails()

    with pytest.raises(RuntimeError) as raised:
        wrapped(True)
    assert len(raised.value.__notes__) == 1


def test_logging_shows_it():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("a program")
    log.addHandler(handler)
    log.propagate = False
    try:
        with pb.explain_errors():
            fails()
    except RuntimeError:
        log.exception("stopped")
    assert "error[PB101]" in stream.getvalue()


def test_an_audit_prints_its_findings_at_the_end(capsys):
    with pb.explain_errors("audit") as watch:
        net = torch.nn.Linear(1, 1)
        ((net(torch.randn(8, 1)) - torch.randn(8)) ** 2).mean().backward()
    assert "PBA301" in [each.code for each in watch.report.findings]
    assert "warning[PBA301]: " in capsys.readouterr().err


def test_there_are_four_levels():
    with pytest.raises(ValueMismatch, match="no such level"):
        pb.explain_errors("loud")
    with pytest.raises(ValueMismatch, match="no such level"):
        pb.install("loud")


@pytest.fixture
def hooks(monkeypatch):
    called = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: called.append(error))
    monkeypatch.setattr(threading, "excepthook", called.append)
    return called


def test_install_chains_the_hooks_and_is_undone(hooks, capsys):
    before = sys.excepthook, threading.excepthook
    with pb.install() as installed:
        assert pb.install() is installed
        assert installed.active
        try:
            fails()
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
    assert len(hooks) == 2
    assert capsys.readouterr().err.count("error[PB101]") == 2
    assert (sys.excepthook, threading.excepthook) == before
    assert not installed.active
    installed.remove()


def test_another_level_takes_over(hooks):
    before = sys.excepthook
    first = pb.install()
    second = pb.install("trace")
    assert (first.active, second.active) == (False, True)
    second.remove()
    assert sys.excepthook is before


def test_it_is_silent_when_others_hooked_in_after_it(hooks, capsys):
    installed = pb.install()
    ours = sys.excepthook
    sys.excepthook = lambda *error: ours(*error)
    installed.remove()
    try:
        fails()
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert len(hooks) == 1
    assert not capsys.readouterr().err


def test_a_process_ends_with_its_diagnosis(tmp_path):
    written(
        tmp_path,
        program="""
            import torch, pullback as pb
            pb.install("audit")
            net = torch.nn.Linear(1, 1)
            ((net(torch.randn(8, 1)) - torch.randn(8)) ** 2).mean().backward()
            (torch.ones(3, requires_grad=True) * 2).backward()
        """,
    )
    ended = python(tmp_path, "program.py")
    assert ended.returncode == 1
    assert ended.stderr.index("Traceback") < ended.stderr.index("error[PB101]") < ended.stderr.index("warning[PBA301]")
