"""PB321: an operation of torch that has no derivative."""

from __future__ import annotations

import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import asking_frame
from pullback.diagnose.evidence.freed.operations import operation_mark
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

INSTEAD = {
    "heaviside": "torch.sigmoid(10 * x)",
    "igamma": "torch.special.gammainc of a constant first argument",
    "nextafter": "x + eps",
    "histc": "a soft histogram: torch.exp(-(x[:, None] - centres) ** 2 / width).sum(0)",
}


class NoDerivative(Cause):
    """An operation on the way from the parameters to the loss has no derivative in torch.

    Such an operation runs in the forward pass and is recorded as one that refuses: the error comes only in
    `backward()`, far from the line that called it. Some have no derivative by nature (steps and counts), others
    have none by one of their arguments, or no *second* derivative.

    Use a smooth stand-in (`torch.sigmoid(k * x)` for a step), keep the operation away from what is trained
    (`.detach()` its argument if it is meant to be a constant), or write a `torch.autograd.Function` with the gradient
    that you mean.
    """

    code = "PB321"
    title = "An operation on the way to the root has no derivative."
    says = ("is not implemented",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = re.search(r"derivative (?:for|of) '?([\w:.]+)'? is not implemented", case.message)
        if found is None or "forward AD" in case.message:
            return None
        operation = found.group(1)
        short = operation.rsplit("::", 1)[-1]
        asking = asking_frame(case)
        made = operation_mark(case, operation, say("{name} was called here", name=short))
        asked = case.asked is not None
        marks = [
            asking.mark(say("the gradient is asked for here")) if asking and asked else case.mark(say("no derivative"))
        ]
        second = short.endswith("_backward")
        instead = INSTEAD.get(short, "")
        return self.found(
            say(
                "{name} is the derivative of an operation, and has itself no derivative: the operation can be "
                "differentiated once only.",
                name=short,
            )
            if second
            else say("{name} has no derivative, but the root depends on its result.", name=short),
            [*marks, *made],
            Fix(
                say(
                    "Use another operation, detach its argument if it is a constant, or write a "
                    "Function with a gradient."
                ),
                instead or f"{short}(x.detach(), ...)",
                (),
                "low",
            ),
            wants="" if made or case.traced else say("Which line called {name}?", name=short),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.rand(4, requires_grad=True)
        steps = torch.heaviside(w - 0.5, torch.tensor(0.5))
        (steps * w).sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.rand(4, requires_grad=True)
        steps = torch.sigmoid(20 * (w - 0.5))
        (steps * w).sum().backward()
