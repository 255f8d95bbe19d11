"""PBA139: ``torch.tensor`` of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.lost import behind, root_values
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say

MOST = 1000


class CopiedTensor(Fault):
    """``torch.tensor(t)`` of a tensor that requires grad copies its values and drops its history.

    What is computed from the copy does not depend on ``t`` any more: no gradient reaches it. Torch warns, but only that
    another spelling is preferred.

    Use the tensor itself, or ``t.clone()`` for a copy with the same gradients. If cutting is meant, write
    ``t.detach().clone()``. ``torch.tensor(t, requires_grad=True)`` makes a new leaf: the history is still gone.
    """

    code = "PBA139"
    title = "torch.tensor() was called on a tensor that requires grad: the copy has no history."
    hears = frozenset({"tensor"})

    def __init__(self) -> None:
        self._lists: dict[int, Diagnosis] = {}  # by the calls that copied several tensors

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("data")
        if not call.grad or call.spot is None or not any(each.requires_grad for each in call.inputs):
            return
        if isinstance(given, Tensor):
            audit.report(self._of_one(audit, call.spot, given))
        elif isinstance(given, list | tuple) and len(self._lists) < MOST:
            self._lists[call.number] = self._of_several(call.spot, len(call.inputs))

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if self._lists:  # copies of losses may be for printing: only those count that the loss is made of
            for call in behind(audit.tape, root_values(audit, backward)):
                if (found := self._lists.pop(call.number, None)) is not None:
                    audit.report(found)

    def _of_one(self, audit: Audit, spot: Spot, given: Tensor) -> Diagnosis:
        node, source = spot.node, spot.source
        edits: tuple[Edit, ...] = ()
        name = audit.name_of(given, "t")
        code = f"{name}.clone()"
        if isinstance(node, ast.Call) and len(node.args) == 1:
            text = source.text(node.args[0])
            simple = isinstance(node.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            code = f"{text}.clone()" if simple else f"({text}).clone()"
            edits = (source.replaced(node, code),) if not node.keywords else ()
        return self.found(
            say(
                "{name} requires grad; torch.tensor() copies its values only, and the copy is a constant.",
                name=name,
            ),
            [spot.mark(say("the history is dropped here"))],
            Fix(say("Use the tensor itself, or clone() for a copy that keeps its history."), code, edits, "medium"),
            tensors=[audit.subject(given, "copied", name)],
            useless=[say("requires_grad=True in torch.tensor(): a new leaf, without the history")],
        )

    def _of_several(self, spot: Spot, count: int) -> Diagnosis:
        node, source = spot.node, spot.source
        edits: tuple[Edit, ...] = ()
        code = "torch.stack([...])"
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            code = f"{source.text(node.func.value)}.stack({source.text(node.args[0])})"
            edits = (source.replaced(node, code),) if not node.keywords else ()
        return self.found(
            say(
                "torch.tensor() copies the values of {count} tensors; what the loss has of them is constant.",
                count=count,
            ),
            [spot.mark(say("the history is dropped here"))],
            Fix(say("Stack the tensors: that keeps their history."), code, edits, "medium"),
            useless=[say("requires_grad=True in torch.tensor(): a new leaf, without the history")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 2)
        output = net(torch.randn(3, 4))
        values = torch.tensor(output)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 2)
        output = net(torch.randn(3, 4))
        values = torch.tensor(output.detach().tolist())
