"""PB612: a None that allow_unused=True returned."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.values import none_gradient
from pullback.diagnose.evidence.definitions import keyword_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoneFromGrad(Cause):
    """With ``allow_unused=True`` the gradient by an input that was not used is None, not zero.

    The arithmetic after it fails, often far from the call. ``materialize_grads=True`` (instead of ``allow_unused``)
    gives zeros of the right shape. Or ask: ``if g is not None``.

    If you expected a gradient there, find out why the input does not take part before you silence it.
    """

    code = "PB612"
    title = "A gradient is None because allow_unused=True was asked for, and its input was not used."
    says = ("nonetype",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        if found is None or found.asked is None:
            return None
        call = found.asked.value
        call = call.value if isinstance(call, ast.Subscript) else call
        if not isinstance(call, ast.Call):
            return None
        source = found.asked.scene.source
        node = keyword_of(call, "allow_unused")
        keyword = next(each for each in call.keywords if each.arg == "allow_unused")
        text = source.text(call).replace(source.text(keyword), "materialize_grads=True", 1)
        edits = (source.replaced(call, text),) if node is not None else ()
        name = case.text(found.written)
        return self.found(
            say(
                "{name} is None: torch.autograd.grad was told allow_unused=True, and the output does not depend on "
                "this input.", name=name,
            ),
            [
                case.mark(say("{name} is None here", name=name)),
                found.asked.mark(say("allow_unused=True lets None pass here")),
            ],
            Fix(
                say("Ask for zeros (materialize_grads=True), or leave the None out."),
                source.code(*edits), edits, "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x, shift = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        grads = torch.autograd.grad(x.square().sum(), [x, shift], allow_unused=True)
        total = sum(g.square().sum() for g in grads)
        assert total

    @staticmethod
    def good():
        import torch

        x, shift = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        grads = torch.autograd.grad(x.square().sum(), [x, shift], materialize_grads=True)
        total = sum(g.square().sum() for g in grads)
        assert total
