"""PB509: .numpy() of a tensor that requires grad."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NumpyMethod(Cause):
    """``.numpy()`` leaves the graph, so torch wants you to say so: ``x.detach().numpy()``.

    NumPy's results have no gradient. For a plot or a metric that is fine: ``x.detach().cpu().numpy()``, or compute it
    under ``torch.no_grad()``. In a loss it is not: use the functions of torch, ``torch.sqrt`` for ``np.sqrt``.

    ``x.data.numpy()`` works too, but lets in-place changes pass unnoticed.
    """

    code = "PB509"
    title = "numpy() was called on a tensor that requires grad."
    says = ("can't call numpy() on tensor that requires grad", "can't call numpy() on variable that requires grad")

    def diagnose(self, case: Case) -> Diagnosis | None:
        call = case.call
        if case.site is None or call is None or called(call) != "numpy" or not isinstance(call.func, ast.Attribute):
            return None
        if case.site.evaluated(call.func.value) is not None and not isinstance(
            case.site.evaluated(call.func.value), Tensor
        ):
            return None
        owner = call.func.value
        tensor = case.site.evaluated(owner)
        known = tensor if isinstance(tensor, Tensor) else None
        text = operand(case, owner)
        edits: tuple[Edit, ...] = (case.site.source.replaced(call, f"{text}.detach().numpy()"),)
        marks = [case.mark(say("{name} leaves the graph here", name=text))]
        marks += made(case, known, owner, say("{name} was made here", name=text))
        return self.found(
            say(
                "{name} requires grad; an array of NumPy has no gradient, so the graph would end here unnoticed.",
                name=text,
            ),
            marks,
            Fix(
                say("Say that the graph ends here: detach(); or stay in torch if the result goes into a loss."),
                case.site.source.code(*edits),
                edits,
                "high",
            ),
            tensors=[case.subject(known, "tensor", text)] if known is not None else [],
            useless=[say(".data: it works, but hides later changes from autograd")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        predicted = net(torch.randn(4, 3))
        table = [predicted.numpy().mean()]
        assert table

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        predicted = net(torch.randn(4, 3))
        table = [predicted.detach().numpy().mean()]
        assert table
