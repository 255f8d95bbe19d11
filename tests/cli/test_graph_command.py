"""``pullback graph``: each option, each error, and what it does to the shell around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import pullback
from pullback.cli import graph as command
from pullback.cli.main import main
from pullback.cli.target import parse_input, read_inputs

ROOT = Path(__file__).parents[2]

SCRIPT = """
import torch
from torch import nn

weight = torch.full((3,), 0.5, requires_grad=True)
fixed = torch.ones(3)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
table = {"inner": model}
result = (weight * 2).sum()
number = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, x):
        return self.body(x).tanh()


class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()


class Space:
    @staticmethod
    def inner(x):
        return x.cos()


def loss():
    hidden = (weight * 3).sin()
    return hidden.sum()


def square(x):
    return (x * x * weight).sum()


def two(x, y=2.0):
    return {"first": x * y, "second": [x.exp()]}


def many(*parts):
    return sum(part.sum() for part in parts)


def only_keyword(x, *, scale):
    return x * scale


def embed(index):
    return torch.nn.functional.embedding(index, weight[:, None]).sum()


def wave(z):
    return (z * z.conj()).real.sum()


def nothing():
    return fixed * 2


def text():
    return "text"


def fails(x):
    raise ZeroDivisionError("from the user's own line")


def stops():
    raise KeyboardInterrupt


def leaves_with(x):
    raise SystemExit(7)


def prints(x):
    print("said by the user")
    return x.sin()


