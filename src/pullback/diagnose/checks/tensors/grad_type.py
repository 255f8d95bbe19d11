"""PB515: something that is no tensor was assigned to .grad."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.assigned import assigned, fix_of, marks_of
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class GradType(Cause):
    """A gradient is a tensor, or None.

    To clear it write ``p.grad = None``, or ``p.grad.zero_()`` if there is one. A number or an array has to be made a
    tensor of the same shape: ``torch.full_like(p, 0.5)``, ``torch.as_tensor(array).to(p)``.
    """

    code = "PB515"
    title = "Something that is no tensor was assigned to .grad."
    says = ("assigned grad expected to be a tensor or none",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = assigned(case)
        if found is None:
            return None
        value = found.value
        text = f"torch.as_tensor({found.text}).to({found.name})"
        if isinstance(value, int | float):
            text = "None" if value == 0 else f"torch.full_like({found.name}, {found.text})"
        return self.found(
            say(
                "An object of type {kind} was assigned to {name}.grad; a gradient is a tensor, or None.",
                name=found.name,
                kind=type(value).__name__ if value is not None else say("value"),
            ),
            marks_of(case, found),
            fix_of(case, found, say("Assign None to clear it, or a tensor of its shape."), text, sure=True),
            tensors=[case.subject(found.tensor, "leaf", found.name)],
        )

    @staticmethod
    def bad():
        import torch

        weight = torch.nn.Parameter(torch.randn(2))
        weight.grad = 0

    @staticmethod
    def good():
        import torch

        weight = torch.nn.Parameter(torch.randn(2))
        weight.grad = None
