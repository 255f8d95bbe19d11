"""PBA903: a custom Function changes its input without saying so."""

from __future__ import annotations

import ast

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.evidence.functions.watched import OfFunctions
from pullback.diagnose.evidence.gradchecks import method_of
from pullback.diagnose.evidence.transforms import Defined
from pullback.diagnose.recorders.functions import Application
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class InputChanged(OfFunctions):
    """The ``forward`` of a custom ``autograd.Function`` changed its input in place, and autograd was not told.

    Whoever holds the input finds other values in it, while its graph still says how the old values came about: every
    gradient that goes through it is then computed for a value that is not there.

    Work on a copy, ``y = x * 0.5`` or ``x = x.clone()`` first. If the change is meant, say ``ctx.mark_dirty(x)`` and
    return ``x`` itself: autograd then gives ``x`` a new history. ``x.detach()``, ``x.data`` and ``no_grad`` share the
    memory: they copy nothing.
    """

    code = "PBA903"
    title = "The forward of a custom Function changed an input in place without ctx.mark_dirty."

    def applied(self, audit: Audit, kind: type, application: Application) -> bool:
        returned = {id(each) for each in application.outputs}
        for at, (given, before) in enumerate(zip(application.given, application.before, strict=True)):
            if not isinstance(given, Tensor) or id(given) in returned:
                continue
            with torch.no_grad():
                same = given.shape == before.shape and bool(torch.equal(given.nan_to_num(), before.nan_to_num()))
            if not same:
                self._tell(audit, kind, application, at)
                return True
        return False

    def _tell(self, audit: Audit, kind: type, application: Application, at: int) -> None:
        forward = method_of(kind, "forward")
        shift = 1 if method_of(kind, "setup_context") is None else 0
        names = forward.parameters if forward is not None else []
        name = names[at + shift] if at + shift < len(names) else f"args[{at}]"
        written = _written(forward, name) if forward is not None else []
        marks = (
            [forward.mark(each, say("{name} is changed in place here", name=name)) for each in written]
            if forward
            else []
        )
        if application.spot is not None:
            marks.append(application.spot.mark(say("{name} is applied here", name=kind.__name__)))
        edits: tuple[Edit, ...] = ()
        if forward is not None and not isinstance(forward.scope, ast.Lambda) and written:
            first = forward.scope.body[0]
            if not forward.source.lines[first.lineno - 1].encode()[: first.col_offset].strip():
                edits = (forward.source.inserted_before(first, f"{name} = {name}.clone()"),)
        audit.report(
            self.found(
                say(
                    "{kind}.forward changed its input {name} in place; it neither said ctx.mark_dirty({name}) nor "
                    "returned it.",
                    kind=kind.__name__, name=name,
                ),
                marks,
                Fix(
                    say("Work on a copy of the input."),
                    f"{name} = {name}.clone()",
                    edits,
                    "high" if edits else "medium",
                ),
                tensors=[audit.subject(application.given[at], "input")],
                useless=[say("detach() or .data within forward: they share the memory.")],
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Clipped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                x.clamp_(-1, 1)
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        w = torch.tensor([3.0, 0.5], requires_grad=True)
        hidden = w * 1
        (Clipped.apply(hidden) + hidden).sum().backward()

    @staticmethod
    def good():
        import torch

        class Clipped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.clamp(-1, 1) * 2

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * 2 * (x.abs() < 1)

        w = torch.tensor([3.0, 0.5], requires_grad=True)
        hidden = w * 1
        (Clipped.apply(hidden) + hidden).sum().backward()


def _written(where: Defined, name: str) -> list[ast.expr | ast.stmt]:
    """The expressions of a forward that write into an argument."""
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(where.scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            target: ast.expr = node.func.value
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if getattr(target, "id", "") == name and not node.func.attr.endswith("__"):
                found.append(node)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for each in targets:
            inner = each.value if isinstance(each, ast.Subscript) else each if isinstance(node, ast.AugAssign) else None
            if getattr(inner, "id", "") == name:
                found.append(node)  # type: ignore[arg-type]
    return found
