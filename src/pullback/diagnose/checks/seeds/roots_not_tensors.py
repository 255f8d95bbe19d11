"""PB118: autograd was given something else than tensors."""

from __future__ import annotations

import ast
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import made, operand
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NotTensors(Cause):
    """``torch.autograd.grad`` and ``torch.autograd.backward`` take tensors, or a flat list or tuple of them.

    A dict is not taken apart (its keys are taken), a list within a list neither, and a module is not its parameters.
    Write ``list(losses.values())``, ``tuple(net.parameters())``. A list of losses may be given as it is.
    """

    code = "PB118"
    title = "autograd was asked about something that is no tensor."
    says = (
        "expected output to be a torch.tensor",
        "all inputs have to be tensors or gradientedges",
        "object is not iterable",
    )

    def diagnose(self, case: Case) -> Diagnosis | None:
        asked = case.asked
        if asked is None or case.site is None:
            return None
        of_inputs = case.says("all inputs have to be") or (
            case.says("object is not iterable") and asked.inputs is not None and any(map(_wrong, asked.inputs))
        )
        things = asked.inputs if of_inputs else asked.roots
        wrong = next(((number, each) for number, each in enumerate(things or ()) if _wrong(each)), None)
        node = case.argument("inputs", 1) if of_inputs else case.root
        local = case.library_frame("torch/autograd/__init__.py", asked.verb) or {}
        given = local.get("inputs" if of_inputs else ("outputs" if asked.verb == "grad" else "tensors"))
        if wrong is None and not isinstance(given, dict):
            return None
        number, thing = wrong if wrong is not None else (0, given)
        if case.says("object is not iterable") and f"'{type(thing).__name__}'" not in case.message:
            return None
        shown: Any = given if isinstance(given, dict | nn.Module) else thing
        kind, text = type(shown).__name__, case.text(node) or say("it")
        code, edits = self._fix(case, node, given, thing)
        marks = [
            case.mark(say("an object of type {kind} is given here", kind=kind)),
            *made(case, None, node, say("it was made here")),
        ]
        return self.found(
            say("{name} is of type {kind}; autograd takes a tensor, or a flat list of them.", name=text, kind=kind)
            if shown is given
            else say("Item {number} of {name} is of type {kind}; "
                          "autograd takes tensors only.", number=number, name=text,
                     kind=kind),
            marks,
            Fix(say("Give the tensors themselves."), code, edits, "high" if edits else "medium"),
        )  # fmt: skip

    @staticmethod
    def _fix(case: Case, node: ast.expr | None, given: Any, thing: Any) -> tuple[str, tuple[Edit, ...]]:
        text = operand(case, node)
        new = ""
        if isinstance(given, dict) and all(isinstance(each, Tensor) for each in given.values()):
            new = f"list({text}.values())"
        elif isinstance(given, nn.Module):
            new = f"tuple({text}.parameters())"
        elif isinstance(given, list | tuple) and any(isinstance(each, list | tuple) for each in given):
            if all(isinstance(each, list | tuple) and all(isinstance(x, Tensor) for x in each) for each in given):
                new = f"[each for group in {text} for each in group]"
        elif isinstance(given, list | tuple) and isinstance(thing, nn.Module):
            return "tuple(net.parameters())", ()
        edits = (case.site.source.replaced(node, new),) if new and node is not None and case.site else ()
        return new or "torch.autograd.grad(loss, [w, b])", edits

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean()
        torch.autograd.grad(loss, net)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean()
        torch.autograd.grad(loss, tuple(net.parameters()))


def _wrong(thing: Any) -> bool:
    return not isinstance(thing, Tensor | GradientEdge)
