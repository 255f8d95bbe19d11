"""PB634: a schedule was resumed on a new optimizer."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class InitialRateMissing(Cause):
    """A learning rate schedule was made with ``last_epoch``, and the optimizer does not know its initial rate.

    ``last_epoch=n`` continues a schedule after n steps, and needs the rate that it began with: ``initial_lr``
    in each parameter group. A new optimizer has none; it is in the state of the old one. Load both states
    instead:

        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler = CosineAnnealingLR(optimizer, 100)
        scheduler.load_state_dict(checkpoint["scheduler"])
    """

    code = "PB634"
    title = "A learning rate schedule was to continue on an optimizer that does not know its initial rate."
    says = ("param 'initial_lr' is not specified",)
    raises = (KeyError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        return self.found(
            say("last_epoch continues a schedule, but the parameter groups of the optimizer have no initial_lr."),
            [case.mark(say("continued here"))],
            Fix(
                say("Leave last_epoch out, and load the states of the optimizer and of the scheduler."),
                'optimizer.load_state_dict(checkpoint["optimizer"])\n'
                'scheduler.load_state_dict(checkpoint["scheduler"])',
            ),
            useless=[say("setting initial_lr by hand: right for the rate, but momentum and the counters start anew.")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10, last_epoch=4)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
