"""PB218: an operation without a derivative on the way to the root."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph, fix_of
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.values import Edit, Fix
from pullback.language import say

# The derivatives that are functions of torch again.
DERIVATIVES = {
    "bessel_j0": "-torch.special.bessel_j1(x)",
    "bessel_j1": "torch.special.bessel_j0(x) - torch.special.bessel_j1(x) / x",
    "bessel_y0": "-torch.special.bessel_y1(x)",
    "bessel_y1": "torch.special.bessel_y0(x) - torch.special.bessel_y1(x) / x",
    "modified_bessel_i0": "torch.special.modified_bessel_i1(x)",
    "modified_bessel_i1": "torch.special.modified_bessel_i0(x) - torch.special.modified_bessel_i1(x) / x",
    "modified_bessel_k0": "-torch.special.modified_bessel_k1(x)",
    "modified_bessel_k1": "-torch.special.modified_bessel_k0(x) - torch.special.modified_bessel_k1(x) / x",
    "spherical_bessel_j0": "torch.where(x == 0, torch.zeros_like(x), (x * x.cos() - x.sin()) / x**2)",
}


class NoDerivative(RootWithoutGraph):
    """An operation on the only way to the root is registered in torch without a derivative.

    Some functions of ``torch.special`` (the Bessel functions, the orthogonal polynomials) and a few others have
    no derivative in torch. They do not raise: their result just does not require grad.

    Write a ``torch.autograd.Function`` with the function in ``forward`` and its derivative in ``backward``; the
    derivatives of Bessel functions are Bessel functions again: the derivative of J0 is -J1. Or use an
    expression of functions that have one. Neither a newer torch nor ``requires_grad_()`` on the result helps.
    """

    code = "PB218"
    title = "An operation on the only way to the root has no derivative in torch."
    kinds = ("no_derivative",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "{text} (line {line}): torch has no derivative of {name}, so its result does not require grad though "
            "its input "
            "does; all of {root} comes from it.",
            text=cut.text,
            line=cut.node.lineno,
            name=cut.name,
            root=root,
        )

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Wrap it in a torch.autograd.Function with its derivative.")
        derivative = DERIVATIVES.get(cut.name)
        call = cut.node
        if not isinstance(call, ast.Call):
            return Fix(text)
        kind = "".join(part.capitalize() for part in cut.name.split("_"))
        code = (
            f"class {kind}(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n"
            f"        return torch.special.{cut.name}(x)\n\n"
            "    @staticmethod\n"
            "    def backward(ctx, grad):\n"
            "        (x,) = ctx.saved_tensors\n"
            f"        return grad * ({derivative or '...'})"
        )
        edits: tuple[Edit, ...] = ()
        top = [each for each in cut.source.around(call) if isinstance(each, ast.stmt)]
        if derivative is not None and top and isinstance(call.func, ast.Attribute):
            edits = (
                cut.source.inserted_before(_first_line(top[-1]), f"{code}\n\n"),
                cut.source.replaced(call.func, f"{kind}.apply"),
            )
        return fix_of(cut, text, edits, "high" if edits else "medium", code)

    @staticmethod
    def bad():
        import torch

        def wave(r):
            return torch.special.bessel_j1(r)

        radius = torch.linspace(0.1, 2.0, 5, requires_grad=True)
        energy = wave(radius).square().sum()
        energy.backward()

    @staticmethod
    def good():
        import torch

        class Wave(torch.autograd.Function):
            @staticmethod
            def forward(ctx, r):
                ctx.save_for_backward(r)
                return torch.special.bessel_j1(r)

            @staticmethod
            def backward(ctx, grad):
                (r,) = ctx.saved_tensors
                return grad * (torch.special.bessel_j0(r) - torch.special.bessel_j1(r) / r)

        radius = torch.linspace(0.1, 2.0, 5, requires_grad=True)
        energy = Wave.apply(radius).square().sum()
        energy.backward()


def _first_line(statement: ast.stmt) -> int:
    """The first line of a statement, its decorators among it."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])
