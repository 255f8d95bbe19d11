"""PB845: gradcheck with an expanded input."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.evidence.gradchecks import comparison_in
from pullback.diagnose.evidence.transforms import wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say


class OverlappingInput(Cause):
    """An input of gradcheck is an expanded tensor: several of its elements are the same memory.

    gradcheck moves one element at a time, in place. In a tensor made by ``expand`` or ``broadcast_to`` one element of
    memory stands for many, so that moving one moves them all.

    Copy it first: ``x.contiguous()`` or ``x.clone()``; or check the function of the small tensor, with the ``expand``
    within the function.
    """

    code = "PB845"
    title = "An input of gradcheck is an expanded tensor, whose elements share memory."
    says = ("has a dimension with stride 0",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        found = re.search(r"The (\d+)th input", case.message)
        if comparison is None or case.site is None:
            return None
        number = int(found.group(1)) if found else 0
        about = comparison.inputs[number] if number < len(comparison.inputs) else None
        given = case.argument("inputs", 1)
        if given is not None and hasattr(given, "elts"):
            given = given.elts[number] if number < len(given.elts) else None
        edits: tuple[Edit, ...] = ()
        if given is not None and about is not None:
            edits = (case.site.source.replaced(given, f"{wrapped_text(case.text(given), given)}.contiguous()"),)
        strides = tuple(about.stride()) if about is not None else ()
        return self.found(
            say(
                "{name} has shape {shape} and strides {strides}: along a stride of 0 all elements are one.",
                name=case.text(given) or say("the input"),
                shape=tuple(about.shape) if about is not None else (),
                strides=strides,
            ),
            [case.mark(say("gradcheck is called here")), *_made(case, given)],
            Fix(say("Copy the input first."), "\n".join(each.text.strip() for each in edits if each.text), edits,
                "high" if edits else "medium"),
            tensors=[case.subject(about, "input")] if about is not None else [],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        row = torch.ones(1, 2, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(torch.exp, (row.expand(3, 2),))

    @staticmethod
    def good():
        import torch

        row = torch.ones(1, 2, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(lambda r: r.expand(3, 2).exp(), (row,))


def _made(case: Case, given: ast.expr | None) -> list[Mark]:
    """The line that expanded the input, if that is another one."""
    steps = definitions(case, given)
    return [steps[-1].mark(say("{name} was made here", name=case.text(given)))] if steps else []
