"""PB644: several groups of parameters for LBFGS."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class GroupsUnsupported(Cause):
    """LBFGS takes one group of parameters: it searches along one direction, with one step for all of them.

    Options for some of the parameters, such as a learning rate of their own, have no meaning there. Pass one list of
    all parameters, ``torch.optim.LBFGS(net.parameters(), lr=1.0)``. To train parts differently, give each an optimizer
    of its own, or rescale the parameters themselves.
    """

    code = "PB644"
    title = "LBFGS was given several groups of parameters; it knows only one."
    says = ("LBFGS doesn't support per-parameter options",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        given = case.argument("params", 0)
        edits: tuple[Edit, ...] = ()
        groups = given.elts if isinstance(given, ast.List | ast.Tuple) else []
        parts = [_params(each) for each in groups]
        code = "torch.optim.LBFGS(net.parameters())"
        if given is not None and parts and all(part is not None for part in parts):
            whole = ", ".join(f"*{case.text(part)}" for part in parts)
            edits = (case.site.source.replaced(given, f"[{whole}]"),)
            code = case.site.source.code(*edits).strip()
        return self.found(
            say("The groups: {count}. LBFGS makes one step for all parameters together.", count=len(groups))
            if groups
            else say("LBFGS makes one step for all parameters together."),
            [case.mark(say("the optimizer is made here"))],
            Fix(say("Pass one list of all parameters; options of single groups are lost."), code, edits, "medium"),
        )

    @staticmethod
    def bad():
        import torch

        a, b = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([{"params": [a]}, {"params": [b], "lr": 0.5}])
        assert optimizer

    @staticmethod
    def good():
        import torch

        a, b = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([a, b])
        assert optimizer


def _params(group: ast.expr) -> ast.expr | None:
    """The parameters of a group that is written as a dictionary, if they are a collection."""
    if not isinstance(group, ast.Dict):
        return None
    for key, value in zip(group.keys, group.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "params":
            return value if isinstance(value, ast.Call | ast.List | ast.Tuple) else None
    return None
