"""PB833: an operation without a forward formula in forward mode."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, Transform, only_call, transforms_in
from pullback.diagnose.values import Confidence, Diagnosis, Edit, Fix
from pullback.language import say


class NoFormula(Cause):
    """An operation ran in forward mode (``jvp``, ``jacfwd``, ``hessian``, dual tensors) that has no forward formula.

    torch has a backward formula for nearly all operations, and a forward formula for most. Among those without are
    ``ctc_loss``, ``grid_sample``, ``cdist``, ``segment_reduce``, the fused attention kernels, and every operation with
    ``out=``.

    * Whole Jacobians: ``torch.func.jacrev`` instead of ``jacfwd``; ``jacrev(jacrev(f))`` instead of ``hessian``.
    * One direction: ``torch.autograd.functional.jvp`` uses two backward passes, where the operation has a second one.
    * Attention: ``with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):`` around it.
    * ``out=``: assign the result instead.

    Another dtype or ``torch.no_grad`` does not bring a formula.
    """

    code = "PB833"
    title = "An operation without a forward formula was used in forward mode."
    says = ("Trying to use forward AD with",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = re.search(r"Trying to use forward AD with (\S+)", case.message)
        if found is None or case.site is None:
            return None
        operation = found.group(1)
        transforms = transforms_in(case, *FUNC)
        outer = next((each for each in transforms if each.caller is not None), None)
        marks = [case.mark(say("{operation} is called here", operation=operation))]
        if outer is not None and outer.caller is not None and outer.caller is not case.site:
            marks.append(outer.caller.mark(say("forward mode begins here")))
        text, edits, confidence = _mended(case, operation, outer)
        return self.found(
            say("{operation} has a backward formula but none for forward mode, so that no tangent can pass through it.",
                operation=operation),
            marks,
            Fix(text, "\n".join(each.text.strip() for each in edits if each.text), edits, confidence),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        points = torch.randn(4, 2)
        torch.func.jacfwd(lambda p: torch.cdist(p, p + 1).sum())(points)

    @staticmethod
    def good():
        import torch

        points = torch.randn(4, 2)
        torch.func.jacrev(lambda p: torch.cdist(p, p + 1).sum())(points)


def _mended(case: Case, operation: str, outer: Transform | None) -> tuple[str, tuple[Edit, ...], Confidence]:
    site = case.site
    assert site is not None
    statement = site.statement
    if "out= function" in case.message or operation.endswith("_out"):
        return say("Assign the result instead of writing it with out=."), (), "medium"
    if (
        "scaled_dot_product" in operation
        and isinstance(statement, ast.Assign | ast.Return | ast.Expr)
        and "torch" in site.module
    ):
        opening = "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):"
        if not site.source.lines[statement.lineno - 1].encode()[: statement.col_offset].strip():
            edit = site.source.wrapped(statement, opening)
            return (
                say("Use the attention that is written in plain operations: they have forward formulas."),
                (edit,),
                "high",
            )
    caller = outer.caller if outer is not None else None
    made = only_call(caller, ("jacfwd",)) if caller is not None else None
    if made is not None and caller is not None:
        name = re.sub(r"jacfwd$", "jacrev", caller.source.text(made.func))
        plain = isinstance(made.func, ast.Attribute) and not any(each.arg == "randomness" for each in made.keywords)
        edits = (caller.source.replaced(made.func, name),) if plain else ()
        return (
            say("Take reverse mode: torch.func.jacrev gives the same Jacobian."),
            edits,
            "high" if edits else "medium",
        )
    made = only_call(caller, ("hessian",)) if caller is not None else None
    if made is not None and caller is not None and len(made.args) == 1 and not made.keywords:
        head = caller.source.text(made.func).removesuffix("hessian")
        text = f"{head}jacrev({head}jacrev({caller.source.text(made.args[0])}))"
        edits = (caller.source.replaced(made, text),) if head else ()
        return say("Take reverse mode twice: torch.func.jacrev(torch.func.jacrev(f))."), edits, "medium"
    return (
        say("Take reverse mode: torch.func.vjp or torch.func.jacrev, or write the operation in others."),
        (),
        "medium",
    )
