"""PB824: the vector v of torch.autograd.functional has the wrong shape."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import shape_of, tensors_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class VectorShape(Cause):
    """The vector ``v`` given to ``vjp``, ``jvp``, ``hvp`` or ``vhp`` has not the shape that it multiplies.

    ``vjp``: ``v`` has the shapes of the outputs. ``jvp``, ``hvp``, ``vhp``: ``v`` has the shapes of the inputs. Nothing
    is broadcast, and a tuple stands for several tensors: two outputs need two vectors.

    ``torch.ones_like`` of the output (or the input) always fits.
    """

    code = "PB824"
    title = "The vector v does not have the shape of what it is to be multiplied with."
    says = ("v has invalid size", "v is a tuple of invalid length", "The given v should contain a single Tensor")

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, "autograd/functional.py")
        if not transforms or case.site is None:
            return None
        transform = transforms[-1]
        of = "outputs" if transform.name == "vjp" else "inputs"
        wanted = [shape_of(each) for each in tensors_of(transform.local.get(of))]
        given = [shape_of(each) for each in tensors_of(transform.local.get("v"))]
        argument = case.argument("v", 2)
        edits: tuple[Edit, ...] = ()
        made = ("ones", "zeros", "randn", "rand")
        if (
            isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute) and argument.func.attr in made
            and len(wanted) == 1 and wanted[0] is not None and not argument.keywords
        ):  # fmt: skip
            text = f"{case.text(argument.func)}({', '.join(map(str, wanted[0])) or '()'})"
            edits = (case.site.source.replaced(argument, text),)
        return self.found(
            say(
                "v has the shapes {given}, the {of} have {wanted}.", given=_listed(given), of=of, wanted=_listed(wanted)
            ),
            [case.mark(say("v is given here"))],
            Fix(
                say("Pass a v with the shapes of the outputs (vjp) or of the inputs (jvp, hvp, vhp)."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        matrix = torch.ones(4, 2)
        torch.autograd.functional.vjp(lambda x: matrix @ x, torch.zeros(2), torch.ones(2))

    @staticmethod
    def good():
        import torch

        matrix = torch.ones(4, 2)
        torch.autograd.functional.vjp(lambda x: matrix @ x, torch.zeros(2), torch.arange(4.0))


def _listed(shapes: list[tuple[int, ...] | None]) -> str:
    return ", ".join(map(str, shapes))
