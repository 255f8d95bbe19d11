"""PB842: gradcheck of a function that draws random numbers."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import comparison_in
from pullback.diagnose.evidence.transforms import assigned, set_keyword
from pullback.diagnose.evidence.verdicts import dropouts, random_calls, random_evidence, verdict
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class RandomFunction(Cause):
    """gradcheck compares calls of a function at neighbouring points, and this function gives other values at each call.

    Two calls with different dropout masks, or different noise, differ by about 1; divided by a step of ``1e-6`` that is
    an entry of a million. Such entries, off the diagonal too, are the mark of randomness (or of a jump).

    Check the function as it is without randomness: ``net.eval()`` for dropout, noise as an input, or
    ``torch.manual_seed(0)`` as the *first line of the function*. A seed before ``gradcheck`` is not enough: each call
    draws on. A larger ``atol`` or ``nondet_tol`` does not help either.
    """

    code = "PB842"
    title = "gradcheck was used on a function that is random: each call gives another value."
    says = ("Jacobian mismatch", "Jacobian computed with forward mode mismatch", "Backward is not reentrant")

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        if comparison is None or case.says("not reentrant") or verdict(case, comparison) != "random":
            return None
        evidence = random_evidence(case, comparison)
        where = comparison.defined
        marks = [case.mark(say("gradcheck is called here"))]
        calls = random_calls(where) if where is not None else []
        if where is not None:
            marks += [where.mark(each, say("random numbers are drawn here")) for each in calls]
            if not calls:
                marks += where.marks(say("this is checked"))
        modules = dropouts(case, where, comparison.function)
        for name, _ in modules:
            marks += (
                [
                    case.mark_at(place, say("{name} is made here, in train mode", name=name))
                    for place in assigned(case.site, name)
                ]
                if case.site
                else []
            )
        edits = self._edits(case, [name for name, _ in modules], calls)
        numerical = comparison.numerical
        largest = f"{numerical.abs().max().item():.1e}" if numerical is not None else "1e6"
        return self.found(
            say(
                "Differences of neighbouring calls give entries up to {largest}: the function jumps between calls. "
                "{who}",
                largest=largest,
                who=say("Random: {names}.", names=", ".join(evidence)) if evidence else "",
            ),
            marks,
            Fix(
                say("Take the randomness out for the check: eval(), or the noise as an input."),
                "\n".join(each.text.strip() for each in edits if each.text)
                or "torch.manual_seed(0)    # first line of the function",
                edits,
                "high" if edits else "medium",
            ),
            confidence="high" if evidence else "medium",
            useless=[say("nondet_tol or atol: the entries differ by millions."),
                     say("torch.manual_seed before gradcheck: each call draws on.")],
            apart="" if evidence else say("Whether two calls with the same input give the same value."),
        )  # fmt: skip

    @staticmethod
    def _edits(case: Case, modules: list[str], calls: list[ast.Call]) -> tuple[Edit, ...]:
        site = case.site
        statement = site.statement if site is not None else None
        if site is None or statement is None:
            return ()
        if modules and all(name.isidentifier() for name in modules):
            return (site.source.inserted_before(statement, "\n".join(f"{name}.eval()" for name in modules)),)
        only = calls[0] if len(calls) == 1 else None
        if only is not None and isinstance(only.func, ast.Attribute) and only.func.attr == "dropout":
            return set_keyword(site, only, "training", "False", 2)
        return ()

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).double()
        torch.autograd.gradcheck(net, torch.ones(2, 3, dtype=torch.double, requires_grad=True))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).double().eval()
        torch.autograd.gradcheck(net, torch.ones(2, 3, dtype=torch.double, requires_grad=True))
