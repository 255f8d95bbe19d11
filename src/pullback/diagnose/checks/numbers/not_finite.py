"""PBA327: numbers that are not finite, from elsewhere."""

from __future__ import annotations

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import BirthFault, marks_of, names_of, operation_of, subjects_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NotFinite(BirthFault):
    """A gradient is infinite or NaN, and this is the first operation where it is.

    Either a tensor that was given to the program (data, a parameter after a bad step) has infinite or NaN elements
    already, or the operation named here made them. All that is computed from them is NaN, and after the next optimizer
    step so are the parameters.

    Check the data with ``torch.isfinite(x).all()``; if a parameter is not finite, the step before made it so: look for
    a learning rate that is too large, or missing gradient clipping.
    """

    code = "PBA327"
    title = "A gradient is infinite or NaN."
    kinds = frozenset({"given", "other"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        operation = operation_of(birth.node)
        if birth.kind == "given":
            cause = say(
                "A tensor that goes into {operation} has infinite or NaN elements already, before anything was "
                "computed from it: data, or a parameter after an earlier step.",
                operation=operation,
            )  # fmt: skip
        else:
            cause = say(
                "{operation} is the first operation whose result is not finite, although what came in was. From there "
                "{name} gets a gradient with infinite or NaN elements.",
                operation=operation, name=names_of(audit, birth),
            )  # fmt: skip
        return self.found(
            cause,
            marks_of(audit, backward, birth),
            Fix(say("Check what goes into this line."), "assert torch.isfinite(x).all()"),
            tensors=subjects_of(audit, birth),
            confidence="high" if birth.kind == "given" else "medium",
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)
        data = torch.tensor([[1.0, 2.0], [float("nan"), 3.0]])
        net(data).square().mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)
        data = torch.tensor([[1.0, 2.0], [float("nan"), 3.0]])
        net(data[torch.isfinite(data).all(1)]).square().mean().backward()
