"""The report: what it prints, what is true of it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from pullback.check.door import check
from pullback.check.report import Entry, Finding, Report
from pullback.errors import VerificationError
from pullback.testing import assert_gradients

HARMLESS = Finding("kink", "at 0 the slopes differ", "nothing", harmless=True, input="x", output="output")
WRONG = Finding("sign", "minus", "negate it", input="x", output="output", entries=(Entry((0, 1), (), 2.0, -2.0),))


def test_it_is_true_if_nothing_is_wrong() -> None:
    assert Report("check of f", (), (HARMLESS,), {})
    assert not Report("check of f", (), (HARMLESS, WRONG), {})
    assert Report("check of f", (), (HARMLESS, WRONG), {}).failures == (WRONG,)


def test_it_prints_the_entries() -> None:
    text = str(Report("check of f", ("a line",), (HARMLESS, WRONG), {}))
    assert text.splitlines()[:2] == ["check of f: 1 wrong", "  a line"]
    assert "note: kink (output by x)" in text
    assert "WRONG: sign (output by x)" in text
    assert "fix: negate it" in text
    (row,) = [line.split() for line in text.splitlines() if "[0, 1]"[0:3] in line]
    assert row[-3:] == ["2", "-2", "-1"]


def test_a_ratio_to_zero() -> None:
    assert Entry((), (), 1.0, 0.0).ratio == complex("inf")
    assert Entry((), (), 2j, 1j).ratio == 2


def test_raise_if_failed() -> None:
    Report("check of f", (), (HARMLESS,), {}).raise_if_failed()
    with pytest.raises(VerificationError, match="check of f has wrong derivatives") as caught:
        Report("check of f", (), (WRONG,), {}).raise_if_failed()
    assert "negate it" in str(caught.value)


def test_it_can_be_written_as_json() -> None:
    told = json.loads(json.dumps(Report("check of f", ("a",), (WRONG,), {"r": float("inf")}).told()))
    assert told["passed"] is False
    assert told["ratios"] == {"r": "inf"}
    assert told["findings"][0]["entries"] == [{"output": [0, 1], "input": [], "ours": "2", "numeric": "-2"}]


def test_a_passing_report_is_short() -> None:
    report = check(lambda x: x.sin(), torch.randn(4), order=2)
    assert 3 <= len(str(report).splitlines()) <= 7
    assert repr(report) == str(report)


def test_assert_gradients() -> None:
    assert_gradients(torch.sin, torch.ones(3))

    def detached(x: Tensor) -> Tensor:
        return x * x.detach()

    with pytest.raises(AssertionError, match="detached: 1 wrong"):
        assert_gradients(detached, torch.ones(3))
