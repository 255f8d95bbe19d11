"""What the tensors of a graph are called: by names that are given, else by the variables of the caller."""

from __future__ import annotations

import collections
import types
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import pullback as pb
from pullback.errors import ArgumentError, GraphError, ValueMismatch

everywhere = torch.full((2,), 0.5, requires_grad=True)
hidden_by_local = torch.full((2,), 0.5, requires_grad=True)


def leaf(*shape: int) -> Tensor:
    return torch.ones(*shape or (2,), requires_grad=True)


def leaves(graph):
    """The names of the leaves, in the order of the graph."""
    return [node.name for node in graph.nodes if node.sequence is None]


def kinds(graph):
    return {node.name: node.kind for node in graph.nodes if node.sequence is None}


def unnamed(*tensors):
    """The outputs of a call whose frame has no variable for anything but the given tensors."""
    return sum((tensor * 2 for tensor in tensors), start=torch.zeros(2))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


# ------------------------------------------------------------------------------------------------------- names given

GIVEN = {
    "dict": (lambda a, b: {"left": a, "right": b}, ["left", "right"]),
    "state dict": (lambda a, b: {"0.weight": a, "0.bias": b}, ["0.weight", "0.bias"]),
    "ordered": (lambda a, b: collections.OrderedDict(w=a, v=b), ["w", "v"]),
    "proxy": (lambda a, b: types.MappingProxyType({"w": a, "v": b}), ["w", "v"]),
    "list": (lambda a, b: [a, b], ["[0]", "[1]"]),
    "tuple with others": (lambda a, b: (None, a, "text", b), ["[1]", "[3]"]),
    "named tuple": (lambda a, b: Pair(a, b), [".first", ".second"]),
    "nested": (lambda a, b: {"p": [{"q": a}], "r": (b,)}, ["p[0]['q']", "r[0]"]),
    "numbers as keys": (lambda a, b: {1: a, (2, 3): b}, ["[1]", "[(2, 3)]"]),
    "module in a dict": (lambda a, b: {"net": module_of(a, b)}, ["net.a", "net.b"]),
    "module in a list": (lambda a, b: [module_of(a, b)], ["[0].a", "[0].b"]),
    "module": (lambda a, b: module_of(a, b), ["a", "b"]),
    "parameter dict": (lambda a, b: nn.ParameterDict({"u": a, "v": b}), ["u", "v"]),
    "parameter list": (lambda a, b: nn.ParameterList([a, b]), ["0", "1"]),
    "module list": (lambda a, b: nn.ModuleList([module_of(a, b)]), ["0.a", "0.b"]),
    "module dict": (lambda a, b: nn.ModuleDict({"k": module_of(a, b)}), ["k.a", "k.b"]),
}


def module_of(a, b):
    module = nn.Module()
    module.a, module.b = a, b
    return module


@pytest.mark.parametrize("case", GIVEN)
def test_names_given(case):
    build, expected = GIVEN[case]
    inputs = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    graph = pb.graph(unnamed(*inputs), build(*inputs))
    assert sorted(leaves(graph)) == sorted(expected)
    assert {graph.nodes[edge.producer].name for edge in graph.edges} >= set(expected)


def test_a_module_names_what_torch_does():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    expected = {id(parameter): name for name, parameter in model.named_parameters()}

    def made():
        return pb.graph(model(torch.ones(1, 3, 8)), model)

    graph = made()
    assert sorted(leaves(graph)) == sorted(expected.values())
    assert set(kinds(graph).values()) == {"parameter"}


def test_given_names_come_before_the_variables():
    x = leaf()
    assert leaves(pb.graph(x * 2, {"given": x})) == ["given"]
    assert leaves(pb.graph(x * 2, {"other": leaf()})) == ["x"]


@pytest.mark.parametrize("wrong", ["x", 3, {1, 2}, len, 1.5, b"x"])
def test_names_of_a_wrong_kind(wrong):
    x = leaf()
    with pytest.raises(ArgumentError) as caught:
        pb.graph(x * 2, wrong)
    assert str(caught.value) == (
        "names= tells what to call tensors and modules, so it holds them\n"
        f"  got: {type(wrong).__name__}\n"
        '  fix: pb.graph(loss, model) or pb.graph(loss, {"x": x, "net": net})'
    )


def test_a_name_that_is_not_there_is_no_error():
    y = unnamed(leaf())
    assert leaves(pb.graph(y, {})) == [None]
    assert leaves(pb.graph(y, torch.ones(3))) == [None]


# ---------------------------------------------------------------------------------------------- the caller's variables


