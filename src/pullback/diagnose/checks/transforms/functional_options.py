"""PB826: options of torch.autograd.functional that exclude each other."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import set_keyword, transform_in, without_keyword
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class FunctionalOptions(Cause):
    """Two options of ``torch.autograd.functional.jacobian`` or ``hessian`` do not go together.

    * ``strict=True`` looks at one row at a time, ``vectorize=True`` takes all at once: choose one of them.
    * ``strategy="forward-mode"`` (``outer_jacobian_strategy`` of ``hessian``) is only made for ``vectorize=True``.
    * ``strategy="forward-mode"`` knows no ``create_graph=True`` and no ``strict=True``.

    ``torch.func.jacrev`` and ``torch.func.jacfwd`` have none of these limits.
    """

    code = "PB826"
    title = "Two options of torch.autograd.functional do not go together."
    says = ("are not supported together", "implemented for `vectorize=True`", "not supported with `strategy=",
            "`create_graph=True` is not implemented", "with forward-mode AD")  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        if transform_in(case, "autograd/functional.py") is None or case.site is None or case.call is None:
            return None
        edits: tuple[Edit, ...] = ()
        if case.says("implemented for `vectorize=True`"):
            edits = set_keyword(case.site, case.call, "vectorize", "True")
        elif case.says("are not supported together") and case.argument("vectorize") is not None:
            edits = without_keyword(case.site, case.call, "vectorize")
        return self.found(
            say("Two options of this call exclude each other: {said}", said=case.message.split(". ")[0]),
            [case.mark(say("called here"))],
            Fix(
                say("Choose one of the options, or use torch.func.jacrev or torch.func.jacfwd."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        torch.autograd.functional.jacobian(torch.sin, torch.zeros(2), strategy="forward-mode")

    @staticmethod
    def good():
        import torch

        torch.autograd.functional.jacobian(torch.sin, torch.zeros(2), vectorize=True, strategy="forward-mode")
