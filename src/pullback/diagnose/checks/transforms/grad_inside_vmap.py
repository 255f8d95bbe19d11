"""PB827: torch.autograd.grad in a function under vmap."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class GradInsideVmap(Cause):
    """``torch.autograd.grad`` was called in a function under ``vmap``, where tensors have no graph of their own.

    ``vmap`` hands the function tensors that stand for a whole batch. ``requires_grad`` of what was passed in is not
    theirs, so that there is no graph from the result back to them.

    Compose transforms instead: ``vmap(torch.func.grad(f))(batch)`` is the gradient for each sample,
    ``vmap(torch.func.jacrev(f))`` the Jacobian for each. ``x.requires_grad_()`` within the function is refused, and
    ``requires_grad=True`` outside it makes no difference. To batch *cotangents* of one graph,
    ``torch.autograd.grad(..., is_grads_batched=True)`` is made for that.
    """

    code = "PB827"
    title = "torch.autograd.grad was called inside a function under vmap."
    says = ("element 0 of tensors does not require grad", "appears to not have been used in the graph",
            "does not require gradient", "does not require grad")  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in transforms_in(case, *FUNC) if each.name == "vmap"]
        site, asked = case.site, case.asked
        if not found or site is None or asked is None or found[-1].caller is site or found[-1].caller is None:
            return None
        if any(each.name == "vjp_fn" for each in transforms_in(case, *FUNC)):
            return None
        return self.found(
            say(
                "{function} runs under vmap, where its arguments have no graph: {expression} finds none.",
                function=title_of(found[-1].defined), expression=site.text,
            ),
            [
                case.mark(say("a graph is needed here")),
                found[0].caller.mark(say("vmap runs the function here")) if found[0].caller else case.mark(""),
            ],
            Fix(
                say("Take the gradient with a transform: torch.vmap(torch.func.grad(f))(batch)."),
                "torch.vmap(torch.func.grad(f))(batch)",
            ),
            useless=[say("requires_grad=True on the batch: vmap does not pass it on.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def slope(x):
            return torch.autograd.grad(x.sin(), x)[0]

        torch.vmap(slope)(torch.zeros(4, requires_grad=True))

    @staticmethod
    def good():
        import torch

        torch.vmap(torch.func.grad(torch.sin))(torch.zeros(4))
