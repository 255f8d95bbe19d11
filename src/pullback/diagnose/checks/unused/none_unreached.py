"""PB611: .grad of a leaf that no backward pass reached."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.values import cleared, last_pass, none_gradient, reached, root_alive
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class NoneUnreached(Cause):
    """A leaf that the loss does not depend on gets no gradient: its ``.grad`` stays None.

    It is not zero. The usual ways there: a layer that ``forward`` does not use, a branch that this batch did not take,
    a path cut by ``detach()`` or ``no_grad``, a head that belongs to another loss.

    Skip those parameters: ``if p.grad is not None``. If the loss ought to depend on it, look for the cut:
    ``pullback.check`` and the graph show which parameters the loss reaches.
    """

    code = "PB611"
    title = "The gradient of a tensor was used that the loss does not depend on."
    says = ("nonetype",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        ran = last_pass(case)
        if found is None or found.tensor is None or case.site is None or ran is None:
            return None
        leaf: Tensor = found.tensor
        if not leaf.is_leaf or not leaf.requires_grad:
            return None
        root = root_alive(case, ran)
        if root is not None and id(leaf) in reached([root]):
            return None  # the gradient came, and was cleared
        if root is None and cleared(case)[1] is not None:
            return None
        name, source = case.name_of(leaf) or case.text(found.owner), case.site.source
        grad = case.text(found.written)
        statement = case.site.statement
        edits = ()
        if isinstance(statement, ast.Expr | ast.AugAssign):
            edits = (source.wrapped(statement, f"if {grad} is not None:"),)  # type: ignore[assignment]
        marks = [case.mark(say("{name} is None here", name=grad))]
        if ran.spot is not None:
            marks.append(ran.spot.mark(say("this backward pass did not reach it")))
        marks += made(case, None, found.owner, say("it comes from here"))
        sure = root is not None
        return self.found(
            say("{name} requires grad, but the loss does not depend on it: no backward pass has reached it, so its "
                ".grad is None.", name=name),
            marks,
            Fix(
                say("Leave it out where its gradient is None; or let the loss depend on it."),
                source.code(*edits) or f"if {grad} is not None:\n    ...",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(leaf, "leaf", name)],
            confidence="high" if sure else "medium",
            apart="" if sure else say("Whether the gradient never came, or was cleared after it had."),
            wants="" if case.traced else say("Which operation cut {name} off?", name=name),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1), "spare": torch.nn.Linear(3, 1)})
        loss = net["used"](torch.randn(4, 3)).square().mean()
        loss.backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)

    @staticmethod
    def good():
        import torch

        net = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 1)})
        loss = net["used"](torch.randn(4, 3)).square().mean()
        loss.backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)
