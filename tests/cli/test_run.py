"""``pullback run``: its options, what it prints, and what it writes."""

import json

import pytest
import torch
from click.testing import CliRunner

from pullback.cli.main import main
from pullback.cli.run import file_of
from pullback.diagnose.pages import known
from pullback.diagnose.reports.show import unknown
from pullback.diagnose.session import Session
from tests.diagnose.commands import python, run, written

FAILS = """
    import torch
    y = torch.ones(3, requires_grad=True) * 2
    y.backward()
"""
WRONG = """
    import sys, torch
    net = torch.nn.Linear(1, 1)
    ((net(torch.randn(8, 1)) - torch.randn(8)) ** 2).mean().backward()
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return written(tmp_path, fails=FAILS, wrong=WRONG, right="import torch\nprint(torch.ones(1).item())\n")


def said(*arguments):
    return CliRunner().invoke(main, ["run", *arguments])


def test_files_and_options(here):
    ended = run(here, "--trace", "--json", "out.json", "--sarif", "out.sarif", "--lang", "zh", "--color", "fails.py")
    assert ended.returncode == 1
    assert "\x1b[1;31m错误[PB101]" in ended.stderr
    assert [each["code"] for each in json.loads((here / "out.json").read_text())["diagnoses"]] == ["PB101"]
    assert json.loads((here / "out.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "PB101"


def test_empty_lists_are_written_too(here):
    ended = run(here, "--json", "out.json", "right.py")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1.0\n", "")
    report = json.loads((here / "out.json").read_text())
    assert (report["diagnoses"], report["findings"]) == ([], [])


def test_an_audit_tells_its_findings_and_keeps_the_status(here):
    ended = run(here, "--audit", "--json", "out.json", "wrong.py", "5")
    assert ended.returncode == 5
    assert ended.stderr.startswith("warning[PBA301]: ")
    assert ended.stderr.splitlines()[-1] == "audit: 1 finding(s): PBA301"
    report = json.loads((here / "out.json").read_text())
    assert [each["code"] for each in report["findings"]] == ["PBA301"]


def test_an_audit_without_findings_says_so_in_one_line(here):
    ended = run(here, "--audit", "right.py")
    assert (ended.returncode, ended.stderr) == (0, "audit: nothing found\n")


def test_an_error_that_is_not_of_autograd_is_left_alone(here):
    written(here, other="import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    plain, watched = python(here, "other.py"), run(here, "other.py")
    assert watched.stderr == plain.stderr


def test_an_unknown_error_of_autograd_gets_one_line(here, monkeypatch):
    monkeypatch.setattr("pullback.diagnose.session.causes", lambda: ())
    with pytest.raises(RuntimeError) as raised:
        torch.ones(3, requires_grad=True).exp().backward()
    report = Session().report(raised.value)
    assert not report
    assert unknown(raised.value) == (
        "pullback: this error comes from autograd, but no cause that is known here fits it "
        "(torch says: grad can be implicitly created only for scalar outputs)"
    )
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not unknown(raised.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none.py"], "There is no such program."),
        (["-m", "no_such_module"], "There is no such module."),
        ([], "name a script"),
        (["-m"], "requires an argument"),
        (["--json", "none/out.json", "right.py"], "cannot write none"),
        (["--sarif", ".", "right.py"], "cannot write ."),
        (["--level", "loud", "right.py"], "'loud' is not one of"),
    ],
)
def test_what_is_wrong_is_said_before_the_program_runs(here, arguments, text):
    result = said(*arguments)
    assert result.exit_code == 2
    assert text in result.output


def test_options_after_the_program_are_its_own(here, monkeypatch):
    seen = []
    monkeypatch.setattr("pullback.cli.run.Job.run", lambda job: seen.append(job))
    said("--trace", "right.py", "--json", "x", "-m", "y", "--")
    said("--audit", "--width", "80", "-m", "json.tool", "--json", "-x", "--", "z")
    first, second = seen
    assert (first.level, first.json_file, first.program.arguments) == ("trace", None, ["--json", "x", "-m", "y", "--"])
    assert (second.level, second.width, second.program.target) == ("audit", 80, "json.tool")
    assert second.program.arguments == ["--json", "-x", "--", "z"]


def test_a_check_of_the_path_leaves_no_file(here):
    said("--json", "out.json", "none.py")
    assert not (here / "out.json").exists()


def test_each_rank_has_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert file_of(tmp_path / "a.json", 1) == tmp_path / "a.rank1.json"
    assert file_of(tmp_path / "a.json", None) == tmp_path / "a.json"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert file_of(tmp_path / "a.json", 0) == tmp_path / "a.json"


def test_codes_lists_all():
    result = CliRunner().invoke(main, ["codes"])
    assert [line.split()[0] for line in result.output.splitlines()[1:]] == [each.code for each in known()]
    rows = json.loads(CliRunner().invoke(main, ["codes", "--json"]).output)
    assert rows[0] == known()[0].told()
    assert {"code", "level", "title", "family", "kind"} == set(rows[0])


def test_codes_and_pages_are_said_in_chinese(monkeypatch):
    monkeypatch.setattr("pullback.language._spoken", [])
    assert CliRunner().invoke(main, ["codes", "--lang", "zh"]).output.startswith("代码")
    heading = explained("PB101", "--lang", "zh").output.partition("\n")[0]
    assert heading.startswith("# PB101: ")
    assert "种子" in heading


@pytest.mark.parametrize("command", ["check", "explain", "graph", "run"])
def test_the_examples_of_a_help_text_stand_on_lines_of_their_own(command):
    text = CliRunner().invoke(main, [command, "--help"]).output
    assert f"\n  pullback {command} " in text
    assert "\\b" not in text


def explained(*arguments, **more):
    return CliRunner().invoke(main, ["explain", *arguments], **more)


def test_explain_prints_a_page():
    result = explained("pb101")
    assert result.exit_code == 0
    assert result.output.startswith("# PB101: ")
    assert "y.mean().backward()" in result.output
    assert "\x1b[" in explained("PB101", "--color").output


def test_explain_of_no_code_names_the_nearest():
    result = explained("PB1O1"[:3] + "99")
    assert result.exit_code == 2
    assert "there is no code PB199" in result.output


def test_explain_takes_a_text_from_a_log():
    text = "RuntimeError: grad can be implicitly\ncreated only for SCALAR outputs"
    for result in (explained(text), explained("-", input=text)):
        codes = [line.split()[0] for line in result.output.splitlines() if line.startswith("PB")]
        assert codes == sorted(codes)
        assert codes[0] == "PB101"
        assert "pullback run" in result.output.splitlines()[-1]
    assert explained("KeyError: 'x'").exit_code == 1


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("element 0 of tensors", "PB201"),
        ("Function 'F' returned an incorrect number of gradients (expected 2, got 1)", "PB703"),
        ("only Tensors of floating point and complex dtype can require gradients", "PB501"),
        ("AttributeError: 'float' object has no attribute 'backward'", "PB208"),
        ("AttributeError: 'tuple' object has no attribute 'backward'", "PB112"),
        ("Function AddmmBackward0 returned an invalid gradient at index 1 - got [10, 5] but expected shape compatible "
         "with [10, 4]", "PB702"),
        ("The .grad attribute of a Tensor that is not a leaf Tensor is being accessed.", "PB610"),
    ],
)  # fmt: skip
def test_explain_names_first_what_fits_the_text_best(text, codes):
    assert next(line.split()[0] for line in explained(text).output.splitlines() if line.startswith("PB")) == codes
