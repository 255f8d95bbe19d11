"""Inside which modules a node stands: recorded, as forward hooks tell it; not recorded, as far as names tell."""

from __future__ import annotations

import copy
import functools
import itertools
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import pullback as pb
from tests.graph.programs import PROGRAMS


def paths(graph):
    """The names of the modules around each operation."""
    return [tuple(call.name for call in node.calls) for node in graph.nodes if node.sequence is not None]


def by_operation(graph):
    return {
        node.operation: tuple(call.name for call in node.calls) for node in graph.nodes if node.sequence is not None
    }


class Entered(TorchFunctionMode):
    """Which modules forward was inside when a torch function returned a new node, by torch's own hooks."""

    def __init__(self, model, name=""):
        super().__init__()
        self.inside: list[tuple[str, int]] = []
        self.counts: dict[str, int] = {}
        self.made: dict[object, tuple[tuple[str, int], ...]] = {}
        dot = f"{name}." if name else ""
        self.hooks = []
        for inner, module in model.named_modules():
            full = dot + inner if inner else name
            self.hooks.append(module.register_forward_pre_hook(self.enter(full)))
            self.hooks.append(module.register_forward_hook(self.leave, always_call=True))

    def enter(self, name):
        def hook(module, args):
            self.inside.append((name, self.counts.get(name, 0)))
            self.counts[name] = self.counts.get(name, 0) + 1

        return hook

    def leave(self, module, args, result):
        self.inside.pop()

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
                self.made.setdefault(tensor.grad_fn, tuple(self.inside))
        return result

    def __exit__(self, *details):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*details)


