"""PBA120: a statement without effect."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.evidence.training.loop import Key, key_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say

PURE = frozenset({
    "add", "sub", "mul", "div", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rmul__", "detach",
    "clamp", "squeeze", "unsqueeze", "view", "reshape", "permute", "transpose", "float", "double", "half",
    "masked_fill",
    "relu", "tanh", "sigmoid", "softmax", "log_softmax", "dropout", "mean", "sum", "neg", "index_add", "scatter",
})  # fmt: skip
OPERATORS = {"__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rmul__", "add", "sub", "mul", "div"}
METHODS = frozenset({"backward", "step", "zero_grad", "train", "eval"})
OWNED = frozenset({"parameters", "named_parameters", "buffers"})
CONTEXTS = frozenset({"no_grad", "enable_grad", "inference_mode", "autocast"})


class NoEffect(Fault):
    """A statement computes something and throws it away, or names a function without calling it.

    ``loss + penalty``, ``h.detach()`` and ``x.clamp(0, 1)`` as statements of their own give new tensors that nobody
    keeps: the penalty is not in the loss, ``h`` has its history still. ``optimizer.step`` without brackets steps
    nothing, and ``torch.no_grad()`` without ``with`` turns nothing off. Python and torch say nothing.

    Assign the result (``loss = loss + penalty``), use the method that writes in place (``x.clamp_(0, 1)``) where that
    is meant, write the brackets, and ``with torch.no_grad():``.
    """

    code = "PBA120"
    title = "A statement has no effect: its result is thrown away, or a function is named and not called."
    hears = PURE

    def __init__(self) -> None:
        self._seen: set[Key] = set()
        self._sources: dict[str, Source] = {}

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        spot = call.spot
        if spot is None or (key := key_of(spot)) in self._seen:
            return
        self._seen.add(key)
        self._sources.setdefault(spot.file, spot.source)
        statement, node = spot.statement, spot.node
        if not isinstance(statement, ast.Expr) or statement.value is not node or not isinstance(result, Tensor):
            return
        if not result.requires_grad and call.name != "detach":
            return
        if call.name == "detach" and not any(value.requires_grad for value in call.inputs):
            return
        if call.writes or any(value in call.inputs for value in call.outputs) or _is_shown(spot.source, statement):
            return
        if self._is_written(call, node):
            audit.report(self._discarded(spot, statement, call))

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is not None:
            self._sources.setdefault(backward.spot.file, backward.spot.source)

    def before_step(self, audit: Audit, step: Step) -> None:
        if step.spot is not None:
            self._sources.setdefault(step.spot.file, step.spot.source)

    def at_end(self, audit: Audit) -> None:
        for source in self._sources.values():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.For):
                    self._rebound(audit, source, node)
                if isinstance(node, ast.Expr) and not _is_shown(source, node):
                    self._idle(audit, source, node)

    def _rebound(self, audit: Audit, source: Source, loop: ast.For) -> None:
        """A loop over parameters that gives its variable a new value, and does nothing with it."""
        if not any(isinstance(each, ast.Attribute) and each.attr in OWNED for each in ast.walk(loop.iter)):
            return
        targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        last = loop.body[-1]
        name = last.targets[0] if isinstance(last, ast.Assign) else None
        if not isinstance(last, ast.Assign) or not isinstance(name, ast.Name) or name.id not in targets:
            return
        code = f"with torch.no_grad():\n    {name.id}.copy_({source.text(last.value)})"
        edits = (
            (source.replaced(last, code.replace("\n", f"\n{source.indent(last.lineno)}")),)
            if _begins(source, last)
            else ()
        )
        audit.report(
            self.found(
                say("{name} is only a name for a parameter here: this gives the name to a new tensor, and the "
                    "parameter stays as it was.", name=name.id),
                [Mark.at(Place(source.file, last.lineno, ""), say("changes no parameter"), source.span(last))],
                Fix(say("Write into the parameter."), code, edits, "high" if edits else "medium"),
            )
        )  # fmt: skip

    @staticmethod
    def _is_written(call: Call, node: ast.expr | None) -> bool:
        """Whether the statement is this very operation, and not a module or function that has it inside."""
        if isinstance(node, ast.BinOp):
            return call.name in OPERATORS
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == call.name

    def _discarded(self, spot: Spot, statement: ast.Expr, call: Call) -> Any:
        source, node = spot.source, statement.value
        edits: tuple[Edit, ...] = ()
        first = node.left if isinstance(node, ast.BinOp) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            first = node.func.value
        if isinstance(first, ast.Name) and first.id not in {"torch", "F"}:
            edits = (source.replaced(node, f"{first.id} = {source.text(node)}"),)
        return self.found(
            say("{text} gives a new tensor, and nobody keeps it.", text=" ".join(source.text(node).split())),
            [spot.mark(say("the result is thrown away"))],
            Fix(say("Assign the result."), source.code(*edits), edits, "medium"),
        )

    def _idle(self, audit: Audit, source: Source, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Attribute) and value.attr in METHODS:
            edits: tuple[Edit, ...] = (source.replaced(value, f"{source.text(value)}()"),)
            cause = say("{text} is named, but not called: the brackets are missing.", text=source.text(value))
            fix = Fix(say("Write the brackets."), source.code(*edits), edits, "high")
        elif isinstance(value, ast.Call) and _is_context(source, value):
            cause = say(
                "{text} makes a context and throws it away: it works only in a with statement.",
                text=source.text(value),
            )
            fix = Fix(say("Put what it is for into a with statement."), f"with {source.text(value)}:\n    ...")
        else:
            return
        scope = source.scope(node)
        place = Place(source.file, node.lineno, getattr(scope, "name", "<module>"))
        audit.report(self.found(cause, [Mark.at(place, say("no effect"), source.span(value))], fix))

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 4)).square().mean()
            loss + 0.1 * net.weight.abs().sum()
            loss.backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 4)).square().mean()
            loss = loss + 0.1 * net.weight.abs().sum()
            loss.backward()
            optimizer.step()


def _is_context(source: Source, call: ast.Call) -> bool:
    text = source.text(call.func)
    return text in {f"torch.{name}" for name in CONTEXTS} | {"torch.autograd.no_grad", "torch.amp.autocast"}


def _is_shown(source: Source, node: ast.Expr) -> bool:
    """Whether a notebook shows the value: the last statement of a cell; or the statement expects an exception."""
    around = [each for each in source.around(node) if isinstance(each, ast.With | ast.Try | ast.TryStar)]
    if any(isinstance(each, ast.Try | ast.TryStar) and node in each.body for each in around):
        return True
    if any(isinstance(each, ast.With) and "raises" in source.text(each.items[0].context_expr) for each in around):
        return True
    cell = "ipykernel" in source.file or source.file.startswith("<")
    return cell and bool(source.tree.body) and source.tree.body[-1] is node


def _begins(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement stands at the beginning of its line."""
    return not source.lines[statement.lineno - 1].encode()[: statement.col_offset].strip()
