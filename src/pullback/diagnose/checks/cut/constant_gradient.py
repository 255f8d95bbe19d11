"""PB222: the gradient of a linear function is a constant."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.slices import definitions
from pullback.diagnose.values import Fix
from pullback.language import say


class ConstantGradient(RootWithoutGraph):
    """The gradient of a linear function was differentiated: it is a constant and depends on nothing.

    With ``create_graph=True`` a gradient has a graph only if it depends on something that requires grad. The
    gradient of ``(2 * x).sum()`` is 2 wherever ``x`` is: there is nothing to record, and the second derivative
    is zero.

    Take it as zero: ask with ``torch.func.hessian`` or ``torch.autograd.functional.hessian``, which return
    zeros, or look first: ``if gradient.requires_grad``. If the function should not be linear, the nonlinearity
    is missing from the part that was differentiated. ``retain_graph=True`` and ``allow_unused=True`` do not
    help: the root itself has no graph.
    """

    code = "PB222"
    title = "The gradient of a linear function was differentiated again; it is a constant."
    kinds = ("linear",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) was recorded, but the gradient of {operand} does not depend on anything that "
            "requires "
            "grad: it is a constant, its derivative is zero, and {root} has no graph.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this gradient is a constant")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        return Fix(
            say("Take the second derivative as zero, or use torch.func.hessian, which returns zeros."),
            self._hessian(cut),
        )

    @staticmethod
    def _hessian(cut: Cut) -> str:
        """The call of ``torch.func.hessian``, if the program shows how the output is computed from the input."""
        node, given = cut.operand, cut.node.args[1:2] if isinstance(cut.node, ast.Call) else []
        x = cut.source.text(given[0]) if given and isinstance(given[0], ast.Name) else ""
        steps = definitions(node, cut.body) if isinstance(node, ast.Name) else []
        text = cut.source.text(steps[0].node) if len(steps) == 1 else cut.operand_text
        known = x and x in {each.id for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name)}
        return f"torch.func.hessian(lambda {x}: {text})({x}.detach())" if known else "torch.func.hessian(f)(x.detach())"

    @staticmethod
    def bad():
        import torch

        weights = torch.randn(3)
        x = torch.randn(4, 3, requires_grad=True)
        y = (x @ weights).mean()
        first = torch.autograd.grad(y, x, create_graph=True)[0]
        print(torch.autograd.grad(first.sum(), x))

    @staticmethod
    def good():
        import torch

        weights = torch.randn(3)
        x = torch.randn(4, 3, requires_grad=True)
        y = (x @ weights).mean()
        first = torch.autograd.grad(y, x, create_graph=True)[0]
        print(torch.autograd.grad(first.sum(), x) if first.requires_grad else torch.zeros_like(x))
