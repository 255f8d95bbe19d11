"""The graphs of the programs, held against what torch itself says of them: its nodes, its engine, its allocator."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from benchmarks.graph_models import ResNet18
from torch import nn
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import pullback as pb
from pullback.errors import GraphError
from tests.graph.allocator import ROUNDING, freed_by
from tests.graph.programs import PROGRAMS

SHORTER = {"deep_chain": 2_000, "wide_sum": 500}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# What torch.autograd.grad refuses, for it is made for tensor.backward() alone.
ONLY_BACKWARD = {"checkpointed_reentrant"}
ROOT = Path(__file__).parents[2]
WRITTEN = re.compile(r'\s*File "(.+)", line (\d+), in ')
every_program = pytest.mark.parametrize("name", PROGRAMS)


def build(name):
    """A program, the large graphs cut down."""
    return PROGRAMS[name](SHORTER[name]) if name in SHORTER else PROGRAMS[name]()


def tensors_of(program):
    """The outputs that have a graph."""
    return [tensor for tensor in pytree.tree_leaves(program.outputs) if tensor.requires_grad]


def root_of(tensor):
    """The node and output that a backward pass from a tensor starts at."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def reached(tensors):
    """All nodes by a plain walk over ``next_functions``, in the order in which they are met."""
    stack = [root_of(tensor)[0] for tensor in tensors]
    seen = {}
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = node.next_functions
            stack += [child for child, _ in node.next_functions if child is not None]
    return seen


def is_leaf(node):
    return node.name() == "torch::autograd::AccumulateGrad"


def matched(graph, tensors):
    """The number in the graph of each of torch's nodes, found by walking both at once along the same arguments."""
    into = {(edge.consumer, edge.input): edge for edge in graph.edges}
    assert len(into) == len(graph.edges), "an argument has two edges"
    ends = [(output.node, output.number) for output in graph.outputs]
    roots = [root_of(tensor) for tensor in tensors]
    assert [number for _, number in ends] == [number for _, number in roots]
    found = {}
    stack = [(node, index) for (node, _), (index, _) in zip(roots, ends, strict=True)]
    while stack:
        node, index = stack.pop()
        if node in found:
            assert found[node] == index, f"{node.name()} is in the graph twice"
            continue
        found[node] = index
        for argument, (child, number) in enumerate(node.next_functions):
            edge = into.pop((index, argument), None)
            assert (edge is None) == (child is None)
            if child is not None:
                assert edge.output == number
                stack.append((child, edge.producer))
    assert not into, "the graph has edges that torch has not"
    return found


def parameters_of(names):
    """Names by the identity of what they name, as torch tells them."""
    named = names.named_parameters() if isinstance(names, nn.Module) else (names or {}).items()
    return {id(tensor): name for name, tensor in named}


def gradients(tensors, seeds=None):
    """torch's own, for the leaves in the order in which a walk meets them."""
    leaves = [node.variable for node in reached(tensors) if is_leaf(node)]
    seeds = seeds or [torch.ones_like(tensor) for tensor in tensors]
    return torch.autograd.grad(tensors, leaves, seeds, retain_graph=True, allow_unused=True)


def assert_same(one, other):
    """Both None, or equal bit for bit."""
    assert (one is None) == (other is None)
    if one is not None:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


