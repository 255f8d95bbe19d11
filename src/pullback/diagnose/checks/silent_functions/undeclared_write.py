"""PBA503: a custom forward that writes to its input without saying so."""

from __future__ import annotations

from types import CodeType
from typing import Any

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.custom import custom_nodes, name_of
from pullback.diagnose.evidence.numbers.find import SAME
from pullback.diagnose.recorders.tape import Call, Value
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

VIEWS = SAME - {"clone", "to", "float", "double", "half", "bfloat16"}


class UndeclaredWrite(Fault):
    """A custom ``forward`` changes an input in place and does not declare it with ``ctx.mark_dirty``.

    The caller's tensor has other values afterwards, but autograd still takes it for what it was: everything that uses
    it after the call gets a gradient for values that are no longer there. ``forward`` runs without recording, so that
    no version check raises.

    Work on a copy (``x = x.clone()``), or declare it: ``ctx.mark_dirty(x)`` and return that very x.
    """

    code = "PBA503"
    title = "The forward of a custom Function changes an input in place without ctx.mark_dirty."

    def __init__(self) -> None:
        self._last = -1

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        nodes = custom_nodes(backward)
        if not nodes:
            return
        forwards: dict[CodeType, Any] = {node._forward_cls.forward.__code__: node for node in nodes}
        last = self._last
        for call in reversed(audit.tape.calls):
            if call.number <= last:
                break
            self._last = max(self._last, call.number)
            if call.writes and call.spot is not None and call.spot.code in forwards:
                node = forwards[call.spot.code]
                if any(_from_outside(value, call) for value in call.inputs[:1]) and not _declares(node):
                    audit.report(self._finding(node, call))

    def _finding(self, node: Any, call: Call) -> Diagnosis:
        assert call.spot is not None
        source, statement = call.spot.source, call.spot.statement
        code = call.spot.code
        own = code.co_varnames[: code.co_argcount]
        text = call.spot.text
        name = next((each for each in own if text.startswith((f"{each}.", f"{each} ", f"{each}["))), "x")
        edits: tuple[Edit, ...] = ()
        one_line = source.lines[call.spot.line - 1].lstrip().startswith(text.split("(")[0].split(" ")[0])
        if statement is not None and name in own and one_line:
            edits = (source.inserted_before(statement, f"{name} = {name}.clone()"),)
        return self.found(
            say(
                "{function}.forward changes its input {name} in place, and does not declare it. Autograd still takes "
                "the caller's tensor for what it was: what is computed from it afterwards gets wrong gradients.",
                function=name_of(node), name=name,
            ),
            [call.spot.mark(say("written in place here"))],
            Fix(
                say("Work on a copy, or declare it with ctx.mark_dirty and return it."),
                f"{name} = {name}.clone()    # or: ctx.mark_dirty({name}), and return {name}",
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Clip(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values, limit):
                values.clamp_(-limit, limit)
                return values * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2, None

        h = torch.randn(5, requires_grad=True) * 3
        (Clip.apply(h, 0.5) + h**2).sum().backward()

    @staticmethod
    def good():
        import torch

        class Clip(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values, limit, count):
                count.add_(1)
                values = values.clone()
                values.clamp_(-limit, limit)
                return values * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2, None, None

        h = torch.randn(5, requires_grad=True) * 3
        (Clip.apply(h, 0.5, torch.zeros(())) + h**2).sum().backward()


def _declares(node: Any) -> bool:
    parts = (node._forward_cls.forward, node._forward_cls.setup_context)
    return any("mark_dirty" in part.__code__.co_names for part in parts if hasattr(part, "__code__"))


def _from_outside(value: Value, call: Call) -> bool:
    """Whether a value that a forward writes to came in with a graph, itself or as the base of a view."""
    here = value
    for _ in range(20):
        if (
            here.maker is None
            or here.maker.spot is None
            or call.spot is None
            or here.maker.spot.code is not call.spot.code
        ):
            return here.requires_grad
        if here.maker.name not in VIEWS and not here.maker.writes:
            return False
        if not here.maker.inputs or here.maker.inputs[0] is here:
            return False
        here = here.maker.inputs[0]
    return False
