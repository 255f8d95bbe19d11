"""PB820: has_aux=True, but the function does not return a pair."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, only_call, title_of, transforms_in, without_keyword
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class Auxiliary(Cause):
    """``has_aux=True`` says that the function returns ``(output, aux)``, and it returns something else.

    The first of the two is differentiated, the second comes through as it is: ``return loss, (logits, features)``.
    Several auxiliary results go into one tuple or dict. It must be a *tuple* of two: a list is none.

    A function with one result needs no ``has_aux``. With it, ``grad`` returns ``(gradient, aux)``, and
    ``grad_and_value`` returns ``(gradient, (value, aux))``, so that what unpacks the result changes too.
    """

    code = "PB820"
    title = "has_aux=True was given, but the function does not return a pair (output, aux)."
    says = ("should be a tuple: (output, aux)",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = transforms_in(case, *FUNC)
        if not found or case.site is None:
            return None
        where = found[-1].defined
        marks = [case.mark(say("called here"))]
        if where is not None:
            marks += where.marks(say("this is returned, not a pair"))
        names = ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd")
        made = only_call(case.site, names) or case.call
        edits: tuple[Edit, ...] = ()
        if made is not None and any(each.arg == "has_aux" for each in made.keywords):
            edits = without_keyword(case.site, made, "has_aux")
        return self.found(
            say("{function} does not return a pair: has_aux=True needs (output, aux).", function=title_of(where)),
            marks,
            Fix(
                say("Leave has_aux out, or return a tuple of the output and one thing beside it."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        torch.func.grad(lambda x: x.exp().sum(), has_aux=True)(torch.zeros(2))

    @staticmethod
    def good():
        import torch

        torch.func.grad(lambda x: (x.exp().sum(), x), has_aux=True)(torch.zeros(2))