def test_variables_of_the_caller():
    x = leaf()
    weights = {"w": leaf(), "deep": [leaf(), (leaf(),)]}
    graph = pb.graph(unnamed(x, weights["w"], *weights["deep"][:1], weights["deep"][1][0], everywhere))
    assert sorted(leaves(graph)) == ["everywhere", "weights['deep'][0]", "weights['deep'][1][0]", "weights['w']", "x"]


def test_locals_come_before_globals():
    hidden_by_local = leaf()
    also = everywhere
    assert leaves(pb.graph(hidden_by_local * 2)) == ["hidden_by_local"]
    assert leaves(pb.graph(also * 2)) == ["also"]
    assert leaves(pb.graph(everywhere * 2)) == ["also"]


def test_a_global_hidden_by_a_local_has_no_name():
    """The name would lead the reader to another tensor."""

    def made(hidden_by_local):
        return pb.graph(globals()["hidden_by_local"] * 2)

    assert leaves(made(leaf())) == [None]


def test_a_module_in_self():
    class Trainer:
        def __init__(self):
            self.net = nn.Linear(2, 2)

        def look(self):
            return pb.graph(self.net(torch.ones(2)), self.net)

    class Net(nn.Linear):
        def look(self):
            return pb.graph(self(torch.ones(2)))

    assert sorted(leaves(Trainer().look())) == ["bias", "weight"]
    assert sorted(leaves(Net(2, 2).look())) == ["self.bias", "self.weight"]


def test_names_with_an_underscore_are_not_the_users():
    _private = leaf()
    assert leaves(pb.graph(_private * 2)) == [None]
    public = _private
    assert leaves(pb.graph(public * 2)) == ["public"]


def test_names_that_are_no_names():
    """Such as those that pytest adds to a function whose asserts it writes anew."""
    source = "y = x * 2\ngraph = look(y)"
    space = {"x": leaf(), "look": pb.graph}
    space["@py_assert1"] = space.pop("x")
    space[".0"] = space["@py_assert1"]
    exec(source.replace("x *", "globals()['@py_assert1'] *"), space)
    assert leaves(space["graph"]) == [None]


def test_one_tensor_under_two_names_has_the_first():
    first = leaf()
    second = first
    assert first is second
    assert leaves(pb.graph(second * 2)) == ["first"]
    assert leaves(pb.graph(second * 2, {"b": first, "a": second})) == ["b"]


def test_results_and_outputs_have_the_names_of_variables():
    x = leaf()
    hidden = x.sin()
    loss = hidden.sum()
    graph = pb.graph(loss)
    assert [(node.operation, node.name) for node in graph.nodes] == [
        ("leaf", "x"),
        ("Sin", "hidden"),
        ("Sum", "loss"),
    ]
    assert [output.name for output in graph.outputs] == ["loss"]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda y, z: y, ["output"]),
        (lambda y, z: (y, z), ["output[0]", "output[1]"]),
        (lambda y, z: {"a": y, "b": z}, ["a", "b"]),
        (lambda y, z: {"a": [y, z]}, ["a[0]", "a[1]"]),
        (lambda y, z: [y, torch.ones(2), z], ["output[0]", "output[2]"]),
    ],
)
def test_names_of_outputs(build, expected):
    graph = pb.graph(build(leaf() * 2, leaf() * 3), {})
    assert [output.name for output in graph.outputs] == expected


def test_a_comprehension_sees_its_own_variables():
    graphs = [pb.graph(each * 2) for each in (leaf(), leaf())]
    assert [leaves(graph) for graph in graphs] == [["each"], ["each"]]


# ------------------------------------------------------------------------- whatever else the caller's variables hold


class Raises(collections.abc.Mapping):
    def __len__(self):
        raise ZeroDivisionError

    def __iter__(self):
        raise ZeroDivisionError

    def __getitem__(self, key):
        raise ZeroDivisionError


class RaisingDict(dict):
    items = __len__ = __iter__ = lambda self: 1 / 0


class RaisingList(list):
    __len__ = __iter__ = __getitem__ = lambda self, *a: 1 / 0


def dead_proxy():
    return weakref.proxy(Raises())


def cycle():
    found = []
    found.append(found)
    found.append({"again": found})
    return found


def deep(depth=50_000):
    found = []
    for _ in range(depth):
        found = [found]
    return found


def forbidden_view():
    """Asking for its ``grad_fn`` raises."""
    base = leaf(3).clone()
    with torch.no_grad():
        view = base[0]
    base.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad mode"):
        _ = view.grad_fn
    return view


