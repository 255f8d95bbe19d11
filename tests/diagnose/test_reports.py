"""How a diagnosis is shown: as text, in colour, in another language, as JSON and as SARIF."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pullback.diagnose.check import checks
from pullback.diagnose.reports.cells import cells, expanded, window, wrapped
from pullback.diagnose.reports.color import coloured, wants_colour
from pullback.diagnose.reports.sarif import as_sarif
from pullback.diagnose.reports.show import show, summary
from pullback.diagnose.reports.text import plain, report_lines
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark, Report, Subject
from pullback.graph.values import Place
from pullback.language import speak


def marked(file, line, text, part, what, function="<module>"):
    start = text.index(part)
    return Mark(Place(str(file), line, function), what, (start, start + len(part)), text)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def found(here):
    return Diagnosis(
        code="PB201",
        title="What was differentiated was detached on the way.",
        cause="loss was made from h.detach() at line 7, which is cut from the graph: nothing behind it "
        "is differentiated.",
        marks=(
            marked(
                here / "train.py", 112, "    loss.backward()", "loss.backward()", "this needs a graph", "Trainer.step"
            ),
            marked(here / "train.py", 7, "    return net(h.detach())", "h.detach()", "cut here", "head"),
            marked(here / "train.py", 7, "    return net(h.detach())", "net", "called here", "head"),
            marked(here / "model" / "net.py", 30, "x = f(h)", "f(h)", "made here"),
        ),
        fix=Fix(
            "Leave the detach out.",
            "return net(h)",
            (Edit(str(here / "train.py"), 7, 7, "    return net(h)"), Edit(str(here / "train.py"), 9, 8, "x = 1")),
            "high",
        ),
        tensors=(
            Subject("loss", "root", (), "float32", "cpu", None, False),
            Subject("net.0.weight", "parameter", (16, 3), "float32", "cuda:0", None, True),
        ),
        useless=("retain_graph=True: there is no graph to retain.",),
        notes=("torch counts from 0: element 0 is loss.",),
    )


TEXT = """\
error[PB201]: What was differentiated was detached on the way.
   --> train.py:112 in Trainer.step
    |
