"""PB621: everything is frozen."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.parameters import modules_in, parameters_written, sources_of
from pullback.diagnose.evidence.definitions import called, is_true, mark_node
from pullback.diagnose.evidence.source import Source
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoParametersFrozen(Cause):
    """All parameters are frozen, and the filter ``if p.requires_grad`` leaves none.

    ``net.requires_grad_(False)`` freezes all of the net, the head that was to be trained too. Freeze the backbone
    only, or put the new head in after freezing.
    """

    code = "PB621"
    title = "An optimizer was given no parameters: all of them are frozen."
    says = ("optimizer got an empty parameter list",)
    raises = (ValueError,)

    def diagnose(self, case: Case) -> Diagnosis | None:
        node = parameters_written(case)
        frozen = [
            (scene, each, module) for scene, each, module in modules_in(case, node)
            if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters())
        ]  # fmt: skip
        if not frozen or case.site is None:
            return None
        scene, each, module = frozen[0]
        name = scene.source.text(each)
        marks = [case.mark(say("no parameter is left here"))]
        edits: tuple[Edit, ...] = ()
        switches = [(source, switch) for source in sources_of(case) for switch in freezing(source)]
        for source, switch in switches[:2]:
            marks.append(mark_node(source, switch, say("the parameters are frozen here")))
        if len(switches) == 1:
            source, switch = switches[0]
            edits = thawed(source, switch)
        count = sum(1 for _ in module.parameters())
        return self.found(
            say("All parameters of {name} ({count}) have requires_grad=False, so none is left to be trained.",
                count=count, name=name),
            marks,
            Fix(
                say("Freeze only what is not to be trained."),
                case.site.source.code(*edits) or f"{name}.requires_grad_(True)",
                edits,
                "high" if edits else "medium",
            ),
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        for p in net.parameters():
            p.requires_grad = False
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trained)
        assert optimizer

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        for p in net[0].parameters():
            p.requires_grad = False
        trained = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trained)
        assert optimizer


def freezing(source: Source) -> list[ast.expr | ast.stmt]:
    """The places of a source that freeze something."""
    found: list[ast.expr | ast.stmt] = []
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and called(node) == "requires_grad_"
            and node.args
            and is_true(node.args[0], False)
        ):
            found.append(node)
        if (
            isinstance(node, ast.Assign)
            and is_true(node.value, False)
            and any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in node.targets)
        ):
            found.append(node)
    return sorted(found, key=lambda each: each.lineno)


def thawed(source: Source, switch: ast.expr | ast.stmt) -> tuple[Edit, ...]:
    """The edit that does not freeze there."""
    if isinstance(switch, ast.Assign):
        return (source.replaced(switch.value, "True"),)
    if isinstance(switch, ast.Call) and switch.args:
        return (source.replaced(switch.args[0], "True"),)
    return ()
