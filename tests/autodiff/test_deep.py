"""A chain of 100,000 nodes is looked at and let go of; in processes of their own, which a stack overflow would end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pullback as pb
from pullback.autodiff import deep, reach
from pullback.autodiff.deep import SAFE, free_gently

ROOT = Path(__file__).parents[2]

PROGRAM = """
import gc, sys
import torch
import pullback as pb
from pullback.autodiff import reach

N = int(sys.argv[2])


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t + 1

    @staticmethod
    def backward(ctx, u):
        return u


def plain(x):
    for _ in range(N):
        x = x + 1
    return [x]


def saved(x):
    for _ in range(N):
        x = x.sin()
    return [x]


def custom(x):
    for _ in range(N):
        x = Custom.apply(x)
    return [x]


def dag(x):
    for _ in range(N // 2):
        x = x + x.sin()
    return [x]


def branches(x):
    a, b = x, x * 2
    for _ in range(N // 2):
        a, b = a + 1, b * 2
    return [a + b]


def two_outputs(x):
    for _ in range(N // 2):
        x = x + 1
    y = x
    for _ in range(N // 2):
        y = y + 1
    return [x, y]


def comb(x):
    "A long chain with a side branch at each node."
    total = x
    for _ in range(N):
        x = x + 1
        total = total + x.sin()
    return [total]


class Token:
    "Sits in the first node: goes when that goes."


def sentinel(y, flag):
    node = y.grad_fn
    while node.next_functions and node.next_functions[0][0].next_functions:
        node = node.next_functions[0][0]
    import weakref
    token = Token()
    weakref.finalize(token, flag.append, True)
    node.metadata["token"] = token


def case(build, look, drop):
    x = torch.ones((), requires_grad=True)
    outputs = globals()[build](x)
    found = looked(look, outputs, x)
    # only what was walked to its end may be walked again
    watched = build != "comb" and drop != "half" and look in {"graph", "nodes", "twice", "reached"}
    gone = []
    if watched:
        sentinel(outputs[-1], gone)
    if drop == "found first":
        found = None
    if drop == "half":
        part = outputs[-1].grad_fn
        for _ in range(N // 4):
            part = part.next_functions[0][0]
        outputs = found = None
        part = None
    if drop == "after backward":
        for each in outputs:
            each.backward(retain_graph=True)
        each = None
    outputs = None
    found = None
    gc.collect()
    assert gone == [True] * watched, "the first node is still there"


def looked(look, outputs, x):
    if look == "graph":
        return pb.graph(outputs)
    if look == "twice":
        return [pb.graph(outputs), pb.graph(outputs)]
    if look == "nodes":
        return list(reach.nodes(outputs))
    if look == "nodes one by one":
        return sum(1 for _ in reach.nodes(outputs))
    if look == "nodes in part":
        for count, _ in enumerate(reach.nodes(outputs)):
            if count == N // 2:
                return None
    if look == "reached":
        return reach.reached(outputs, [torch.ones((), requires_grad=True), x])
    if look == "reached early":
        return reach.reached([outputs[-1]], [outputs[0]])
    assert look == "grad"
    return pb.grad(outputs[0], x, retain_graph=True)


build, _, *cases = sys.argv[1:]
for each in cases:
    print(each, flush=True)
    case(build, *each.split(", "))
print("all gone")
"""

BOTH = ["graph, outputs first", "graph, found first"]
CASES = {
    "plain": [
        *BOTH,
        "nodes, outputs first",
        "nodes, found first",
        "nodes one by one, outputs first",
        "nodes in part, outputs first",
        "reached, outputs first",
        "grad, found first",
        "graph, half",
    ],
    "saved": [*BOTH, "twice, found first", "reached, outputs first", "graph, half", "graph, after backward"],
    "custom": [*BOTH, "nodes one by one, outputs first", "reached, outputs first"],
    "dag": [*BOTH, "nodes one by one, outputs first", "grad, found first"],
    "branches": [*BOTH, "nodes one by one, outputs first", "nodes in part, outputs first"],
    "two_outputs": [*BOTH, "reached early, outputs first"],
    "comb": ["graph, outputs first"],
}


NODES = {"plain": 100_000, "saved": 100_000, "two_outputs": 100_000}  # without care 40,000 are enough for a crash


@pytest.mark.parametrize("build", CASES)
def test_a_deep_graph_goes_gently(build):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, build, str(NODES.get(build, 50_000)), *CASES[build]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = [*CASES[build], "all gone"]
    assert (found.returncode, found.stdout.splitlines()) == (0, expected), found.stderr[-2000:]


def chain(length):
    x = torch.ones((), requires_grad=True)
    y = x
    for _ in range(length):
        y = y + 1
    return y


def metadata_of(tensor):
    return [dict(node.metadata) for node in reach.nodes([tensor])]


def test_a_short_graph_is_left_as_it_is():
    y = chain(100)
    pb.graph(y)
    pb.grad(y, [node.variable for node in reach.nodes([y]) if hasattr(node, "variable")])
    assert not any(metadata_of(y))


def test_each_thousandth_node_holds_those_before_it_users_last():
    y = chain(SAFE + 5)
    nodes = list(reach.nodes([y]))  # from the last to the leaf
    held = [(index, node.metadata[deep._KEY]) for index, node in enumerate(nodes) if deep._KEY in node.metadata]
    assert len(held) == 10
    for index, path in held:
        assert path == nodes[index + 1 : index + 1 + len(path)][::-1]
        assert len(path) == 1_000


def test_a_second_look_changes_nothing():
    y = chain(SAFE + 5)
    nodes = list(reach.nodes([y]))
    before = [node.metadata.get(deep._KEY) for node in nodes]
    free_gently(nodes)
    pb.graph(y)
    assert all(node.metadata.get(deep._KEY) is held for node, held in zip(nodes, before, strict=True))


def test_the_users_metadata_stays():
    y = chain(SAFE + 5)
    for node in reach.nodes([y]):
        node.metadata["mine"] = 1
    pb.graph(y)
    assert all(node.metadata["mine"] == 1 for node in reach.nodes([y]))


def test_gradients_are_the_same_after_a_look():
    x = torch.tensor(0.3, requires_grad=True)
    y = x
    for _ in range(SAFE + 100):
        y = y * 0.9999
    expected = torch.autograd.grad(y, x, retain_graph=True)
    pb.graph(y)
    assert torch.autograd.grad(y, x) == expected


def test_no_cycle_arises():
    """Nothing waits for the collector of cycles."""
    gone = []

    class Token:
        def __del__(self):
            gone.append(True)

    gc.collect()
    gc.disable()
    try:
        y = chain(SAFE + 100)
        y.grad_fn.metadata["token"] = Token()
        pb.graph(y)
        del y
        assert gone == [True]
    finally:
        gc.enable()
