"""PBA331: cotangents that become zero at a cast to half precision."""

from __future__ import annotations

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.births import Underflow, watch
from pullback.diagnose.evidence.numbers.births_check import first_operand
from pullback.diagnose.evidence.numbers.find import mark_of
from pullback.diagnose.evidence.numbers.seed import scales_loss
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say
from pullback.words import dtype_name


class CastUnderflow(Fault):
    """On the way back through a cast a cotangent takes the dtype that the value had: small ones become zero in float16.

    The mean over N elements gives each of them the cotangent 1 / N. float16 knows nothing between 0 and 6e-8: with
    some tens of millions of elements, or small weights, every cotangent is zero there, and no parameter behind the
    cast learns.

    Multiply the loss by a scale and divide the gradients by it (``torch.amp.GradScaler`` does both), or keep the
    activations in bfloat16, which has the range of float32. A larger learning rate does not help.
    """

    code = "PBA331"
    title = "All cotangents became zero at a cast to half precision."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        watch(audit).begin(audit, backward)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        seen = watch(audit)
        seen.finish(audit, backward)
        if seen.underflows and not scales_loss(audit):
            for each in seen.underflows:
                audit.report(self._finding(audit, backward, each))
        seen.underflows = []

    def _finding(self, audit: Audit, backward: Backward, seen: Underflow) -> Diagnosis:
        marks = mark_of(audit, seen.node, say("the cotangents become zero at this cast"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        found = first_operand(audit, seen.node)
        name = found[0].source.text(found[1]) if found is not None else "h"
        return self.found(
            say(
                "The {count} cotangents that arrive at this cast are at most {largest:.3g}. The operand is {dtype}, so "
                "they are cast to {dtype}, where they are all zero: nothing behind {name} gets a gradient.",
                count=seen.count, largest=seen.largest, dtype=dtype_name(seen.dtype), name=name,
            ),
            marks,
            Fix(
                say("Scale the loss before the backward pass, or keep the activations in bfloat16 or float32."),
                "scaler = torch.amp.GradScaler()\nscaler.scale(loss).backward()\n"
                "scaler.step(optimizer)\nscaler.update()",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 5)
        hidden = layer(torch.randn(8, 3)).half()
        loss = (hidden.float() * 1e-9).sum()
        loss.backward()

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 5)
        hidden = layer(torch.randn(8, 3)).half()
        loss = (hidden.float() * 1e-9).sum()
        (loss * 2**16).backward()
