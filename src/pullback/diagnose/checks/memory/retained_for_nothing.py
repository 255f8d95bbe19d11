"""PBA165: graphs that are kept and never used again."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import NODES, Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.evidence.transforms import keyword_of, without_keyword
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

# So many times a line must have kept a graph in vain.
TIMES = 3


class RetainedForNothing(Fault):
    """A backward pass keeps its graph with ``retain_graph=True``, and no later pass goes through any of it.

    The tensors that the forward pass saved then stay in memory until the loss is replaced, which is after the next
    forward pass has saved its own: up to twice the memory. The gradients are right.

    ``retain_graph=True`` is often what is left of an attempt to silence "Trying to backward through the graph a second
    time". Leave it out; if that error comes back, two passes do share a graph, and the cause of that is what to look
    for: a state carried from one step to the next without ``detach()``, or a value computed once for several passes.
    """

    code = "PBA165"
    title = "retain_graph=True keeps graphs that no later pass uses."

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[int, frozenset[int]]] = {}  # of the latest pass of a line: its thread and nodes
        self._times: dict[Key, int] = {}
        self._spots: dict[Key, Spot] = {}
        self._used: set[Key] = set()

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        record, spot = backward.record, backward.spot
        keeps = record.retain_graph and not record.create_graph and spot is not None
        if not keeps and not self._kept:
            return
        numbers = frozenset(node._sequence_nr() for node in backward.nodes if node.next_functions)
        for key, (thread, kept) in self._kept.items():
            if len(backward.nodes) >= NODES or (thread == record.thread and not kept.isdisjoint(numbers)):
                self._used.add(key)
        if keeps and spot is not None and len(self._spots) < 100:
            key = key_of(spot)
            self._times[key] = self._times.get(key, 0) + (key in self._kept)
            self._kept[key], self._spots[key] = (record.thread, numbers), spot

    def at_end(self, audit: Audit) -> None:
        for key, times in self._times.items():
            if times >= TIMES and key not in self._used:
                audit.report(self._finding(self._spots[key], times))

    def _finding(self, spot: Spot, times: int) -> Diagnosis:
        edits: tuple[Edit, ...] = ()
        if isinstance(spot.node, ast.Call) and keyword_of(spot.node, "retain_graph") is not None:
            edits = without_keyword(spot, spot.node, "retain_graph")
        return self.found(
            say(
                "This pass kept its graph {count} times while the program was heard, and no later pass went through "
                "any of it: the saved tensors stay in memory while the next forward pass saves its own.",
                count=times,
            ),
            [spot.mark(say("keeps a graph that nobody uses"))],
            Fix(
                say("Leave retain_graph=True out."),
                spot.source.code(*edits).strip(),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
