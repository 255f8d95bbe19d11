"""PBA142: a reentrant checkpoint none of whose inputs requires grad."""

from __future__ import annotations

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.warned import calls_at, told, with_keyword
from pullback.diagnose.values import Edit, Fix, Mark
from pullback.language import say


class CheckpointNoInput(Fault):
    """A reentrant checkpoint recorded nothing, because none of its inputs requires grad.

    With ``use_reentrant=True`` a checkpoint is one node, which is made only if an *input* requires grad. Parameters of
    the module inside do not count: they get no gradient, silently but for a warning.

    Use ``use_reentrant=False``, which does not have this limit. Making the input require grad
    (``x.requires_grad_()``) works too, but computes a gradient that nobody needs.
    """

    code = "PBA142"
    title = "A reentrant checkpoint recorded no graph: none of its inputs requires grad."

    def warned(self, audit: Audit, message: str, category: type[Warning], mark: Mark) -> None:
        if "None of the inputs have requires_grad=True" not in message:
            return
        edits: tuple[Edit, ...] = ()
        for source, call in calls_at(mark, "checkpoint", "checkpoint_sequential"):
            if call.lineno <= mark.place.line <= (call.end_lineno or call.lineno):
                edits = (with_keyword(source, call, "use_reentrant", "False"),)
        audit.report(
            self.found(
                say("The result does not require grad: the parameters used inside get no gradient from it."),
                [told(mark, say("nothing is recorded here"))],
                Fix(
                    say("Use the checkpoint that is not reentrant."),
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

        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        head = torch.nn.Linear(4, 1)
        x = torch.randn(2, 4)
        loss = head(checkpoint(block, x, use_reentrant=True)).sum()
        loss.backward()

    @staticmethod
    def good():
        import torch
        from torch.utils.checkpoint import checkpoint

        block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        head = torch.nn.Linear(4, 1)
        x = torch.randn(2, 4)
        loss = head(checkpoint(block, x, use_reentrant=False)).sum()
        loss.backward()
