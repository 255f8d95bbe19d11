"""PBA161: a list of results, each with its graph."""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.source import Source, source_of
from pullback.diagnose.evidence.training.loop import consumed, loop_around, root_numbers, scopes
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

LEAST = 4


class KeptGraphs(Fault):
    """A list keeps results of many steps together with their graphs, so that none of these can be freed.

    A result that requires grad holds the graph it was computed by, with all tensors saved for backward. In
    ``losses.append(loss)`` every step stays alive as long as the list, and memory grows with the number of steps.

    Keep a number or a detached tensor: ``losses.append(loss.item())`` or ``losses.append(loss.detach())``. Deleting
    ``loss``, ``gc.collect()`` and ``empty_cache()`` free nothing while the list holds it. A list that is differentiated
    as a whole afterwards is right and not reported.
    """

    code = "PBA161"
    title = "A list keeps results of many steps with their graphs: memory grows with every step."

    def __init__(self) -> None:
        self._roots: set[tuple[int, int]] = set()
        self._passes = 0
        self._said: set[tuple[str, int]] = set()
        self._before: dict[str, tuple[int, int]] = {}  # how many results a list had, and the number of the first

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if len(self._roots) < 100_000:
            self._roots.update((backward.record.thread, number) for number in root_numbers(backward))
        self._passes += 1
        if self._passes > LEAST and not self._passes & (self._passes - 1):
            self._look(audit, last=backward.record.nodes)

    def at_end(self, audit: Audit) -> None:
        self._look(audit, last=None)

    def _look(self, audit: Audit, last: int | None) -> None:
        for scope in scopes(audit):
            for name, thing in list(scope.items()):
                for path, container in _containers(name, thing):
                    kept = [each for each in container if issubclass(type(each), Tensor) and each.grad_fn is not None]
                    if len(kept) >= LEAST and (self._are_kept(kept, last) or self._grows(path, kept)):
                        self._say(audit, path, kept)

    def _are_kept(self, kept: list[Tensor], last: int | None) -> bool:
        """Whether each was differentiated by itself, or none ever was."""
        numbers = {number for _, number in self._roots}
        own = sum(each.grad_fn._sequence_nr() in numbers for each in kept if each.grad_fn is not None)
        if own >= len(kept) - 1:
            return True
        return last is None and all(consumed(each.grad_fn) is False for each in kept[:-1])

    def _grows(self, path: str, kept: list[Tensor]) -> bool:
        """Whether passes have used up what a list holds, and it has only grown since it was looked at before."""
        first = kept[0].grad_fn._sequence_nr() if kept[0].grad_fn is not None else -1
        count, was = self._before.get(path, (0, -1))
        self._before[path] = len(kept), first
        return was == first and len(kept) > count and consumed(kept[count - 1].grad_fn) is True

    def _say(self, audit: Audit, path: str, kept: list[Tensor]) -> None:
        attribute = path.rpartition(".")[2]
        made = audit.line_of(kept[0].grad_fn)
        files = [made.file] if made is not None else []
        files += [frame.file for frame in audit.frames()]
        main = audit.variables.get("__file__")
        files += [main] if isinstance(main, str) else []
        for source in map(source_of, dict.fromkeys(files)):
            for call in _appends(source, attribute):
                if (source.file, call.lineno) in self._said:
                    return
                self._said.add((source.file, call.lineno))
                place = Place(source.file, call.lineno, "")
                edits = self._edits(source, call)
                audit.report(
                    self.found(
                        say(
                            "{name} holds {count} tensors, each with the whole graph it was computed by.",
                            name=path,
                            count=len(kept),
                        ),
                        [Mark.at(place, say("keeps the graph"), source.span(call))],
                        Fix(
                            say("Keep the value without its graph."),
                            source.code(*edits).strip(),
                            edits,
                            "high" if edits else "medium",
                        ),
                        tensors=[audit.subject(kept[-1], "kept", f"{path}[-1]")],
                        useless=[say("gc.collect() or empty_cache(): the list still holds the graphs")],
                    )
                )
                return

    @staticmethod
    def _edits(source: Source, call: ast.Call) -> tuple[Edit, ...]:
        if len(call.args) != 1:
            return ()
        text = source.text(call.args[0])
        simple = isinstance(call.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return (source.replaced(call.args[0], f"{text}.detach()" if simple else f"({text}).detach()"),)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        history = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            history.append(loss)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            parts = []
            for _ in range(5):
                parts.append(net(torch.randn(8, 4)).square().mean())
            torch.stack(parts).mean().backward()
            optimizer.step()


def _containers(name: str, thing: Any) -> Iterator[tuple[str, list[Any]]]:
    """The lists and dictionaries that a variable is, or has as an attribute."""
    if issubclass(type(thing), list | deque):
        yield name, list(thing)[:10_000]
    elif type(thing) is dict and not name.startswith("__"):
        for key, part in list(thing.items())[:100]:
            if issubclass(type(part), list | deque):
                yield f"{name}[{key!r}]", list(part)[:10_000]
    elif not isinstance(thing, type) and type(getattr(thing, "__dict__", None)) is dict:
        module = type(thing).__module__
        own = getattr(sys.modules.get(module), "__file__", None)
        if isinstance(own, str) and user_files(()).own_file(own):
            for inner, part in list(thing.__dict__.items())[:200]:
                if issubclass(type(part), list | deque):
                    yield f"{name}.{inner}", list(part)[:10_000]
                elif type(part) is dict and not inner.startswith("_"):
                    for key, inmost in list(part.items())[:100]:
                        if issubclass(type(inmost), list | deque):
                            yield f"{name}.{inner}[{key!r}]", list(inmost)[:10_000]


def _appends(source: Source, attribute: str) -> Iterator[ast.Call]:
    """The calls that append to something of this name, in a loop or in a function that a loop may call."""
    name, _, key = attribute.partition("[")
    key = f"[{key}"
    for node in ast.walk(source.tree):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"append", "appendleft"}
        ):
            continue
        target = source.text(node.func.value)
        about = target == name or target.endswith(f".{name}") or _at_key(node.func.value, name, key)
        if about and (loop_around(source, node) is not None or not isinstance(source.scope(node), ast.Module)):
            yield node


def _at_key(target: ast.expr, name: str, key: str) -> bool:
    """Whether an expression is an item of something of this name: of this key, or of one that is not written out."""
    if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.func.attr == "setdefault":
        return ast.unparse(target.func.value).rpartition(".")[2] == name
    if not isinstance(target, ast.Subscript) or ast.unparse(target.value).rpartition(".")[2] != name:
        return False
    return not isinstance(target.slice, ast.Constant) or key == "[" or f"[{target.slice.value!r}]" == key
