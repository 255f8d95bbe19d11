"""PB825: strict=True, and an output does not depend on an input."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import Defined, only_call, title_of, transforms_in, without_keyword
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.language import say

CUTS = frozenset(
    {"detach", "item", "numpy", "tolist", "data", "argmax", "argsort", "long", "int", "bool", "round", "floor"}
)


class StrictIndependent(Cause):
    """With ``strict=True``, ``torch.autograd.functional`` refuses outputs that do not depend on an input.

    Either an output is computed without the input (or the way to it is cut by ``detach()``, ``.item()``, ``.data``,
    ``torch.tensor(...)`` or ``no_grad``), or the function is linear, and its second derivative is asked for.

    A cut is a mistake: without ``strict`` the same program returns zeros silently. Take the cut out. If the output
    really does not depend on the input, its derivative *is* zero: leave ``strict=True`` out. The same holds for the
    Hessian of a linear function.
    """

    code = "PB825"
    title = "With strict=True, an output turned out not to depend on an input."
    says = ("is not allowed in strict mode", "when running in strict mode")

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, "autograd/functional.py")
        if not transforms or case.site is None:
            return None
        where = transforms[0].defined
        marks = [case.mark(say("strict=True is asked for here"))]
        cuts = _cuts(where) if where is not None and not case.says("the hessian") else []
        edits: tuple[Edit, ...] = ()
        if where is not None and cuts:
            marks += [where.mark(each, say("this cuts the way to the input")) for each in cuts]
            only = cuts[0]
            plain = isinstance(only, ast.Call) and isinstance(only.func, ast.Attribute) and only.func.attr == "detach"
            if plain and len(cuts) == 1:
                edits = (where.source.replaced(only, where.text(only.func.value)),)  # type: ignore[attr-defined]
        elif where is not None:
            marks += _returned(where)
        text = say("Take out what cuts the way from the input to the output.") if cuts else say(
            "Leave strict=True out if the derivative is meant to be zero; else compute the output from the input."
        )  # fmt: skip
        made = only_call(case.site, (transforms[0].name,)) or case.call
        if not cuts and made is not None and case.argument("strict") is not None:
            edits = without_keyword(case.site, made, "strict")
        return self.found(
            say(
                "strict=True forbids what {function} does: {said}",
                function=title_of(where), said=case.message.split(". ")[0] + ".",
            ),
            marks,
            Fix(
                text,
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if cuts and edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def normalised(x):
            scale = x.norm().detach()
            return (x.detach() / scale) * 2

        torch.autograd.functional.jacobian(normalised, torch.ones(2), strict=True)

    @staticmethod
    def good():
        import torch

        def normalised(x):
            scale = x.norm()
            return (x / scale) * 2

        torch.autograd.functional.jacobian(normalised, torch.ones(2), strict=True)


def _cuts(where: Defined) -> list[ast.expr]:
    """The expressions of a function that cut the graph."""
    found: list[ast.expr] = []
    for node in ast.walk(where.scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whole = where.text(node.func)
            again = whole in {"torch.tensor", "torch.as_tensor", "torch.from_numpy"}
            if node.func.attr in CUTS or (
                again and any(isinstance(each, ast.Name) for each in ast.walk(ast.Tuple(node.args)))
            ):
                found.append(node)
        elif isinstance(node, ast.Attribute) and node.attr == "data":
            found.append(node)
    return found


def _returned(where: Defined) -> list[Mark]:
    return where.marks(say("this is returned"))
