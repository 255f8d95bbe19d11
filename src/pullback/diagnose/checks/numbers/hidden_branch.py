"""PBA322: a branch that ``where`` does not select, with a derivative that is not finite."""

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

AT_ZERO = frozenset({"acos", "asin", "atanh", "exp", "tan"})


class HiddenBranch(BirthFault):
    """``torch.where`` selects values, but differentiates both branches: zero times infinity is NaN.

    In ``torch.where(x > 0, torch.log(x), 0)`` the value is right everywhere. In the backward, the branch that was not
    selected gets the cotangent zero, and multiplies it by its derivative, ``1 / x``: where x is 0 that is 0 · inf =
    NaN.

    Select twice: give the branch a harmless operand where it is not selected,
    ``torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0)``. ``nan_to_num`` on the result does not help: the
    result has no NaN; and after the backward it also hides real ones.
    """

    code = "PBA322"
    title = "A gradient is NaN: where() also differentiates the branch that it does not select."
    kinds = frozenset({"where"})

    def tell(self, audit: Audit, backward: Backward, birth: Birth) -> Diagnosis | None:
        operation = operation_of(birth.node)
        return self.found(
            say(
                "Where the branch with {operation} is not selected, the cotangent zero arrives there, and is "
                "multiplied by the derivative of {operation}, which is infinite: 0 · inf = NaN. So {name} gets NaN, "
                "although the value is fine.",
                operation=operation, name=names_of(audit, birth),
            ),
            marks_of(audit, backward, birth),
            self._fix(audit, birth, operation),
            tensors=subjects_of(audit, birth),
            useless=[say("torch.nan_to_num on the result: the result has no NaN, only its derivative has.")],
        )  # fmt: skip

    @staticmethod
    def _fix(audit: Audit, birth: Birth, operation: str) -> Fix:
        text = say("Select twice: give the branch a harmless operand where it is not selected.")
        harmless = "zeros" if operation in AT_ZERO else "ones"
        outer = written_at(audit, birth.selector) if birth.selector is not None else None
        inner = first_operand(audit, birth.node)
        if outer is None or inner is None or not isinstance(outer[1], ast.Call) or outer[0].file != inner[0].file:
            return Fix(text, f"torch.where(condition, x, torch.{harmless}_like(x))    # before the operation")
        spot, given = inner
        called = outer[1].func.attr if isinstance(outer[1].func, ast.Attribute) else ""
        if called != "where" or len(outer[1].args) != 3 or outer[0].scope is not spot.scope:
            return Fix(text, f"torch.where(condition, x, torch.{harmless}_like(x))    # before the operation")
        condition, x = spot.source.text(outer[1].args[0]), spot.source.text(given)
        safe = f"torch.{harmless}_like({x})"
        first = birth.branch == 0
        code = f"torch.where({condition}, {x}, {safe})" if first else f"torch.where({condition}, {safe}, {x})"
        return Fix(text, code, (spot.source.replaced(given, code),), "high")

    @staticmethod
    def bad():
        import torch

        length = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
        root = length.sqrt()
        safe = torch.where(length == 0, torch.zeros_like(length), root)
        (safe * torch.tensor([1.0, 2.0, 3.0])).sum().backward()

    @staticmethod
    def good():
        import torch

        length = torch.tensor([0.0, 4.0, 9.0], requires_grad=True)
        root = torch.where(length == 0, torch.ones_like(length), length).sqrt()
        safe = torch.where(length == 0, torch.zeros_like(length), root)
        (safe * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
