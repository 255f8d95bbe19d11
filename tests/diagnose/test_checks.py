"""Every check finds its own fault, and is silent on the same program done right."""

import warnings

import pytest

from pullback.diagnose.check import checks
from tests.diagnose.harness import body, codes, told

CHECKS = checks()
# Faults that are known by a warning of torch, which not every torch gives.
WARNED = {"PBA111": "is an empty generator", "PBA141": "Full backward hook is firing"}


def is_warned_of(check):
    """Whether this torch warns of a check's bad program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check.bad()
    return any(WARNED[check.code] in str(each.message) for each in caught)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_finds_its_bad_program(check):
    if check.code in WARNED and not is_warned_of(check):
        pytest.skip("this torch does not warn of it")
    report = told(body(check.bad), check.level)
    assert not report["trouble"]
    assert check.code in codes(report), (codes(report), report["error"])
    if report["diagnoses"]:
        assert report["diagnoses"][0]["code"] == check.code
        assert report["diagnoses"][0]["lines"][0]["line"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_is_silent_on_its_good_program(check):
    report = told(body(check.good), "audit")
    assert not report["trouble"]
    assert report["error"] is None
    assert codes(report) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_has_a_page(check):
    page = check.page()
    first = page.partition("\n\n")[0]
    assert first.endswith(".")
    assert len(page) > len(first), "a page says more than one sentence"
    assert check.title.endswith(".")
    assert check.code.startswith("PB")
