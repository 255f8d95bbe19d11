"""PB504: an inference tensor changed in place."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inference import (
    block_of,
    fix_of,
    inference_operands,
    is_gradient,
)
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class InferenceInPlace(Cause):
    """A tensor that was made in ``torch.inference_mode()`` cannot be changed in place outside of it.

    Inference tensors have no version counter: autograd could not notice the change, so it is refused.

    Make the tensor under ``torch.no_grad()`` if it is to be used later on, or take a copy: ``cache = cache.clone()``
    outside of the block. ``detach()`` does not help: it is a view of the same inference tensor.
    """

    code = "PB504"
    title = "A tensor that was made in inference mode was changed in place outside of it."
    says = ("inplace update to inference tensor outside inferencemode",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        found = [each for each in inference_operands(case) if not is_gradient(case, each[0])]
        if not found or case.site is None:
            return None
        node, tensor = found[0]
        if tensor.is_leaf and tensor.requires_grad:
            return None
        name = case.text(node)
        block = block_of(case, node, tensor)
        marks = [case.mark(say("{name} is changed in place here", name=name))]
        if block is not None:
            marks.append(block.mark(say("{name} was made in inference mode", name=name)))
        return self.found(
            say(
                "{name} is an inference tensor: it was made in inference mode, and may not be changed outside.",
                name=name,
            ),
            marks,
            fix_of(case, block, f"{name} = {name}.clone()"),
            tensors=[case.subject(tensor, "written", name)],
            useless=[say("detach(): the result is an inference tensor as well")],
        )

    @staticmethod
    def bad():
        import torch

        @torch.inference_mode()
        def first(n: int) -> torch.Tensor:
            return torch.arange(n) * 0.5

        state = first(4)
        state[0] = 1.0

    @staticmethod
    def good():
        import torch

        @torch.no_grad()
        def first(n: int) -> torch.Tensor:
            return torch.arange(n) * 0.5

        state = first(4)
        state[0] = 1.0
