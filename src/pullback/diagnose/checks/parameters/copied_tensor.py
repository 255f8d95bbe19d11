"""PBA139: ``torch.tensor`` of a tensor."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pullback.diagnose.audit import Audit
from pullback.diagnose.check import Fault
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


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

    def after_call(
        self, audit: Audit, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        given = args[0] if args else kwargs.get("data")
        if not isinstance(given, Tensor) or not given.requires_grad or not call.grad or call.spot is None:
            return
        node, source = call.spot.node, call.spot.source
        edits: tuple[Edit, ...] = ()
        name = audit.name_of(given, "t")
        code = f"{name}.clone()"
        if isinstance(node, ast.Call) and len(node.args) == 1:
            text = source.text(node.args[0])
            simple = isinstance(node.args[0], ast.Name | ast.Attribute | ast.Call | ast.Subscript)
            code = f"{text}.clone()" if simple else f"({text}).clone()"
            edits = (source.replaced(node, code),) if not node.keywords else ()
        audit.report(
            self.found(
                say(
                    "{name} requires grad; torch.tensor() copies its values only, and the copy is a constant.",
                    name=name,
                ),
                [call.spot.mark(say("the history is dropped here"))],
                Fix(say("Use the tensor itself, or clone() for a copy that keeps its history."), code, edits, "medium"),
                tensors=[audit.subject(given, "copied", name)],
                useless=[say("requires_grad=True in torch.tensor(): a new leaf, without the history")],
            )
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
