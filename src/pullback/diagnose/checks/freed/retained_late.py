"""PB308: retain_graph=True on the second pass, where the first one needed it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.find import SECOND_TIME
from pullback.diagnose.evidence.freed.report import earlier_mark, entry_marks, failing_mark, of_kind, retaining
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class RetainedLate(Cause):
    """`retain_graph=True` was given to the pass that failed; the pass before it is the one that freed the graph.

    `retain_graph` says what a pass leaves behind for *later* passes. On the second pass it cannot bring back what the
    first one has freed. Every pass but the last over the same graph needs it.

    Ask first whether two passes are meant: the sum of two losses can be differentiated in one, and a graph that is
    differentiated twice adds its gradients twice.
    """

    code = "PB308"
    title = "retain_graph=True was given to the second pass; the first one, without it, had freed the graph."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "late")
        if found is None or found.earlier is None:
            return None
        name = found.name.held.path if found.name else case.text(case.root) or say("the root")
        made, used = entry_marks(case, found, name)
        marks = [
            failing_mark(case, found, say("retain_graph=True comes too late here")),
            *made,
            *earlier_mark(found, say("this pass freed the graph of {name}", name=name)),
            *used,
        ]
        spot = found.earlier.spot
        edits = retaining(spot)
        return self.found(
            say(
                "retain_graph=True keeps a graph for the passes after the one that it is given to. The graph of {name} "
                "was freed by the pass before, which was not given it.",
                name=name,
            ),
            marks,
            Fix(
                say("Give it to the first pass; the last one does not need it."),
                spot.source.code(*edits).strip() if spot is not None and edits else "",
                edits,
                "high" if edits and found.certain else "medium",
            ),
            tensors=[case.subject(found.name.held.tensor, "shared", name)] if found.name else [],
            confidence="high" if found.certain else "medium",
        )

    @staticmethod
    def bad():
        import torch

        w = torch.randn(3, requires_grad=True)
        hidden = w.exp()
        hidden.sum().backward()
        hidden.square().sum().backward(retain_graph=True)

    @staticmethod
    def good():
        import torch

        w = torch.randn(3, requires_grad=True)
        hidden = w.exp()
        hidden.sum().backward(retain_graph=True)
        hidden.square().sum().backward()
