"""Every operator whose gradient torch's own gradcheck accepts is right by ``pb.check`` too: no false alarm.

A few samples of each operator; all of them with

    PULLBACK_SWEEP=full python -m pytest tests/sweep/test_check.py -n auto
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from pullback.check.door import check
from pullback.check.report import Finding

from . import known
from .operators import MODE, cases, operators

pytestmark = pytest.mark.sweep

# Where not all are taken: so many samples of every so manieth operator, and of fewer at second order.
SAMPLES, STRIDE, STRIDE_OF_SECOND_ORDER = 2, 4, 20
ACCEPTED = 500

# On the list for its forward formula, which is off by so little that it is a note.
RIGHT_TO_SINGLE_PRECISION = {"logcumsumexp"}
# Forward mode over reverse mode is off by half, by differences; torch.func says the same.
FORWARD_OVER_REVERSE_IS_WRONG = {"triangular_solve"}
# It reads memory that its input is only a part of, which a copy of the input does not have.
READS_BEYOND_ITS_INPUT = {"as_strided.partial_views"}


def accepted(order: int) -> list[str]:
    """The operators for which torch runs its test of gradients, and expects it to pass."""
    test = {1: "test_fn_grad", 2: "test_fn_gradgrad"}[order]
    left_out = set(known.SPARSE_INPUT) | READS_BEYOND_ITS_INPUT
    able = ((name, op) for name, op in sorted(operators().items()) if name not in left_out)
    return [name for name, op in able if _is_run(op, test) and (order == 1 or op.supports_gradgrad)]


def _is_run(op: Any, test: str) -> bool:
    for info in (*op.decorators, *op.skips):
        if getattr(info, "cls_name", None) == "TestBwdGradients" and info.test_name in {None, test}:
            names = [getattr(each, "__qualname__", "") for each in info.decorators]
            if any("skip" in name or "expectedFailure" in name for name in names):
                return False
    return True


def test_most_operators_are_accepted_by_torch() -> None:
    assert len(accepted(1)) >= ACCEPTED


def some(order: int, stride: int) -> list[str]:
    """Every so manieth of the accepted operators, and those that are wrong."""
    names = accepted(order)
    chosen = set(names[:: 1 if MODE == "full" else stride])
    return [name for name in names if name in chosen or is_wrong(name, order)]


def is_wrong(name: str, order: int) -> bool:
    """Whether the lists of this sweep say that a derivative is wrong which torch says there is."""
    if order == 1 and name in RIGHT_TO_SINGLE_PRECISION:
        return False
    if order == 2 and name in FORWARD_OVER_REVERSE_IS_WRONG:
        return True
    return name in known.ROWS_ARE_WRONG or (name in known.FORWARD_IS_WRONG and has_forward(name, order))


def has_forward(name: str, order: int) -> bool:
    """Whether torch says that there is a forward mode; without it some operators give numbers all the same."""
    op = operators()[name]
    return bool(op.supports_forward_ad if order == 1 else op.supports_fwgrad_bwgrad)


@pytest.mark.parametrize("name", some(1, STRIDE))
def test_no_false_alarm(name: str) -> None:
    failures = _failures(name, 1)
    assert bool(failures) == is_wrong(name, 1), "\n".join(map(str, failures))


@pytest.mark.parametrize("name", some(2, STRIDE_OF_SECOND_ORDER))
def test_no_false_alarm_at_second_order(name: str) -> None:
    failures = _failures(name, 2)
    assert bool(failures) == is_wrong(name, 2), "\n".join(map(str, failures))


def _failures(name: str, order: int) -> list[Finding]:
    every = is_wrong(name, order)
    failures: list[Finding] = []
    for case in itertools.islice(cases(name, every=every), None if every or MODE == "full" else SAMPLES):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = check(case.f, case.x, order=order, behaviours=False)
        failures += [each for each in report.failures if has_forward(name, order) or not _is_of_forward(each)]
        if failures:
            break
    return failures


def _is_of_forward(finding: Finding) -> bool:
    return finding.name.startswith("forward")
