"""PB512: a gradient of another size was assigned to .grad."""

from __future__ import annotations

import ast
import re

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.assigned import assigned, fix_of, like, marks_of
from pullback.diagnose.evidence.definitions import called
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class GradSize(Cause):
    """The gradient of a tensor has the shape of the tensor.

    ``p.grad = torch.zeros_like(p)`` always fits. To clear a gradient set it to None. A gradient that was computed for
    a slice or for a flattened vector has to be put back into shape: ``p.grad = flat[i:j].view_as(p)``.
    """

    code = "PB512"
    title = "A gradient of another size was assigned to .grad."
    says = ("attempting to assign a gradient of size", "assigned grad has data of a different size")

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = assigned(case)
        if found is None:
            return None
        value = found.value
        text = like(case, found)
        if not text and isinstance(value, Tensor) and value.numel() == found.tensor.numel():
            text = f"{found.text}.reshape({found.name}.shape)"
        stacked = _is_stacked(value, found.tensor, found.node, case.message)
        if stacked:
            text = f"{found.text}.mean(0)"
        return self.found(
            say(
                "{name} has shape {shape}; its gradient has to have the same shape.",
                name=found.name,
                shape=tuple(found.tensor.shape),
            ),
            marks_of(case, found),
            fix_of(
                case,
                found,
                say("Reduce the stacked gradients to one: their mean, or their sum.")
                if stacked
                else say("Give the gradient the shape of the tensor."),
                text,
                sure=not stacked,
            ),
            tensors=[case.subject(found.tensor, "leaf", found.name)],
        )

    @staticmethod
    def bad():
        import torch

        layer = torch.nn.Linear(3, 2)
        flat = torch.zeros(6)
        layer.weight.grad = flat

    @staticmethod
    def good():
        import torch

        layer = torch.nn.Linear(3, 2)
        flat = torch.zeros(6)
        layer.weight.grad = flat.view_as(layer.weight)


def _is_stacked(value: object, tensor: Tensor, node: ast.expr, message: str) -> bool:
    """Whether several gradients of a tensor were stacked: its shape with one dimension in front."""
    told = re.search(r"of size '\[([\d, ]+)\]'", message)
    sizes = [int(each) for each in told.group(1).split(",")] if told else []
    if isinstance(value, Tensor):
        sizes = list(value.shape)
    return called(node) == "stack" and sizes[1:] == list(tensor.shape)
