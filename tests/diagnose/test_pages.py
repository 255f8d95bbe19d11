"""The pages of ``docs/diagnoses`` are those of the checks."""

import re
from pathlib import Path

import pytest

from pullback.diagnose.check import Cause, causes, checks
from pullback.diagnose.pages import check_of, index, known, page, pages, program, write
from pullback.language import spoken
from tests.diagnose.harness import told

FOLDER = Path(__file__).parents[2] / "docs" / "diagnoses"
HOW = "run: python -m pullback.diagnose.pages docs/diagnoses"


def test_the_pages_are_up_to_date():
    there = {path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.md")}
    made = pages()
    assert sorted(there) == sorted(made), HOW
    stale = [name for name, text in made.items() if there[name] != text]
    assert not stale, HOW


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.code)
def test_a_page_shows_the_wrong_program_and_the_right_one(check):
    text = page(check)
    assert text.startswith(f"# {check.code}: {check.title}\n")
    assert check.page() in text
    for function in (check.bad, check.good):
        body = program(function)
        compile(body, check.code, "exec")
        assert body in text
    assert f"({check.code}.md)" in index()


def test_every_page_is_there_in_chinese():
    with spoken("zh"):
        for check in checks():
            text = page(check)
            assert text.startswith(f"# {check.code}: ")
            assert check.title not in text, check.code
            assert program(check.bad) in text
            assert re.search("[\u4e00-\u9fff]", check.page()), check.code


def test_what_is_known_is_in_the_order_of_the_codes():
    assert [each.code for each in known()] == sorted(each.code for each in known())
    assert check_of(" pb101 ").code == "PB101"
    assert check_of("PB0") is None


def test_pages_of_codes_that_are_no_more_are_removed(tmp_path):
    (tmp_path / "zh").mkdir()
    for name in ("PB000.md", "zh/PB000.md", "own.md"):
        (tmp_path / name).touch()
    write(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md")} == {*pages(), "own.md"}


@pytest.mark.parametrize("cause", [each for each in causes() if each.says], ids=lambda cause: cause.code)
def test_torch_still_says_what_a_cause_listens_for(cause):
    assert isinstance(cause, Cause)
    error = told(program(cause.bad), cause.level)["error"]
    assert error is not None, f"{cause.code}: its bad program does not fail with this torch"
    assert any(each.lower() in error.lower() for each in cause.says), f"{cause.code}: torch says now: {error}"
