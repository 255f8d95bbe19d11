"""PBA112: the scheduler steps before the optimizer."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.training.loop import scaler_of
from pullback.diagnose.values import Fix, Mark
from pullback.language import say


class SchedulerFirst(Fault):
    """The learning rate scheduler was stepped before the optimizer.

    ``scheduler.step()`` computes the rate of the *next* step. Called before ``optimizer.step()`` it skips the first
    value of the schedule, so that every step uses the rate of the one after it.

    Call ``optimizer.step()`` first, then ``scheduler.step()``. With ``GradScaler`` the first steps may be skipped
    because of overflow; the warning is harmless then and not reported here.
    """

    code = "PBA112"
    title = "The scheduler was stepped before the optimizer: the first learning rate was skipped."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "`lr_scheduler.step()` before `optimizer.step()`" not in message or scaler_of(audit) is not None:
            return
        audit.report(
            self.found(
                say(
                    "scheduler.step() ran before the optimizer had made a step: its first learning rate is never used."
                ),
                [Mark(mark.place, say("steps the schedule"), mark.span, mark.text)],
                Fix(say("Step the optimizer first."), "optimizer.step()\nscheduler.step()"),
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            scheduler.step()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
