"""PB844: gradcheck in single precision."""

from __future__ import annotations

import ast
import textwrap

import torch
from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.gradchecks import Comparison, comparison_in, entries, input_marks
from pullback.diagnose.evidence.verdicts import verdict
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say
from pullback.words import dtype_name


class LowPrecision(Cause):
    """gradcheck was run in float32, whose rounding is as large as what it looks for.

    Differences are taken over a step of ``1e-6``, and float32 rounds at about ``1e-7`` of the values: the quotient is
    wrong in its first or second digit. gradcheck is made for float64.

    Make the inputs double, ``torch.randn(3, dtype=torch.double, requires_grad=True)``, and the module too,
    ``net.double()``. A ``.float()`` within the function is enough to spoil it. Where only float32 exists, take
    ``eps=1e-2, atol=1e-2``, which finds gross mistakes only; or check by ``pullback.check``, which measures the error
    of its differences. A larger ``atol`` alone makes the check blind.
    """

    code = "PB844"
    title = "gradcheck was run in single precision, where differences are mostly rounding."
    says = ("Jacobian mismatch", "Jacobian computed with forward mode mismatch",
            "is not a double precision floating point")  # fmt: skip

    def diagnose(self, case: Case) -> Diagnosis | None:
        comparison = comparison_in(case)
        warned = case.says("is not a double precision")  # where warnings are errors
        if comparison is None or not (warned or verdict(case, comparison) == "precision"):
            return None
        low = [each for each in comparison.inputs if each.requires_grad and each.dtype != torch.float64]
        marks = [case.mark(say("gradcheck is called here")), *input_marks(case, low)]
        where = comparison.defined
        if not low and where is not None:
            marks += [where.mark(each, say("the precision is lost here")) for each in _casts(where.scope)]
        names = ", ".join(case.name_of(each) or say("an input") for each in low) or say("the result")
        edits = _edits(case, comparison) if low else ()
        return self.found(
            say(
                "{names} has dtype {dtype}: rounding over a step of 1e-6 explains the difference (backward / "
                "differences: {entries}).",
                names=names, dtype=dtype_name(low[0].dtype) if low else "float32", entries=entries(comparison),
            ),
            marks,
            Fix(
                say("Run the check in double precision."),
                "\n".join(textwrap.dedent(each.text) for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(each, "input") for each in low],
            useless=[say("a larger atol: the check sees nothing then.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        x = torch.linspace(0.5, 1.5, 4).requires_grad_()
        torch.autograd.gradcheck(lambda t: t.exp() * t, x)

    @staticmethod
    def good():
        import torch

        x = torch.linspace(0.5, 1.5, 4, dtype=torch.double).requires_grad_()
        torch.autograd.gradcheck(lambda t: t.exp() * t, x)


def _casts(scope: ast.AST) -> list[ast.expr]:
    return [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in {"float", "half", "bfloat16"}
    ]


def _edits(case: Case, comparison: Comparison) -> tuple[Edit, ...]:
    """The inputs made double before the check, and the modules that take part."""
    site = case.site
    statement = site.statement if site is not None else None
    if site is None or statement is None:
        return ()
    lines = []
    for each in comparison.inputs:
        name = case.name_of(each)
        if each.requires_grad and each.dtype in {torch.float32, torch.float16, torch.bfloat16}:
            if not name.isidentifier():
                return ()
            lines.append(f"{name} = {name}.detach().double().requires_grad_()")
    where = comparison.defined
    named = {node.id for node in ast.walk(where.scope) if isinstance(node, ast.Name)} if where is not None else set()
    for name, module in case.holds(nn.Module):
        if (module is comparison.function or name in named) and next(iter(module.parameters()), None) is not None:
            lines.append(f"{name}.double()")
    given = {id(each) for each in comparison.inputs}
    others = [
        name
        for name, tensor in case.holds(torch.Tensor)
        if name in named and tensor.dtype == torch.float32 and id(tensor) not in given
    ]
    return (site.source.inserted_before(statement, "\n".join(lines)),) if lines and not others else ()
