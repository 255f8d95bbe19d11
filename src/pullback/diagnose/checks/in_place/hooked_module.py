"""PB432: a module with a full backward hook that changes its input in place."""

from __future__ import annotations

import ast

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.freed.report import marked
from pullback.diagnose.evidence.overwritten.report import out_of_place, without_inplace
from pullback.diagnose.evidence.overwritten.sites import form_at, module_at
from pullback.diagnose.values import Diagnosis, Fix, Mark
from pullback.graph.values import Place
from pullback.language import say


class HookedModule(Cause):
    """A module has a full backward hook, and its forward (or the next layer) changes in place what it watches.

    To see the gradients of inputs and outputs, `register_full_backward_hook` passes them through a Function of its
    own, whose outputs are views. A change in place of such a view is refused.

    Write the change out of place (`x = x + 1`, `inplace=False`), or watch a tensor instead of the module:
    `tensor.register_hook(...)`.
    """

    code = "PB432"
    title = "A module with a full backward hook changes its input or output in place."
    says = ("BackwardHookFunction",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None or not case.says("inplace"):
            return None
        form, module = form_at(case), module_at(case)
        edits = without_inplace(case, type(module).__name__)[0] if module is not None else out_of_place(form)
        marks = [case.mark(say("changed in place here, inside or behind a module with a hook")), *_registered(case)]
        if module is not None:
            marks += [
                Mark.at(Place(file, line, ""), say("inplace=True is asked for here"))
                for file, line in without_inplace(case, type(module).__name__)[1]
            ]
        return self.found(
            say(
                "A full backward hook wraps what goes into a module and comes out of it; this "
                "line changes such a tensor in place."
            ),
            marks,
            Fix(
                say("Change it out of place."),
                "\n".join((edit.text or "").strip() for edit in edits) or "x = x + 1",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LeakyReLU(0.1, inplace=True))
        net[0].register_full_backward_hook(lambda module, before, after: None)
        net(torch.randn(3, 2, requires_grad=True)).sum().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LeakyReLU(0.1))
        net[0].register_full_backward_hook(lambda module, before, after: None)
        net(torch.randn(3, 2, requires_grad=True)).sum().backward()


def _registered(case: Case) -> list[Mark]:
    """The lines that register full backward hooks in the files that ran."""
    for source in {frame.file: frame.source for frame in case.frames}.values():
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"register_full_backward_hook", "register_full_backward_pre_hook"}
            ):
                return [marked(source, node, say("the hook is registered here"))]
    return []
