"""PB220: the gradient of a Function that is differentiable once was differentiated."""

from __future__ import annotations

import ast
from dataclasses import replace

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.evidence.cuts.cause import RootWithoutGraph
from pullback.diagnose.evidence.cuts.found import Cut
from pullback.diagnose.evidence.cuts.look import found_in
from pullback.diagnose.evidence.cuts.switches import Switch
from pullback.diagnose.evidence.slices import Part, entered, steps_of
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class OnceDifferentiable(RootWithoutGraph):
    """The gradient of a custom Function was differentiated, but its backward is marked ``@once_differentiable``.

    ``once_differentiable`` runs the backward without recording it: the gradient that it gives has no graph,
    also with ``create_graph=True``. Where the incoming gradient itself requires grad, torch says so with an
    error of its own; where it is a constant (the seed of a plain sum) the result just has no graph, and the
    second pass finds none.

    Take the decorator away and write ``backward`` with differentiable operations of torch, using the saved
    inputs (not intermediate values that were detached). ``create_graph=True`` alone does not help, and neither
    does ``retain_graph``.
    """

    code = "PB220"
    title = "A gradient was differentiated again that comes from a Function whose backward is differentiable once only."
    kinds = ("once",)

    def cause(self, case: Case, cut: Cut, root: str) -> str:
        return say(
            "The backward of {name} is marked once_differentiable: it runs without being recorded, so the "
            "gradient that "
            "line {line} asks for has no graph in spite of create_graph=True, and neither has {root}.",
            name=cut.name,
            line=cut.node.lineno,
            root=root,
        )

    def what(self, cut: Cut) -> str:
        return say("this gradient has no graph")

    def fix(self, case: Case, cut: Cut, cuts: list[Cut]) -> Fix:
        text = say("Take the decorator away, and write backward with differentiable operations.")
        decorator = _decorator(cut)
        if decorator is None:
            return Fix(text)
        node = decorator.node
        edits = (Edit(decorator.source.file, node.lineno, node.end_lineno or node.lineno, None),)
        written = decorator.source.text(decorator.outermost) if decorator.outermost is not None else ""
        plain = not any(each in written for each in ("detach(", ".data", "numpy(", "no_grad", "item()"))
        return Fix(text, written, edits, "high" if plain else "medium")

    def diagnose(self, case: Case) -> Diagnosis | None:
        diagnosis = super().diagnose(case)
        cut = next((each for each in found_in(case).cuts if each.kind in self.kinds), None)
        decorator = _decorator(cut) if cut is not None else None
        if diagnosis is None or decorator is None:
            return diagnosis
        marks = (*diagnosis.marks, decorator.mark(say("differentiable once")))
        return replace(diagnosis, marks=marks)

    @staticmethod
    def bad():
        import torch
        from torch.autograd.function import once_differentiable

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            @once_differentiable
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

        x = torch.randn(4, requires_grad=True)
        y = Cube.apply(x)
        slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        slope.pow(2).sum().backward()

    @staticmethod
    def good():
        import torch

        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 3 * x**2 * grad

        x = torch.randn(4, requires_grad=True)
        y = Cube.apply(x)
        slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        slope.pow(2).sum().backward()


def _decorator(cut: Cut) -> Switch | None:
    """The decorator of the backward of the Function that is meant, and the function under it."""
    if cut.operand is None:
        return None
    for step in steps_of(Part(cut.operand, cut.body)):
        call = step.node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "apply":
            continue
        kind = step.part.body.evaluated(call.func.value)
        if not isinstance(kind, type) or not issubclass(kind, torch.autograd.Function):
            continue
        body = entered(kind.backward, call, step.part.body)
        if body is None or not isinstance(body.scope, ast.FunctionDef):
            continue
        for each in body.scope.decorator_list:
            if "once_differentiable" in body.source.text(each):
                return Switch(each, body.source, body.scope)
    return None