class Watched(TorchFunctionMode):
    """Every tensor that a torch function returned, by the node that made it: what forward itself says of shapes."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(result):
            if type(tensor) is torch.Tensor and tensor.grad_fn is not None:
                self.made[tensor.grad_fn, tensor.output_nr] = (tuple(tensor.shape), tensor.dtype, tensor.device)
        return result


# --------------------------------------------------------------------------------------------------- nodes and edges


@every_program
def test_every_node_is_there_once_and_every_edge(name):
    program = build(name)
    tensors = tensors_of(program)
    graph = pb.graph(program.outputs, names=program.names)
    expected = reached(tensors)
    found = matched(graph, tensors)
    assert found.keys() == expected.keys()
    assert sorted(found.values()) == list(range(len(graph.nodes)))
    assert [node.index for node in graph.nodes] == list(range(len(graph.nodes)))
    assert all(edge.producer < edge.consumer for edge in graph.edges)
    for node, index in found.items():
        mine = graph.nodes[index]
        assert (mine.operation == "leaf") == is_leaf(node) == (mine.sequence is None)
        assert is_leaf(node) or (mine.operation in node.name() and mine.sequence == node._sequence_nr())
        assert (mine.kind == "custom") == isinstance(node, torch.autograd.function.BackwardCFunction)
        assert len(mine.receives) == len(node.next_functions)


@every_program
def test_shapes_and_dtypes_are_those_of_the_forward(name):
    """What torch functions returned while the program ran, and beyond those what torch keeps for its own check."""
    with Watched() as watched, DisableTorchFunction() if name == "compiled" else nullcontext():
        program = build(name)
    tensors = tensors_of(program)
    graph = pb.graph(program.outputs, names=program.names)
    found = matched(graph, tensors)
    seen = 0
    for (node, number), expected in watched.made.items():
        if node in found:
            facts = graph.nodes[found[node]].produces[number]
            assert (facts.shape, facts.dtype, facts.device) == expected
            seen += 1
    assert seen >= 1 or name == "compiled"  # which no mode looks into
    for node, index in found.items():
        mine = graph.nodes[index]
        told = [(tuple(each.shape), each.dtype, each.device) for each in node._input_metadata]
        assert [(each.shape, each.dtype, each.device) for each in mine.produces] == told
        for received, (child, number) in zip(mine.receives, node.next_functions, strict=True):
            assert received == (None if child is None else graph.nodes[found[child]].produces[number])
    for output, tensor in zip(graph.outputs, tensors, strict=True):
        assert (output.facts.shape, output.facts.dtype) == (tuple(tensor.shape), tensor.dtype)


@every_program
def test_leaves_have_the_names_that_torch_gives_them(name):
    program = build(name)
    names = parameters_of(program.names)
    graph = pb.graph(program.outputs, names=program.names)
    found = matched(graph, tensors_of(program))
    leaves = {node: index for node, index in found.items() if is_leaf(node)}
    assert leaves
    for node, index in leaves.items():
        mine = graph.nodes[index]
        if id(node.variable) in names:
            assert mine.name == names[id(node.variable)]
        assert mine.kind == ("parameter" if isinstance(node.variable, nn.Parameter) else "input")
        assert mine.produces[0].shape == tuple(node.variable.shape)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in {"compiled", "deep_chain", "wide_sum"}])
def test_the_recorded_line_is_that_of_anomaly_detection(name):
    """Which notes a stack for every node: its innermost line in a file that is not a library's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        with torch.autograd.detect_anomaly(check_nan=False), pb.record():
            program = PROGRAMS[name](10) if name == "lstm_200" else build(name)
    graph = pb.graph(program.outputs, names=program.names)
    compared = 0
    for node, index in matched(graph, tensors_of(program)).items():
        lines = [found for entry in node.metadata.get("traceback_", ()) if (found := WRITTEN.match(entry))]
        mine = [found for found in lines if Path(found[1]).is_relative_to(ROOT) and "site-packages" not in found[1]]
        if mine and not is_leaf(node):
            place = graph.nodes[index].place
            assert place is not None, node.name()
            assert (place.file, str(place.line)) == (mine[-1][1], mine[-1][2]), node.name()
            compared += 1
    assert compared >= 1


LARGE = """
import sys
from collections import Counter
import pullback as pb
from tests.graph.programs import PROGRAMS

program = PROGRAMS["deep_chain"](100_000)
graph = pb.graph(program.outputs, names=program.names)
assert len(graph.nodes) == 100_001
assert len(graph.edges) == 100_000
assert Counter(node.operation for node in graph.nodes) == {"Add": 100_000, "leaf": 1}
assert graph.nodes[0].name == "x"
assert len(str(graph).splitlines()) < 100
if sys.argv[1] == "graph first":
    del graph
    program.outputs = None
else:
    program.outputs = None
    del graph
print("all gone")
"""


@pytest.mark.parametrize("order", ["graph first", "outputs first"])
def test_a_hundred_thousand_nodes_come_and_go(order):
    """In a process of its own: what recurses when they go ends the process."""
    found = subprocess.run([sys.executable, "-c", LARGE, order], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "all gone\n"), found.stderr[-2000:]


# ------------------------------------------------------------------------------------------------------- what is said


@every_program
def test_it_prints_a_bounded_number_of_lines(name):
    program = build(name)
    graph = pb.graph(program.outputs, names=program.names)
    text = str(graph)
    assert 2 <= len(text.splitlines()) <= 100
    assert max(map(len, text.splitlines())) <= 120
    again = pb.graph(program.outputs, names=program.names)
    assert str(again) == text


