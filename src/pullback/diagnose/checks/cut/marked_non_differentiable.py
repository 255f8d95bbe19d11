"""PB225: a custom Function marked its output as not differentiable."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class MarkedNonDifferentiable(RootWithoutGraph):
    """A custom Function marked its output with ``ctx.mark_non_differentiable``, so the output has no graph.

    What is marked never requires grad, whatever the inputs. It is meant for outputs such as indices or masks
    that have no derivative. If the output that the loss is computed from is among those that are marked,
    backward never reaches the Function.

    Mark only the outputs without a derivative, and return the one that the loss uses unmarked.
    """

    code = "PB225"
    title = "A custom Function marked its output as not differentiable."
    kinds = ("marked",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "The forward of the Function in {text} (line {line}) calls mark_non_differentiable: what it returns "
            "does not "
            "require grad, and neither does {root}.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        return Fix(say("Leave the output that the loss is computed from out of mark_non_differentiable."))

    @staticmethod
    def bad():
        import torch

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = 2 * x
                ctx.mark_non_differentiable(y)
                return y

            @staticmethod
            def backward(ctx, grad):
                return 2 * grad

        x = torch.randn(3, requires_grad=True)
        Scale.apply(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return 2 * x

            @staticmethod
            def backward(ctx, grad):
                return 2 * grad

        x = torch.randn(3, requires_grad=True)
        Scale.apply(x).sum().backward()
