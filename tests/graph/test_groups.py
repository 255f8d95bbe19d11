"""The tree of a graph: every node once, repetitions that really repeat, whatever the modules around the nodes are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import pullback as pb
from pullback.graph.groups import Branch, _repetitions, grouped
from pullback.graph.values import Facts, ModuleCall, Node
from tests.graph.programs import PROGRAMS

FACTS = Facts((2,), torch.float32, torch.device("cpu"))


def node(index, operation="Mul", path=(), kind="operation"):
    """A node of these modules, each a name or a name and a number."""
    calls = tuple(ModuleCall(*(each if isinstance(each, tuple) else (each, "Kind", 0))) for each in path)
    is_leaf = kind in {"parameter", "input"}
    return Node(
        index, "leaf" if is_leaf else operation, kind, (FACTS,), () if is_leaf else (FACTS,), None, None, calls, (), "",
        False, None if is_leaf else index,
    )  # fmt: skip


def branches(tree):
    stack, found = [tree], []
    while stack:
        branch = stack.pop()
        found.append(branch)
        stack += [child for child in branch.children if isinstance(child, Branch)]
    return found


def signature(part, nodes):
    """What a part consists of, computed plainly: operations and shapes in order, with the modules' kinds."""
    if not isinstance(part, Branch):
        each = nodes[part]
        return None if each.sequence is None else (each.operation, each.produces, each.receives)
    inside = [found for child in part.children if (found := signature(child, nodes)) is not None]
    if part.times:
        inside = inside[:1] * part.times
    return ("" if part.is_step or part.times else part.detail, *inside)


def unfolded(part, nodes):
    """The operations of a part in order, without the folding; of one that has only leaves, these."""
    inside = [nodes[i] for i in part_nodes(part)]
    operations = [(each.operation, each.produces) for each in inside if each.sequence is not None]
    return operations or [(each.kind, each.receives) for each in inside]


def part_nodes(part):
    return list(part.nodes()) if isinstance(part, Branch) else [part]


def check(nodes):
    tree = grouped(nodes)
    assert sorted(tree.nodes()) == list(range(len(nodes)))
    found = branches(tree)
    keys = [branch.key for branch in found]
    assert len(set(keys)) == len(keys)
    for branch in found:
        assert branch.children or branch is tree
        if branch.times:
            assert branch.times == len(branch.children) >= 3
            first, *rest = [unfolded(part, nodes) for part in branch.children]
            assert first
            assert all(part == first for part in rest)
        assert str(branch.times) in branch.label + branch.detail or not branch.times
    return tree


paths = st.lists(st.sampled_from(["a", "a.b", "a.b.0", "a.b.1", "c", ("a", "Kind", 1), ""]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Mul", "Sin", "T"]), paths, st.sampled_from(["operation", "parameter", "custom"])),
        max_size=40,
    )
)
@example([("Mul", path, "parameter") for path in (["a"] * 4, ["a.b", *["a"] * 3], ["a.b.0", *["a"] * 3])])
def test_every_node_is_in_the_tree_once(parts):
    nodes = [node(index, operation, path, kind) for index, (operation, path, kind) in enumerate(parts)]
    tree = check(nodes)
    for branch in branches(tree):
        if branch.key.startswith("m"):
            inside = {nodes[index].calls[:depth] for index in branch.nodes() for depth in range(1, 5)}
            common = set.intersection(*({nodes[i].calls[:d] for d in range(1, 5)} for i in branch.nodes()))
            assert common, inside


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["Mul", "Sin"]), min_size=1, max_size=4), st.integers(3, 9), st.integers(0, 3))
@example(["Mul", "Sin"], 3, 0)
def test_a_unit_that_follows_itself_is_folded(unit, times, rest):
    operations = ["Exp"] * rest + unit * times + ["Log"] * rest
    tree = check([node(index, operation) for index, operation in enumerate(operations)])
    folded = [branch for branch in branches(tree) if branch.times]
    if len(set(unit)) == 1:
        assert not folded  # the same small operation again and again is told by its line
    else:
        assert sum(len(list(branch.nodes())) for branch in folded) >= 3 * len(unit) or len(unit) > 2


signatures = st.lists(st.integers(0, 3), max_size=60)


