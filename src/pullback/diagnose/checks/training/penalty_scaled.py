"""PBA108: the gradient of a scaled loss is used as if it were that of the loss."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import after, scaler_of
from pullback.diagnose.values import Edit, Fix
from pullback.language import say

# Who reads one of these knows of the factor.
SCALES = frozenset({"get_scale", "_scale"})


class PenaltyScaled(Fault):
    """``torch.autograd.grad`` of a scaled loss returns scaled gradients, and nothing took the factor off.

    ``scaler.scale(loss)`` multiplies the loss by the scaler's factor. ``scaler.step()`` undoes that for ``.grad``,
    but what ``torch.autograd.grad`` returns stays multiplied: a penalty ``g.pow(2).sum()`` of it is larger by the
    square of the factor.

    Divide by the factor before use: ``g = g / scaler.get_scale()``; or differentiate the loss itself, unscaled. A
    smaller weight of the penalty does not help: the factor changes while training.
    """

    code = "PBA108"
    title = "Gradients of a scaled loss were taken for a further computation without dividing by the scale."

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        spot = backward.spot
        if backward.record.accumulates or not backward.record.create_graph or spot is None:
            return
        found = scaler_of(audit)
        if found is None or float(found[1].get_scale()) == 1.0 or not self._is_scaled(audit, backward, found[1]._scale):
            return
        if any(isinstance(each, ast.Attribute) and each.attr in SCALES for each in ast.walk(spot.scope)):
            return
        edits = self._edits(spot, found[0])
        audit.report(
            self.found(
                say(
                    "The loss was multiplied by {scale:g} by {scaler}, and so is each gradient that this returns.",
                    scale=float(found[1].get_scale()),
                    scaler=found[0],
                ),
                [spot.mark(say("returns scaled gradients"))],
                Fix(
                    say("Divide by the scale before the gradients are used."),
                    spot.source.code(*edits) or f"g = g / {found[0]}.get_scale()",
                    edits,
                    "high" if edits else "medium",
                ),
            )
        )

    @staticmethod
    def _is_scaled(audit: Audit, backward: Backward, scale: Tensor | None) -> bool:
        for root in backward.roots:
            value = audit.tape.value_of(root) if isinstance(root, Tensor) else None
            if value is None or value.maker is None or scale is None:
                continue
            if any(each.tensor() is scale for each in value.maker.inputs):
                return True
        return False

    @staticmethod
    def _edits(spot: Spot, scaler: str) -> tuple[Edit, ...]:
        statement = spot.statement
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return ()
        target = statement.targets[0]
        if isinstance(target, ast.Tuple | ast.List) and len(target.elts) == 1 and isinstance(target.elts[0], ast.Name):
            name = target.elts[0].id
            return after(spot, f"{name} = {name} / {scaler}.get_scale()")
        if isinstance(target, ast.Name) and isinstance(statement.value, ast.Subscript):
            return after(spot, f"{target.id} = {target.id} / {scaler}.get_scale()")
        if isinstance(target, ast.Name):
            return after(spot, f"{target.id} = [each / {scaler}.get_scale() for each in {target.id}]")
        return ()

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        loss = net(torch.randn(8, 4)).square().mean()
        grads = torch.autograd.grad(scaler.scale(loss), list(net.parameters()), create_graph=True)
        penalty = sum(g.square().sum() for g in grads)
        scaler.scale(loss + penalty).backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        loss = net(torch.randn(8, 4)).square().mean()
        grads = torch.autograd.grad(scaler.scale(loss), list(net.parameters()), create_graph=True)
        grads = [g / scaler.get_scale() for g in grads]
        penalty = sum(g.square().sum() for g in grads)
        scaler.scale(loss + penalty).backward()
