"""PB903: arguments that only the non-reentrant checkpoint takes."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.checkpoints import marks_of, non_reentrant
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class CheckpointOptions(Cause):
    """A reentrant checkpoint was given arguments that only the non-reentrant one takes.

    With ``use_reentrant=True`` the block gets positional arguments only; keyword arguments, ``context_fn`` and
    ``debug`` need ``use_reentrant=False``. That is also what torch recommends for all new code.
    """

    code = "PB903"
    title = "A reentrant checkpoint was given arguments that only the non-reentrant one takes."
    says = ("Unexpected keyword arguments", "is only supported when use_reentrant=False")
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        inside = [
            frame.f_code.co_name
            for frame, _, _ in frames_of(case.error.__traceback__)
            if frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py")
        ]
        if not inside or case.site is None:
            return None
        calls = [(case.site.source, case.call)] if isinstance(case.call, ast.Call) else []
        edits = non_reentrant(calls)
        return self.found(
            say("The checkpoint is reentrant, and that kind hands on positional arguments only."),
            [case.mark(say("called with use_reentrant=True")), *marks_of([], "")],
            Fix(
                say("Checkpoint with use_reentrant=False."),
                case.site.source.code(*edits) or "use_reentrant=False",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch
        from torch.utils.checkpoint import checkpoint

        def block(x, power=2):
            return (x**power).sum()

        x = torch.randn(4, requires_grad=True)
        checkpoint(block, x, power=3, use_reentrant=True).backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        def block(x, power=2):
            return (x**power).sum()

        x = torch.randn(4, requires_grad=True)
        checkpoint(block, x, power=3, use_reentrant=False).backward()
