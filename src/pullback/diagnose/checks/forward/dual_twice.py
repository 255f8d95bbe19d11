"""PB835: a second tangent for a tensor that has one."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DualTwice(Cause):
    """``make_dual`` was called with a tensor that has a tangent already.

    In one level each tensor has one tangent: that of what it was computed from. ``make_dual`` is for the inputs, at the
    start; what is computed from a dual tensor carries its tangent along by itself.

    To begin afresh from its value, take the primal alone: ``fwAD.unpack_dual(x).primal``. To replace the direction of
    an input, keep the plain tensor and make a second dual from it. For two directions at once use ``torch.func.vmap``
    over ``torch.func.jvp``.
    """

    code = "PB835"
    title = "A tangent was given to a tensor that already has one."
    says = ("already has a forward gradient",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        given = case.argument("tensor", 0)
        edits: tuple[Edit, ...] = ()
        function = case.text(case.call.func) if case.call is not None else ""
        if given is not None and function.endswith(".make_dual"):
            text = f"{function.removesuffix('make_dual')}unpack_dual({case.text(given)}).primal"
            edits = (case.site.source.replaced(given, text),)
        return self.found(
            say("{name} is a dual tensor: it was made by make_dual, or computed from such a tensor.",
                name=case.text(given) or say("the tensor")),
            [case.mark(say("a second tangent is given here"))],
            Fix(
                say("Make the dual once, from the plain tensor; or take the primal alone first."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch
        import torch.autograd.forward_ad as fw

        with fw.dual_level():
            x = fw.make_dual(torch.zeros(2), torch.ones(2))
            y = x * 3
            fw.make_dual(y, torch.ones(2))

    @staticmethod
    def good():
        import torch
        import torch.autograd.forward_ad as fw

        with fw.dual_level():
            x = fw.make_dual(torch.zeros(2), torch.ones(2))
            y = x * 3
            fw.unpack_dual(y)
