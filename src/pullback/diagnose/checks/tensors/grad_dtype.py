"""PB513: a gradient of another dtype was assigned to .grad."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.assigned import assigned, fix_of, marks_of
from pullback.diagnose.values import Diagnosis
from pullback.language import say
from pullback.words import dtype_name


class GradDtype(Cause):
    """The gradient of a tensor has the dtype of the tensor, unless ``p.grad_dtype`` says otherwise.

    Convert it: ``p.grad = g.to(p.dtype)``. To keep float32 gradients for a bfloat16 parameter set
    ``p.grad_dtype = torch.float32`` first (torch 2.10 and later), and see that the optimizer can use it.
    """

    code = "PB513"
    title = "A gradient of another dtype was assigned to .grad."
    says = ("attempting to assign a gradient with dtype", "assigned grad has data of a different type")

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = assigned(case)
        if found is None:
            return None
        value = found.value
        text = f"{found.text}.to({found.name}.dtype)"
        if isinstance(value, Tensor) and value.device != found.tensor.device:
            text = f"{found.text}.to({found.name})"
        return self.found(
            say(
                "{name} has dtype {dtype}; the gradient that is assigned has another one.",
                name=found.name,
                dtype=dtype_name(found.tensor.dtype),
            ),
            marks_of(case, found),
            fix_of(case, found, say("Convert the gradient to the dtype of the tensor."), text, sure=True),
            tensors=[case.subject(found.tensor, "leaf", found.name)],
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 2).double()
        layer.bias.grad = torch.ones(2) * 0.5

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 2).double()
        layer.bias.grad = (torch.ones(2) * 0.5).to(layer.bias.dtype)
