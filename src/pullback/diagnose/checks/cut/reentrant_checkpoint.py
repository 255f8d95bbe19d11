"""PB224: a reentrant checkpoint without an input that requires grad."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, with_keyword
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class ReentrantCheckpoint(RootWithoutGraph):
    """A reentrant checkpoint was given no input that requires grad, so its output has no graph.

    ``checkpoint(..., use_reentrant=True)`` is a custom Function of its inputs: the parameters inside are not
    seen. If no input requires grad, as with the data at the first layer, then the output does not require grad,
    and the parameters inside get no gradient.

    Write ``use_reentrant=False``, which has no such condition. The old workaround, ``x.requires_grad_()`` on
    the data, works too, but computes a gradient by the data that nobody wants.
    """

    code = "PB224"
    title = "A reentrant checkpoint was given no input that requires grad, so its output has no graph."
    kinds = ("checkpoint",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}): none of its inputs requires grad, and a reentrant checkpoint does not see the "
            "parameters "
            "inside {operand}; so neither its output nor {root} has a graph.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Use the checkpoint that is not reentrant.")
        edits = tuple(
            edit
            for each in cuts
            if isinstance(each.node, ast.Call)
            for edit in with_keyword(each.source, each.node, "use_reentrant", "False")
        )
        return fix_of(cut, text, edits, "high" if edits else "medium")

    @staticmethod
    def bad():
        import warnings

        import torch
        from torch.utils.checkpoint import checkpoint

        warnings.simplefilter("ignore")
        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        out = checkpoint(block, torch.randn(3, 4), use_reentrant=True)
        out.mean().backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        out = checkpoint(block, torch.randn(3, 4), use_reentrant=False)
        out.mean().backward()
