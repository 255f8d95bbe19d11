"""PB805: requires_grad_() in a function under a transform."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import Frame
from pullback.diagnose.evidence.transforms import FUNC, removed, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class RequiresGradInside(Cause):
    """``requires_grad_()`` was called in a function that ``grad``, ``vjp``, ``jacrev`` or ``vmap`` transforms.

    Under a transform, what is differentiated by is said by the arguments (``argnums``), not by ``requires_grad``. A
    tensor that is made within the function is a constant of it. ``torch.autograd.functional.jacobian`` and its like set
    ``requires_grad`` too, so that they cannot be used under ``torch.func`` either.

    Leave the call out if the tensor is a constant; make it an argument if its gradient is wanted:
    ``torch.func.grad(f, argnums=(0, 1))(x, z)``. For derivatives within the function, nest ``torch.func.grad`` or
    ``jacrev``. ``detach().requires_grad_()`` would cut the outer derivative even if it were allowed.
    """

    code = "PB805"
    title = "requires_grad_() was called inside a function under a torch.func transform."
    says = ("attempting to call Tensor.requires_grad_()",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, *FUNC)
        if case.site is None or not transforms:
            return None
        outer = transforms[0]
        marks = [case.mark(say("requires_grad_() is called here"))]
        if outer.caller is not None and outer.caller is not case.site:
            marks.append(outer.caller.mark(say("{name} transforms the function here", name=outer.name)))
        edits = _without(case.site)
        batched = all(each.name == "vmap" for each in transforms)
        return self.found(
            say(
                "{function} runs under vmap, where autograd cannot be told to record: no requires_grad_(), and no "
                "gradient by autograd.grad or backward().",
                function=title_of(outer.defined),
            )
            if batched
            else say(
                "{function} runs under {transform}: what it is differentiated by are its arguments. A tensor made "
                "within cannot become one of them by requires_grad_().",
                function=title_of(outer.defined), transform=outer.name,
            ),
            marks,
            Fix(
                say("Leave requires_grad_() out, and take torch.func.grad of the inner function.")
                if batched
                else say("Leave requires_grad_() out; if the gradient by this tensor is wanted, make it an argument."),
                "\n".join(each.text.strip() for each in edits if each.text),
                edits,
                "high" if edits and not batched else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def shifted(x):
            offset = torch.full((2,), 0.5)
            offset.requires_grad_()
            return (x - offset).square().sum()

        torch.func.grad(shifted)(torch.ones(2))

    @staticmethod
    def good():
        import torch

        def shifted(x, offset):
            return (x - offset).square().sum()

        torch.func.grad(shifted, argnums=(0, 1))(torch.ones(2), torch.full((2,), 0.5))


def _without(site: Frame) -> tuple[Edit, ...]:
    """The edit that leaves the call out, unless the function differentiates by itself."""
    node, source = site.node, site.source
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "requires_grad_":
        return ()
    inner = {each.attr for each in ast.walk(site.scope) if isinstance(each, ast.Attribute)}
    if "backward" in inner or any(
        "autograd" in source.text(each) for each in ast.walk(site.scope) if isinstance(each, ast.Call)
    ):
        return ()
    statement = source.parent(node)
    if isinstance(statement, ast.Expr):
        return (removed(source, statement),)
    return (source.replaced(node, source.text(node.func.value)),)
