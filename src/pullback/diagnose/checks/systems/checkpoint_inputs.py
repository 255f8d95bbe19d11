"""PB901: a reentrant checkpoint under autograd.grad or backward(inputs=...)."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.checkpoints import (
    checkpoints,
    marks_of,
    narrowed,
    non_reentrant,
    recomputed,
    reentrant,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class CheckpointInputs(Cause):
    """A reentrant checkpoint is in a graph that was differentiated by chosen inputs.

    ``checkpoint(..., use_reentrant=True)`` runs a backward pass of its own within the backward pass, which adds to the
    ``.grad`` of all leaves. So it cannot serve ``torch.autograd.grad`` or ``backward(inputs=...)``, which ask for some
    gradients only; nor ``create_graph=True``.

    ``use_reentrant=False`` has none of these limits, takes keyword arguments, and needs no input that requires grad.
    """

    code = "PB901"
    title = "A reentrant checkpoint is in a graph that was differentiated by chosen inputs."
    says = ("torch.utils.checkpoint is incompatible with .grad()", "Checkpointing is not compatible with .grad()")

    def diagnose(self, case: Case) -> Diagnosis | None:
        calls = narrowed(reentrant(checkpoints(case)), recomputed(case))
        marks = [case.mark(say("this asks for the gradients of chosen inputs"))]
        marks += marks_of(calls, say("this checkpoint is reentrant"))
        edits = non_reentrant(calls)
        return self.found(
            say(
                "The graph has a checkpoint with use_reentrant=True. It runs a backward pass of its own that fills the "
                ".grad of all leaves, and cannot return the gradients of chosen inputs."
            ),
            marks,
            Fix(
                say("Checkpoint with use_reentrant=False."),
                calls[0][0].code(*edits) if edits else 'gradient_checkpointing_kwargs={"use_reentrant": False}',
                edits,
                "high" if edits else "medium",
            ),
            useless=[say("retain_graph=True: the graph was not freed.")],
        )

    @staticmethod
    def bad():
        import torch
        from torch.utils.checkpoint import checkpoint

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.block = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

            def forward(self, x):
                return checkpoint(self.block, x, use_reentrant=True).sum()

        net, x = Net(), torch.randn(2, 3, requires_grad=True)
        net(x).backward(inputs=[x])

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.block = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

            def forward(self, x):
                return checkpoint(self.block, x, use_reentrant=False).sum()

        net, x = Net(), torch.randn(2, 3, requires_grad=True)
        net(x).backward(inputs=[x])