def told_by_hooks(model, *inputs, **kwargs):
    """The output with what was recorded, and for torch's numbers of nodes the module calls that hooks saw."""
    with Entered(model) as entered, pb.record():
        out = model(*inputs, **kwargs)
    return out, {node._sequence_nr(): inside for node, inside in entered.made.items()}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Shared(nn.Module):
    """One block called three times, and its layer once more from outside."""

    def __init__(self):
        super().__init__()
        self.block = Residual(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return self.head(self.block.norm(x)).tanh()


class Wrapper(nn.Module):
    """As nn.DataParallel calls what it holds."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)


MODELS = {
    "sequential": lambda: (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.ones(2, 4)),
    "shared": lambda: (Shared(), torch.ones(2, 4)),
    "wrapped": lambda: (Wrapper(Wrapper(Residual(4))), torch.ones(2, 4)),
    "transformer": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False),
        torch.ones(2, 3, 8),
    ),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        torch.ones(2, 1, 5, 5),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_recorded_calls_are_those_that_hooks_see(name):
    model, x = MODELS[name]()
    out, truth = told_by_hooks(model, x)
    graph = pb.graph(out, model)
    compared = 0
    for node in graph.nodes:
        if node.sequence in truth:
            assert tuple((call.name, call.number) for call in node.calls) == truth[node.sequence], node.operation
            compared += 1
    assert compared >= 3
    kinds = {module: type(part).__name__ for module, part in model.named_modules()}
    assert {(call.name, call.kind) for node in graph.nodes for call in node.calls} <= set(kinds.items())


@pytest.mark.parametrize("name", ["sequential", "transformer", "convolutions"])
def test_guessed_modules_contradict_no_recorded_one(name):
    """A guess may know less, never another module, for a node that uses a parameter."""
    model, x = MODELS[name]()
    with pb.record():
        out = model(x)
    recorded = pb.graph(out, model)
    guessed = pb.graph(model(x), model)
    uses = {edge.consumer for edge in guessed.edges if guessed.nodes[edge.producer].kind == "parameter"}
    assert uses
    for index in uses:
        told, truth = guessed.nodes[index], recorded.nodes[index]
        assert told.operation == truth.operation
        mine = [call.name for call in told.calls]
        names = [call.name for call in truth.calls]
        assert mine[: len(names)] == names, told.operation  # attention uses out_proj's weight without calling it
        assert mine == names or mine[-1] == "layers.0.self_attn.out_proj" or mine[-1] == "layers.1.self_attn.out_proj"


def test_what_lies_between_two_modules_belongs_to_what_is_around_both():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Residual(4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.block(x).sin())

    net = Net()
    told = by_operation(pb.graph(net(torch.ones(1, 4))))
    assert told["Sin"] == ("net",)
    assert told["Gelu"] == ("net", "net.block", "net.block.inner")
    assert told["NativeLayerNorm"] == ("net", "net.block", "net.block.norm")


def test_modules_of_a_dict_and_a_list():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    y = second(first(torch.ones(1, 2)).tanh())
    assert set(paths(pb.graph(y, {"encode": first, "decode": second}))) == {("encode",), (), ("decode",)}
    assert set(paths(pb.graph(y, [first, second]))) == {("[0]",), (), ("[1]",)}
    assert set(paths(pb.graph(y, {"a.b": [first, {"c": second}]}))) == {("a.b[0]",), (), ("a.b[1]['c']",)}
    _held = first, second
    del first, second
    assert set(paths(pb.graph(y))) == {()}


def test_a_state_dict_tells_the_modules_too():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    params = dict(model.named_parameters())
    y = functional_call(model, params, (torch.ones(1, 2),))
    del model
    told = pb.graph(y, params)
    assert set(paths(told)) == {("0",), (), ("2",)}


def test_functional_call_recorded_is_inside_the_modules():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    params = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    with pb.record():
        y = functional_call(model, params, (torch.ones(1, 2),))
    told = pb.graph(y, model)
    assert set(paths(told)) == {("", "0"), ("", "1"), ("", "2")}


def test_a_dict_of_tensors_makes_no_modules():
    weights = {"layer.0": torch.ones(2, requires_grad=True)}
    assert set(paths(pb.graph(weights["layer.0"] * 2))) == {()}


def test_calls_are_counted():
    model = Shared()
    with pb.record():
        out = model(torch.ones(2, 4))
    graph = pb.graph(out, model)
    numbers = {}
    for node in graph.nodes:
        for call in node.calls:
            numbers.setdefault(call.name, []).append(call.number)
    assert {name: sorted(set(found)) for name, found in numbers.items()} == {
        "": [0],
        "block": [0, 1, 2],
        "block.norm": [0, 1, 2, 3],
        "block.inner": [0, 1, 2],
        "block.inner.0": [0, 1, 2],
        "block.inner.1": [0, 1, 2],
        "block.inner.2": [0, 1, 2],
        "head": [0],
    }


def test_a_leaf_stands_where_it_is_first_used():
    model = Shared()
    with pb.record():
        out = model(torch.ones(2, 4))
    graph = pb.graph(out, model)
    first = {}
    for edge in sorted(graph.edges, key=lambda edge: edge.consumer):
        first.setdefault(edge.producer, edge.consumer)
    for node in graph.nodes:
        if node.sequence is None:
            assert node.calls == graph.nodes[first[node.index]].calls


def test_a_recorded_model_that_nobody_names():
    def made():
        with pb.record():
            return nn.Sequential(nn.Linear(2, 2), nn.Tanh())(torch.ones(1, 2))

    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def run(held):
        with pb.record():
            return held[0](torch.ones(1, 2))

    out = run([model])
    _model = model
    del model
    graph = pb.graph(out)
    assert set(paths(graph)) == {("Sequential", "Sequential.0"), ("Sequential", "Sequential.1")}
    assert sorted(node.name for node in graph.nodes if node.sequence is None) == [
        "Sequential.0.bias",
        "Sequential.0.weight",
    ]
    gone = pb.graph(made())
    assert {call.name for node in gone.nodes for call in node.calls} == {"a module that is gone"}


def test_two_recorded_models_of_one_class_that_nobody_names():
    """They are told apart: one is not the other's second call."""
    _models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with pb.record():
        out = _models[1](_models[0](torch.ones(1, 2)))
    graph = pb.graph(out)
    names = [node.name for node in graph.nodes if node.sequence is None]
    assert len(set(names)) == 4


def test_modules_in_a_plain_list():
    """Which torch does not know to be inside: each has a name, and none is another's second call."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(2, 2) for _ in range(3)]

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    net = Net()
    with pb.record():
        out = net(torch.ones(1, 2))
    graph = pb.graph(out)
    assert {call.number for node in graph.nodes for call in node.calls} == {0}
    assert set(paths(graph)) == {("net", "Linear"), ("net", "Linear_2"), ("net", "Linear_3")}
    assert len({node.name for node in graph.nodes if node.sequence is None}) == 6


def test_a_copy_is_another_model():
    teacher = nn.Linear(2, 2)
    student = copy.deepcopy(teacher)
    with pb.record():
        out = student(torch.ones(1, 2)) - teacher(torch.ones(1, 2))
    graph = pb.graph(out)
    assert {call.name for node in graph.nodes for call in node.calls} == {"student", "teacher"}


def test_module_lists_are_no_calls():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
            self.by_name = nn.ModuleDict({"a": nn.Linear(2, 2)})

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.by_name["a"](x)

    net = Net()
    expected = {("net", "net.layers.0"), ("net", "net.layers.1"), ("net", "net.by_name.a")}
    assert set(paths(pb.graph(net(torch.ones(1, 2))))) == expected
    with pb.record():
        out = net(torch.ones(1, 2))
    assert set(paths(pb.graph(out))) == expected


def test_an_exception_inside_a_module_ends_its_call():
    class Breaks(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    breaks, linear = Breaks(), nn.Linear(2, 2)
    with pb.record():
        with pytest.raises(ZeroDivisionError):
            breaks(torch.ones(1, 2))
        out = linear(torch.ones(1, 2)).sin()
    told = by_operation(pb.graph(out))
    assert told["Sin"] == ()
    assert told["Addmm"] == ("linear",)


def test_a_module_called_for_its_method_alone():
    """Only a call is a call: a method that someone calls directly stands where it was called."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Residual(4)

        def forward(self, x):
            return self.body.inner[0].forward(x)

    net = Net()
    out, truth = told_by_hooks(net, torch.ones(1, 4))
    graph = pb.graph(out, net)
    checked = [node for node in graph.nodes if node.sequence in truth]
    assert checked
    assert all(tuple(call.name for call in node.calls)[:1] == ("",) for node in checked)


@pytest.mark.parametrize("name", ["transformer", "resnet18", "lstm_200", "weight_tying"])
def test_every_path_is_one_of_the_model(name):
    program = PROGRAMS[name]()
    known = {inner for inner, _ in program.names.named_modules()}
    graph = pb.graph(program.outputs, names=program.names)
    for node in graph.nodes:
        names = [call.name for call in node.calls]
        assert set(names) <= known
        for outer, inner in itertools.pairwise(names):
            assert inner.startswith(f"{outer}." if outer else "")


def test_three_hundred_levels(request):
    request.addfinalizer(functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(5_000)  # for torch's own calls
    model = nn.Linear(2, 2)
    for _ in range(300):
        model = Wrapper(model)
    out = model(torch.ones(1, 2))
    graph = pb.graph(out, model)
    assert max(len(node.calls) for node in graph.nodes) == 301
    with pb.record():
        out = model(torch.ones(1, 2))
    assert max(len(node.calls) for node in pb.graph(out, model).nodes) == 301