def born_nan(x):
    return (x * 0).sqrt().sum()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A module of a name of its own, for modules are remembered by their name."""
    script.count = getattr(script, "count", 0) + 1
    path = tmp_path / f"cli_script_{script.count}.py"
    path.write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)
    yield path
    for name in set(sys.modules) - modules:
        if name.startswith("cli_"):
            del sys.modules[name]


def invoke(*arguments):
    return CliRunner().invoke(main, ["graph", *map(str, arguments)])


def shown(*arguments):
    """What it prints, where nothing is wrong."""
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(*arguments, code=2):
    """What it says where something is; no traceback, and nothing on the standard output."""
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    assert not result.stdout
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def process(*arguments, cwd=ROOT, **kwargs):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, "-m", "pullback", *map(str, arguments)],
        cwd=cwd,
        env={**environment, **kwargs.pop("env", {})},
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


# -------------------------------------------------------------------------------------------------------------- targets


def test_a_function(script):
    out = shown(f"{script}:loss")
    assert out.splitlines()[0].startswith("output () float32 · 3 nodes, 1 leaf · keeps ")
    assert "uses weight" in out
    assert f"{script.name}:34  hidden = (weight * 3).sin()" in out
    assert f"{script.name}:35  return hidden.sum()" in out
    assert "\x1b" not in out


def test_a_function_of_inputs_which_require_grad(script):
    out = shown(f"{script}:square", "--input", "3")
    assert "uses x, x, weight" in out or "uses x, weight" in out
    assert "2 leaves" in out


def test_a_function_with_a_default(script):
    out = shown(f"{script}:two", "--input", "2,3")
    head = out.splitlines()[0]
    assert "first (2, 3) float32" in head
    assert "second[0] (2, 3) float32" in head


def test_a_function_of_any_number(script):
    assert "3 leaves" in shown(f"{script}:many", "--input", "2", "--input", "3", "--input", "4")


def test_a_module(script):
    out = shown(f"{script}:model", "--input", "5,3")
    assert "model  Sequential" in out
    assert "4 leaves" in out  # the input does not require grad
    assert "(5, 1) float32" in out.splitlines()[0]


def test_a_class_of_modules(script):
    out = shown(f"{script}:Net", "--input", "5,3")
    assert "Net" in out
    assert "body  Linear" in out
    assert "2 leaves" in out


def test_a_tensor(script):
    out = shown(f"{script}:result")
    assert "uses weight" in out
    assert out.splitlines()[0].startswith("result ()")


def test_a_name_inside_a_class(script):
    assert "Cos" in shown(f"{script}:Space.inner", "--input", "3")


def test_a_function_of_torch():
    assert "Sin" in shown("torch:sin", "--input", "3")


def test_integer_inputs(script):
    out = shown(f"{script}:embed", "--input", "4:int64")
    assert "Embedding" in out
    assert "1 leaf" in out


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_inputs(script, dtype):
    out = shown(f"{script}:wave", "--input", f"4:{dtype}", "--replay")
    assert "z" in out


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("3", (3,), torch.float32),
        ("2,3", (2, 3), torch.float32),
        ("2, 3", (2, 3), torch.float32),
        ("2,3:float64", (2, 3), torch.float64),
        ("2:bfloat16", (2,), torch.bfloat16),
        ("2:float16", (2,), torch.float16),
        ("0,3", (0, 3), torch.float32),
        ("", (), torch.float32),
        (":int32", (), torch.int32),
        ("4:bool", (4,), torch.bool),
        ("4:uint8", (4,), torch.uint8),
        ("3:complex128", (3,), torch.complex128),
    ],
)
def test_inputs_by_shape(text, shape, dtype):
    made = parse_input(text)
    assert (tuple(made.shape), made.dtype) == (shape, dtype)
    if dtype.is_floating_point and made.numel() > 1:
        assert made.std() > 0


@pytest.mark.parametrize("text", ["x", "2,x", "-1", "2:real", "2:Tensor", "2:nn", "2.5", "2;3", "2:float32:float64"])
def test_no_shape(script, text):
    said = refused(f"{script}:square", "--input", text)
    assert f"{text!r} is not a shape such as 2,3 or 2,3:float64" in said


# ------------------------------------------------------------------------------------------------- targets that are not


@pytest.mark.parametrize("text", ["", "model.py", ":loss", "model.py:", "model"])
def test_not_of_the_form(text):
    said = refused(text)
    assert f"{text!r} is not of the form module.py:function or package.module:function" in said


def test_no_file(tmp_path):
    assert f"there is no file {tmp_path}/gone.py".replace(" ", "") in refused(f"{tmp_path}/gone.py:f").replace(" ", "")


def test_no_module():
    said = refused("cli_no_such_module:f")
    assert "there is no module 'cli_no_such_module'; a file is named with its ending .py" in said
    assert "there is no module 'torch.nothing.here'" in refused("torch.nothing.here:f")


def test_no_such_name(script):
    said = refused(f"{script}:lost").replace(" ", "")
    assert "hasno'lost';ithastorch,nn,weight,fixed,model" in said


def test_no_such_name_in_an_empty_module(tmp_path):
    path = tmp_path / "cli_empty.py"
    path.write_text("", encoding="utf-8")
    assert "has no 'f'; it has nothing" in refused(f"{path}:f")


def test_what_is_no_program(script):
    said = refused(f"{script}:number", code=1)
    assert "got:" in said
    assert "fix:" in said


@pytest.mark.parametrize("name", ["nothing", "text", "fixed"])
def test_no_graph(script, name):
    said = refused(f"{script}:{name}", code=1)
    assert said.startswith("Error: ")
    assert "got:" in said
    assert "fix:" in said
    if name != "text":
        assert "no output carries a graph: nothing was recorded on the way to it" in said


@pytest.mark.parametrize(
    ("name", "inputs", "what"),
    [
        ("square", 0, "square(x) cannot be called with 0 inputs: missing a required argument: 'x'"),
        ("square", 2, "square(x) cannot be called with 2 inputs: too many positional arguments"),
        ("loss", 1, "loss() cannot be called with 1 inputs: too many positional arguments"),
        ("only_keyword", 1, "only_keyword(x, *, scale) cannot be called with 1 inputs: missing a required"),
        ("Net", 0, "Net(x) cannot be called with 0 inputs: missing a required argument: 'x'"),
        ("model", 2, "model(input"),
    ],
)
def test_inputs_that_do_not_fit(script, name, inputs, what):
    said = refused(f"{script}:{name}", *["--input", "3"] * inputs)
    assert what in said
    assert "Give one --input SHAPE for each, such as --input 8,3" in said


def test_a_class_that_needs_arguments(script):
    said = refused(f"{script}:Needs", "--input", "3")
    assert "Needs cannot be made without arguments" in said
    assert "missing a required argument: 'width'" in said


def test_an_error_of_the_users_own_is_shown_whole(script):
    found = process("graph", f"{script}:fails", "--input", "3")
    assert found.returncode == 1
    assert "ZeroDivisionError: from the user's own line" in found.stderr
    assert f'File "{script}", line' in found.stderr
    assert not found.stdout


def test_a_module_that_fails_on_import(tmp_path):
    path = tmp_path / "cli_breaks.py"
    path.write_text("import torch\n\nvalue = 1 / 0\n", encoding="utf-8")
    found = process("graph", f"{path}:f")
    assert found.returncode == 1
    assert "ZeroDivisionError: division by zero" in found.stderr
    assert f'File "{path}", line 3' in found.stderr
    result = invoke(f"{path}:f")
    assert isinstance(result.exception, ZeroDivisionError)
    assert "cli_breaks" not in sys.modules


def test_a_module_that_imports_what_is_not_there(tmp_path):
    path = tmp_path / "cli_lacks.py"
    path.write_text("import cli_nowhere_to_be_found\n", encoding="utf-8")
    found = process("graph", f"{path}:f")
    assert "ModuleNotFoundError: No module named 'cli_nowhere_to_be_found'" in found.stderr
    (tmp_path / "cli_outer.py").write_text("import cli_nowhere_to_be_found\n", encoding="utf-8")
    found = process("graph", "cli_outer:f", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'cli_nowhere_to_be_found'" in found.stderr


def test_a_module_with_a_mistake_in_writing(tmp_path):
    path = tmp_path / "cli_syntax.py"
    path.write_text("def f(:\n", encoding="utf-8")
    found = process("graph", f"{path}:f")
    assert found.returncode == 1
    assert "SyntaxError" in found.stderr


# ----------------------------------------------------------------------------------------------------- files of inputs


def test_inputs_of_a_file(script, tmp_path):
    np.savez(tmp_path / "in.npz", a=np.ones((2, 3), np.float32), b=np.arange(3.0))
    out = shown(f"{script}:many", "--inputs", tmp_path / "in.npz")
    assert "2 leaves" in out
    first, second = read_inputs(tmp_path / "in.npz")
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)
    assert second.tolist() == [0, 1, 2]


def bad_files(folder):
    """Files that are no archives of arrays, by name."""
    (folder / "text.npz").write_text("no archive", encoding="utf-8")
    (folder / "empty.npz").write_bytes(b"")
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(folder / "one.npy", np.ones(3))
    np.savez(folder / "objects.npz", a=np.array([{}, None], dtype=object))
    np.savez(folder / "words.npz", a=np.array(["a", "b"]))
    np.savez(folder / "swapped.npz", a=np.ones(3, dtype=">f4" if sys.byteorder == "little" else "<f4"))
    np.savez(folder / "whole.npz", a=np.ones(1000))
    (folder / "torn.npz").write_bytes((folder / "whole.npz").read_bytes()[:100])


@pytest.mark.parametrize(
    "name", ["text.npz", "empty.npz", "broken.npz", "one.npy", "objects.npz", "words.npz", "torn.npz"]
)
def test_bad_files_of_inputs(script, tmp_path, name):
    bad_files(tmp_path)
    said = refused(f"{script}:many", "--inputs", tmp_path / name)
    assert f"{name} is not an .npz file of arrays" in said.replace("\n", "")


def test_no_file_of_inputs(script, tmp_path):
    assert "Invalid value for '--inputs': File" in refused(f"{script}:many", "--inputs", tmp_path / "gone.npz")
    assert "is a directory" in refused(f"{script}:many", "--inputs", tmp_path)


def test_arrays_that_torch_has_not_as_they_are(script, tmp_path):
    np.savez(
        tmp_path / "odd.npz", scalar=np.float32(2), reversed=np.arange(3.0)[::-1], fortran=np.ones((2, 3), order="F")
    )
    out = shown(f"{script}:many", "--inputs", tmp_path / "odd.npz")
    assert "3 leaves" in out


def test_inputs_of_two_kinds(script, tmp_path):
    np.savez(tmp_path / "in.npz", a=np.ones(3, np.float32))
    said = refused(f"{script}:many", "--input", "3", "--inputs", tmp_path / "in.npz")
    assert "give inputs by --input or by --inputs, not by both" in said


# ------------------------------------------------------------------------------------------------------ what is written


def test_memory(script):
    out = shown(f"{script}:model", "--input", "5,3", "--memory")
    assert "kept by the graph alone" in out
    assert "├" not in out  # what is asked for instead of the tree


def test_replay(script):
    ones = shown(f"{script}:square", "--input", "3", "--replay")
    assert ones.startswith("backward pass: ")
    assert "weight" in ones
    torch.manual_seed(0)
    tens = shown(f"{script}:loss", "--replay", "--seed", "10")
    assert "10" in tens


@pytest.mark.parametrize("seed", ["ones", "mean", "2.5", "-1", "1e-3"])
def test_seeds(script, seed):
    assert shown(f"{script}:square", "--input", "3", "--replay", f"--seed={seed}").startswith("backward pass: ")


@pytest.mark.parametrize("seed", ["twos", "", "nan ones"])
def test_no_seed(script, seed):
    said = refused(f"{script}:square", "--input", "3", "--replay", f"--seed={seed}", code=1)
    assert "got:" in said
    assert "fix:" in said


def test_memory_and_replay_together(script):
    out = shown(f"{script}:loss", "--memory", "--replay")
    assert out.index("kept by the graph alone") < out.index("backward pass: ")


def test_what_the_program_prints_stays(script):
    assert "said by the user" in shown(f"{script}:prints", "--input", "3")


def test_json(script, tmp_path):
    out = shown(f"{script}:loss", "--json", tmp_path / "g.json")
    assert out == f"wrote {tmp_path / 'g.json'}\n"
    read = json.loads((tmp_path / "g.json").read_text(encoding="utf-8"))
    assert [node["operation"] for node in read["nodes"]] == ["leaf", "Mul", "Sin", "Sum"]


def test_dot(script, tmp_path):
    assert shown(f"{script}:loss", "--dot", tmp_path / "g.dot") == f"wrote {tmp_path / 'g.dot'}\n"
    assert (tmp_path / "g.dot").read_text(encoding="utf-8").startswith("digraph")


def test_all_files_at_once(script, tmp_path):
    names = {"--html": "g.html", "--svg": "g.svg", "--dot": "g.dot", "--json": "g.json"}
    asked = [part for option, name in names.items() for part in (option, tmp_path / name)]
    out = shown(f"{script}:model", "--input", "5,3", *asked)
    assert out.splitlines() == [f"wrote {tmp_path / name}" for name in names.values()]
    assert all((tmp_path / name).stat().st_size > 100 for name in names.values())


@pytest.mark.parametrize("option", ["--html", "--svg", "--dot", "--json"])
@pytest.mark.parametrize("where", ["no/such/folder/g.out", "."])
def test_where_nothing_can_be_written(script, tmp_path, option, where):
    said = refused(f"{script}:loss", option, tmp_path / where, code=1)
    assert said.startswith("Error: cannot write: ")
    assert str(tmp_path) in said.replace(" ", "")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_speaks(script, tmp_path, language):
    shown(f"{script}:loss", "--html", tmp_path / "g.html", "--lang", language)
    text = (tmp_path / "g.html").read_text(encoding="utf-8")
    assert f'lang="{"en" if language == "en" else "zh"}' in text


def test_a_language_that_is_not_known(script):
    assert "Invalid value for '--lang'" in refused(f"{script}:loss", "--lang", "fr")


def test_the_graph_is_folded_with_colours_on_a_terminal(script, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in shown(f"{script}:loss")


# ---------------------------------------------------------------------------------------------------- around it all


def test_help_and_version():
    runner = CliRunner()
    said = runner.invoke(main, ["--version"])
    assert (said.exit_code, said.output) == (0, f"pullback, version {pullback.__version__}\n")
    for flag in ("-h", "--help"):
        said = runner.invoke(main, ["graph", flag])
        assert said.exit_code == 0
        for parameter in command.graph.params:
            for name in parameter.opts:
                assert name in said.output or name == "target"
            assert isinstance(parameter, click.Argument) or parameter.help
        assert "graph" in runner.invoke(main, [flag]).output
    assert "Missing argument 'TARGET'" in refused()
    assert "No such option" in refused("x.py:f", "--colour")


def test_as_a_module():
    said = process("--version")
    assert (said.returncode, said.stdout) == (0, f"pullback, version {pullback.__version__}\n")


def package(folder):
    inside = folder / "cli_package" / "deep"
    inside.mkdir(parents=True)
    (folder / "cli_package" / "__init__.py").write_text("", encoding="utf-8")
    (inside / "__init__.py").write_text("", encoding="utf-8")
    (inside / "part.py").write_text("def f(x):\n    return x.sin()\n", encoding="utf-8")
    (inside / "whole.py").write_text(
        textwrap.dedent("""
            from .part import f
            from .. import deep

            def name(x):
                return f(x).exp()
        """),
        encoding="utf-8",
    )


def test_a_package_with_relative_imports_from_its_folder(tmp_path):
    package(tmp_path)
    said = process("graph", "cli_package.deep.whole:name", "--input", "3", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "part.py:2  return x.sin()" in said.stdout
    assert "whole.py:6  return f(x).exp()" in said.stdout
    assert "\x1b" not in said.stdout  # no colours in a pipe


def test_a_file_of_a_package_with_relative_imports(tmp_path):
    """By its path too, though Python itself would refuse to run it so."""
    package(tmp_path)
    said = process("graph", tmp_path / "cli_package/deep/whole.py:name".replace("/", os.sep), "--input", "3")
    assert said.returncode == 0, said.stderr
    assert "part.py:2  return x.sin()" in said.stdout


def test_from_another_folder(tmp_path):
    """A file finds its neighbours, wherever the command is called."""
    (tmp_path / "cli_neighbour.py").write_text("def f(x):\n    return x.sin()\n", encoding="utf-8")
    path = tmp_path / "cli_here.py"
    path.write_text("from cli_neighbour import f\n\ndef g(x):\n    return f(x).exp()\n", encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = process("graph", "../cli_here.py:g", "--input", "3", "--json", "out.json", cwd=elsewhere)
    assert (said.returncode, said.stdout) == (0, "wrote out.json\n"), said.stderr
    assert (elsewhere / "out.json").is_file()


@pytest.mark.parametrize("name", ["json", "torch", "graph"])
def test_a_file_named_as_a_library(tmp_path, name):
    """The library stays what it is, and the classes of the file are found by their module."""
    path = tmp_path / f"{name}.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "import torch\n"
        "@dataclasses.dataclass\nclass Setting:\n    scale: float = 2.0\n"
        "def f(x):\n    return x * Setting().scale\n".replace(
            "import torch\n", "" if name == "torch" else "import torch\n"
        ),
        encoding="utf-8",
    )
    said = process("graph", f"{path}:f", "--input", "3")
    assert said.returncode == 0, said.stderr
    assert "Mul" in said.stdout


def test_the_width_of_a_pipe_is_no_terminals(script):
    said = process("graph", f"{script}:loss", env={"COLUMNS": "200"})
    assert said.returncode == 0, said.stderr
    assert "hidden = (weight * 3).sin()" in said.stdout


def test_ctrl_c(script):
    result = invoke(f"{script}:stops")
    assert result.exit_code == 1
    assert "Aborted!" in result.output
    assert not isinstance(result.exception, KeyboardInterrupt)


def test_ctrl_c_from_outside(tmp_path):
    path = tmp_path / "cli_waits.py"
    path.write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it\n"
        "def f(x):\n    os.kill(os.getpid(), signal.SIGINT)\n    while True:\n        x.sin()\n",
        encoding="utf-8",
    )
    said = process("graph", f"{path}:f", "--input", "3", timeout=60)
    assert said.returncode in {1, -signal.SIGINT, 130}
    assert "Aborted!" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_program_that_exits(script):
    assert invoke(f"{script}:leaves_with", "--input", "3").exit_code == 7


def test_a_nan_is_told(script):
    out = shown(f"{script}:born_nan", "--input", "3", "--replay")
    assert "inf" in out.lower() or "nan" in out.lower()
