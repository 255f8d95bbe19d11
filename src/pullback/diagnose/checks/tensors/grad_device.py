"""PB514: a gradient on another device was assigned to .grad."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.assigned import assigned, fix_of, like, marks_of
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class GradDevice(Cause):
    """The gradient of a tensor is on the device of the tensor.

    Move it: ``p.grad = g.to(p.device)``; ``torch.zeros_like(p)`` takes shape, dtype and device from the tensor.
    """

    code = "PB514"
    title = "A gradient on another device was assigned to .grad."
    says = (
        "attempting to assign a gradient with device",
        "attempting to assign a gradient located on device",
        "assigned grad has data located on a different device",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = assigned(case)
        if found is None:
            return None
        value = found.value
        text = like(case, found) or f"{found.text}.to({found.name}.device)"
        lost = "meta" in case.message and not like(case, found)
        text = "" if lost and not isinstance(value, Tensor) else text
        return self.found(
            say(
                "{name} is on {device}; the gradient that is assigned is on another device.",
                name=found.name,
                device=found.tensor.device,
            ),
            marks_of(case, found),
            fix_of(case, found, say("Make the gradient on the device of the tensor."), text, sure=True),
            tensors=[case.subject(found.tensor, "leaf", found.name)],
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 2)
        layer.bias.grad = torch.zeros(2, device="meta")

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 2)
        layer.bias.grad = torch.zeros_like(layer.bias)
