"""PB822: a Hessian of a function whose result is no scalar."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import shape_of, tensors_of, title_of, transforms_in, wrapped_text
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class HessianScalar(Cause):
    """``torch.autograd.functional.hessian``, ``hvp`` and ``vhp`` want a function with one number as its result.

    The Hessian holds the second derivatives of *one* function. Reduce the result to a scalar in the function,
    ``return loss.mean()``, or choose the result that is meant: ``return f(x)[0]``.

    The second derivatives of all results are a Jacobian of a Jacobian: ``torch.func.jacrev(torch.func.jacrev(f))(x)``.
    Where the function is elementwise, the second derivative at each element is the diagonal of the Hessian of its sum.
    """

    code = "PB822"
    title = "A Hessian was asked of a function that does not return a single number."
    says = ("should contain a single element", "should return a single Tensor")

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = [
            each for each in transforms_in(case, "autograd/functional.py") if each.name in {"hessian", "hvp", "vhp"}
        ]
        if not transforms or case.site is None:
            return None
        where = transforms[0].defined
        outputs = [value for each in transforms_in(case) for value in tensors_of(list(each.local.get("outputs") or ()))]
        shape = shape_of(outputs[-1]) if outputs else None
        marks = [case.mark(say("{name} is called here", name=transforms[0].name))]
        edits: tuple[Edit, ...] = ()
        if where is not None:
            marks += where.marks(say("this is returned"))
            if (result := where.result) is not None and case.says("single element"):
                edits = (where.source.replaced(result, f"{wrapped_text(where.text(result), result)}.sum()"),)
        told = f" {shape}" if shape is not None else ""
        return self.found(
            say(
                "{function} returns several numbers{shape}; {name} needs one.",
                function=title_of(where), shape=told, name=transforms[0].name,
            ),
            marks,
            Fix(
                say("Reduce the result to a scalar in the function, or choose one of the results."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def energies(q):
            return torch.stack([q.pow(4).sum(), q.pow(2).sum()])

        torch.autograd.functional.hessian(energies, torch.ones(2))

    @staticmethod
    def good():
        import torch

        def energies(q):
            return torch.stack([q.pow(4).sum(), q.pow(2).sum()])

        torch.autograd.functional.hessian(lambda q: energies(q)[0], torch.ones(2))
