"""PB419: a changed tensor, without the evidence that tells what changed it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import all_marks, name_of, of_kind, why_not_data, why_not_retain
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ChangedSomewhere(Cause):
    """Some operation had kept a tensor for its backward, and something has changed it in place since.

    Which line did it is known to the trace only: run again with `--trace`. The usual suspects: `+=`, an assignment
    by index, methods that end with an underscore, `inplace=True`, `optimizer.step()` before the backward pass,
    `detach()` aliases.

    Whatever it is: make a new tensor, or change a clone.
    """

    code = "PB419"
    title = "A tensor that an operation had kept for its backward was changed in place."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "unknown")
        if found is None:
            return None
        return self.found(
            say(
                "An operation had kept {name} for its backward, and it was changed in place since.", name=name_of(found)
            )
            if found.reader is not None
            else say("An operation had kept a tensor for its backward, and it was changed in place since."),
            all_marks(case, found, say("changed in place here")) if found.reader is not None else [case.mark("")],
            Fix(say("Make a new tensor instead of changing that one, or change a clone of it."), ""),
            confidence="low",
            useless=[why_not_retain(), why_not_data()],
            apart=say("the line that changed it"),
            wants="" if case.traced else say("Which line changed it after it was kept?"),
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(4, requires_grad=True)
        mixed = w * 2
        mixed[:2].exp_()
        mixed += 1
        mixed.sum().backward()

    @staticmethod
    def good():
        import torch

        w = torch.randn(4, requires_grad=True)
        mixed = w * 2
        mixed[:2].exp_()
        mixed = mixed + 1
        mixed.sum().backward()
