"""PB508: gradients that were made in inference mode."""

from __future__ import annotations

from pullback.diagnose.case import Case
from pullback.diagnose.check import Cause
from pullback.diagnose.evidence.absent.inference import (
    Block,
    around,
    block_of,
    fix_of,
    inference_gradients,
    inference_modules,
    inference_operands,
    is_gradient,
)
from pullback.diagnose.values import Diagnosis
from pullback.language import say


class InferenceGradient(Cause):
    """``backward()`` in ``torch.inference_mode()`` runs, but the gradients that it makes are inference tensors.

    They cannot be changed in place later: by clipping, by ``zero_grad(set_to_none=False)``, by adding the gradient of
    the next batch. Call ``backward()`` outside of the block. A loop over batches that is in inference mode as a whole
    is for evaluation only.
    """

    code = "PB508"
    title = "A gradient that was made in inference mode was changed outside of it."
    says = ("inplace update to inference tensor outside inferencemode",)

    def diagnose(self, case: Case) -> Diagnosis | None:
        leaves = inference_gradients(case)
        operands = inference_operands(case)
        if not leaves or case.site is None or inference_modules(case):
            return None
        if operands and not any(is_gradient(case, node) for node, _ in operands):
            return None
        name, leaf = leaves[0]
        block = self._ran(case) or block_of(case, None)
        marks = [case.mark(say("the gradient of {name} is changed here", name=name))]
        if block is not None:
            marks.append(block.mark(say("backward() ran in this block")))
        spot = next((each.spot for each in case.passes if each.accumulates and each.spot is not None), None)
        if spot is not None:
            marks.append(spot.mark(say("the gradient was made here")))
        return self.found(
            say("The gradient of {name} is an inference tensor, since backward() ran in inference mode.", name=name),
            marks,
            fix_of(case, block, f"{name}.grad = {name}.grad.clone()"),
            tensors=[case.subject(leaf, "leaf", name)],
        )

    @staticmethod
    def _ran(case: Case) -> Block | None:
        for each in case.passes:
            node = each.spot.node or each.spot.statement if each.spot is not None else None
            if node is not None and each.spot is not None and (found := around(each.spot.source, node)) is not None:
                return found
        return None

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean()
        with torch.inference_mode():
            loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        loss = net(torch.randn(4, 3)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)