def left_over(transform):
    """A tensor that outlived the transform that made it."""
    kept = []

    def function(v):
        kept.append(v)
        return (v * v).sum()

    transform(function)(torch.ones(2, 2))
    return kept[0]


STRANGE = {
    "dead proxy": dead_proxy,
    "mapping that raises": Raises,
    "dict that raises": lambda: RaisingDict(a=1),
    "list that raises": lambda: RaisingList([1]),
    "cycle": cycle,
    "deep": deep,
    "view that torch forbids": forbidden_view,
    "lazy module": lambda: nn.LazyLinear(3),
    "lazy parameter": lambda: nn.UninitializedParameter(),
    "left over from grad": lambda: left_over(grad),
    "left over from vmap": lambda: left_over(vmap),
    "meta": lambda: torch.ones(2, device="meta", requires_grad=True),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "class": lambda: nn.Linear,
}


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*quantiz", "ignore:Lazy modules")
@pytest.mark.parametrize("case", STRANGE)
@pytest.mark.parametrize("wrapped", [False, True])
def test_strange_variables_do_no_harm(case, wrapped):
    strange = STRANGE[case]()
    if wrapped:
        strange = {"inside": [strange]}
    x = leaf()
    assert leaves(pb.graph(x * 2)) == ["x"]
    if type(strange) in {dict, list}:
        assert leaves(pb.graph(x * 2, [strange, {"x": x}])) == ["[1]['x']"]


def test_a_huge_structure_is_searched_in_part():
    huge = [[None] * 100 for _ in range(10_000)]
    x = leaf()
    huge[0][0] = x
    _other = leaf()
    huge[-1][0] = _other
    graph = pb.graph(x + _other)
    assert sorted(map(str, leaves(graph))) == ["None", "huge[0][0]"]


# ------------------------------------------------------------------------------------------------ kinds of parameters


def test_weight_tying_has_one_leaf_with_the_first_name():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model = Tied()
    graph = pb.graph(model(torch.tensor([1, 2])), model)
    assert leaves(graph) == [name for name, _ in model.named_parameters()] == ["embed.weight"]
    assert sum(edge.producer == next(n.index for n in graph.nodes if n.sequence is None) for edge in graph.edges) == 2


@pytest.mark.parametrize(
    "container", [nn.ParameterList, lambda ps: nn.ParameterDict({str(i): p for i, p in enumerate(ps)})]
)
def test_parameters_in_containers(container):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bank = container([nn.Parameter(torch.ones(2)) for _ in range(3)])

        def forward(self, v):
            for parameter in self.bank.parameters():
                v = v * parameter
            return v

    net = Net()
    graph = pb.graph(net(torch.ones(2)))
    assert leaves(graph) == [f"net.{name}" for name, _ in net.named_parameters()]
    assert set(kinds(graph).values()) == {"parameter"}


def test_functional_call_has_the_names_of_its_dict():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    params = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    out = functional_call(model, params, (torch.ones(2),))
    graph = pb.graph(out, params)
    assert sorted(leaves(graph)) == sorted(params)
    assert set(kinds(graph).values()) == {"input"}  # they are no parameters of the model
    assert sorted(leaves(pb.graph(out))) == sorted(f"params[{name!r}]" for name in params)


def test_a_subclass_of_parameter_is_a_parameter():
    class Positive(nn.Parameter):
        pass

    p = Positive(torch.ones(2))
    graph = pb.graph(p * 2)
    assert kinds(graph) == {"p": "parameter"}


def test_a_parameter_of_plain_tensor_subclass_is_one_by_its_module():
    class Marked(Tensor):
        pass

    module = nn.Module()
    module.w = nn.Parameter(torch.ones(2).as_subclass(Marked))
    graph = pb.graph(module.w * 2, module)
    assert kinds(graph) == {"w": "parameter"}


def test_inputs_without_a_name():
    model = nn.Linear(2, 1)
    graph = pb.graph(model(leaf(1, 2)), model)
    assert kinds(graph)[None] == "input"
    assert "an unnamed leaf" in str(pb.graph(leaf().sin(), {}))
    assert pb.graph(unnamed(leaf()), {}).memory().owned == 0


def test_owners_are_named():
    x = leaf(256)
    graph = pb.graph(x.exp() * x)
    assert {storage.owner for storage in graph.storages} == {"x", None}
    other = pb.graph(leaf(256).sin(), {})
    assert [storage.owner for storage in other.storages] == ["an unnamed input"]


def test_buffers_are_owners():
    model = nn.BatchNorm1d(4).eval()
    graph = pb.graph(model(leaf(3, 4)), model)
    assert {"running_mean", "running_var"} <= {storage.owner for storage in graph.storages}


