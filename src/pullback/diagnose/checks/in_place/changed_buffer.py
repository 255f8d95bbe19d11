"""PB410: a buffer of a module, changed before the backward."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.overwritten.find import MODIFIED
from pullback.diagnose.evidence.overwritten.report import (
    all_marks,
    cloned_before,
    code_of,
    name_of,
    of_kind,
    sentence,
    subjects,
    why_not_retain,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class ChangedBuffer(Cause):
    """A buffer (running statistics, a mask) was changed in place after an operation had kept it for its backward.

    Batch norm in eval mode keeps its running statistics; `load_state_dict`, `reset_running_stats()`, a moving
    average, or `DistributedDataParallel(broadcast_buffers=True)` with several forward passes before one backward
    change them.

    Change the buffer after the backward pass, or assign a new tensor instead of writing into the old one
    (`self.mean = 0.9 * self.mean + 0.1 * new`). For DDP: `broadcast_buffers=False`, or one forward pass per
    backward pass.
    """

    code = "PB410"
    title = "A buffer of a module was changed in place between the forward pass and the backward pass."
    says = MODIFIED

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "buffer")
        if found is None:
            return None
        name = name_of(found)
        form = found.form
        at = form.statement if form is not None else None
        edits = cloned_before(form.source, at, form.path) if form is not None and at is not None else ()
        return self.found(
            sentence(found) + " " + say("{name} is a buffer, and was written to after the forward pass.", name=name),
            all_marks(case, found, say("{name} is changed in place here", name=name)),
            Fix(
                say(
                    "Change the buffer after the backward pass, or assign a new tensor instead "
                    "of writing into the old one."
                ),
                code_of(form.source if form else None, edits, f"{name} = {name}.clone()"),
                edits,
                "high" if edits else "medium",
            ),
            tensors=subjects(case, found),
            confidence="high" if found.certain else "medium",
            useless=[why_not_retain()],
            wants=""
            if found.spot is not None or case.traced
            else say("Which line changed {name} after it was kept?", name=name),
        )

    @staticmethod
    def bad():
        import torch

        norm = torch.nn.BatchNorm1d(3).eval()
        x = torch.randn(4, 3, requires_grad=True)
        y = norm(x)
        norm.reset_running_stats()
        y.square().sum().backward()

    @staticmethod
    def good():
        import torch

        norm = torch.nn.BatchNorm1d(3).eval()
        x = torch.randn(4, 3, requires_grad=True)
        y = norm(x)
        y.square().sum().backward()
        norm.reset_running_stats()
