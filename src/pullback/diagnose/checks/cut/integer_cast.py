"""PB212: a cast to integers on the way to the root."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of, replaced, wrapped_operand
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Fix
from pullback.language import say


class IntegerCast(RootWithoutGraph):
    """A cast to integers is on the only way to the root, and integers have no gradient.

    Only floating-point and complex tensors can require grad. ``x.long()``, ``x.int()``, ``x.bool()`` or
    ``x.to(torch.int64)`` end the graph, and casting back with ``.float()`` does not bring it back.

    Keep floating-point numbers where a gradient is wanted. If the forward pass needs whole numbers, round and
    let the gradient pass as if nothing had been rounded: ``x + (x.round() - x).detach()`` (a straight-through
    estimator).
    """

    code = "PB212"
    title = "A cast to integers is on the only way to the root, so the root has no graph."
    kinds = ("integer",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}) holds integers, which cannot require grad; all of {root} comes through it.",
            text=cut.text,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("cast to integers here")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = " ".join(wrapped_operand(cut).split())
        inner = _rounded(cut)
        if inner is not None:
            return fix_of(
                cut,
                say(
                    "Keep floating-point numbers, and let the gradient pass by the rounding (a straight-through "
                    "estimator)."
                ),
                replaced(cut, f"{inner} + ({text} - {inner}).detach()"),
                "medium",
            )
        edits = replaced(cut, wrapped_operand(cut))
        if len(text) > 20:
            text = "x"
        return fix_of(
            cut,
            say("Keep floating-point numbers, or round with a straight-through estimator."),
            edits,
            "medium",
            f"{cut.source.code(*edits)}    # or, rounded: {text} + ({text}.round() - {text}).detach()",
        )

    @staticmethod
    def bad():
        import torch

        scale = torch.tensor(3.7, requires_grad=True)

        def quantize(x):
            return (x / scale).to(torch.int32)

        loss = (quantize(torch.randn(6)) * 1.0).pow(2).mean()
        loss.backward()

    @staticmethod
    def good():
        import torch

        scale = torch.tensor(3.7, requires_grad=True)

        def quantize(x):
            steps = x / scale
            return steps + (steps.round() - steps).detach()

        loss = (quantize(torch.randn(6)) * 1.0).pow(2).mean()
        loss.backward()


def _rounded(cut: Cut) -> str | None:
    """What is rounded before the cast, as it is written: ``x / step`` of ``torch.round(x / step).long()``."""
    for each in ast.walk(cut.operand) if cut.operand is not None else ():
        if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
            continue
        if each.func.attr in {"round", "floor", "ceil", "trunc"}:
            library = isinstance(each.func.value, ast.Name) and each.func.value.id in {"torch", "th"}
            inner = each.args[0] if library and each.args else each.func.value
            text = " ".join(cut.source.text(inner).split())
            return text if isinstance(inner, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"
    return None
