"""PB221: a gradient was differentiated that was computed without create_graph=True."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, detached_later, fix_of, with_keyword
from pullback.diagnose.evidence.cuts.found import Cut, Found
from pullback.diagnose.values import Confidence, Fix
from pullback.language import say


class MissingCreateGraph(RootWithoutGraph):
    """A gradient was differentiated again, but it was computed without ``create_graph=True`` and so has no graph.

    A backward pass is not recorded by default: the gradients that it gives are constants. To differentiate a
    gradient (a gradient penalty, a Hessian, physics-informed losses, meta-learning) the pass that computes it
    has to be recorded: ``torch.autograd.grad(y, x, create_graph=True)``.

    ``retain_graph=True`` is something else: it keeps the graph of ``y`` for another pass, and records nothing.
    Setting ``requires_grad_()`` on the gradient makes it a leaf, whose derivative by ``x`` is missing.
    """

    code = "PB221"
    title = "A gradient was differentiated again that was computed without create_graph=True."
    kinds = ("create_graph",)

    def confidence(self, found: Found, mine: list[Cut]) -> Confidence:
        """Not the likeliest if what is computed from the gradient is detached as a whole."""
        return "low" if detached_later(found, mine[0]) else super().confidence(found, mine)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) computes a gradient without recording how; the result is a constant, and so is "
            "{root}, "
            "which is computed from it.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this gradient is computed without create_graph=True")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Compute the gradient with create_graph=True.")
        calls = [each.node for each in cuts if isinstance(each.node, ast.Call)]
        if not isinstance(cut.node, ast.Call) or not calls:
            return Fix(text, "loss.backward(create_graph=True)")
        edits = with_keyword(cut.source, cut.node, "create_graph", "True")
        return fix_of(cut, text, edits, "high" if len(cuts) == 1 else "medium")

    @staticmethod
    def bad():
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

        def penalty(x):
            score = critic(x).sum()
            gradient = torch.autograd.grad(score, x)[0]
            return (gradient.norm(dim=1) - 1).pow(2).mean()

        penalty(torch.randn(4, 3, requires_grad=True)).backward()

    @staticmethod
    def good():
        import torch

        critic = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

        def penalty(x):
            score = critic(x).sum()
            gradient = torch.autograd.grad(score, x, create_graph=True)[0]
            return (gradient.norm(dim=1) - 1).pow(2).mean()

        penalty(torch.randn(4, 3, requires_grad=True)).backward()