@settings(max_examples=500, deadline=None)
@given(
    signatures | st.builds(lambda unit, times: unit * times, st.lists(st.integers(0, 3), max_size=8), st.integers(3, 8))
)
def test_stretches_do_not_overlap_and_really_repeat(values):
    found = _repetitions(np.array(values, dtype=np.int64))
    at = 0
    for start, length, times in found:
        assert start >= at
        assert length >= 1
        assert times >= 3
        at = start + length * times
        assert at <= len(values)
        unit = values[start : start + length]
        assert values[start:at] == unit * times
    for start in range(len(values) - 2):  # whatever repeats three times is in or beside a stretch
        if values[start] == values[start + 1] == values[start + 2]:
            assert any(s < start + 3 and start < s + n * t for s, n, t in found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 1], []),
        ([1, 1, 1], [(0, 1, 3)]),
        ([0, 1, 2, 1, 2, 1, 2, 0], [(1, 2, 3)]),
        ([1, 2, 1, 2, 1, 2, 1], [(0, 2, 3)]),
        ([5] * 1000, [(0, 1, 1000)]),
    ],
)
def test_stretches(values, expected):
    assert _repetitions(np.array(values, dtype=np.int64)) == expected


def test_a_unit_longer_than_is_looked_for():
    values = list(range(600)) * 3
    assert _repetitions(np.array(values)) == []


def labels(tree):
    return [(child.label, child.detail) if isinstance(child, Branch) else child for child in tree.children]


def test_layers_of_a_list_are_folded():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(5)], nn.Linear(3, 1))
    with pb.record():
        out = model(torch.ones(2, 3, requires_grad=True))
    graph = pb.graph(out, model)
    check(graph.nodes)
    (whole,) = graph.tree.children
    assert labels(whole)[0] == ("0 … 4", "5 × Sequential")
    assert labels(whole)[-1] == ("5", "Linear")


def test_layers_that_differ_are_not_folded():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), act()) for act in (nn.Tanh, nn.Sigmoid, nn.Tanh)])
    with pb.record():
        out = model(torch.ones(2, 3))
    tree = pb.graph(out, model).tree
    assert not any(branch.times for branch in branches(tree))


def test_layers_of_other_widths_are_not_folded():
    model = nn.Sequential(*[nn.Linear(width, width + 1) for width in range(2, 7)])
    with pb.record():
        out = model(torch.ones(2, 2))
    assert not any(branch.times for branch in branches(pb.graph(out, model).tree))


def test_steps_of_a_loop_are_folded():
    x = torch.ones(3, requires_grad=True)
    y = x
    for _ in range(10):
        y = (y * x).sin()
    (step, *_) = [branch for branch in branches(pb.graph(y).tree) if branch.times]
    assert step.label == "10 × Mul, Sin"
    assert [part.label for part in step.children] == [f"step {number}" for number in range(1, 11)]


def test_a_module_called_again_is_numbered():
    model = nn.Linear(3, 3)
    with pb.record():
        out = model(model(torch.ones(1, 3)).sin()).exp()
    tree = pb.graph(out).tree
    assert [child.label for child in tree.children if isinstance(child, Branch)] == ["model (call 1)", "model (call 2)"]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_trees_of_the_programs(name):
    program = PROGRAMS[name](2_000) if name == "deep_chain" else PROGRAMS[name]()
    check(pb.graph(program.outputs, program.names).nodes)


def test_many_nodes_take_no_more_than_their_share():
    """Twice the nodes cost about twice the comparisons: no search is quadratic."""
    made = {}
    for count in (5_000, 20_000):
        operations = [("Mul", "Sin", "Exp", f"Op{index % 7}")[index % 4] for index in range(count)]
        nodes = [node(index, operation) for index, operation in enumerate(operations)]
        seen = Counting(np.array([hash(operation) for operation in operations], dtype=np.int64))
        _repetitions(seen)
        made[count] = Counting.compared
        Counting.compared = 0
        tree = grouped(nodes)
        assert len(list(tree.nodes())) == count
    assert made[20_000] <= 512 * 20_000
    assert made[20_000] <= 4.5 * made[5_000]


class Counting(np.ndarray):
    """Counts the values that are compared."""

    compared = 0

    def __new__(cls, values):
        return values.view(cls)

    def __eq__(self, other):
        Counting.compared += self.size
        return np.asarray(self) == np.asarray(other)

    __hash__ = None


def test_deep_modules_do_not_recurse():
    names = [".".join(["m"] * depth) for depth in range(1, 3_001)]
    nodes = [node(0, "Mul", names), node(1, "Sin", names[:1_000])]
    tree = grouped(nodes)
    assert sorted(tree.nodes()) == [0, 1]
    assert len(branches(tree)) == 3_001
