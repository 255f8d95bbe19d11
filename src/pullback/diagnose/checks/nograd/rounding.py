"""PBA341: a leaf that is reached only through rounding."""

from __future__ import annotations

import ast

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import call_of, mark_of, operand
from pullback.diagnose.evidence.numbers.zero import cut_leaves, is_builtin
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

STEPS = ("RoundBackward", "FloorBackward", "CeilBackward", "TruncBackward", "SignBackward", "SgnBackward")


class Rounding(Fault):
    """Rounding has derivative zero wherever it has one, so that what is behind it never learns.

    ``round``, ``floor``, ``ceil``, ``trunc`` and ``sign`` are piecewise constant. Their backward returns zeros, not
    an error: the parameters behind them get a ``.grad`` that is exactly zero.

    The usual cure is the straight-through estimator: ``x + (torch.round(x) - x).detach()`` rounds in the forward and
    passes the gradient on as if it had not. For ``sign`` a smooth substitute (``tanh(k * x)``) is the other way. A
    higher learning rate does not help: zero times anything is zero.
    """

    code = "PBA341"
    title = "A tensor gets a gradient of zero: it is used only through rounding, whose derivative is zero."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        found: dict[Node, list[Tensor]] = {}
        for leaf, node in cut_leaves(backward, lambda node, _: is_builtin(node, STEPS)):
            found.setdefault(node, []).append(leaf)
        for node, leaves in found.items():
            audit.report(self._finding(audit, backward, node, leaves))

    def _finding(self, audit: Audit, backward: Backward, node: Node, leaves: list[Tensor]) -> Diagnosis:
        operation = node.name().partition("Backward")[0].lower()
        name = audit.name_of(leaves[0], "a leaf")
        marks = mark_of(audit, node, say("the gradient ends here"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        return self.found(
            say(
                "Every way from the output to {name} goes through {operation}, which is constant between its steps: "
                "its derivative is zero, and {name} gets a gradient of exactly zero.",
                name=name, operation=operation,
            ),
            marks,
            self._fix(audit, node, operation),
            tensors=[audit.subject(leaf, "leaf") for leaf in leaves[:3]],
            useless=[say("A larger learning rate: the gradient is exactly zero.")],
        )  # fmt: skip

    @staticmethod
    def _fix(audit: Audit, node: Node, operation: str) -> Fix:
        text = say("Use the straight-through estimator: round in the forward, pass the gradient on in the backward.")
        call = call_of(audit.tape, node)
        written = call.spot.node if call is not None and call.spot is not None else None
        given = operand(call.spot, written) if call is not None and call.spot is not None else None
        if call is None or call.spot is None or not isinstance(written, ast.Call) or given is None:
            return Fix(text, f"x + (torch.{operation}(x) - x).detach()")
        source = call.spot.source
        whole, inner = source.text(written), source.text(given)
        if isinstance(given, ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Compare):
            inner = f"({inner})"
        code = f"({inner} + ({whole} - {inner}).detach())"
        one_line = written.lineno == written.end_lineno
        return Fix(text, code, (source.replaced(written, code),) if one_line else (), "high")

    @staticmethod
    def bad():
        import torch

        scale = torch.nn.Parameter(torch.tensor([0.4, 2.6]))
        levels = (scale * 4).round() / 4
        (levels - torch.ones(2)).abs().sum().backward()

    @staticmethod
    def good():
        import torch

        scale = torch.nn.Parameter(torch.tensor([0.4, 2.6]))
        scaled = scale * 4
        levels = (scaled + (scaled.round() - scaled).detach()) / 4
        (levels - torch.ones(2)).abs().sum().backward()
