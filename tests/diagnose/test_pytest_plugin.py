"""``pytest --pullback``: a section below the traceback of a failing test, and nothing when it is not asked for."""

import pytest

from tests.diagnose.commands import python, written

TESTS = """
    import torch

    def double(w):
        return w * 2

    def test_fails():
        double(torch.ones(3, requires_grad=True)).backward()

    def test_fails_otherwise():
        assert 1 == 2

    def test_expects_it():
        try:
            torch.ones(3, requires_grad=True).backward()
        except RuntimeError:
            pass

    def test_is_silently_wrong():
        net = torch.nn.Linear(1, 1)
        ((net(torch.randn(8, 1)) - torch.randn(8)) ** 2).mean().backward()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tests"), tests__test_some=TESTS)


def outcome(folder, *options):
    return python(
        folder, "-m", "pytest", "-p", "pullback_pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q", *options
    )


def test_a_failing_test_is_explained(folder):
    ended = outcome(folder, "--pullback", "tests")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.count("- pullback -") == 1
    assert ended.stdout.count("error[PB101]") == 1
    assert "--> tests/test_some.py:8 in test_fails\n" in ended.stdout
    assert "2 failed, 2 passed" in ended.stdout


def test_a_level_records_more(folder):
    ended = outcome(folder, "tests", "--pullback=audit")
    assert "::: tests/test_some.py:5 in double\n" in ended.stdout
    assert "= pullback: tests/test_some.py::test_is_silently_wrong =" in ended.stdout
    assert "warning[PBA301]" in ended.stdout
    assert "recorders" not in ended.stdout
    assert "2 failed, 2 passed" in ended.stdout


def test_nothing_happens_unless_it_is_asked_for(folder, tmp_path):
    written(
        tmp_path,
        test_light="""
            import sys

            def test_light():
                assert not {"torch", "pullback", "rich.console"} & set(sys.modules)
        """,
    )
    assert outcome(tmp_path).returncode == 0
    ended = outcome(folder, "tests")
    assert "PB101" not in ended.stdout


def test_an_unknown_level_is_refused(folder):
    ended = outcome(folder, "tests", "--pullback=loud")
    assert ended.returncode == 4
    assert "--pullback=loud: there is no such level" in ended.stderr
