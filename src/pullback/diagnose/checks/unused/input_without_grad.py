"""PB607: an input that does not require grad."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.definitions import definitions
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class InputWithoutGrad(Cause):
    """A gradient was asked for by a tensor that does not require grad.

    Data does not by itself: ``x = torch.rand(5, 2)`` must be told so with ``requires_grad=True`` or
    ``x.requires_grad_()``, before the output is computed. A tensor that was made under ``no_grad`` or by ``detach()``
    does not require grad either, and a frozen parameter does not.
    """

    code = "PB607"
    title = "A gradient was asked for by a tensor that does not require grad."
    says = ("differentiated tensors does not require grad", "can't retain_grad on tensor that has requires_grad=false")

    def diagnose(self, case: Case) -> Diagnosis | None:
        asked = case.asked
        if asked is None or case.site is None:
            return None
        number, tensor = next(
            ((number, each) for number, each in enumerate(asked.inputs or ())
             if isinstance(each, Tensor) and not each.requires_grad), (0, None),
        )  # fmt: skip
        if tensor is None:
            return None
        node = case.argument("inputs", 1 if asked.verb == "grad" else None)
        if isinstance(node, ast.List | ast.Tuple):
            node = node.elts[number] if number < len(node.elts) else None
        elif len(asked.inputs or ()) > 1:
            node = None
        name = case.text(node) or case.name_of(tensor) or say("the input")
        marks = [case.mark(say("the gradient by {name} is asked for here", name=name))]
        edits: tuple[Edit, ...] = ()
        steps = definitions(case, node)
        if steps:
            last = steps[-1]
            marks.append(last.mark(say("{name} was made here, without requires_grad", name=name)))
            plain = isinstance(last.value, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
            text = last.text if plain else f"({last.text})"
            numbers = tensor.is_floating_point() or tensor.is_complex()
            if last.whole and numbers:
                edits = (last.scene.source.replaced(last.value, f"{text}.requires_grad_()"),)
            elif numbers and isinstance(last.statement, ast.Assign):
                targets = [each for target in last.statement.targets for each in ast.walk(target)]
                mine = [each for each in targets if isinstance(each, ast.Name) and last.scene.evaluated(each) is tensor]
                switch = [f"{each.id}.requires_grad_()" for each in mine]
                edits = tuple(last.scene.source.inserted_after(last.statement, each) for each in switch[:1])
        return self.found(
            say("{name} does not require grad, so nothing was recorded about it.", name=name),
            marks,
            Fix(
                say("Let it require grad before the output is computed."),
                case.site.source.code(*edits).strip() or f"{name}.requires_grad_()    # before the forward pass",
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "input", name)],
            useless=[say("requires_grad_() right before the call: the output is computed by then")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(2, 1)
        t = torch.linspace(0, 1, 6).reshape(3, 2)
        u = net(t).tanh()
        torch.autograd.grad(u.sum(), t, create_graph=True)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(2, 1)
        t = torch.linspace(0, 1, 6).reshape(3, 2).requires_grad_()
        u = net(t).tanh()
        torch.autograd.grad(u.sum(), t, create_graph=True)
