"""PBA332: the angle of zero."""

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


class AngleOfZero(Fault):
    """The angle of a complex number is not defined at zero, and its derivative there is returned as zero.

    torch returns a value (0) and a derivative (0) in silence. The true derivative grows like 1 / |z| on the way to
    zero: a spectrum with empty bins has large gradients next to bins without any.

    Leave out or mask the elements that are zero before ``angle``; for a loss on phases weight by the magnitude, or
    compare ``z / (|z| + eps)`` instead of angles.
    """

    code = "PBA332"
    title = "The angle of complex zeros was differentiated: it is not defined there."
    hears = frozenset({"angle"})

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("input")
        if not isinstance(given, Tensor) or not given.is_complex() or not result.requires_grad or call.spot is None:
            return
        if inside_functorch():
            return
        zeros = int((given.detach() == 0).sum().item())
        if not zeros:
            return
        audit.report(
            self.found(
                say(
                    "{zeros} of {count} elements of {name} are zero. Their angle is not defined; torch takes 0 for it, "
                    "and 0 for its derivative.",
                    zeros=zeros, count=given.numel(), name=audit.name_of(given, "the operand"),
                ),
                [call.spot.mark(say("the angle is taken here"))],
                Fix(say("Leave out the elements that are zero."), "torch.angle(z[z != 0])"),
                tensors=[audit.subject(given, "operand")],
                confidence="medium",
            )
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        signal = torch.zeros(8, requires_grad=True)
        phase = torch.fft.rfft(signal).angle()
        phase.sum().backward()

    @staticmethod
    def good():
        import torch

        signal = torch.arange(8.0, requires_grad=True)
        phase = torch.fft.rfft(signal**2)[1:4].angle()
        phase.sum().backward()
