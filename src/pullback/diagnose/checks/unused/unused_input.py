"""PB601: an input that takes no part."""

from __future__ import annotations

import ast

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.unused.cut_input import CutInput
from pullback.diagnose.checks.unused.grad_after_forward import GradAfterForward
from pullback.diagnose.checks.unused.rebound_input import ReboundInput
from pullback.diagnose.evidence.absent.inputs import Unused, mentions, unused_input
from pullback.diagnose.evidence.definitions import Definition, definitions, keyword_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class UnusedInput(Cause):
    """A gradient was asked for by a tensor that the output does not depend on.

    ``torch.autograd.grad`` treats it as a mistake, since it usually is one: a layer that ``forward`` does not call, a
    variable with a similar name, a term that was left out of the loss.

    Use it, or take it out of the list. If it may be unused (a branch that not every batch takes), say
    ``materialize_grads=True`` for zeros, or ``allow_unused=True`` for None.
    """

    code = "PB601"
    title = "A gradient was asked for by a tensor that takes no part in the output."
    says = ("not have been used in the graph",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = unused_input(case)
        if found is None or found.after or case.site is None:
            return None
        if any(other().diagnose(case) is not None for other in (GradAfterForward, ReboundInput, CutInput)):
            return None
        name = case.name_of(found.tensor) or case.text(found.written) or say("the input")
        sure = self._sure(case, found, name)
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        if computed := _computed(case):
            marks.append(computed[0].mark(say("the output was computed here, without {name}", name=name)))
        if own := definitions(case, found.written):
            marks.append(own[-1].mark(say("{name} was made here", name=name)))
        edits: tuple[Edit, ...] = ()
        call = case.call
        if (
            call is not None
            and keyword_of(call, "materialize_grads") is None
            and case.asked
            and case.asked.verb == "grad"
        ):
            text = f"{case.text(call).rstrip()[:-1].rstrip().rstrip(',')}, materialize_grads=True)"
            if keyword_of(call, "allow_unused") is None:
                edits = (case.site.source.replaced(call, text),)
        return self.found(
            say("The output does not depend on {name}, input number {number}: it has no gradient there, not even zero.",
                name=name, number=found.number),
            marks,
            Fix(
                say("Use it or leave it out; if it may be unused, ask for zeros."),
                case.site.source.code(*edits) or "torch.autograd.grad(..., materialize_grads=True)",
                edits,
                "high" if edits and sure and isinstance(found.tensor, nn.Parameter) else "medium",
            ),
            tensors=[case.subject(found.tensor, "input", name)],
            confidence="high" if sure else "medium",
            apart="" if sure else say("Whether {name} was not used at all, or used and then cut off.", name=name),
            wants="" if sure else say("Was {name} used in computing the output?", name=name),
        )  # fmt: skip

    @staticmethod
    def _sure(case: Case, found: Unused, name: str) -> bool:
        if case.tape is not None and case.values:
            return True  # a cut would have been found
        parameter = isinstance(found.tensor, nn.Parameter)
        if found.written is None and not parameter:
            return False
        return mentions(case, case.text(found.written) or name) is False

    @staticmethod
    def bad():
        import torch

        a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
        y = (a * b).sum()
        torch.autograd.grad(y, (a, c))

    @staticmethod
    def good():
        import torch

        a, b, c = (torch.randn(3, requires_grad=True) for _ in range(3))
        y = (a * b + c).sum()
        torch.autograd.grad(y, (a, c))


def _computed(case: Case) -> list[Definition]:
    """Where the output was computed: of ``u.sum()``, where ``u`` was."""
    if case.root is None:
        return []
    names = [each for each in ast.walk(case.root) if isinstance(each, ast.Name)]
    return next((found for each in (case.root, *names) if (found := definitions(case, each))), [])
