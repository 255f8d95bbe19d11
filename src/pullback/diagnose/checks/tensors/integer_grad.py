"""PB501: an integer tensor that is to require grad."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, definitions, keyword_of
from pullback.diagnose.evidence.transforms import transform_in
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say
from pullback.words import dtype_name


class IntegerGrad(Cause):
    """Only tensors of floating point (or complex) numbers can require grad; integers and booleans cannot.

    ``torch.tensor([1, 2, 3])`` and ``torch.arange(3)`` are of dtype int64, since the numbers are written as integers.
    A derivative by a whole number has no meaning.

    Write ``torch.tensor([1.0, 2.0, 3.0], requires_grad=True)`` or give ``dtype=torch.float32``. ``x.float()`` makes a
    new tensor: ``x = x.float().requires_grad_()``. Indices and labels need no gradient.
    """

    code = "PB501"
    title = "An integer tensor was to require grad."
    says = ("floating point and complex dtype can require gradients", "floating point dtype can require gradients")

    def diagnose(self, case: Case) -> Diagnosis | None:
        site, call = case.site, case.call
        if transform_in(case) is not None:  # it is an argument of the transform
            return None
        if site is None or called(call) == "Parameter" or case.library_frame("nn/parameter.py", "__new__") is not None:
            return None
        source, statement = site.source, site.statement
        marks = [case.mark(say("integers are to require grad here"))]
        edits: tuple[Edit, ...] = ()
        owner: ast.expr | None = None
        if call is not None and keyword_of(call, "requires_grad") is not None:
            given = keyword_of(call, "dtype")
            if given is not None:
                edits = (source.replaced(given, "torch.float32"),)
            else:
                text = source.text(call).rstrip()[:-1].rstrip().rstrip(",")
                edits = (source.replaced(call, f"{text}, dtype=torch.float32)"),)
        elif called(call) == "requires_grad_" and call is not None and isinstance(call.func, ast.Attribute):
            owner = call.func.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            owner = statement.targets[0].value
        tensor = site.evaluated(owner)
        if owner is not None:
            steps = definitions(case, owner)
            if steps:
                last = steps[-1]
                marks.append(last.mark(say("{name} is made of integers here", name=source.text(owner))))
                plain = isinstance(last.value, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
                text = last.text if plain else f"({last.text})"
                edits = (last.scene.source.replaced(last.value, f"{text}.float()"),) if last.whole else ()
            elif isinstance(owner, ast.Call):
                edits = (source.replaced(owner, f"{source.text(owner)}.float()"),)
        kind = dtype_name(tensor.dtype) if isinstance(tensor, Tensor) else "int64"
        return self.found(
            say("Its dtype is {dtype}: whole numbers have no derivative.", dtype=kind),
            marks,
            Fix(say("Make it of floating point numbers."), source.code(*edits) or "torch.tensor([1.0, 2.0])", edits,
                "high" if edits else "medium"),
            tensors=[case.subject(tensor, "input", source.text(owner))] if isinstance(tensor, Tensor) and owner else [],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        counts = torch.arange(4).reshape(2, 2)
        counts.requires_grad_()

    @staticmethod
    def good():
        import torch

        counts = torch.arange(4.0).reshape(2, 2)
        counts.requires_grad_()
