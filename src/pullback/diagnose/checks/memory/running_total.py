"""PBA162: a total that carries the graphs of all its terms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.training.loop import consumed, loop_around, root_numbers, scopes
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

LEAST = 3


class RunningTotal(Fault):
    """A running total of losses carries the graph of every term, so that none of them can be freed.

    ``total += loss`` with a loss that requires grad is recorded like any addition: the total is a tensor whose graph
    reaches through all steps. Memory grows with every step, and time too if the total is ever differentiated.

    Add numbers: ``total += loss.item()``, or ``total += loss.detach()`` (which does not wait for the GPU). ``del loss``
    and ``empty_cache()`` free nothing while the total holds it. A total that is differentiated once after the loop is
    right and not reported.
    """

    code = "PBA162"
    title = "A running total carries the graphs of all its terms: memory grows with every step."

    def __init__(self) -> None:
        self._roots: set[int] = set()
        self._terms = 0
        self._passes = 0

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if len(self._roots) < 100_000:
            self._roots.update(root_numbers(backward))
        self._passes += 1
        if self._passes > LEAST and not self._passes & (self._passes - 1):
            self._look(audit, ended=False)

    def at_end(self, audit: Audit) -> None:
        self._look(audit, ended=True)

    def _look(self, audit: Audit, *, ended: bool) -> None:
        for scope in scopes(audit):
            for name, thing in list(scope.items()):
                for path, tensor in _scalars(name, thing):
                    terms = self._chain(tensor)
                    if len(terms) >= LEAST and self._kept(tensor, terms, ended=ended):
                        self._say(audit, path, tensor, len(terms))

    @staticmethod
    def _chain(tensor: Tensor) -> list[Any]:
        """The terms of a sum of sums of sums."""
        node: Any = tensor.grad_fn
        terms: list[Any] = []
        while node is not None and node.name() == "AddBackward0" and len(terms) < 10_000:
            inner = [child for child, _ in node.next_functions if child is not None]
            sums = [child for child in inner if child.name() == "AddBackward0"]
            if not sums or len(inner) == 1:
                terms += inner
                break
            terms += [child for child in inner if child is not sums[0]]
            node = sums[0]
        return terms

    def _kept(self, tensor: Tensor, terms: list[Any], *, ended: bool) -> bool:
        if tensor.grad_fn is None or tensor.grad_fn._sequence_nr() in self._roots:
            return False
        own = sum(term._sequence_nr() in self._roots for term in terms)
        if own >= len(terms) - 1:
            return True
        return ended and consumed(tensor.grad_fn) is False

    def _say(self, audit: Audit, path: str, tensor: Tensor, count: int) -> None:
        made = audit.line_of(tensor.grad_fn)
        main = audit.variables.get("__file__")
        files = [made.file if made is not None else None, main, *(frame.file for frame in audit.frames())]
        for source in map(source_of, dict.fromkeys(each for each in files if isinstance(each, str))):
            for node in _additions(source, path.rpartition(".")[2]):
                edits = self._edits(source, node)
                audit.report(
                    self.found(
                        say(
                            "{name} is a tensor whose graph reaches back through {count} terms.", name=path, count=count
                        ),
                        [Mark.at(Place(source.file, node.lineno, ""), say("adds one more graph"), source.span(node))],
                        Fix(
                            say("Add the value without its graph."),
                            source.code(*edits).strip(),
                            edits,
                            "high" if edits else "medium",
                        ),
                        tensors=[audit.subject(tensor, "total", path)],
                        useless=[say("del loss or empty_cache(): the total still holds the graphs")],
                    )
                )
                return

    @staticmethod
    def _edits(source: Source, node: ast.stmt) -> tuple[Edit, ...]:
        if not isinstance(node, ast.AugAssign):
            return ()
        text = source.text(node.value)
        simple = isinstance(node.value, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return (source.replaced(node.value, f"{text}.detach()" if simple else f"({text}).detach()"),)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        total = 0.0
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            total += loss

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(5):
                total += net(torch.randn(8, 4)).square().mean()
            total.backward()
            optimizer.step()


def _scalars(name: str, thing: Any) -> Iterator[tuple[str, Tensor]]:
    if issubclass(type(thing), Tensor):
        if thing.grad_fn is not None and thing.numel() == 1:
            yield name, thing
    elif not isinstance(thing, type) and type(getattr(thing, "__dict__", None)) is dict and not name.startswith("__"):
        for inner, part in list(thing.__dict__.items())[:200]:
            if issubclass(type(part), Tensor) and part.grad_fn is not None and part.numel() == 1:
                yield f"{name}.{inner}", part


def _additions(source: Source, name: str) -> Iterator[ast.stmt]:
    """The statements of loops and functions that add to something of this name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            target = node.target
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            target = node.targets[0]  # type: ignore[assignment]
        else:
            continue
        text = source.text(target)
        if text != name and not text.endswith(f".{name}"):
            continue
        if loop_around(source, node) is not None or not isinstance(source.scope(node), ast.Module):
            yield node
