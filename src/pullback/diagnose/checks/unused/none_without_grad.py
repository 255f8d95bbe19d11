"""PB614: .grad of a tensor that does not require grad."""

from __future__ import annotations

import ast

from torch import nn

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.values import none_gradient
from pullback.diagnose.evidence.definitions import Definition, called, definitions, made
from pullback.diagnose.values import Diagnosis, Edit, Fix
from pullback.language import say


class NoneWithoutGrad(Cause):
    """A tensor that does not require grad has no gradient: its ``.grad`` is None.

    ``torch.randn(3)`` makes data, not a variable: ask for it with ``requires_grad=True`` or ``x.requires_grad_()``
    before the forward pass. A frozen parameter (``requires_grad_(False)``) has none either: leave it out.

    An assignment under ``torch.no_grad()`` such as ``w = w - lr * w.grad`` makes a new tensor that does not require
    grad: change it in place there, ``w -= lr * w.grad``.
    """

    code = "PB614"
    title = "The gradient of a tensor was used that does not require grad."
    says = ("nonetype",)
    raises = (TypeError, AttributeError)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = none_gradient(case)
        if found is None or found.tensor is None or found.tensor.requires_grad or case.site is None:
            return None
        tensor, name = found.tensor, case.text(found.owner)
        steps = definitions(case, found.owner)
        step = steps[0] if steps else None
        rebound = step is not None and self._rebound(step, name)
        marks = [case.mark(say("{name}.grad is None here", name=name))]
        if rebound and step is not None:
            marks.append(step.mark(say("{name} stands for a new tensor from here", name=name)))
        else:
            marks += made(case, None, found.owner, say("{name} was made here, without requires_grad", name=name))
        edits: tuple[Edit, ...] = ()
        code = f"{name}.requires_grad_()"
        source = step.scene.source if step is not None else case.site.source
        if rebound and step is not None and isinstance(step.value, ast.BinOp):
            sign = "-" if isinstance(step.value.op, ast.Sub) else "+"
            edits = (source.replaced(step.statement, f"{name} {sign}= {source.text(step.value.right)}"),)
        elif (
            step is not None
            and step.whole
            and isinstance(step.value, ast.Call)
            and tensor.is_floating_point()
            and not isinstance(tensor, nn.Parameter)
            and not case.says("requires_grad")
        ):
            new = steps[-1]
            source = new.scene.source
            edits = (source.replaced(new.value, f"{new.text}.requires_grad_()"),)
        code = source.code(*edits) or code
        frozen = isinstance(tensor, nn.Parameter)
        return self.found(
            say("{name} is a frozen parameter (requires_grad is False), so backward() gives it no gradient.", name=name)
            if frozen
            else say("{name} does not require grad, so backward() gives it no gradient.", name=name),
            marks,
            Fix(
                say("Leave frozen parameters out.") if frozen else say("Let it require grad before the forward pass."),
                f"if {case.text(found.written)} is not None:\n    ..." if frozen else code,
                edits,
                "high" if edits else "medium",
            ),
            tensors=[case.subject(tensor, "data", name)],
        )

    @staticmethod
    def _rebound(step: Definition, name: str) -> bool:
        value = step.value
        return (
            isinstance(value, ast.BinOp)
            and isinstance(value.op, ast.Sub | ast.Add)
            and step.scene.source.text(value.left) == name
            and called(value.right) != name
        )

    @staticmethod
    def bad():
        import torch

        image = torch.rand(1, 8)
        net = torch.nn.Linear(8, 2)
        net(image)[0, 1].backward()
        saliency = image.grad.abs()
        assert saliency.sum() > 0

    @staticmethod
    def good():
        import torch

        image = torch.rand(1, 8, requires_grad=True)
        net = torch.nn.Linear(8, 2)
        net(image)[0, 1].backward()
        saliency = image.grad.abs()
        assert saliency.sum() > 0
