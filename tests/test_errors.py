"""Errors say what happened, what was got and what to write instead; warnings point at the user's line."""

import copy
import inspect
import pickle
import warnings
from pathlib import Path

import pytest
import torch

import pullback as pb
from pullback import errors
from pullback.errors import PullbackError, PullbackWarning, warn

BUILTIN = {
    "PullbackError": Exception,
    "ArgumentError": TypeError,
    "ValueMismatch": ValueError,
    "SeedError": RuntimeError,
    "GraphError": RuntimeError,
    "StrategyError": RuntimeError,
    "GuardError": RuntimeError,
    "VerificationError": RuntimeError,
    "MemoryLimitError": MemoryError,
}
KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PullbackError)
]  # a new one is tested at once

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def test_every_error_has_its_builtin_named_here():
    assert {kind.__name__ for kind in KINDS} == set(BUILTIN)


@every_kind
def test_an_error_is_caught_as_the_builtin_it_is(kind):
    with pytest.raises(BUILTIN[kind.__name__]):
        raise kind("what", got="got", fix="fix")
    assert issubclass(kind, PullbackError)


@every_kind
def test_an_error_is_described_in_the_list_at_the_top(kind):
    assert kind.__name__ in errors.__doc__
    assert kind.__doc__


@every_kind
def test_the_text_has_a_line_for_what_was_got_and_a_line_for_the_fix(kind):
    assert str(kind("it broke", got="3", fix="write 4")) == "it broke\n  got: 3\n  fix: write 4"


@every_kind
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_survives_pickling_and_copying(kind, again):
    error = kind("what", got="got", fix="fix")
    other = again(error)
    assert type(other) is kind
    assert (other.what, other.got, other.fix) == ("what", "got", "fix")
    assert str(other) == str(error)


def test_an_error_that_really_happens_survives_too():
    with pytest.raises(pb.errors.SeedError) as caught:
        pb.backward(torch.ones(3, requires_grad=True) * 2, torch.ones(2))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("missing", ["got", "fix"])
def test_an_error_cannot_be_made_without_its_parts(missing):
    parts = {"got": "3", "fix": "write 4"}
    del parts[missing]
    with pytest.raises(TypeError):
        PullbackError("it broke", **parts)


def test_a_warning_points_at_the_line_that_called():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("something was substituted")
        line = inspect.currentframe().f_lineno - 1
    (found,) = caught
    assert found.category is PullbackWarning
    assert found.filename == __file__
    assert found.lineno == line


def test_a_warning_from_inside_points_at_the_line_of_the_program():
    inside = str(Path(errors.__file__).parent / "deep" / "inside.py")
    code = "def outer(): inner()\ndef inner(): warn('from two calls inside')"
    names = {"warn": warn}
    exec(compile(code, inside, "exec"), names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names["outer"]()
        line = inspect.currentframe().f_lineno - 1
    (found,) = caught
    assert found.filename == __file__
    assert found.lineno == line


def test_a_folder_whose_name_begins_like_the_package_is_not_inside():
    beside = str(Path(errors.__file__).parent) + "_demo/train.py"
    names = {"warn": warn}
    exec(compile("def train(): warn('from the program')", beside, "exec"), names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names["train"]()
    (found,) = caught
    assert found.filename == beside
    assert found.lineno == 1


def test_a_warning_is_a_user_warning_and_no_error():
    assert issubclass(PullbackWarning, UserWarning)
    assert not issubclass(PullbackWarning, PullbackError)
