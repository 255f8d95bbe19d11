"""PB633: a plateau schedule was stepped without a number."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class PlateauMetric(Cause):
    """``ReduceLROnPlateau.step`` was called without the number that it watches.

    The other schedules count steps; this one lowers the learning rate when a number stops falling, so it has to
    be told the number each time: ``scheduler.step(validation_loss)``, once for each epoch. Code that is to work
    with any scheduler tests ``isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)``.
    """

    code = "PB633"
    title = "ReduceLROnPlateau was stepped without the number that it watches."
    says = ("ReduceLROnPlateau.step() missing",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        call, site = case.call, case.site
        if call is None or site is None or not isinstance(call.func, ast.Attribute):
            return None
        owner = case.text(call.func.value)
        return self.found(
            say(
                "{name} lowers the learning rate when a number stops falling, and was not told the number.", name=owner
            ),
            [case.mark(say("stepped without a number here"))],
            Fix(
                say("Pass the loss that is to fall, of the validation data if there are any."),
                f"{owner}.step(loss.item())",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        scheduler.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        scheduler.step(0.5)
