"""PB802: a transformed function returns something that is no tensor."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import Defined, only_call, set_keyword, stripped, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoTensorReturned(Cause):
    """A function under a transform has to return tensors, and this one returns something else.

    ``grad``, ``vjp``, ``jacrev``, ``vmap``, ``torch.autograd.functional.jacobian`` and the like follow the tensors from
    the arguments to the result. ``.item()``, ``float(...)``, ``.numpy()`` and ``.tolist()`` leave torch: what comes
    back from them is a number without a history, and its derivative is lost.

    Return the tensor itself and convert it outside: ``torch.func.grad(f)(x)`` with ``return loss``, not
    ``return loss.item()``. A function that returns more than its loss is ``grad(f, has_aux=True)``; one that returns
    ``None`` lacks its ``return``. Wrapping the number again, ``torch.tensor(loss.item())``, gives zeros silently.
    """

    code = "PB802"
    title = "A function under a transform returned something that is not a tensor."
    says = (
        "Expected f(*args) to return a Tensor, got",
        "to return only tensors, got unsupported type",
        "must only return Tensors, got type",
        "The outputs of the user-provided function given to",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = [each for each in transforms_in(case) if each.defined is not None]
        where = transforms[-1].defined if transforms else None
        kind = found.group(1) if (found := re.search(r"<class '([\w.]+)'>", case.message)) else "?"
        marks = [case.mark(say("the transform is called here"))]
        edits: tuple[Edit, ...] = ()
        text = say("Return the tensor itself; convert it to a number outside.")
        if where is not None:
            leaving = _leaving(where)
            if leaving is not None:
                marks.append(where.mark(leaving, say("this leaves torch")))
                edits = (where.source.replaced(leaving, where.text(stripped(leaving))),)
            else:
                marks += where.marks(say("this is returned"))
        if kind == "tuple" and where is not None and case.site is not None:
            call = only_call(case.site, ("grad", "grad_and_value"))
            text = say("Say has_aux=True, so that only the first of the two results is differentiated.")
            edits = set_keyword(case.site, call, "has_aux", "True") if call is not None else ()
        if "must only return" in case.message and not edits:
            text = say("Return a tensor; with out_dims=None if it is the same for all samples.")
        if kind == "NoneType":
            text = say("Return the result: the function ends without a return.")
        confidence = "high" if edits and kind != "tuple" else "medium"
        return self.found(
            _told(title_of(where), kind, "user-provided" not in case.message and "must only return" in case.message),
            marks,
            Fix(text, "\n".join(each.text.strip() for each in edits if each.text), edits, confidence),  # type: ignore[arg-type]
            useless=[say("torch.tensor(...) around the number: it has no history, and the gradient is zero.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def loss(w):
            error = torch.ones(3) @ w - 1
            total = (error**2).sum().item()
            return total

        torch.func.grad(loss)(torch.zeros(3))

    @staticmethod
    def good():
        import torch

        def loss(w):
            error = torch.ones(3) @ w - 1
            return (error**2).sum()

        torch.func.grad(loss)(torch.zeros(3))


def _told(function: str, kind: str, mapped: bool) -> str:
    if kind == "tuple":
        return say("{function} returns a tuple: which of its parts is to be differentiated?", function=function)
    if mapped:
        return say(
            "{function} returns something of type {kind}. vmap puts the results of all samples together, and can do so "
            "with tensors only.",
            function=function,
            kind=kind,
        )
    return say(
        "{function} returns something of type {kind}, not a tensor: it cannot be differentiated.",
        function=function,
        kind=kind,
    )


def _leaving(where: Defined) -> ast.expr | None:
    """The expression that leaves torch: what is returned, or the assignment of the name that is returned."""
    result = where.result
    if isinstance(result, ast.Name) and not isinstance(where.scope, ast.Lambda):
        assigned = [
            each.value
            for each in ast.walk(where.scope)
            if isinstance(each, ast.Assign) and any(getattr(target, "id", "") == result.id for target in each.targets)
        ]
        result = assigned[-1] if assigned else None
    return result if result is not None and stripped(result) is not result else None
