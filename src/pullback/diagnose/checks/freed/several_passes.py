"""PB307: several passes over one graph, none of which keeps it."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made as definition_marks
from pullback.diagnose.evidence.freed.find import SECOND_TIME, Reentry
from pullback.diagnose.evidence.freed.flow import loops_around
from pullback.diagnose.evidence.freed.report import earlier_mark, entry_marks, failing_mark, of_kind, retaining
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SeveralPasses(Cause):
    """One graph was differentiated several times on purpose, and the first pass did not keep it.

    The rows of a Jacobian (`torch.autograd.grad(y[i], x)` for each `i`), or the gradients of one loss by several inputs
    in separate calls, walk the same graph again. Each pass but the last needs `retain_graph=True`.

    Often one pass is enough: `torch.autograd.grad(loss, (a, b))` gives both gradients, and `torch.func.jacrev(f)(x)`
    or `torch.autograd.grad(y, x, grad_outputs=eye, is_grads_batched=True)` gives all rows.
    """

    code = "PB307"
    title = "One graph is differentiated several times, and an earlier pass did not keep it."
    says = SECOND_TIME

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = of_kind(case, "grads")
        if found is None:
            return None
        root = case.asked.tensors[0] if case.asked and case.asked.tensors else None
        name = (
            found.name.held.path if found.name else (case.name_of(root) if root is not None else "") or say("the root")
        )
        made, _ = entry_marks(case, found, name)
        made = made or definition_marks(case, None, case.root, say("{name} was made here", name=name))
        marks = [
            failing_mark(case, found, say("a further pass over the graph of {name}", name=name)),
            *made,
            *earlier_mark(found, say("this pass freed the graph: it was not told to keep it")),
        ]
        return self.found(
            say(
                "This pass runs inside another one, in a hook or a custom backward, and goes over the graph of {name} "
                "each time it is asked for. The first time it was given no retain_graph=True, so it freed the graph.",
                name=name,
            )
            if found.earlier is None
            else say(
                "Several passes go over the graph of {name}. The earlier one was given no "
                "retain_graph=True, so it freed "
                "the graph as it went.",
                name=name,
            ),
            marks,
            self._fix(found),
            tensors=[case.subject(root, "root")] if root is not None else [],
            confidence="high" if found.certain else "medium",
            apart=""
            if found.certain
            else say("Whether an earlier call of this line freed the graph, or another pass."),
        )

    @staticmethod
    def _fix(found: Reentry) -> Fix:
        spot = found.earlier.spot if found.earlier else found.asking
        edits = retaining(spot)
        code = spot.source.code(*edits).strip() if spot is not None and edits else "retain_graph=True"
        looped = found.asking is not None and bool(loops_around(found.asking))
        return Fix(
            say("Keep the graph in every pass but the last: retain_graph=True.")
            if looped or found.earlier is None
            else say("Keep the graph in the earlier pass, or ask for both gradients in one call."),
            code,
            edits,
            "high" if edits and found.certain else "medium",
        )

    @staticmethod
    def bad():
        import torch

        a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        energy = (a * b).exp().sum()
        (by_a,) = torch.autograd.grad(energy, a)
        (by_b,) = torch.autograd.grad(energy, b)

    @staticmethod
    def good():
        import torch

        a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        energy = (a * b).exp().sum()
        (by_a,) = torch.autograd.grad(energy, a, retain_graph=True)
        (by_b,) = torch.autograd.grad(energy, b)
