"""PBA321: an infinite derivative at the edge of a function's domain."""

from __future__ import annotations

from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import (
    BirthFault,
    first_operand,
    marks_of,
    names_of,
    operation_of,
    subjects_of,
)
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

# What to put around the operand.
SAFE = {
    "sqrt": "{x}.clamp_min(1e-12)",
    "rsqrt": "{x}.clamp_min(1e-12)",
    "log": "{x}.clamp_min(1e-12)",
    "log2": "{x}.clamp_min(1e-12)",
    "log10": "{x}.clamp_min(1e-12)",
    "log1p": "{x}.clamp_min(-1 + 1e-6)",
    "pow": "{x}.clamp_min(1e-12)",
    "acos": "{x}.clamp(-1 + 1e-6, 1 - 1e-6)",
    "asin": "{x}.clamp(-1 + 1e-6, 1 - 1e-6)",
    "atanh": "{x}.clamp(-1 + 1e-6, 1 - 1e-6)",
    "acosh": "{x}.clamp_min(1 + 1e-6)",
    "logit": "{x}.clamp(1e-6, 1 - 1e-6)",
}


class InfiniteDerivative(BirthFault):
    """A function was differentiated where its derivative is infinite, and the gradient is infinite or NaN.

    The value may be fine: ``sqrt(0)`` is 0, ``acos(1)`` is 0, but their derivatives there are infinite; times a zero
    from elsewhere in the chain that is NaN. The same holds for ``x ** p`` with p < 1 at 0, ``log`` at 0, ``asin`` and
    ``atanh`` at ±1, a norm with p < 1 at 0.

    Keep the operand away from the edge: ``torch.sqrt(x.clamp_min(1e-12))``, ``torch.sqrt(x + eps)``, a cosine clamped
    to [-1 + eps, 1 - eps] before ``acos`` (or ``atan2``). ``torch.nan_to_num`` on the gradient and gradient clipping
    hide it: the steps are then arbitrary.
    """

    code = "PBA321"
    title = "A gradient is infinite or NaN: a function was differentiated at a point where its derivative is infinite."
    kinds = frozenset({"derivative"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        operation = operation_of(birth.node)
        return self.found(
            say(
                "{operation} is the first operation in the backward pass whose result is not finite, although what "
                "came in was: its derivative is infinite where it was taken. From there {name} gets a gradient with "
                "infinite or NaN elements.",
                operation=operation, name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            _fix(audit, birth.node, operation),
            tensors=subjects_of(audit, birth),
            useless=[say("Gradient clipping: NaN stays NaN, and one infinite element makes the others zero.")],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
        distance = (points**2).sum(1).sqrt()
        distance.mean().backward()

    @staticmethod
    def good():
        import torch

        points = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
        distance = ((points**2).sum(1) + 1e-12).sqrt()
        distance.mean().backward()


def _fix(audit: Audit, node: Node, operation: str) -> Fix:
    text = say("Keep the operand away from the point where the derivative is infinite.")
    safe = SAFE.get(operation)
    if safe is None:
        return Fix(text, "(x.square().sum(dim) + 1e-12).sqrt()" if operation == "norm" else "")
    found = first_operand(audit, node)
    if found is None:
        return Fix(text, safe.format(x="x"))
    spot, given = found
    inner = spot.source.text(given)
    if (not inner.replace("_", "").replace(".", "").isalnum() and not inner.endswith((")", "]"))) or any(
        sign in inner.split("(")[0] for sign in "+-*/ "
    ):
        inner = f"({inner})"
    code = safe.format(x=inner)
    edits: tuple[Edit, ...] = (spot.source.replaced(given, code),)
    return Fix(text, code, edits, "medium")
