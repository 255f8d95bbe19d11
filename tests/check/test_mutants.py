"""The proof by mutation: what is wrong is caught, the cause is named, and what is right passes."""

from __future__ import annotations

import pytest

from pullback.check.door import check
from tests.check.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_backward_is_caught_and_its_cause_named(mutant: Mutant) -> None:
    report = check(mutant.wrong, *mutant.inputs)
    assert not report, str(report)
    failures = [finding for finding in report.findings if not finding.harmless]
    assert (mutant.cause or "wrong gradient") in [finding.name for finding in failures], str(report)
    assert all(finding.text and finding.fix for finding in failures)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_right_twin_passes(mutant: Mutant) -> None:
    report = check(mutant.right, *mutant.inputs)
    assert report, str(report)


def test_there_are_enough_of_them_and_each_cause_occurs_in_several_operators() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 45
    causes = [mutant.cause for mutant in MUTANTS if mutant.cause is not None]
    assert len(causes) >= 33
    assert len(set(causes)) >= 20
