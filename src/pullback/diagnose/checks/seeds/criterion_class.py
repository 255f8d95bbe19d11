"""PB121: the class of a criterion called with the tensors."""

from __future__ import annotations

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class CriterionClass(Cause):
    """``nn.MSELoss(output, target)`` makes a criterion with the tensors as its options; it computes nothing.

    The classes of ``torch.nn`` are made first and called then: ``criterion = nn.MSELoss()``, ``criterion(output,
    target)``. In one go: ``nn.MSELoss()(output, target)``, or the function ``F.mse_loss(output, target)``.
    """

    code = "PB121"
    title = "Tensors were given to the class of a criterion, not to a criterion."
    says = ("boolean value of tensor with", "bool value of tensor with")

    def diagnose(self, case: Case) -> Diagnosis | None:
        call = case.call
        if (
            call is None
            or case.site is None
            or case.library_frame("torch/nn/_reduction.py", "legacy_get_string") is None
        ):
            return None
        kind = case.site.evaluated(call.func)
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            return None
        source = case.site.source
        name = case.text(call.func)
        given = ", ".join(source.text(each) for each in [*call.args, *call.keywords])
        text = f"{name}()({given})"
        edit = source.replaced(call, text)
        return self.found(
            say("{name} is a class: {name}(...) makes a criterion, with the tensors taken for its options.", name=name),
            [case.mark(say("the class is called here"))],
            Fix(say("Make the criterion first, and call it."), text, (edit,), "high"),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = torch.nn.MSELoss(net(torch.randn(4, 3)), torch.zeros(4, 1))
        loss.backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = torch.nn.MSELoss()(net(torch.randn(4, 3)), torch.zeros(4, 1))
        loss.backward()
