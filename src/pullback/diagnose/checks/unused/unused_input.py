"""PB601: an input that takes no part."""

from __future__ import annotations

import ast

from torch import Tensor, nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.checks.freed.once_differentiable import OnceDifferentiable
from pullback.diagnose.checks.unused.cut_input import CutInput
from pullback.diagnose.checks.unused.grad_after_forward import GradAfterForward
from pullback.diagnose.checks.unused.rebound_input import ReboundInput
from pullback.diagnose.evidence.absent.inputs import Unused, derivative_mark, is_reached, mentions, unused_input
from pullback.diagnose.evidence.definitions import Definition, definitions, keyword_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
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
        if any(
            other().diagnose(case) is not None
            for other in (OnceDifferentiable, GradAfterForward, ReboundInput, CutInput)
        ):
            return None
        name = case.name_of(found.tensor) or case.text(found.written) or say("the input")
        first = derivative_mark(case, found, say("this derivative is differentiated again"))
        if first is not None:
            return self._constant(case, found, name, first)
        sure = self._sure(case, found, name)
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        if computed := _computed(case):
            marks.append(computed[0].mark(say("the output was computed here, without {name}", name=name)))
        if own := definitions(case, found.written):
            marks.append(own[-1].mark(say("{name} was made here", name=name)))
        edits = _zeros(case) if sure else ()  # zeros would hide a cut
        inputs = (case.asked.inputs if case.asked else None) or ()
        some = any(isinstance(each, Tensor) and is_reached(each, found.nodes) for each in inputs)
        twin = _twin(case, found)
        if twin is not None:
            marks += [each.mark(say("{name} was made here", name=twin[1])) for each in twin[2][:1]]
        return self.found(
            say(
                "The output was computed with {other}; it does not depend on {name}, which is a part of {module}, "
                "another object.",
                name=name, other=twin[1], module=twin[0],
            )
            if twin is not None
            else say(
                "The output does not depend on {name}, input number {number}: it has no gradient there, not even zero.",
                name=name, number=found.number,
            ),
            marks,
            Fix(
                say("Differentiate by the parameters of {other}, or compute the output with {module}.",
                    other=twin[1], module=twin[0]),
                f"{twin[1]}.parameters()",
            )
            if twin is not None
            else Fix(
                say("Use it or leave it out; if it may be unused, ask for zeros."),
                case.site.source.code(*edits) or "torch.autograd.grad(..., materialize_grads=True)",
                edits,
                "high" if edits and sure and some and isinstance(found.tensor, nn.Parameter) else "medium",
            ),
            tensors=[case.subject(found.tensor, "input", name)],
            confidence="high" if sure else "medium",
            apart="" if sure else say("Whether {name} was not used at all, or used and then cut off.", name=name),
            wants="" if sure else say("Was {name} used in computing the output?", name=name),
        )  # fmt: skip

    def _constant(self, case: Case, found: Unused, name: str, first: Mark) -> Diagnosis:
        """The output is a derivative in which the input does not occur: that of a function which is linear in it."""
        sure = case.tape is not None and bool(case.values)
        edits = _zeros(case) if sure else ()
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        marks += [each.mark(say("this derivative is differentiated again")) for each in _computed(case)[:1]] or [first]
        marks += [each.mark(say("called from here")) for each in case.frames[-2:-1]]
        return self.found(
            say(
                "The output is a derivative itself, and {name} does not occur in it: what was differentiated first is "
                "linear in {name}, so that its second derivative by {name} is zero.",
                name=name,
            ),
            marks,
            Fix(
                say(
                    "If that should not be linear in {name}, a nonlinearity is missing there (ReLU has none to offer: "
                    "its second derivative is zero too); else ask for zeros.",
                    name=name,
                ),
                case.site.source.code(*edits).strip() if edits and case.site else
                "torch.autograd.grad(..., materialize_grads=True)",
                edits,
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


def _zeros(case: Case) -> tuple[Edit, ...]:
    """The edit that asks for zeros instead of an error."""
    call, site = case.call, case.site
    if call is None or site is None or case.asked is None or case.asked.verb != "grad":
        return ()
    if keyword_of(call, "materialize_grads") is not None or keyword_of(call, "allow_unused") is not None:
        return ()
    text = f"{case.text(call).rstrip()[:-1].rstrip().rstrip(',')}, materialize_grads=True)"
    return (site.source.replaced(call, text),)


def _twin(case: Case, found: Unused) -> tuple[str, str, list[Definition]] | None:
    """The module that an unused parameter is of, and another of its class that the output was computed with."""
    modules = [(name, each, list(each.parameters())) for name, each in case.holds(nn.Module)]
    for name, module, own in modules:
        if not any(each is found.tensor for each in own) or any(is_reached(each, found.nodes) for each in own):
            continue
        for other, twin, parameters in modules:
            used = bool(parameters) and all(is_reached(each, found.nodes) for each in parameters)
            if type(twin) is type(module) and used and len(parameters) == len(own):
                return name, other, definitions(case, ast.parse(other, mode="eval").body)
    return None


def _computed(case: Case) -> list[Definition]:
    """Where the output was computed: of ``u.sum()``, where ``u`` was."""
    if case.root is None:
        return []
    names = [each for each in ast.walk(case.root) if isinstance(each, ast.Name)]
    return next((found for each in (case.root, *names) if (found := definitions(case, each))), [])
