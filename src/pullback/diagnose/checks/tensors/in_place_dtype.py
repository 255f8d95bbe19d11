"""PB518: floating point numbers written into an integer tensor in place."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say
from pullback.words import dtype_name


class InPlaceDtype(Cause):
    """An operation in place keeps the dtype of its tensor: floating point numbers do not fit into integers.

    ``torch.tensor([0, 0])``, ``torch.arange(3)`` and ``dtype=torch.long`` make integers. Make the tensor of floating
    point numbers (``torch.zeros(2)``), or compute out of place: ``total = total + value``.
    """

    code = "PB518"
    title = "Floating point numbers were written into an integer tensor in place."
    says = ("can't be cast to the desired output type",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        if site is None:
            return None
        statement, node = site.statement, site.node
        target: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            target = node.func.value
        elif isinstance(statement, ast.AugAssign):
            target = statement.target
        tensor = site.evaluated(target)
        if target is None or not isinstance(tensor, Tensor):
            return None
        name = site.source.text(target)
        marks = [case.mark(say("{name} is changed in place here", name=name))]
        edits: tuple[Edit, ...] = ()
        steps = [step for step in definitions(case, target) if step.statement is not statement]
        if steps:
            last = steps[-1]
            marks.append(last.mark(say("{name} is made as {dtype} here", name=name, dtype=dtype_name(tensor.dtype))))
            if last.whole and isinstance(last.value, ast.Call):
                edits = (last.scene.source.replaced(last.value, f"{last.text}.float()"),)
        return self.found(
            say("{name} has dtype {dtype}; the result is of floating point numbers and does not fit into it.",
                name=name, dtype=dtype_name(tensor.dtype)),
            marks,
            Fix(
                say("Make it of floating point numbers, or do not compute in place."),
                site.source.code(*edits) or f"{name} = {name} + ...",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "written", name)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        w = torch.ones(2, requires_grad=True)
        total = torch.tensor([0, 0])
        for _ in range(2):
            total += w * 0.5

    @staticmethod
    def good():
        import torch

        w = torch.ones(2, requires_grad=True)
        total = torch.tensor([0.0, 0.0])
        for _ in range(2):
            total += w * 0.5
