"""PB502: a parameter of integers."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say
from pullback.words import dtype_name


class IntegerParameter(Cause):
    """A ``Parameter`` requires grad, and integers cannot.

    NumPy's ``np.arange(3)`` and ``torch.tensor([1, 2])`` are integers. Convert what is to be trained:
    ``nn.Parameter(data.float())``. What is not to be trained (indices, masks, counters) is a buffer:
    ``self.register_buffer("index", data)``, or ``nn.Parameter(data, requires_grad=False)``.
    """

    code = "PB502"
    title = "A Parameter was made of integers."
    says = ("floating point and complex dtype can require gradients", "floating point dtype can require gradients")

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("nn/parameter.py", "__new__")
        site, call = case.site, case.call
        if site is None or (local is None and called(call) != "Parameter"):
            return None
        data = (local or {}).get("data")
        node = case.argument("data", 0) if called(call) in ("Parameter", "Buffer") else None
        name = case.text(node) or "data"
        marks = [case.mark(say("a Parameter of integers is made here"))]
        marks += made(case, None, node, say("{name} comes from here", name=name))
        edits: tuple[Edit, ...] = ()
        if node is not None and not isinstance(node, ast.Starred):
            edits = (site.source.replaced(node, f"{operand(case, node)}.float()"),)
        dtype = dtype_name(data.dtype) if isinstance(data, Tensor) else "int64"
        return self.found(
            say("{name} has dtype {dtype}, and a Parameter requires grad: whole numbers have no derivative.",
                name=name, dtype=dtype),
            marks,
            Fix(
                say("Convert it to floating point, or make it a buffer if it is not trained."),
                site.source.code(*edits) or "torch.nn.Parameter(data.float())",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(data, "data", name)] if isinstance(data, Tensor) else [],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        class Bias(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shift = torch.nn.Parameter(torch.full((3,), 1))

        Bias()

    @staticmethod
    def good():
        import torch

        class Bias(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.shift = torch.nn.Parameter(torch.full((3,), 1.0))

        Bias()
