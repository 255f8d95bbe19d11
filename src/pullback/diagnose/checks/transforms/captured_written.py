"""PB817: a transformed function writes into a tensor from outside."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, batch_norm_of, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class CapturedWritten(Cause):
    """A function under ``grad``, ``vjp``, ``jvp`` or ``jacrev`` changed in place a tensor that was made outside it.

    A transform treats its function as pure: arguments in, results out. A captured tensor that is written would keep a
    value from within the transform, which no longer means anything when the transform is over.

    Write out of place, ``total = total + x``, and return what is needed; with ``has_aux=True`` a second result comes
    through undifferentiated. BatchNorm in train mode writes its running statistics so: replace it
    (``torch.func.replace_all_batch_norm_modules_``) or call ``net.eval()``.
    ``.data`` or ``torch.no_grad()`` around the write do not make it allowed.
    """

    code = "PB817"
    title = "A function under a transform wrote in place into a tensor from outside."
    says = ("would mutate a captured Tensor",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, *FUNC)
        if not transforms or case.site is None or batch_norm_of(case) is not None:
            return None
        marks = [case.mark(say("written here"))]
        if transforms[0].caller is not None and transforms[0].caller is not case.site:
            marks.append(transforms[0].caller.mark(say("{name} transforms the function here", name=transforms[0].name)))
        edits = _out_of_place(case)
        return self.found(
            say(
                "{function} runs under {name} and changes a tensor that was made outside it. A transformed function "
                "may only change what it made itself.",
                function=title_of(transforms[-1].defined), name=transforms[0].name,
            ),
            marks,
            Fix(
                say("Write the operation out of place, and return what is needed outside (has_aux=True)."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits else "medium",
            ),
            useless=[say(".data or torch.no_grad() around it: the write itself is what is refused.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        bias = torch.zeros(3)

        def loss(w):
            shifted = bias
            shifted += w
            return shifted.square().sum()

        torch.func.grad(loss)(torch.ones(3))

    @staticmethod
    def good():
        import torch

        bias = torch.zeros(3)

        def loss(w):
            shifted = bias + w
            return shifted.square().sum()

        torch.func.grad(loss)(torch.ones(3))


SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _out_of_place(case: Case) -> tuple[Edit, ...]:
    """``a += b`` as ``a = a + b``, where ``a`` is a variable of the function itself."""
    site = case.site
    statement = site.statement if site is not None else None
    if site is None or not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return ()
    sign, name = SIGNS.get(type(statement.op)), statement.target.id
    if sign is None or name not in site.code.co_varnames:
        return ()
    value = site.source.text(statement.value)
    value = value if isinstance(statement.value, ast.Name | ast.Call | ast.Constant) else f"({value})"
    return (site.source.replaced(statement, f"{name} = {name} {sign} {value}"),)
