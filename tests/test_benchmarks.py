"""The benchmarks: who takes part is right, who is wrong is not timed, and the READMEs have the figures of the JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
from io import StringIO
from pathlib import Path

import benchmarks.__main__ as program
import numpy as np
import pytest
import torch
from benchmarks import chart, dense, graphs, measure, readme, report, targets
from benchmarks.dense_ours import CALLED, COMPILED, PREPARED, UNCHECKED
from benchmarks.dense_problems import PROBLEMS, reference
from benchmarks.jax_peer import VARIABLE, Peer
from benchmarks.timing import turns
from click.testing import CliRunner
from rich.console import Console

ROOT = Path(__file__).parents[1]
QUICK = {problem.key: problem for problem in PROBLEMS}
# What raises beside PyTorch 2.13, and is shown so.
RAISES = {"ASDL jacobian", "ASDL empirical_direct_ntk"}


def _no_jax(monkeypatch):
    monkeypatch.setattr(Peer, "find", classmethod(lambda cls: (None, "no JAX here")))


@pytest.mark.parametrize("key", QUICK)
def test_every_contestant_agrees_with_plain_reverse_passes(key):
    case = QUICK[key].case(torch.float64, quick=True)
    expected = reference(QUICK[key], case)
    everyone = list(dense.contestants(QUICK[key], case, None, quick=True))
    results = {each.name: measure.check(each, expected, torch.float64) for each in everyone}
    assert {CALLED, UNCHECKED, PREPARED} <= set(results)
    assert sum(result.kind == "peer" for result in results.values()) >= 4
    bad = {name: (result.status, result.error, result.why) for name, result in results.items()
           if result.status != "right" and name not in RAISES}  # fmt: skip
    assert not bad


@pytest.mark.parametrize("key", ["S", "A", "C", "D", "E", "F"])
def test_the_reference_is_the_jacobian_of_finite_differences(key):
    case = QUICK[key].case(torch.float64, quick=True)
    x, step = case.x, 1e-6
    j = x.numel() // 2
    ahead, behind = (x.clone().index_put_(tuple(torch.tensor(i) for i in np.unravel_index(j, x.shape)),
                                          x.flatten()[j] + sign * step) for sign in (1, -1))  # fmt: skip
    column = (case.f(ahead) - case.f(behind)).flatten() / (2 * step)
    torch.testing.assert_close(reference(QUICK[key], case)[:, j], column, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no interpreter with JAX")
def test_jax_agrees_with_plain_reverse_passes():
    peer, about = Peer.find()
    assert peer is not None, about
    try:
        for problem in PROBLEMS:
            case = problem.case(torch.float64, quick=True)
            expected = reference(problem, case)
            everyone = [each for each in dense.contestants(problem, case, peer, quick=True) if each.kind == "jax"]
            assert everyone
            for each in everyone:
                result = measure.check(each, expected, torch.float64)
                assert result.status == "right", (problem.key, result)
                assert each.bytes()[0] >= expected.numel() * 8
    finally:
        peer.close()


def _here(name, call):
    return measure.Here(name, "peer", lambda: call)


def test_who_is_wrong_or_raises_is_shown_and_not_timed():
    right = torch.linspace(1, 2, 6, dtype=torch.float64).reshape(2, 3)

    def raises():
        raise NotImplementedError("no rule\nfor this")

    everyone = [
        _here("right", lambda: right.clone()),
        _here("by parameter", lambda: {"w": right[:, :1], "b": right[:, 1:]}),
        _here("a little off", lambda: right + 1e-9),
        _here("not a number", lambda: right * float("nan")),
        _here("too few", lambda: right[0]),
        _here("raises", raises),
    ]
    results = []
    measure.measure(everyone, right, torch.float64, results, repeats=3)
    found = {result.name: result.told() for result in results}
    assert {name: each["status"] for name, each in found.items()} == {
        "right": "right", "by parameter": "right", "a little off": "wrong", "not a number": "wrong",
        "too few": "raises", "raises": "raises"}  # fmt: skip
    assert {name: each["turns"] for name, each in found.items() if each["turns"]} == {"right": 3, "by parameter": 3}
    assert found["a little off"]["min"] is None
    assert found["a little off"]["error"] == pytest.approx(5e-10)
    assert found["raises"]["why"] == "NotImplementedError: no rule"
    said = report.failures([{"key": "X", "dtype": "float64", "ways": list(found.values())}])
    assert said is not None
    assert said.row_count == 4


def test_float32_is_held_against_a_tolerance_of_its_own():
    right = torch.ones(2, 3, dtype=torch.float64)
    assert measure.check(_here("f32", lambda: right.float() + 1e-6), right, torch.float32).status == "right"
    assert measure.check(_here("f32", lambda: right.float() + 1e-3), right, torch.float32).status == "wrong"


def test_memory_is_what_is_alive_at_the_peak():
    def call():
        for _ in range(3):
            torch.empty(1000, 1000, dtype=torch.float64).sin()  # two alive, three times
        return torch.ones(10)

    tensors, _ = measure.peak(call)
    assert 16_000_000 <= tensors < 16_100_000
    kept = [torch.empty(1000, 1000)]
    tensors, python = measure.peak(lambda: (kept.clear(), np.ones((1000, 1000)).sum()))
    assert tensors < 10_000
    assert 8_000_000 <= python < 8_200_000


def test_contestants_take_turns_there_and_back():
    order, into = [], {}

    def contestant(name, seconds):
        def turn():
            order.append(name)
            return seconds

        into[name] = []
        return turn

    found = turns({name: contestant(name, s) for name, s in (("a", 0.1), ("b", 0.1), ("slow", 9.0))}, repeats=3,
                  budget=1.0, into=into)  # fmt: skip
    assert order == ["a", "b", "slow", "b", "a", "a", "b"]
    assert found is into
    assert {name: len(each) for name, each in found.items()} == {"a": 3, "b": 3, "slow": 1}


def _entry(key, dtype="float32", **ways):
    kinds = {CALLED: "ours", COMPILED: "ours", PREPARED: "ours", "jit": "jax", "by hand: x": "hand"}
    return {
        "key": key,
        "title": key,
        "dtype": dtype,
        "shape": [1, 1],
        "ways": [
            {"name": name, "kind": kinds.get(name, "peer"), "status": "right" if least else "raises", "min": least,
             "median": least, "turns": 1, "tensor_bytes": taken, "python_bytes": 0, "error": 0.0, "why": ""}
            for name, (least, taken) in ways.items()
        ],
    }  # fmt: skip


def test_targets_are_met_missed_or_not_measured():
    ours = {CALLED: (2e-3, 3_000_000), COMPILED: (1e-3, 0), "jit": (0.9e-3, 0)}
    peers = {"fast": (7e-3, 2_000_000), "slow": (9e-3, 1), "raises": (None, None)}
    found = {each.what: each for each in targets.dense([_entry("E", **ours, **peers), _entry("E", "float64", **peers)])}
    speed = found["E: best torch peer / one call"]
    assert (speed.needed, speed.measured, speed.met, speed.other) == (3.0, pytest.approx(3.5), True, None)
    memory = found["E: memory of one call, less that peer's"]
    assert (memory.measured, memory.met) == (pytest.approx(1.0), False)
    jax = found["E: compiled / JAX jitted"]
    assert (jax.measured, jax.met) == (pytest.approx(1 / 0.9), True)
    assert {each.split(":")[0] for each in found} == {"E"}
    missing = {each.what: each.met for each in targets.dense([_entry("B", **peers)])}
    assert missing["B: best torch peer / one call"] is None
    slower = next(targets.dense([_entry("E", **{CALLED: (3e-3, 0)}, **peers)]))
    assert (slower.met, slower.told()["needed"]) == (False, "≥ 3x")
    assert report.summary([*found.values()], quick=False).row_count == len(found)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (12.3456e-6, "0.012"), (1.23456e-3, "1.23"), (0.0123456, "12.3"), (1.5, "1,500")]
)
def test_milliseconds_have_three_digits(seconds, text):
    assert report.milliseconds(seconds) == text


def test_a_record_is_written_whole_and_read_back(tmp_path):
    path = tmp_path / "new" / "record.json"
    report.write({"about": {"schema": report.SCHEMA}, "dense": [{"min": 0.000123456789}]}, path)
    assert report.read(path)["dense"] == [{"min": 0.0001235}]
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]
    report.write({"about": {"schema": 0}}, path)
    with pytest.raises(ValueError, match=r"record\.json has schema 0, not 1: run python -m benchmarks again"):
        report.read(path)


def test_the_committed_record_has_every_problem_and_says_nothing_of_whose_machine_it_was():
    record = report.read(readme.RESULTS)
    assert record["about"]["complete"]
    dtypes = ["float32"] if record["about"]["quick"] else ["float32", "float64"]
    assert [(each["key"], each["dtype"]) for each in record["dense"]] == [
        (problem.key, dtype) for problem in PROBLEMS for dtype in dtypes]  # fmt: skip
    assert {each["key"] for each in record["sparse"]} >= set(program.SPARSE)
    assert record["targets"]
    for entry in record["dense"] + record["sparse"]:
        assert entry["shape"]
        for each in entry["ways"]:
            assert set(each) == {"name", "kind", "status", "error", "why", "min", "median", "turns", "tensor_bytes",
                                 "python_bytes"}  # fmt: skip
            assert each["status"] in {"right", "wrong", "raises"}
            assert (each["turns"] > 0) == (each["min"] is not None) == (each["status"] == "right"), each
            assert each["status"] != "right" or each["min"] <= each["median"]
    text = readme.RESULTS.read_text(encoding="utf-8")
    assert not re.search(rf"\b{re.escape(platform.node() or 'nobody')}\b", text)
    assert not re.search(r"/(home|root|tmp|usr|work)/", text)


@pytest.mark.parametrize("language", readme.READMES)
def test_a_readme_has_the_figures_of_the_committed_record(language):
    path = readme.READMES[language]
    text = path.read_text(encoding="utf-8")
    block = readme.block(report.read(readme.RESULTS), language)
    assert readme.replaced(text, block) == text, f"run python -m benchmarks.readme: {path.name} is not up to date"
    for problem in PROBLEMS:
        assert f"\n| {problem.key}: " in block
    assert readme.CHART.exists()


def test_the_chinese_readme_has_no_english_words_of_ours():
    block = readme.block(report.read(readme.RESULTS), "zh")
    assert not re.findall(r"by hand|examples|a loop|inputs?\b|then J|small", block)


def test_a_readme_without_the_marks_is_left_alone():
    with pytest.raises(ValueError, match="once each"):
        readme.replaced("no marks", "new")
    assert readme.replaced(f"a {readme.START}\nold\\1\n{readme.END} b", "\\new") == "a \\new b"


def test_help_names_the_options_and_a_wrong_name_is_refused():
    runner = CliRunner()
    helped = runner.invoke(program.main, ["--help"])
    assert helped.exit_code == 0
    for option in ("--quick", "--only", "--json", VARIABLE):
        assert option in helped.output
    refused = runner.invoke(program.main, ["--only", "nothing"])
    assert refused.exit_code == 2
    assert "'nothing' is not one of" in refused.output


@pytest.mark.parametrize(("name", "part", "peer"), [("E", "dense", "func.jacrev"), ("broyden", "sparse", "by hand")])
def test_a_quick_run_from_end_to_end(name, part, peer, tmp_path, monkeypatch):
    _no_jax(monkeypatch)
    path = tmp_path / "found.json"
    run = CliRunner().invoke(program.main, ["--quick", "--only", name, "--json", str(path)], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    assert "no JAX here" in run.output
    assert "Targets, which are for the full sizes" in run.output
    record = report.read(path)
    assert record["about"]["complete"]
    (entry,) = record[part]
    assert (entry["key"], entry["plan"] != "") == (name, True)
    by_name = {each["name"]: each for each in entry["ways"]}
    assert by_name[peer]["turns"] > 1
    assert by_name[peer]["tensor_bytes"] > 0
    assert by_name[PREPARED]["status"] == "right"
    assert {each["what"].split(":")[0] for each in record["targets"]} >= {"E" if name == "E" else "Broyden 10,000"}
    if importlib.util.find_spec("matplotlib"):
        assert path.with_suffix(".png").stat().st_size > 10_000


def test_graphs_are_drawn_by_everyone(tmp_path, monkeypatch):
    _no_jax(monkeypatch)
    path = tmp_path / "found.json"
    asked = ["--quick", "--only", "graph-mlp", "--only", "graph-transformer", "--json", str(path)]
    run = CliRunner().invoke(program.main, asked, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    record = report.read(path)
    assert [entry["key"] for entry in record["graphs"]] == ["graph-mlp", "graph-transformer"]
    for entry in record["graphs"]:
        by_name = {each["name"]: each for each in entry["ways"]}
        assert by_name.keys() >= {graphs.DOT, graphs.HTML}
        assert all(each["status"] == "right" and each["turns"] and each["bytes"] for each in entry["ways"])
        first = entry["key"] == "graph-mlp"  # of which it is told what is shown
        assert set(by_name[graphs.HTML]["shows"]) == (set(graphs.SIGNS) if first else set())
        assert ("shapes of results" in by_name[graphs.DOT]["shows"]) == first
    told = [each for each in record["targets"] if each["what"].startswith("graph of the transformer")]
    assert len(told) == 2 + (graphs.DRAWN in by_name)
    assert all((each["measured"] is None) == (graphs.VIZ not in by_name) for each in told)


def test_a_graph_that_a_contestant_cannot_draw_is_told():
    def deep():
        raise RecursionError("maximum recursion depth exceeded")

    told = graphs.first_turn(graphs.VIZ, deep, "graph-lstm")
    assert (told["status"], told["min"]) == ("raises", None)
    assert told["why"] == "RecursionError: maximum recursion depth exceeded"
    entry = {"key": "graph-lstm", "title": "LSTM", "nodes": 3, "ways": [told]}
    console = Console(width=100, record=True, file=StringIO())
    console.print(*graphs.tables([entry]))
    assert "RecursionError" in console.export_text()


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch):
    _no_jax(monkeypatch)
    run_one = dense.run

    def run(problem, *args, **kwargs):
        if problem.key == "A":
            raise KeyboardInterrupt
        run_one(problem, *args, **kwargs)

    monkeypatch.setattr(dense, "run", run)
    path = tmp_path / "found.json"
    found = CliRunner().invoke(program.main, ["--quick", "--only", "dense", "--json", str(path)])
    assert found.exit_code == 130
    assert "Interrupted: what was measured so far is kept." in found.output
    assert "Traceback" not in found.output
    record = json.loads(path.read_text())
    assert not record["about"]["complete"]
    assert [each["key"] for each in record["dense"]] == ["S"]


def test_an_interrupted_problem_keeps_its_contestants(monkeypatch):
    def interrupted(contestants, reference, dtype, results, **_):
        results.append(measure.check(contestants[0], reference, dtype))
        raise KeyboardInterrupt

    monkeypatch.setattr(dense, "measure", interrupted)
    record = []
    with pytest.raises(KeyboardInterrupt):
        dense.run(QUICK["S"], torch.float32, None, record, quick=True)
    assert [each["name"] for each in record[0]["ways"]] == [CALLED]


def test_the_chart_has_the_best_library_over_ours(tmp_path):
    entry = _entry("E", **{CALLED: (2e-3, 0), PREPARED: (1e-3, 0), COMPILED: (0.5e-3, 0), "jit": (1e-4, 0),
                           "fast": (6e-3, 0), "slow": (9e-3, 0)})  # fmt: skip
    sparse = _entry("broyden", "float64", **{PREPARED: (2e-3, 0), "jit": (8e-3, 0), "by hand: x": (9e-3, 0)})
    record = {"about": report.about(None, quick=True), "dense": [entry, _entry("E", "float64")], "sparse": [sparse]}
    assert chart.rows(record) == ([chart.Row("E  E", 3.0, 12.0)], [chart.Row("broyden", None, 4.0)])
    assert not chart.draw({**record, "dense": [], "sparse": []}, tmp_path / "none.png")
    assert chart.draw(record, tmp_path / "deep" / "chart.png")
    assert (tmp_path / "deep" / "chart.png").read_bytes().startswith(b"\x89PNG")
