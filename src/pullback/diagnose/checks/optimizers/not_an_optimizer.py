"""PB639: a schedule was given something else than an optimizer."""

from __future__ import annotations

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NotAnOptimizer(Cause):
    """A learning rate schedule was given something else than an optimizer.

    A schedule changes the ``lr`` in the parameter groups of an optimizer, so that is its first argument: not
    the model, its parameters, or a wrapper of your own around an optimizer (pass ``wrapper.optimizer``).
    """

    code = "PB639"
    title = "A learning rate schedule was given something that is not an optimizer."
    says = ("is not an Optimizer",)
    raises = (TypeError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        local = case.library_frame("optim/lr_scheduler.py", "__init__")
        node = case.argument("optimizer", 0)
        if site is None or local is None:
            return None
        held = case.holds(torch.optim.Optimizer)
        name = held[0][0] if len(held) == 1 else ""
        edits: tuple[Edit, ...] = (site.source.replaced(node, name),) if name and node is not None else ()
        return self.found(
            say(
                "{name} is of type {kind}, not an optimizer.",
                name=case.text(node) or say("the first argument"),
                kind=type(local.get("optimizer")).__name__,
            ),
            [case.mark(say("the schedule is made here"))],
            Fix(say("Pass the optimizer."), site.source.code(*edits), edits, "high" if edits else "medium"),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(net, 10)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)

        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
