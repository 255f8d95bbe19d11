"""PB836: a dual of a tensor whose elements share memory."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class OverlappingPrimal(Cause):
    """``make_dual`` was called with an expanded tensor, several of whose elements are the same memory.

    ``x.expand(3, 4)`` repeats the same numbers without copying them. A tangent is laid out as its primal is, so that
    the tangent's elements could not differ either.

    Copy it first: ``x.expand(3, 4).clone()``, or ``.contiguous()``; or make the dual of the small tensor and expand
    that: its tangent is expanded along.
    """

    code = "PB836"
    title = "A dual tensor was made of an expanded tensor, whose elements share memory."
    says = ("refers to a single memory location",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("autograd/forward_ad.py", "make_dual")
        given = case.argument("tensor", 0)
        if local is None or case.site is None:
            return None
        edits: tuple[Edit, ...] = ()
        if given is not None and case.text(case.call.func if case.call else None).endswith("make_dual"):
            edits = (case.site.source.replaced(given, f"{wrapped_text(case.text(given), given)}.clone()"),)
        primal = local["tensor"]
        return self.found(
            say("The primal has shape {shape} and strides {strides}: a stride of 0 repeats the same memory.",
                shape=tuple(primal.shape), strides=tuple(primal.stride())),
            [case.mark(say("the dual is made here"))],
            Fix(
                say("Copy the expanded tensor first."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch
        import torch.autograd.forward_ad as fw

        rows = torch.zeros(1, 3).expand(2, 3)
        with fw.dual_level():
            fw.make_dual(rows, torch.ones(2, 3))

    @staticmethod
    def good():
        import torch
        import torch.autograd.forward_ad as fw

        rows = torch.zeros(1, 3).expand(2, 3)
        with fw.dual_level():
            fw.make_dual(rows.clone(), torch.ones(2, 3))
