"""PB702: a gradient of another shape than the input."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    backward_of,
    elements,
    inputs_of,
    named,
    position,
    returned,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

Shape = tuple[int, ...]
SHAPES = re.compile(r"at index (\d+) - got \[([\d, ]*)\] but expected shape compatible with \[([\d, ]*)\]")


class GradientShape(Cause):
    """The backward of a custom Function returned a gradient that does not have the shape of its input.

    The gradient of an input has the shape of that input. Torch only sums over dimensions along which the input was
    broadcast; everything else is an error. Usual reasons:

    - a matrix product in the wrong order: for ``y = x @ w`` the gradients are ``g @ w.T`` and ``x.T @ g``;
    - the gradients are returned in another order than the arguments of ``forward``;
    - a sum over the batch is missing, or there is one too many (``g.sum()`` where ``g.sum(0)`` is meant).

    ``reshape`` makes the error go away, but also where the values are in the wrong order: check the formula with
    ``torch.autograd.gradcheck`` in float64.
    """

    code = "PB702"
    title = "A Function's backward returned a gradient whose shape is not that of the input."
    says = ("returned an invalid gradient at index", "but expected shape compatible with")

    def diagnose(self, case: Case) -> Diagnosis | None:
        found, said = named(case), SHAPES.search(case.message)
        method = backward_of(found[0]) if found else None
        if found is None or said is None or method is None:
            return None
        kind, node = found
        index, got, wanted = int(said[1]), _shape(said[2]), _shape(said[3])
        known = position(node, index) if node is not None else None
        place = known if known is not None else index
        names = inputs_of(kind)
        name = names[place] if place < len(names) else str(place + 1)
        wrong = [elements(each)[place] for each in returned(method, len(names)) if place < len(elements(each))]
        marks = [case.mark(say("the backward pass failed here")), *applied_marks(case, kind, node)]
        for each in wrong:
            before = method.assigned(each.id) if isinstance(each, ast.Name) else None
            if before is not None:
                marks.append(method.mark(before, say("the gradient of {name} is computed here", name=name)))
            what = say(
                "returned as the gradient of {name}: shape {got}, not {wanted}", name=name, got=got, wanted=wanted
            )
            marks.append(method.mark(each, what))
        if not wrong:
            marks.append(method.mark(method.node, say("the gradients are returned in here")))
        fix, why = _fix(method, wrong[0] if len(wrong) == 1 else None, got, wanted, name, _others(node, index, got))
        return self.found(
            say(
                "{kind}.backward returned a gradient of shape {got} for {name}, which has shape {wanted}. {why}",
                kind=kind.__name__,
                got=got,
                wanted=wanted,
                name=name,
                why=why,
            ),
            marks,
            fix,
        )

    @staticmethod
    def bad():
        import torch

        class Project(torch.autograd.Function):
            @staticmethod
            def forward(ctx, batch, weight):
                ctx.save_for_backward(batch, weight)
                return torch.mm(batch, weight)

            @staticmethod
            def backward(ctx, grad):
                batch, weight = ctx.saved_tensors
                grad_weight = torch.mm(grad.t(), batch)
                return torch.mm(grad, weight.t()), grad_weight

        batch, weight = torch.randn(5, 3), torch.randn(3, 2, requires_grad=True)
        Project.apply(batch, weight).sum().backward()

    @staticmethod
    def good():
        import torch

        class Project(torch.autograd.Function):
            @staticmethod
            def forward(ctx, batch, weight):
                ctx.save_for_backward(batch, weight)
                return torch.mm(batch, weight)

            @staticmethod
            def backward(ctx, grad):
                batch, weight = ctx.saved_tensors
                grad_weight = torch.mm(batch.t(), grad)
                return torch.mm(grad, weight.t()), grad_weight

        batch, weight = torch.randn(5, 3), torch.randn(3, 2, requires_grad=True)
        Project.apply(batch, weight).sum().backward()


def _shape(text: str) -> Shape:
    return tuple(int(each) for each in text.split(",") if each.strip())


def _others(node: object, index: int, got: Shape) -> list[int]:
    """The other inputs of just the shape that was returned."""
    edges = getattr(node, "next_functions", ())
    found = []
    for number, (child, output) in enumerate(edges):
        known = child._input_metadata if child is not None and number != index else ()
        if output < len(known) and tuple(known[output].shape) == got:
            found.append(number)
    return found


def _fix(
    method: Method, value: ast.expr | None, got: Shape, wanted: Shape, name: str, others: list[int]
) -> tuple[Fix, str]:
    transposed = len(got) == 2 and got == wanted[::-1]
    if transposed:
        return _transposed(method, value), say("It is transposed.")
    if others:
        return (
            Fix(say("Return the gradients in the order of the arguments of forward."), "", (), "medium"),
            say("That is the shape of another input: the gradients seem to be in the wrong order."),
        )
    text = method.text(value) if value is not None else "g"
    if _count(got) == _count(wanted):
        why = say("It has as many elements, in another arrangement.")
        return Fix(say("Give it the shape of {name}.", name=name), f"({text}).reshape({wanted})", (), "low"), why
    if not got or len(got) < len(wanted):
        return (
            Fix(say("Do not sum over dimensions that {name} has.", name=name), "", (), "medium"),
            say("A sum, a mean or an index took dimensions away that {name} has.", name=name),
        )
    return Fix(say("Compute the gradient of {name} in its own shape.", name=name), "", (), "medium"), ""


def _count(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _transposed(method: Method, value: ast.expr | None) -> Fix:
    """The product the other way round; the transposed name otherwise."""
    text = say("Exchange and transpose the factors: for y = x @ w the gradient of w is x.T @ g, that of x is g @ w.T.")
    if isinstance(value, ast.Name):
        made = method.assigned(value.id)
        value = made.value if made is not None else value
    if value is None:
        return Fix(text, "", (), "medium")
    product = _factors(value)
    if product is None:
        new = f"({method.text(value)}).T"
    else:
        left, right = product
        new = f"{_turned(method, right)} @ {_turned(method, left)}"
    edits: tuple[Edit, ...] = method.rewrite().replace(value, new).edits() if method.own else ()
    sure = bool(edits) and product is not None
    return Fix(text, method.source.code(*edits) or new, edits, "high" if sure else "medium")


def _factors(value: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        return value.left, value.right
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("mm", "matmul"):
        if len(value.args) == 2:
            return value.args[0], value.args[1]
        if len(value.args) == 1:
            return value.func.value, value.args[0]
    return None


def _turned(method: Method, value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and value.attr in ("T", "mT"):
        return method.text(value.value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        swapped = [method.text(each) for each in value.args]
        if value.func.attr == "t" or (value.func.attr == "transpose" and sorted(swapped) in (["0", "1"], ["-1", "-2"])):
            return method.text(value.func.value)
    text = method.text(value)
    return f"{text}.T" if isinstance(value, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text}).T"
