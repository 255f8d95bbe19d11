"""PB721: vmap over a Function without a rule for it."""

from __future__ import annotations

import ast
from typing import Any

import torch

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.frames import frames_of
from pullback.diagnose.evidence.functions.classes import class_of, method_of
from pullback.diagnose.values import Diagnosis, Edit, Fix, Mark
from pullback.graph.frames import variables
from pullback.graph.values import Place
from pullback.language import say


class VmapMissing(Cause):
    """torch.func.vmap went over a custom Function that does not say how it is batched.

    If ``forward``, ``backward`` and ``jvp`` consist of torch's operations on the given tensors, torch can derive the
    rule: write ``generate_vmap_rule = True`` in the class. If they call NumPy, a kernel of your own or a library, write
    the static method ``vmap(info, in_dims, *inputs)`` that returns the outputs and their batch dimensions.
    """

    code = "PB721"
    title = "vmap went over a custom Function that has no rule for it."
    says = ("but it does not have vmap support", "override the vmap staticmethod or set generate_vmap_rule")

    def diagnose(self, case: Case) -> Diagnosis | None:
        kind: Any = None
        for frame, _, _ in frames_of(case.error.__traceback__):
            if frame.f_code.co_name == "custom_function_call_vmap":
                kind = variables(frame).get("autograd_function")
        forward = method_of(kind, "forward") if isinstance(kind, type) else None
        if forward is None:
            return None
        around = class_of(forward)
        marks = [case.mark(say("{name} is applied under vmap here", name=kind.__name__))]
        if around is not None:
            place = Place(forward.source.file, around.lineno, "")
            marks.append(Mark.at(place, say("it has no vmap and no generate_vmap_rule")))
        own = all(_only_torch(kind, name) for name in ("forward", "backward", "jvp"))
        edits: tuple[Edit, ...] = ()
        if around is not None and forward.own:
            edits = (forward.source.inserted_before(_first(around), "generate_vmap_rule = True"),)
        return self.found(
            say("{kind} does not say how it is to be computed for a whole batch at once.", kind=kind.__name__),
            marks,
            Fix(
                say("Let torch derive the rule, if the methods use torch's operations only; write vmap() otherwise."),
                "generate_vmap_rule = True",
                edits if own else (),
                "high" if own and edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return x * x

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 2 * x * grad

        x = torch.randn(5, 3, requires_grad=True)
        torch.func.vmap(Square.apply)(x).sum().backward()

    @staticmethod
    def good():
        import torch

        class Square(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                return x * x

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return 2 * x * grad

        x = torch.randn(5, 3, requires_grad=True)
        torch.func.vmap(Square.apply)(x).sum().backward()


def _first(around: ast.ClassDef) -> int:
    """The line before which a statement can be put at the start of a class."""
    body = [each for each in around.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    first = body[0] if body else around.body[0]
    first_line: int = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
    return first_line


def _only_torch(kind: type, name: str) -> bool:
    if getattr(kind, name, None) is getattr(torch.autograd.Function, name, None):
        return True
    method = method_of(kind, name)
    if method is None:
        return False
    text = "\n".join(method.text(each) for each in method.body)
    return not any(word in text for word in ("np.", "numpy", ".item(", "_cuda", "ext."))
