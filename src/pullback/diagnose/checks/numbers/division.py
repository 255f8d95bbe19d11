"""PBA324: a division by zero."""

from __future__ import annotations

import ast

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.evidence.numbers.births import Birth
from pullback.diagnose.evidence.numbers.births_check import BirthFault, marks_of, names_of, subjects_of, written_at
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class DivisionByZero(BirthFault):
    """A denominator is zero (or nearly), so that the gradient is infinite or NaN.

    Typical denominators that become zero: the sum of a mask that selects nothing, a norm or a standard deviation of
    constant data, a difference of equal values.

    Add a small number or clamp: ``a / b.clamp_min(1e-8)`` for a positive b, ``a / (b + eps)``. If an empty selection is
    possible, leave that batch out. ``torch.where`` around the quotient does not help the gradient.
    """

    code = "PBA324"
    title = "A gradient is infinite or NaN: a denominator is zero."
    kinds = frozenset({"division"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        return self.found(
            say(
                "This division is the first operation in the backward pass whose result is not finite, although what "
                "came in was: its denominator has elements that are zero. From there {name} gets a gradient with "
                "infinite or NaN elements.",
                name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            self._fix(audit, birth),
            tensors=subjects_of(audit, birth),
        )  # fmt: skip

    @staticmethod
    def _fix(audit: Audit, birth: Birth) -> Fix:
        text = say("Keep the denominator away from zero.")
        found = written_at(audit, birth.node)
        if found is None or not isinstance(found[1], ast.BinOp) or not isinstance(found[1].op, ast.Div):
            return Fix(text, "a / b.clamp_min(1e-8)")
        spot, right = found[0], found[1].right
        if right.lineno != right.end_lineno:
            return Fix(text, "a / b.clamp_min(1e-8)")
        code = f"({spot.source.text(right)} + 1e-8)"
        edits: tuple[Edit, ...] = (spot.source.replaced(right, code),)
        return Fix(text, f"{spot.source.text(found[1].left)} / {code}", edits, "medium")

    @staticmethod
    def bad():
        import torch

        values = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
        spread = values - values.detach().min()
        scaled = spread / (spread.max() - spread.min())
        scaled.sum().backward()

    @staticmethod
    def good():
        import torch

        values = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
        spread = values - values.detach().min()
        scaled = spread / (spread.max() - spread.min() + 1e-6)
        (scaled * torch.arange(3.0)).sum().backward()