# --------------------------------------------------------------------------------------------------------- the outputs


@pytest.mark.parametrize(
    ("outputs", "got"),
    [
        (torch.ones(2), "output with requires_grad=False"),
        ({"a": torch.ones(2)}, "output['a'] with requires_grad=False"),
        (
            [torch.ones(2)] * 4,
            ", ".join(f"output[{number}] with requires_grad=False" for number in range(3)),
        ),
    ],
)
def test_outputs_without_a_graph(outputs, got):
    with pytest.raises(GraphError) as caught:
        pb.graph(outputs)
    if isinstance(outputs, Tensor):
        assert caught.value.got.endswith("with requires_grad=False")
    else:
        assert caught.value.got == got
    assert caught.value.what == "no output carries a graph: nothing was recorded on the way to it"
    assert caught.value.fix == (
        "compute it from a tensor with requires_grad=True, outside torch.no_grad() and without .detach()"
    )


@pytest.mark.parametrize("nothing", [[], {}, (), None, 3.0, "y", [1, 2]])
def test_what_is_no_output(nothing):
    with pytest.raises((ArgumentError, ValueMismatch)) as caught:
        pb.graph(nothing)
    assert caught.value.fix


def test_mixed_outputs_keep_those_with_a_graph():
    x = leaf()
    graph = pb.graph({"loss": x.sum(), "metric": torch.ones(3), "x": x})
    assert [output.name for output in graph.outputs] == ["loss", "x"]


def test_a_leaf_as_output():
    x = leaf()
    graph = pb.graph(x)
    assert [node.operation for node in graph.nodes] == ["leaf"]
    assert not graph.edges
    assert graph.outputs[0][:3] == ("x", 0, 0)
    assert str(graph).splitlines()[0] == "x (2,) float32 · 0 nodes, 1 leaf · keeps 0 B"
    parameter = nn.Parameter(torch.ones(2))
    assert kinds(pb.graph([parameter, parameter * 2])) == {"parameter": "parameter"}


def test_the_same_output_twice():
    y = leaf() * 2
    graph = pb.graph([y, y])
    assert len(graph.outputs) == 2
    assert len(graph.nodes) == 2
    assert graph.outputs[0].node == graph.outputs[1].node


def test_several_outputs_of_one_node():
    x = torch.arange(6.0, requires_grad=True)
    low, middle, high = x.chunk(3)
    graph = pb.graph((high, low))
    assert [(output.name, output.number) for output in graph.outputs] == [("high", 2), ("low", 0)]
    assert middle.output_nr == 1


def test_views_and_in_place():
    x = torch.ones(2, 3, requires_grad=True)
    y = x * 2
    row = y[0]
    graph = pb.graph(row)
    assert [node.operation for node in graph.nodes] == ["leaf", "Mul", "Select"]
    y.mul_(3)  # the view's history is written anew
    graph = pb.graph([row, y])
    expected = {row.grad_fn.name().removesuffix("0").removesuffix("Backward"), "Mul", "leaf"}
    assert {node.operation for node in graph.nodes} == expected
    assert [output.facts.shape for output in graph.outputs] == [(3,), (2, 3)]
    names = {node.name for node in graph.nodes}
    assert {"x", "y", "row"} <= names


def test_inside_a_transform_of_torch_func():
    w = leaf()
    found = []

    def loss(v):
        out = (v * w).sin().sum()
        found.append(pb.graph(out))
        return out

    expected = grad(lambda v: (v * w).sin().sum())(torch.ones(2))
    torch.testing.assert_close(grad(loss)(torch.ones(2)), expected, rtol=0, atol=0)
    assert {node.operation for node in found[0].nodes} >= {"Mul", "Sin", "Sum"}


def test_the_output_of_a_transform():
    w = leaf()
    out = vmap(lambda v: (v * w).sum())(torch.ones(3, 2))
    graph = pb.graph(out)
    assert leaves(graph) == ["w"]
    assert graph.outputs[0].facts.shape == (3,)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    parts = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], requires_grad=True, layout=layout)
    graph = pb.graph(torch.nested.to_padded_tensor(parts * parts, 0.0).sum())
    assert leaves(graph) == ["parts"]
    assert "Mul" in str(graph)
    assert graph.to_json()


def test_the_frame_keeps_nothing_longer():
    """Looking at the caller's variables must not keep what they held."""
    x = leaf()
    big = torch.ones(1000)
    gone = weakref.ref(big)
    graph = pb.graph(x * 2)
    del big
    assert gone() is None
    assert leaves(graph) == ["x"]
