"""PB503: requires_grad of a computed tensor."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import called, made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NonleafFlag(Cause):
    """``requires_grad`` can be set for leaves only; for a computed tensor it follows from its inputs.

    To stop the gradient at a computed tensor take ``h = h.detach()`` (a tensor without its history), or compute it
    under ``torch.no_grad()``. To freeze a layer set the flag of its parameters: ``layer.requires_grad_(False)``.
    """

    code = "PB503"
    title = "requires_grad of a computed tensor was set, which is not a leaf."
    says = ("only change requires_grad flags of leaf variables",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        site = case.site
        if site is None:
            return None
        source, statement, call = site.source, site.statement, case.call
        owner: ast.expr | None = None
        edits: tuple[Edit, ...] = ()
        if called(call) == "requires_grad_" and call is not None and isinstance(call.func, ast.Attribute):
            owner = call.func.value
            text = f"{operand(case, owner)}.detach()"
            alone = (
                isinstance(statement, ast.Expr)
                and statement.value is call
                and isinstance(owner, ast.Name | ast.Attribute)
            )
            edits = (source.replaced(call, f"{source.text(owner)} = {text}" if alone else text),)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            owner = statement.targets[0].value
            if isinstance(owner, ast.Name | ast.Attribute) and len(statement.targets) == 1:
                edits = (source.replaced(statement, f"{source.text(owner)} = {source.text(owner)}.detach()"),)
        name = case.text(owner) or say("the tensor")
        tensor = site.evaluated(owner)
        known = tensor if isinstance(tensor, Tensor) else None
        marks = [case.mark(say("the flag of {name} is set here", name=name))]
        marks += made(case, known, owner, say("{name} is computed here", name=name))
        node = known.grad_fn if known is not None else None
        return self.found(
            say("{name} is the result of an operation ({node}): whether it requires grad follows from its inputs.",
                name=name, node=node.name() if node is not None else "?"),
            marks,
            Fix(say("Take it without its history: detach()."), source.code(*edits) or f"{name} = {name}.detach()",
                edits, "high" if edits else "medium"),
            tensors=[case.subject(known, "computed", name)] if known is not None else [],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 2)
        hidden = net(torch.randn(1, 3)).tanh()
        hidden.requires_grad_(False)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 2)
        hidden = net(torch.randn(1, 3)).tanh()
        hidden = hidden.detach()
