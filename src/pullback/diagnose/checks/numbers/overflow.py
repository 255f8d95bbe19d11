"""PBA326: a value beyond the range of its dtype."""

from __future__ import annotations

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import BirthFault, marks_of, names_of, operation_of, subjects_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

INSTEAD = {
    "exp": "torch.logsumexp(x, dim)    # or: torch.exp(x - x.max()), torch.exp(x.clamp_max(30))",
    "the cast": "x.to(torch.bfloat16)    # the range of float32",
}


class Overflow(BirthFault):
    """A value or a cotangent is beyond the range of its dtype, and is infinite from there on.

    ``exp`` of 89 is infinite in float32, of 12 in float16; float16 itself ends at 65504. The infinite value meets a
    zero or another infinity later: NaN.

    Use the stable forms: ``logsumexp``, ``log_softmax``, ``softplus``, ``binary_cross_entropy_with_logits``; subtract
    the maximum before ``exp``. In half precision use bfloat16, or ``torch.amp.GradScaler``.
    """

    code = "PBA326"
    title = "A gradient is infinite or NaN: a value is beyond the range of its dtype."
    kinds = frozenset({"overflow"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        operation = operation_of(birth.node)
        return self.found(
            say(
                "{operation} is the first operation whose result is infinite: it is beyond the range of the dtype. "
                "From there {name} gets a gradient with infinite or NaN elements.",
                operation=operation, name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            Fix(say("Use the stable form of the formula, or a dtype with more range."), INSTEAD.get(operation, "")),
            tensors=subjects_of(audit, birth),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        logits = torch.tensor([1.0, 100.0, 3.0], requires_grad=True)
        weights = torch.exp(logits)
        probability = weights / weights.sum()
        (-probability[0].log()).backward()

    @staticmethod
    def good():
        import torch

        logits = torch.tensor([1.0, 100.0, 3.0], requires_grad=True)
        (-torch.log_softmax(logits, 0)[0]).backward()
