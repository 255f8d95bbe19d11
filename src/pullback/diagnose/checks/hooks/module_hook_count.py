"""PB737: a module's backward hook that returns another number of gradients."""

from __future__ import annotations

import ast
import re

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.functions.classes import elements
from pullback.diagnose.evidence.functions.hooks import MODULE, method_of_hook, module_hook, named_hook, registered
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class ModuleHookCount(Cause):
    """A backward hook of a module or a node returned another number of gradients than it was given.

    A full backward hook gets ``(module, grad_input, grad_output)``, where the gradients are tuples, and returns
    ``None`` or a new ``grad_input``: a tuple with one entry for each positional input of the module. A single tensor is
    not a tuple: of a tensor the length is the size of its first dimension, and that is the number in torch's message.
    Write ``return (grad_input[0] * 2,)``, with the comma.

    A full backward *pre* hook gets and returns ``grad_output``. A hook of a node (``grad_fn.register_hook``) and the
    old ``register_backward_hook`` return one gradient for each input of that node.
    """

    code = "PB737"
    title = "A backward hook returned another number of gradients than it was given."
    says = ("hook returned an invalid number of grad", "has returned an incorrect number of values")

    def diagnose(self, case: Case) -> Diagnosis | None:
        said = re.search(r"got (\d+), but expected (\d+)", case.message)
        if said is None:
            return None
        got, wanted = int(said[1]), int(said[2])
        running = module_hook(case)
        method = method_of_hook(running[1]) if running is not None else None
        found = registered(case, {*MODULE, "register_hook", "register_prehook"})
        if method is not None:
            found = [each for each in found if each.hook is not None and each.hook.node is method.node]
        elif running is None:
            name = named_hook(case)
            found = [each for each in found if each.name == name]
            found = [each for each in found if each.method == "register_backward_hook" or "fn" in each.owner] or found
            method = found[0].hook if len(found) == 1 else None
        marks = [case.mark(say("the backward pass failed here"))]
        marks += [each.mark(say("the hook is registered here")) for each in found[:3]]
        edits: tuple[Edit, ...] = ()
        bare = False
        if method is not None:
            marks += [
                method.mark(each, say("{count} returned, {wanted} expected", count=got, wanted=wanted))
                for each in method.returns
            ]
            bare = len(method.returns) == 1 and not isinstance(method.returns[0], ast.Tuple | ast.Name)
            if bare and wanted == 1 and method.own and len(elements(method.returns[0])) == 1:
                value = method.returns[0]
                edits = method.rewrite().replace(value, f"({method.text(value)},)").edits()
        owner = type(running[0]).__name__ if running is not None else ""
        cause = (
            say(
                "The hook of {module} was given {wanted} and returned {got} (number of gradients).",
                module=owner,
                got=got,
                wanted=wanted,
            )
            if owner
            else say("A hook was given {wanted} and returned {got} (number of gradients).", got=got, wanted=wanted)
        )
        notes = (
            [say("A tensor that is returned without a tuple counts as many values as its first dimension has.")]
            if bare
            else []
        )
        return self.found(
            cause,
            marks,
            Fix(
                say("Return a tuple of this length, or nothing: {wanted}.", wanted=wanted),
                method.source.code(*edits)
                if edits and method is not None
                else "return (" + "".join(f"grad_{number}, " for number in range(wanted)).rstrip() + ")",
                edits,
                "high" if edits else "medium",
            ),
            notes=notes,
            confidence="high" if method is not None or len(found) == 1 else "medium",
            apart=""
            if method is not None or len(found) == 1
            else say("Which hook of this name it was, torch does not say."),
        )

    @staticmethod
    def bad():
        import torch

        def damp(module, grad_input, grad_output):
            return grad_input[0] * 0.1

        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        net[1].register_full_backward_hook(damp)
        net(torch.randn(5, 3)).sum().backward()

    @staticmethod
    def good():
        import torch

        def damp(module, grad_input, grad_output):
            return (grad_input[0] * 0.1,)

        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        net[1].register_full_backward_hook(damp)
        net(torch.randn(5, 3)).sum().backward()
