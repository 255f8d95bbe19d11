"""PB207: torch.tensor() copied the values of tensors."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, wrapped_operand
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.slices import definitions
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class CopiedValues(RootWithoutGraph):
    """``torch.tensor(...)`` copied the values of tensors into a new tensor, and their graph was lost.

    ``torch.tensor``, ``torch.as_tensor`` of a list, ``torch.Tensor`` and ``torch.FloatTensor`` read numbers and
    know nothing of where they came from. To put tensors together use ``torch.stack`` (a new dimension) or
    ``torch.cat`` (along one that is there); a tensor that is one already needs no copy.

    ``torch.tensor(parts, requires_grad=True)`` silences the error, but the result is a new leaf, and what the
    parts were computed from gets no gradient.
    """

    code = "PB207"
    title = "torch.tensor() copied the values of tensors that have a graph into one that has none."
    kinds = ("tensor",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) reads the numbers out of {operand} and makes a new tensor of them; their graph "
            "stays behind, so {root} has none.",
            text=cut.text,
            line=cut.node.lineno,
            operand=cut.operand_text,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("only the values are copied here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Put tensors together with torch.stack (or torch.cat), which the gradient goes through.")
        if cut.operand is None:
            return Fix(text)
        several = self._is_list(cut)
        if several and any(isinstance(each, ast.Constant) for each in getattr(cut.operand, "elts", [])):
            return Fix(text, f"torch.stack([torch.as_tensor(each) for each in {cut.source.text(cut.operand)}])")
        new = f"torch.stack({cut.source.text(cut.operand)})" if several else wrapped_operand(cut)
        call = cut.node if isinstance(cut.node, ast.Call) else None
        keywords = [f"{each.arg}={cut.source.text(each.value)}" for each in call.keywords] if call is not None else []
        keywords = [each for each in keywords if each.startswith(("dtype=", "device="))]
        new += f".to({', '.join(keywords)})" if keywords else ""
        edits: tuple[Edit, ...] = (cut.source.replaced(cut.node, new),)
        if not several:
            text = say("{operand} is a tensor already: use it as it is.", operand=cut.operand_text)
        return fix_of(cut, text, edits, "high")

    @staticmethod
    def _is_list(cut: Cut) -> bool:
        if isinstance(cut.operand, ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp):
            return True
        thing = cut.body.evaluated(cut.operand)
        if thing is None and isinstance(cut.operand, ast.Name):
            return any(isinstance(each.node, ast.List | ast.ListComp) for each in definitions(cut.operand, cut.body))
        return type(thing) in (list, tuple)

    @staticmethod
    def bad():
        import warnings

        import torch

        warnings.simplefilter("ignore")
        w = torch.randn(2, requires_grad=True)
        losses = []
        for x in torch.randn(4, 2):
            losses.append((w * x).sum() ** 2)
        torch.tensor(losses).mean().backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(2, requires_grad=True)
        losses = []
        for x in torch.randn(4, 2):
            losses.append((w * x).sum() ** 2)
        torch.stack(losses).mean().backward()
