"""PB804: backward() in a function under a transform."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.transforms import FUNC, removed, title_of, transforms_in
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

PER_SAMPLE = "torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(net.named_parameters()), batch)"


class BackwardInside(Cause):
    """``backward()`` was called in a function that ``grad``, ``vjp``, ``jacrev`` or ``vmap`` transforms.

    A transform differentiates the function itself, from its arguments to its result. ``backward()`` within it would
    write to the ``.grad`` of leaves, a side effect that the transform can neither see nor undo.

    Return the loss and let the transform differentiate it: ``torch.func.grad(f)(x)`` is the gradient. Where a
    derivative is needed within the function (a gradient penalty, a physics loss), nest: ``torch.func.grad(inner)(x)``.
    ``retain_graph=True`` or ``x.requires_grad_()`` before the call change nothing.
    """

    code = "PB804"
    title = "backward() was called inside a function under a torch.func transform."
    says = ("backward() called inside a functorch transform",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        transforms = transforms_in(case, *FUNC)
        if case.site is None or not transforms:
            return None
        outer = transforms[0]
        source, statement = case.site.source, case.site.statement
        marks = [case.mark(say("backward() is called here"))]
        if outer.caller is not None and outer.caller is not case.site:
            marks.append(outer.caller.mark(say("{name} transforms the function here", name=outer.name)))
        alone = isinstance(statement, ast.Expr) and statement.value is case.site.node
        reads = any(
            isinstance(each, ast.Attribute) and each.attr == "grad" and isinstance(each.ctx, ast.Load)
            and not isinstance(source.parent(each), ast.Call)
            for each in ast.walk(case.site.scope)
        )  # fmt: skip
        edits = (removed(source, statement),) if alone and statement is not None and not reads else ()
        batched = all(each.name == "vmap" for each in transforms)
        sure = outer.name in {"grad", "grad_and_value"} and bool(edits)
        return self.found(
            say(
                "{function} runs under vmap, for all samples at once. backward() within it would write to .grad, which "
                "exists once for all samples and which the transform cannot follow.",
                function=title_of(outer.defined),
            )
            if batched
            else say(
                "{function} runs under {transform}, which differentiates it by its arguments. backward() within it "
                "would write to .grad, which the transform cannot follow.",
                function=title_of(outer.defined), transform=outer.name,
            ),
            marks,
            Fix(
                say(
                    "Take torch.func.grad of the loss instead, as a function of the parameters (functional_call), and "
                    "map that by vmap."
                )
                if batched
                else say(
                    "Leave backward() out: the transform gives the gradient. For a derivative within, nest "
                    "torch.func.grad."
                ),
                PER_SAMPLE if batched else "\n".join(each.text.strip() for each in edits if each.text),
                () if batched else edits,
                "high" if sure else "medium",
            ),
            useless=[say("retain_graph=True: the call itself is not allowed here.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        def energy(position):
            e = position.pow(4).sum()
            e.backward()
            return e

        torch.func.grad(energy)(torch.ones(2, requires_grad=True))

    @staticmethod
    def good():
        import torch

        def energy(position):
            return position.pow(4).sum()

        torch.func.grad(energy)(torch.ones(2))