@every_program
def test_json_goes_round(name):
    program = build(name)
    graph = pb.graph(program.outputs, names=program.names)
    told = graph.to_json()
    text = told if isinstance(told, str) else json.dumps(told, allow_nan=False)
    read = json.loads(text)
    assert json.loads(json.dumps(read)) == read
    assert len(read["nodes"]) == len(graph.nodes)
    assert [each["operation"] for each in read["nodes"]] == [node.operation for node in graph.nodes]
    assert [(each["producer"], each["output"], each["consumer"], each["input"]) for each in read["edges"]] == [
        (edge.producer, edge.output, edge.consumer, edge.input) for edge in graph.edges
    ]
    assert [each["bytes"] for each in read["storages"]] == [storage.bytes for storage in graph.storages]


@every_program
def test_it_is_drawn(name):
    program = build(name)
    graph = pb.graph(program.outputs, names=program.names)
    dot = graph.dot()
    assert dot.startswith("digraph")
    assert dot.count("->") >= len(graph.edges) if len(graph.nodes) < 100 else "->" in dot
    svg = graph.svg()
    assert svg.lstrip().startswith("<svg")
    assert svg.rstrip().endswith("</svg>")


# ------------------------------------------------------------------------------------------------ nothing is changed


@every_program
def test_looking_changes_nothing(name):
    program = build(name)
    tensors = tensors_of(program)
    nodes = reached(tensors)
    leaves = [node.variable for node in nodes if is_leaf(node)]
    watched = [*leaves, *tensors]

    def state():
        return [(t.requires_grad, t.grad_fn, t._version, t._backward_hooks and len(t._backward_hooks)) for t in watched]

    before, random = state(), torch.random.get_rng_state()
    graph = pb.graph(program.outputs, names=program.names)
    for tell in (graph.memory, graph.to_json, graph.dot, graph.svg, lambda: str(graph)):
        tell()
    assert state() == before
    assert reached(tensors) == nodes
    assert all(leaf.grad is None for leaf in leaves)
    assert torch.is_grad_enabled()
    assert torch.equal(torch.random.get_rng_state(), random)
    if name in ONLY_BACKWARD:
        return
    again = build(name)
    others = tensors_of(again)
    for mine, untouched in zip(gradients(tensors), gradients(others), strict=True):
        assert_same(mine, untouched)


# ------------------------------------------------------------------------------------------------------------- replay


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ONLY_BACKWARD])
def test_a_replay_ends_in_the_gradients_of_torch(name):
    program = build(name)
    tensors = tensors_of(program)
    seeds = pytree.tree_map(torch.randn_like, program.outputs)
    expected = gradients(tensors, pytree.tree_leaves(seeds))
    graph = pb.graph(program.outputs, names=program.names)
    leaves = [(node, index) for node, index in matched(graph, tensors).items() if is_leaf(node)]
    replay = graph.replay(seeds)
    assert replay.gradients.keys() == {index for _, index in leaves}
    by_leaf = dict(zip((node for node in reached(tensors) if is_leaf(node)), expected, strict=True))
    for node, index in leaves:
        assert_same(replay.gradients[index], by_leaf[node])
        assert node.variable.grad is None
    for mine, before in zip(gradients(tensors, pytree.tree_leaves(seeds)), expected, strict=True):
        assert_same(mine, before)  # nothing was freed, and no hook was left


@pytest.mark.parametrize("name", ["mlp", "cnn", "decoder", "rnn", "maml", "custom_function", "in_place_and_views",
                                  "unused_outputs", "complex_numbers", "diamonds", "broadcast_and_expand",
                                  "article_vector", "article_matrix", "article_multi_task"])  # fmt: skip
def test_what_comes_in_is_the_gradient_by_that_tensor(name):
    """For each node by a backward pass of its own, which ends there."""
    program = build(name)
    tensors = tensors_of(program)
    seeds = pytree.tree_map(torch.ones_like, program.outputs)
    graph = pb.graph(program.outputs, names=program.names)
    found = matched(graph, tensors)
    steps = {step.node: step for step in graph.replay(seeds).steps}
    assert steps.keys() <= set(found.values())
    for node, index in found.items():
        if index not in steps:
            continue
        edges = [torch.autograd.graph.GradientEdge(node, number) for number in range(len(node._input_metadata))]
        told = torch.autograd.grad(tensors, edges, pytree.tree_leaves(seeds), retain_graph=True, allow_unused=True)
        for cotangent, statistics in zip(told, steps[index].incoming, strict=True):
            if cotangent is None or statistics is None:
                assert statistics is None or not statistics.norm
                continue
            assert statistics.shape == tuple(cotangent.shape)
            norm = torch.linalg.vector_norm(cotangent.to(torch.complex128 if cotangent.is_complex() else torch.float64))
            assert statistics.norm == pytest.approx(norm.item(), rel=1e-6, abs=1e-12)
            assert statistics.zeros == pytest.approx((cotangent == 0).double().mean().item())


