"""PBA109: one gradient that is not finite spoils all of them through clipping."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.training.clipping import NORMS, clipped, clipping_now
from pullback.diagnose.evidence.training.loop import scaler_of
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class ClippedNonfinite(Fault):
    """``clip_grad_norm_`` met a norm that is infinite or NaN, and multiplied every gradient by the result.

    Clipping multiplies all gradients by ``max_norm / total_norm``. With one infinite element that factor is 0: every
    good gradient becomes 0, and the infinite ones become NaN (0 · inf). With one NaN all gradients become NaN. The next
    step then writes NaN into the parameters.

    Pass ``error_if_nonfinite=True`` to be told at once, or look at the norm that is returned and skip the step. The
    gradient that is not finite has a cause of its own (a square root or logarithm at 0, a division by 0): clipping does
    not cure it, and neither does a smaller ``max_norm``.
    """

    code = "PBA109"
    title = "Gradients were clipped by a norm that is not finite, which spoils all of them."
    hears = NORMS

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        if call.spot is None or not isinstance(result, Tensor) or result.numel() != 1 or audit.reported(self.code):
            return
        if bool(torch.isfinite(result)):
            return
        local = clipping_now()
        if local is None or local.get("error_if_nonfinite") or scaler_of(audit) is not None:
            return
        statement = call.spot.statement
        if not isinstance(statement, ast.Expr):
            return  # the norm is returned to somebody who may look at it
        bad = [each for each in clipped(local) if each.grad is not None and not bool(torch.isfinite(each.grad).all())]
        names = ", ".join(audit.name_of(each, "a parameter") for each in bad[:4])
        audit.report(
            self.found(
                say(
                    "The norm of all gradients is {norm}, because of the gradient of {names}. Every gradient is "
                    "multiplied by max_norm / {norm}: what was finite becomes 0 or NaN.",
                    norm=float(result),
                    names=names or say("one of them"),
                ),
                [call.spot.mark(say("multiplies all gradients by a factor that is 0 or NaN"))],
                Fix(
                    say("Ask for an error, and mend what makes the gradient infinite."),
                    "torch.nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)",
                    self._edits(call, statement),
                    "low",
                ),
                tensors=[audit.subject(each, "parameter") for each in bad[:4]],
            )
        )

    @staticmethod
    def _edits(call: Call, statement: ast.Expr) -> tuple[Edit, ...]:
        value = statement.value
        if call.spot is None or not isinstance(value, ast.Call) or not value.args:
            return ()
        source = call.spot.source
        text = source.text(value).rstrip()
        return (source.replaced(value, f"{text[:-1].rstrip().rstrip(',')}, error_if_nonfinite=True)"),)

    @staticmethod
    def bad():
        import torch

        scale = torch.zeros(1, requires_grad=True)
        weight = torch.ones(3, requires_grad=True)
        loss = (weight.sum() + scale.sqrt()).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([scale, weight], max_norm=1.0)

    @staticmethod
    def good():
        import torch

        scale = torch.ones(1, requires_grad=True)
        weight = torch.ones(3, requires_grad=True)
        loss = (weight.sum() + scale.sqrt()).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([scale, weight], max_norm=1.0)
