"""PBA348: a maximum that several elements share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Fix
from pullback.language import say

MOST = 1 << 20


class Ties(Fault):
    """Where several elements share the maximum, the gradient depends on how it was asked for.

    ``x.max()`` and ``torch.amax`` split the gradient evenly among equal elements; ``x.max(dim)`` gives all of it to the
    one whose index it returns. At a tie both are subgradients, but they are different ones: parameters that start out
    equal stay equal with the one, and drift apart with the other.

    Use ``torch.amax(x, dim)`` for the even split everywhere, or start from values that differ.
    """

    code = "PBA348"
    title = "Several elements of a parameter share the maximum, and only one of them gets the gradient."
    hears = frozenset({"max", "min"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if call.spot is None or inside_functorch() or not isinstance(given, Tensor) or not isinstance(dim, int):
            return
        if not given.is_leaf or not given.requires_grad or not call.grad or given.numel() > MOST:
            return
        values = result[0].detach()
        values = (
            values if kwargs.get("keepdim") or (len(args) > 2 and args[2]) or not given.dim() else values.unsqueeze(dim)
        )
        most = int((given.detach() == values).sum(dim).max().item())
        if most < 2:
            return
        name = audit.name_of(given, "the operand")
        audit.report(
            self.found(
                say(
                    "{most} elements of {name} share the extreme value. With a dimension all of the gradient goes to "
                    "one of them; without one, or with amax, it is split evenly.",
                    most=most, name=name,
                ),
                [call.spot.mark(say("taken here"))],
                Fix(say("Use amax or amin for the even split."), f"torch.a{call.name}({name}, dim={dim})"),
                tensors=[audit.subject(given, "operand")],
                confidence="low",
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        scores = torch.zeros(2, 3, requires_grad=True)
        best, _ = torch.max(scores, dim=1)
        best.sum().backward()

    @staticmethod
    def good():
        import torch

        scores = torch.zeros(2, 3, requires_grad=True)
        torch.amax(scores, dim=1).sum().backward()
