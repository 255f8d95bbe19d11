"""The printed tree, word for word for small programs; bounded and literal for any other."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import pullback as pb

HERE = Path(__file__).name


def leaf(*shape):
    return torch.ones(*shape, requires_grad=True)


def line(text):
    """Where this file has a line that ends so, as the tree writes it."""
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, each in enumerate(source, start=1) if each.strip() == text]
    return f"   {HERE}:{number}  {text}"


def test_without_modules():
    x = leaf(3)
    y = (x.exp() * 2).sum()
    assert str(pb.graph(y)) == (
        "y () float32 · 3 nodes, 1 leaf · keeps 20 B\n└── Exp, Mul, Sum  → () float32 · y · uses x · keeps 20 B"
    )


def test_a_model_that_was_recorded():
    x = leaf(2, 3)
    _ = x * 1
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with pb.record():
        h = model(x)
        loss = (h * h).mean()
    assert str(pb.graph(loss)).splitlines() == [
        "loss () float32 · 7 nodes, 5 leaves · keeps 40 B",
        "├── model  Sequential · 5 nodes · keeps 32 B" + line("h = model(x)"),
        "│   ├── 0  Linear: T, Addmm  → (2, 4) float32 · uses weight, bias, x",
        "│   ├── 1  Tanh: Tanh  → (2, 4) float32 · keeps 32 B",
        "│   └── 2  Linear: T, Addmm  → (2, 1) float32 · h · uses weight, bias",
        "└── Mul, Mean  → () float32 · loss · keeps 8 B" + line("loss = (h * h).mean()"),
    ]


def test_a_model_that_was_not_recorded():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def made():
        return pb.graph(model(leaf(2, 3)).sum(), model)

    assert str(made()).splitlines() == [
        "output () float32 · 6 nodes, 5 leaves · keeps 32 B",
        "├── Sequential  5 nodes · keeps 32 B",
        "│   ├── 0  Linear: T, Addmm  → (2, 4) float32 · uses weight, bias, an unnamed leaf",
        "│   ├── Tanh  → (2, 4) float32 · keeps 32 B",
        "│   └── 2  Linear: T, Addmm  → (2, 1) float32 · uses weight, bias",
        "└── Sum  → () float32",
    ]


def test_an_input_is_no_parameter_of_the_root():
    """It has a name without a dot, as a parameter of the model itself would."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = leaf(2, 3)
    text = str(pb.graph(model(x).sum(), model))
    assert "0  Linear: T, Addmm  → (2, 4) float32 · uses weight, bias, x" in text


def test_repeated_layers():
    x = leaf(2, 3)
    _ = x * 1
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(4)])
    with pb.record():
        out = model(x)
    assert str(pb.graph(out)).splitlines() == [
        "out (2, 3) float32 · 12 nodes, 9 leaves · keeps 96 B",
        "└── model  Sequential · 12 nodes · keeps 96 B" + line("out = model(x)"),
        "    └── 0 … 3  4 × Sequential · 12 nodes · keeps 96 B",
        "        └── 0  Sequential · 3 nodes · keeps 24 B",
        "            ├── 0  Linear: T, Addmm  → (2, 3) float32 · uses weight, bias, x",
        "            └── 1  ReLU: Relu  → (2, 3) float32 · keeps 24 B",
    ]


def test_a_graph_as_first_of_its_process():
    """Not even the node that torch numbers 0 is missed."""
    program = (
        "import torch, pullback as pb\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "def f():\n"
        "    with pb.record():\n"
        "        return x.sin()\n"
        "y = f()\n"
        "print(pb.graph(y).nodes[1].place.line)\n"
    )
    found = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "5\n"), found.stderr


def check_bounds(text, lines=330, width=120):
    assert len(text.splitlines()) <= lines
    assert all(len(each) <= width for each in text.splitlines())
    assert not any(each != each.rstrip() for each in text.splitlines())
    assert not text.endswith("\n")


def test_many_different_lines_are_bounded():
    x = leaf(3)
    y = x
    operations = ["sin", "exp", "cos", "tanh", "sigmoid"]
    source = "".join(f"y = y.{operations[(i * i + i // 7) % 5]}()\n" for i in range(1000))
    space = {"y": y, "pb": pb}
    with pb.record():
        exec(compile(source, str(Path(__file__).with_name("made_up.py")), "exec"), space)
    text = str(pb.graph(space["y"]))
    check_bounds(text)


def test_many_modules_are_bounded():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(
                nn.Sequential(nn.Linear(2, 2 + i % 7), nn.Tanh(), nn.Linear(2 + i % 7, 2)) for i in range(200)
            )

        def forward(self, x):
            for part in self.parts:
                x = part(x) + x
            return x

    net = Net()
    with pb.record():
        y = net(leaf(1, 2))
    text = str(pb.graph(y))
    check_bounds(text)
    assert "more" in text


def test_three_hundred_levels():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, x):
            return self.module(x).sin()

    limit = sys.getrecursionlimit()
    model = nn.Linear(3, 3)
    for _ in range(300):
        model = Wrapper(model)
    x = leaf(2, 3)
    sys.setrecursionlimit(5_000)  # for torch's own calls
    try:
        with pb.record():
            y = model(x)
        graph = pb.graph(y)
    finally:
        sys.setrecursionlimit(limit)
    text = str(graph)
    check_bounds(text, lines=60)
    assert "… deeper; graph.html(path) shows all" in text
    assert all(len(each.lstrip("│ ├└─")) > 8 for each in text.splitlines())


NAMES = ["[red]x", "[/]", "[/red]", "[bold]", "权重", ":smile:", "<b>", "\\[x]", "{x}", "a b", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_literally(name):
    x = leaf(3)
    graph = pb.graph({name: x.sin()}, {name: x})
    shown = str(graph)
    flat = "".join(part.strip("│ ├└─") for part in shown.splitlines()).replace(" ", "")
    assert flat.count(name.replace(" ", "")) == 2
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    console.print(graph)
    assert "\x1b[31m" not in console.file.getvalue()  # no red
    plain = Console(file=io.StringIO(), width=400, color_system=None)
    plain.print(graph)
    assert plain.file.getvalue().count(name) == 2


@pytest.mark.parametrize("name", ["[red]x", "权重"])
def test_names_of_modules_are_printed_literally(name):
    nets = {name: nn.Sequential(nn.Linear(2, 2), nn.Tanh())}
    with pb.record():
        y = nets[name](leaf(1, 2)).sum()
    assert name in str(pb.graph(y, nets))


def test_source_is_printed_literally():
    x = leaf(3)
    with pb.record():
        y = [x.sin(), "[red]", "[/]"][0]
    assert str(pb.graph(y)).endswith(line('y = [x.sin(), "[red]", "[/]"][0]'))


def test_wide_signs_do_not_pass_the_margin():
    from rich.cells import cell_len

    x = leaf(3)
    text = str(pb.graph(x.sin(), {"权重" * 60: x}))
    assert all(cell_len(each) <= 120 for each in text.splitlines())


def test_many_outputs_and_leaves():
    leaves = [leaf(2) for _ in range(50)]
    outputs = {f"out{index}": each.sin() for index, each in enumerate(leaves)}
    total = torch.stack(list(outputs.values())).sum()
    head = str(pb.graph([total, *leaves], {})).splitlines()[0]
    assert "and 47 more" in head
    text = str(pb.graph(total, {}))
    check_bounds(text, lines=60)


def test_repr_is_str():
    graph = pb.graph(leaf(2).sin())
    assert repr(graph) == str(graph)
