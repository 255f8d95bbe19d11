"""PB837: a dual number of integers."""

from __future__ import annotations

import ast
import re

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class IntegerDual(Cause):
    """A dual number was to be made of integers.

    Derivatives are those of real (or complex) numbers: both the primal and the tangent of a dual number have to be
    floating point. ``torch.arange(4)`` and ``torch.tensor([1, 2])`` are integers; write ``torch.arange(4.0)``,
    ``torch.tensor([1.0, 2.0])``, or ``x.float()``. Indices and labels have no derivative: leave them as they are, and
    make duals of the other inputs.
    """

    code = "PB837"
    title = "A dual number was to be made of a tensor of integers."
    says = ("to be floating point or complex",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(
            r"Expected (primal|tangent) to be floating point or complex, but got: torch\.(\w+)", case.message
        )
        if said is None or case.site is None:
            return None
        part = said[1]
        node = case.argument("tensor" if part == "primal" else part, 0 if part == "primal" else 1)
        name = case.text(node) if node is not None else say("the {part}", part=part)
        value = case.site.evaluated(node)
        edits: tuple[Edit, ...] = ()
        if node is not None:
            text = f"({name})" if isinstance(node, ast.BinOp | ast.UnaryOp) else name
            edits = (case.site.source.replaced(node, f"{text}.float()"),)
        return self.found(
            say(
                "{name} is {dtype}; only floating point and complex numbers have derivatives.", name=name, dtype=said[2]
            ),
            [case.mark(say("the dual number is made here"))],
            Fix(
                say("Convert it to floating point before, if it is a quantity and not an index."),
                case.site.source.code(*edits),
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(value, part, name)] if isinstance(value, Tensor) else [],
        )

    @staticmethod
    def bad():
        import torch
        import torch.autograd.forward_ad as forward

        counts = torch.tensor([1, 2, 3])
        with forward.dual_level():
            dual = forward.make_dual(counts, torch.ones(3))
            forward.unpack_dual(dual * 2.0)

    @staticmethod
    def good():
        import torch
        import torch.autograd.forward_ad as forward

        counts = torch.tensor([1.0, 2.0, 3.0])
        with forward.dual_level():
            dual = forward.make_dual(counts, torch.ones(3))
            forward.unpack_dual(dual * 2.0)
