"""PB505: an inference tensor made to require grad."""

from __future__ import annotations

import ast

from torch import Tensor

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inference import block_of, fix_of, inference_operands
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class InferenceRequiresGrad(Cause):
    """A tensor that was made in ``torch.inference_mode()`` can never require grad outside of it.

    Make it under ``torch.no_grad()``, or clone it outside of the block: ``x = x.clone().requires_grad_()``.
    """

    code = "PB505"
    title = "A tensor that was made in inference mode was to require grad."
    says = ("setting requires_grad=true on inference tensor",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        if case.site is None:
            return None
        found = inference_operands(case)
        statement = case.site.statement
        if not found and isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                    thing = case.site.evaluated(target.value)
                    found = [(target.value, thing)] if isinstance(thing, Tensor) else []
        node, tensor = found[0] if found else (None, None)
        name = case.text(node) or say("the tensor")
        block = block_of(case, node, tensor)
        marks = [case.mark(say("{name} is to require grad here", name=name))]
        if block is not None:
            marks.append(block.mark(say("{name} was made in inference mode", name=name)))
        return self.found(
            say(
                "{name} is an inference tensor: nothing may be recorded about it, so it cannot require grad.", name=name
            ),
            marks,
            fix_of(case, block, f"{name} = {name}.clone().requires_grad_()"),
            tensors=[case.subject(tensor, "input", name)] if tensor is not None else [],
            useless=[say("detach(): the result is an inference tensor as well")],
        )

    @staticmethod
    def bad():
        import torch

        encoder = torch.nn.Linear(4, 2)
        with torch.inference_mode():
            code = encoder(torch.randn(1, 4))
        prompt = torch.nn.Parameter(code)
        assert prompt.requires_grad

    @staticmethod
    def good():
        import torch

        encoder = torch.nn.Linear(4, 2)
        with torch.no_grad():
            code = encoder(torch.randn(1, 4))
        prompt = torch.nn.Parameter(code)
        assert prompt.requires_grad