112 |     loss.backward()
    |     ^^^^^^^^^^^^^^^ this needs a graph
   ::: train.py:7 in head
    |
  7 |     return net(h.detach())
    |                ---------- cut here
    |            --- called here
   ::: model/net.py:30
    |
 30 | x = f(h)
    |     ---- made here
    |
      tensor        shape    dtype    device  grad_fn  requires_grad
      loss          ()       float32  cpu     -        False
      net.0.weight  (16, 3)  float32  cuda:0  -        True
    = cause: loss was made from h.detach() at line 7, which is cut from the graph:
      nothing behind it is differentiated.
    = fix (high confidence): Leave the detach out.
        return net(h)
    = does not help: retain_graph=True: there is no graph to retain.
    = note: torch counts from 0: element 0 is loss.
    = page: pullback explain PB201"""


def test_a_diagnosis_reads_as_those_of_compilers(found):
    assert plain(Report((found,)), 84) == TEXT
    assert str(Report((found,))).startswith("error[PB201]: ")


def test_no_line_is_wider_than_the_terminal(found):
    long = replace(found.tensors[1], name="self.model.encoder.blocks[3].attention(self.before(x), mask)")
    for width in (72, 84, 100):
        text = plain(Report((replace(found, tensors=(*found.tensors, long)),)), width)
        assert max(map(cells, text.splitlines())) <= width
        assert "self.model.e" in text


def test_several_causes_are_told_with_what_tells_them_apart(found):
    report = Report((
        replace(found, confidence="medium", apart="whether h was detached", wants="Which line detached h?"),
        replace(found, code="PB202", confidence="low", rank=3),
    ))  # fmt: skip
    text = plain(report)
    assert text.startswith("one of these causes:\n\nerror[PB201]: ")
    assert "\n\nerror[PB202] (rank 3): " in text
    assert "= cause (medium confidence): " in text
    assert "= what would tell it apart: whether h was detached\n" in text
    assert "= still open: Which line detached h? `pullback run --trace` answers this.\n" in text
    assert "`pullback run --audit` answers" in plain(replace(report, level="trace"))


def test_a_finding_is_a_warning(found):
    text = plain(Report(findings=(found,), trouble=("PB999: KeyError: 'x'",)))
    assert text.startswith("warning[PB201]: ")
    assert text.endswith("= trouble: PB999: KeyError: 'x'")


def test_nothing_found_is_nothing_written(capsys):
    show(Report())
    assert capsys.readouterr() == ("", "")
    assert str(Report()) == "no cause that is known here fits this error"
    assert not Report()


def underlined(mark, width=100):
    diagnosis = Diagnosis("PB1", "A title.", "", (mark,), Fix(""))
    return plain(Report((diagnosis,)), width).splitlines()[3:5]


def test_wide_characters_and_tabs_are_underlined_where_they_are_shown(here):
    line, under = underlined(marked(here / "a.py", 1, '    损失 = 函数("数据", 🙂).sum()', '函数("数据", 🙂)', "这里"))
    assert line == '1 |     损失 = 函数("数据", 🙂).sum()'
    assert cells(under[: under.index("^")]) == cells(line[: line.index("函数")])
    assert under.count("^") == cells('函数("数据", 🙂)')
    line, under = underlined(marked(here / "a.py", 1, "\tif x:\ty.backward()", "y.backward()", "here"))
    assert line[under.index("^") :][: under.count("^")] == "y.backward()"
    assert under == "  |             ^^^^^^^^^^^^ here"


def test_long_lines_are_cut_around_the_expression(here):
    text = "value = " + " + ".join(f"term_{number}" for number in range(60)) + ".sum()"
    line, under = underlined(marked(here / "a.py", 1, text, "term_30", "here"), 80)
    assert line.startswith("1 | …")
    assert line.endswith("…")
    assert cells(line) <= 80
    assert line[under.index("^") :][: under.count("^")] == "term_30"
    line, under = underlined(marked(here / "a.py", 1, text, text, "all of it"), 80)
    assert cells(line) <= 80
    assert under.count("^") <= 80


def test_a_long_label_goes_below(here):
    diagnosis = Diagnosis(
        "PB1", "A.", "", (marked(here / "a.py", 1, "x.backward()", "x.backward()", "word " * 30),), Fix("")
    )
    lines = plain(Report((diagnosis,)), 60).splitlines()
    assert lines[4] == "  | ^^^^^^^^^^^^"
    assert all(line.startswith("  | word") for line in lines[5:8])


def test_a_source_that_is_gone_leaves_its_place(here):
    text = plain(Report((Diagnosis("PB1", "A.", "", (Mark(Place("<stdin>", 3, "f"), "here"),), Fix("")),)))
    assert " --> <stdin>:3 in f\n" in text
    assert "3 | (the source is not at hand)\n  | here\n" in text


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("张量的形状是，三。", 8, ["张量的形", "状是，", "三。"]),
        ("a\n  b c", 80, ["a", "  b c"]),
        ("averyveryverylongword", 5, ["averyveryverylongword"]),
        ("", 5, [""]),
    ],
)
def test_text_is_wrapped(text, width, lines):
    assert wrapped(text, width) == lines


def test_what_is_cut_and_expanded():
    assert expanded("\ta\tb", (1, 2)) == ("    a   b", (4, 5))
    assert window("abc", (0, 1), 10) == ("abc", (0, 1))
    text, (start, end) = window("x" * 50 + "ab" + "y" * 50, (50, 52), 12)
    assert (text[start:end], text[0], text[-1], len(text)) == ("ab", "…", "…", 12)


def test_colour_adds_nothing_but_colour(found):
    lines = report_lines(Report((found,)), 84)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured(lines)).replace(" \n", "\n") == TEXT
    assert "\x1b[1;31merror[PB201]" in coloured(lines)


class Terminal:
    def isatty(self):
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch, tmp_path):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "file").open("w") as stream:
        assert not wants_colour(stream)
    assert wants_colour(Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


def test_the_summary_of_an_audit(found):
    assert summary(Report()) == "audit: nothing found"
    assert summary(Report(findings=(found, found))) == "audit: 2 finding(s): PB201"


def test_it_speaks_chinese(found):
    speak("zh")
    try:
        text = plain(Report((found,)))
    finally:
        speak(None)
    assert text.startswith("错误[PB201]: ")
    assert "= 修正 (把握大): " in text


def test_json_says_all_of_it(found):
    told = json.loads(json.dumps(Report((found,)).told()))
    assert (told["findings"], told["diagnoses"][0]["code"]) == ([], "PB201")
    assert told["diagnoses"][0]["lines"][1]["columns"] == [15, 25]


def test_sarif_has_what_the_standard_asks_for(found, here):
    log = json.loads(as_sarif(Report((found,), (replace(found, marks=found.marks[:1]),), trouble=("x",)), "1.2.3"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "pullback"
    assert [rule["id"] for rule in driver["rules"]] == [check.code for check in checks()]
    assert all(rule["shortDescription"]["text"] and rule["help"]["text"] for rule in driver["rules"])
    error, warning = run["results"]
    assert (error["ruleId"], error["level"], warning["level"]) == ("PB201", "error", "warning")
    assert error["message"]["text"].startswith(found.title)
    for result in run["results"]:
        if "ruleIndex" in result:
            assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for place in result["locations"] + result["relatedLocations"]:
            physical = place["physicalLocation"]
            assert physical["artifactLocation"]["uriBaseId"] == "SRCROOT"
            assert not Path(physical["artifactLocation"]["uri"]).is_absolute()
            assert physical["region"]["startLine"] >= 1
    region = error["locations"][0]["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"], region["endColumn"]) == (112, 5, 20)
    assert [place["id"] for place in error["relatedLocations"]] == [1, 2, 3]
    replaced, inserted = error["fixes"][0]["artifactChanges"][0]["replacements"]
    assert replaced == {
        "deletedRegion": {"startLine": 7, "startColumn": 1, "endLine": 8, "endColumn": 1},
        "insertedContent": {"text": "    return net(h)\n"},
    }
    assert inserted["deletedRegion"] == {"startLine": 9, "startColumn": 1, "endLine": 9, "endColumn": 1}
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == here.as_uri() + "/"
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "x"
