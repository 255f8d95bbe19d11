"""PB517: a computed tensor sent to another process."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class SerialisedNonleaf(Cause):
    """A graph does not cross processes: a computed tensor that requires grad cannot be sent.

    Send its values: ``queue.put(t.detach())``. In a ``Dataset`` that is read by workers keep data, not results of a
    model; compute features that are to be stored under ``torch.no_grad()``.
    """

    code = "PB517"
    title = "A computed tensor that requires grad was to be sent to another process."
    says = ("cowardly refusing to serialize non-leaf tensor",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame("multiprocessing/reductions.py", "reduce_tensor")
        tensor = (local or {}).get("tensor")
        if not isinstance(tensor, Tensor) or case.site is None:
            return None
        node = self._written(case, tensor)
        name = case.text(node) or case.name_of(tensor, "a tensor")
        edits: tuple[Edit, ...] = ()
        if node is not None:
            edits = (case.site.source.replaced(node, f"{operand(case, node)}.detach()"),)
        marks = [case.mark(say("{name} is sent here", name=name))]
        marks += made(case, tensor, node, say("{name} is computed here", name=name))
        return self.found(
            say("{name} is the result of {node} and requires grad; its graph cannot be sent to another process.",
                name=name, node=tensor.grad_fn.name() if tensor.grad_fn is not None else "?"),
            marks,
            Fix(
                say("Send the values only: detach()."),
                case.site.source.code(*edits) or f"{name}.detach()",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "sent", name)],
        )  # fmt: skip

    @staticmethod
    def _written(case: Case, tensor: Tensor) -> ast.expr | None:
        call = case.call
        if call is None or case.site is None:
            return None
        for each in ast.walk(call):
            if isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and case.site.evaluated(each) is tensor:
                return each
        alone = [each for each in call.args if isinstance(each, ast.BinOp | ast.Call)]
        return alone[0] if len(alone) == 1 and len(call.args) == 1 else None

    @staticmethod
    def bad():
        from multiprocessing.reduction import ForkingPickler

        import torch

        net = torch.nn.Linear(3, 2)
        batch = {"code": net(torch.randn(1, 3)), "label": torch.tensor([1])}
        ForkingPickler.dumps(batch)

    @staticmethod
    def good():
        from multiprocessing.reduction import ForkingPickler

        import torch

        net = torch.nn.Linear(3, 2)
        batch = {"code": net(torch.randn(1, 3)).detach(), "label": torch.tensor([1])}
        ForkingPickler.dumps(batch)
