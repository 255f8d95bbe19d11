"""PBA323: a mask that multiplies what is not finite."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import (
    BirthFault,
    first_operand,
    marks_of,
    names_of,
    operation_of,
    subjects_of,
    written_at,
)
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class MaskedProduct(BirthFault):
    """A mask of zeros does not remove infinite or NaN elements: zero times infinity is NaN.

    ``(mask * torch.log(x)).sum()`` is NaN as soon as one masked x is 0, in the value or in the gradient. Multiplying by
    zero is not the same as leaving out.

    Leave the elements out before the operation: ``torch.log(x[mask])``, or give them a harmless value:
    ``torch.log(torch.where(mask, x, 1.0)) * mask``. Masking the result with ``torch.where`` makes the value right, not
    the gradient.
    """

    code = "PBA323"
    title = "A gradient is NaN: an element that is not finite was multiplied by a mask of zero."
    kinds = frozenset({"mask"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        operation = operation_of(birth.node)
        return self.found(
            say(
                "The result of {operation} is multiplied by zero at some elements. In the backward the cotangent zero "
                "meets the infinite derivative of {operation} there: 0 · inf = NaN, and {name} gets it.",
                operation=operation, name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            self._fix(audit, birth),
            tensors=subjects_of(audit, birth),
            useless=[say("torch.where around the result: it makes the value right, the gradient stays NaN.")],
        )  # fmt: skip

    @staticmethod
    def _fix(audit: Audit, birth: Birth) -> Fix:
        text = say("Mask the operand before the operation, not the result after it.")
        outer = written_at(audit, birth.selector) if birth.selector is not None else None
        inner = first_operand(audit, birth.node)
        general = "torch.log(torch.where(mask != 0, x, torch.ones_like(x))) * mask"
        if outer is None or inner is None or not isinstance(outer[1], ast.BinOp) or outer[0].file != inner[0].file:
            return Fix(text, general)
        spot, given = inner
        mask = outer[1].right if birth.branch == 0 else outer[1].left
        if outer[0].scope is not spot.scope or not isinstance(mask, ast.Name | ast.Attribute):
            return Fix(text, general)
        x = spot.source.text(given)
        code = f"torch.where({spot.source.text(mask)} != 0, {x}, torch.ones_like({x}))"
        return Fix(text, code, (spot.source.replaced(given, code),), "high")

    @staticmethod
    def bad():
        import torch

        rate = torch.tensor([[1.0, 0.0], [2.0, 3.0]], requires_grad=True)
        present = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        likelihood = rate.log() * present - rate
        (-likelihood.sum()).backward()

    @staticmethod
    def good():
        import torch

        rate = torch.tensor([[1.0, 0.0], [2.0, 3.0]], requires_grad=True)
        present = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        safe = torch.where(present != 0, rate, torch.ones_like(rate))
        likelihood = safe.log() * present - rate
        (-likelihood.sum()).backward()
