"""PB850: gradcheck of a function whose graph is cut."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in, entries
from pullback.diagnose.evidence.transforms import title_of
from pullback.diagnose.evidence.verdicts import cuts, verdict
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class CutFunction(Cause):
    """The function given to gradcheck depends on its input, but its graph is cut: the backward misses a part, or all.

    Differences see the whole dependence; the graph does not, because of ``detach()``, ``.data``, ``.item()``, numpy or
    ``torch.no_grad()`` in the function. gradcheck says "Numerical gradient for function expected to be zero" if the
    result has no graph at all, and a mismatch of the Jacobians if a part of it is cut.

    Take the cut out. If it is meant (a stop-gradient, a straight-through estimator), the gradient is *not* the
    derivative of the function, and gradcheck is the wrong test: compare with the formula that is meant.
    """

    code = "PB850"
    title = "The graph of the function given to gradcheck is cut."
    says = ("Numerical gradient for function expected to be zero", "Jacobian mismatch")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or comparison.second:
            return None
        if case.says("Jacobian mismatch") and verdict(case, comparison) != "cut":
            return None
        where = comparison.defined
        found = cuts(where)
        marks = [case.mark(say("gradcheck is called here"))]
        edits: tuple[Edit, ...] = ()
        if where is not None:
            marks += [where.mark(each, say("this cuts the graph")) for each in found] or where.marks(
                say("this is checked")
            )
            only = found[0] if len(found) == 1 else None
            call = where.source.parent(only) if only is not None else None
            if isinstance(only, ast.Attribute) and only.attr == "detach" and isinstance(call, ast.Call):
                edits = (where.source.replaced(call, where.text(only.value)),)
        told = entries(comparison)
        return self.found(
            say("{function} depends on its input, but its result does not lead back to it.{entries}",
                function=title_of(where), entries=f" {told}" if told else ""),
            marks,
            Fix(
                say("Take out what cuts the graph."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if found else "medium",
            useless=[say("requires_grad_() on the result: it has no way back to the input.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(lambda t: t.exp().detach() * 2, x)

    @staticmethod
    def good():
        import torch

        x = torch.rand(3, dtype=torch.double, requires_grad=True)
        torch.autograd.gradcheck(lambda t: t.exp() * 2, x)
