"""PB712: the gradient of an unused output is None, and is used."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import (
    Method,
    applied_marks,
    asked_marks,
    backward_of,
    running,
    saver_of,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class UnusedOutput(Cause):
    """The backward of a custom Function computes with the gradient of an output that was not used, which is None.

    After ``ctx.set_materialize_grads(False)`` the gradient of an output that the loss does not use comes as ``None``
    rather than as a tensor of zeros. Test each gradient for ``None`` before you compute with it, or leave
    ``set_materialize_grads`` alone: then zeros come, at the price of computing with them.
    """

    code = "PB712"
    title = "A Function's backward computes with None, the gradient of an output that was not used."
    says = ("NoneType",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = running(case)
        if found is None:
            return None
        node, frame = found
        kind = node._forward_cls
        backward, saver = backward_of(kind), saver_of(kind)
        if backward is None or saver is None:
            return None
        statement = frame.statement
        used = (
            {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)} if statement is not None else set()
        )
        none = [name for name in backward.names[1:] if frame.local.get(name, 0) is None]
        name = next((each for each in none if each in used), none[0] if none else None)
        calls = saver.calls("set_materialize_grads")
        if name is None or not calls:
            return None
        marks = [case.mark(say("{name} is None here", name=name))]
        marks += [saver.mark(each, say("from here on unused outputs have the gradient None")) for each in calls]
        marks += [*applied_marks(case, kind, node), *asked_marks(case)]
        edits = _edits(saver, calls)
        return self.found(
            say(
                "{kind} has set_materialize_grads(False), so {name} is None in backward: the loss does not use that "
                "output.",
                kind=kind.__name__,
                name=name,
            ),
            marks,
            Fix(
                say("Let zeros come for unused outputs, or test {name} for None.", name=name),
                saver.source.code(*edits) or f"if {name} is not None: ...",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        class Split(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.set_materialize_grads(False)
                return x[:2].clone(), x[2:].clone()

            @staticmethod
            def backward(ctx, grad_head, grad_tail):
                head = grad_head.clone()
                tail = grad_tail.clone()
                return torch.cat([head, tail])

        x = torch.randn(4, requires_grad=True)
        head, tail = Split.apply(x)
        head.sum().backward()

    @staticmethod
    def good():
        import torch

        class Split(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x[:2].clone(), x[2:].clone()

            @staticmethod
            def backward(ctx, grad_head, grad_tail):
                return torch.cat([grad_head, grad_tail])

        x = torch.randn(4, requires_grad=True)
        head, tail = Split.apply(x)
        head.sum().backward()


def _edits(saver: Method, calls: list[ast.Call]) -> tuple[Edit, ...]:
    rewrite = saver.rewrite()
    for call in calls:
        values = [*call.args, *(each.value for each in call.keywords)]
        if len(values) != 1 or not isinstance(values[0], ast.Constant):
            return ()
        rewrite.replace(values[0], "True")
    return rewrite.edits() if saver.own and calls else ()