def test_a_replay_adds_to_no_gradient_where_only_backward_may_run():
    program = PROGRAMS["checkpointed_reentrant"]()
    graph = pb.graph(program.outputs, names=program.names)
    with pytest.raises(GraphError, match="reentrant checkpointing runs only in a backward pass that adds"):
        graph.replay()
    assert all(parameter.grad is None for parameter in program.names.parameters())
    program.outputs.backward()
    assert all(parameter.grad is not None for parameter in program.names.parameters())


# ------------------------------------------------------------------------------------------------------------- memory

MEASURED = [
    "mlp", "cnn", "cnn_evaluated", "resnet18", "transformer", "decoder", "rnn", "lstm_200", "lstm", "gru", "attention",
    "multihead_attention", "vae", "gan_step", "diffusion_step", "maml", "gradient_penalty", "shared_storage", "fourier",
    "weight_tying", "frozen_parts", "custom_function", "mixed_precision", "complex_numbers", "order_statistics",
    "linear_algebra", "unused_outputs", "zero_dim_and_empty", "checkpointed_reentrant", "article_custom_layer",
]  # fmt: skip
# What saves by hooks, and what is written in place: Python cannot see all that they keep.
HIDDEN = ["checkpointed", "in_place_and_views"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MEASURED + HIDDEN)
def test_the_bytes_kept_are_those_that_the_allocator_takes_back(name, device):
    """The outputs go first, the graph last, and all that is named lives on: what is freed then, the graph alone held.

    What the Graph told of memory outlives it all: were it to hold a tensor, that would not be freed.
    """
    kept = []

    def make():
        with torch.device(device):
            program = build(name)
        tensors = tensors_of(program)
        graph = pb.graph(program.outputs, names=program.names)
        leaves = [node.variable for node in reached(tensors) if is_leaf(node)]
        kept.extend([graph.memory(), graph.storages, program.names, leaves])
        return [root_of(tensor)[0] for tensor in tensors]

    freed = freed_by(make, device=device)
    memory, storages = kept[:2]
    mine = [storage.bytes for storage in storages if storage.owner is None]
    assert memory.kept == sum(mine)
    assert sum(row.bytes for row in memory.by_operation()) == sum(row.bytes for row in memory.by_module()) == sum(mine)
    assert bool(memory.hidden) == (name in HIDDEN)
    told = sum(-(-each // ROUNDING[device]) * ROUNDING[device] for each in mine)
    assert told < freed if memory.hidden else told == freed


# ---------------------------------------------------------------------------------------------- the programs themselves


def test_the_residual_network_is_the_published_one():
    names = [name for name, _ in ResNet18().named_parameters()]
    assert sum(parameter.numel() for parameter in ResNet18().parameters()) == 11_689_512
    assert len(names) == 62
    assert {"conv1.weight", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "layer2.0.downsample.1.weight"} <= set(names)


def test_the_programs_have_the_nodes_they_are_there_for():
    """All kinds of nodes that torch makes: were one program to lose its own, its tests would say nothing."""

    def kinds(name):
        return {node.name().rpartition("::")[2] for node in reached(tensors_of(build(name)))}

    assert {"CopySlices", "AsStridedBackward0", "UnbindBackward0"} <= kinds("in_place_and_views")
    assert {"PolarBackward", "CarelessBackward"} <= kinds("custom_function")
    assert "CheckpointFunctionBackward" in kinds("checkpointed_reentrant")
    assert "CompiledFunctionBackward" in kinds("compiled")
    assert "TanhBackwardBackward0" in kinds("gradient_penalty") | kinds("maml")
    assert "EmbeddingBackward0" in kinds("embedding_sparse")
    assert any("ScaledDotProduct" in kind for kind in kinds("attention"))
    assert "ToCopyBackward0" in kinds("mixed_precision")
    assert any("Rnn" in kind or "Lstm" in kind for kind in kinds("lstm"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_the_same_at_each_call(name):
    one, other = build(name), build(name)
    assert one.outputs is not other.outputs
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
