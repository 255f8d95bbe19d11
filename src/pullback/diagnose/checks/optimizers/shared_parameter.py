"""PB627: a parameter in two groups."""

from __future__ import annotations

from torch.optim import Optimizer

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import ADD, parameters_written
from pullback.diagnose.evidence.definitions import made
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say


class SharedParameter(Cause):
    """Each parameter belongs to one group of an optimizer: two groups would move it twice.

    ``net.parameters()`` has the parameters of ``net.head`` already. Leave them out of the first group:
    ``head = set(net.head.parameters())``, ``[p for p in net.parameters() if p not in head]``. Tied weights are one
    parameter with two names.
    """

    code = "PB627"
    title = "A parameter was given to an optimizer in two groups."
    says = ("some parameters appear in more than one parameter group",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        local = case.library_frame(*ADD) or {}
        optimizer, group = local.get("self"), local.get("param_group")
        if not isinstance(optimizer, Optimizer) or not isinstance(group, dict):
            return None
        known = {id(p): number for number, other in enumerate(optimizer.param_groups) for p in other["params"]}
        twice = [p for p in group["params"] if id(p) in known]
        if not twice:
            return None
        name = case.name_of(twice[0], "a parameter")
        marks = [case.mark(say("the groups are put together here"))]
        marks += made(case, None, parameters_written(case), say("the groups were made here"))
        return self.found(
            say(
                "{name} is in group {first} and in group {second}; parameters in two groups: {count}.",
                name=name, first=known[id(twice[0])], second=len(optimizer.param_groups), count=len(twice),
            ),
            marks,
            Fix(
                say("Leave out of one group what is in the other."),
                "special = set(net.head.parameters())\nrest = [p for p in net.parameters() if p not in special]",
            ),
            tensors=[case.subject(twice[0], "parameter", name)],
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        groups = [{"params": net.parameters()}, {"params": net[1].parameters(), "lr": 1e-4}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        assert optimizer

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        groups = [{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 1e-4}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        assert optimizer
