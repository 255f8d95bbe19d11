"""PBA143: ``use_reentrant`` was not given."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import calls_at, told, with_keyword
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say


class CheckpointKind(Fault):
    """``checkpoint`` was called without saying which of the two kinds is meant.

    The default has been the reentrant kind and changes with the version of torch. The two differ: the reentrant one
    does not work with ``torch.autograd.grad``, records nothing if no input requires grad, and follows only tensors
    that are arguments or results themselves, not those within lists or dictionaries.

    Write ``use_reentrant=False``, which has none of these limits. Hiding the warning leaves the choice to the version
    of torch.
    """

    code = "PBA143"
    title = "A checkpoint was made without saying whether it is reentrant."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "use_reentrant parameter should be passed explicitly" not in message:
            return
        edits: tuple[Edit, ...] = ()
        for source, call in calls_at(mark, "checkpoint", "checkpoint_sequential"):
            if call.lineno <= mark.place.line <= (call.end_lineno or call.lineno):
                edits = (with_keyword(source, call, "use_reentrant", "False"),)
        audit.report(
            self.found(
                say("Which kind of checkpoint this is depends on the version of torch."),
                [told(mark, say("the kind is not said"))],
                Fix(
                    say("Say use_reentrant=False."),
                    "checkpoint(function, x, use_reentrant=False)",
                    edits,
                    "high" if edits else "medium",
                ),
            )
        )

    @staticmethod
    def bad():
        import torch
        from torch.utils.checkpoint import checkpoint

        block = torch.nn.Linear(4, 4)
        checkpoint(block, torch.randn(2, 4, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        block = torch.nn.Linear(4, 4)
        checkpoint(block, torch.randn(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
