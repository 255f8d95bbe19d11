"""PBA301."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say


class BroadcastLoss(Fault):
    """A difference of shapes (N, 1) and (N,) is an (N, N) matrix of all pairs.

    Predictions of shape (N, 1) minus targets of shape (N,) broadcast to all N² pairs. The mean of their squares runs
    and decreases, but fits the mean of the targets rather than each target.
    """

    code = "PBA301"
    title = "Two operands of shapes (N, 1) and (N,) broadcast to a matrix of all pairs."
    hears = frozenset({"sub", "rsub", "__rsub__"})

    def after_call(self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        tensors = [each for each in args if isinstance(each, Tensor)]
        if len(tensors) != 2 or not result.requires_grad or call.spot is None:
            return
        column, flat = sorted(tensors, key=lambda each: -each.dim())
        if column.dim() != 2 or flat.dim() != 1 or column.shape != (len(flat), 1) or len(flat) < 2:
            return
        name = audit.name_of(column, "the first")
        audit.report(
            self.found(
                say(
                    "One operand has shape {column}, the other {flat}: the difference has shape {result}, each "
                    "element of the one with each of the other.",
                    column=tuple(column.shape), flat=tuple(flat.shape), result=tuple(result.shape),
                ),
                [call.spot.mark(say("broadcast here"))],
                Fix(say("Give both the same shape."), f"{name}.squeeze(1)", (), "medium"),
                tensors=[audit.subject(column, "operand"), audit.subject(flat, "operand")],
            )
        )  # fmt: skip

    @staticmethod
    def bad() -> None:
        import torch

        x, target = torch.randn(8, 1), torch.randn(8)
        net = torch.nn.Linear(1, 1)
        loss = ((net(x) - target) ** 2).mean()
        loss.backward()

    @staticmethod
    def good() -> None:
        import torch

        x, target = torch.randn(8, 1), torch.randn(8)
        net = torch.nn.Linear(1, 1)
        loss = ((net(x).squeeze(1) - target) ** 2).mean()
        loss.backward()
