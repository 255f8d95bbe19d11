"""PBA205: a seed of ones for a vector of losses."""

from __future__ import annotations

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.find import inside_functorch, is_ones, origin
from pullback.diagnose.evidence.numbers.seed import given_seeds, is_method, root_node, seed_node
from pullback.diagnose.recorders.tape import Call
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

LOSSES = frozenset({
    "pow", "__pow__", "square", "abs", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy",
    "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "gaussian_nll_loss",
    "poisson_nll_loss",
})  # fmt: skip
REDUCES = frozenset({"sum", "mean"})


class SumOfLosses(Fault):
    """A seed of ones for a vector of losses gives the gradient of their sum.

    ``losses.backward(torch.ones_like(losses))`` silences the error "grad can be implicitly created only for scalar
    outputs", but is ``losses.sum().backward()``: the step grows with the batch, N times that of the mean.

    For the mean, reduce first: ``losses.mean().backward()``. If the sum is meant, ``losses.sum().backward()`` says so.
    """

    code = "PBA205"
    title = "A seed of ones for a vector of losses: the gradient is that of their sum, not of their mean."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is None or inside_functorch() or not is_method(backward):
            return
        for root, seed in given_seeds(backward):
            if not 1 <= root.dim() <= 2 or root.numel() < 8 or root.shape[0] != root.numel():
                continue
            if seed.numel() <= 1 << 20 and is_ones(seed) and (maker := self._loss(audit, root)) is not None:
                leaves = backward.leaves
                if leaves and all(not leaf.dim() or leaf.shape[0] != len(root) for leaf in leaves):
                    audit.report(self._finding(audit, backward, root, maker))

    @staticmethod
    def _loss(audit: Audit, root: Tensor) -> Call | None:
        value = audit.tape.value_of(root)
        maker = origin(value) if value is not None else None
        first = maker
        if maker is not None and maker.name in REDUCES and maker.inputs:
            maker = origin(maker.inputs[0])
        return first if maker is not None and maker.name in LOSSES else None

    def _finding(self, audit: Audit, backward: Backward, root: Tensor, maker: Call) -> Diagnosis:
        assert backward.spot is not None
        node, seed, source = root_node(backward), seed_node(backward), backward.spot.source
        out = source.text(node) if node is not None else "losses"
        edits = (
            (source.replaced(seed, f"{source.text(seed)} / {out}.numel()"),)
            if seed is not None and node is not None
            else ()
        )
        marks = [backward.spot.mark(say("the seed of ones is passed here"))]
        if maker.spot is not None:
            marks.append(maker.spot.mark(say("the {count} losses are made here", count=root.numel())))
        return self.found(
            say(
                "{name} holds {count} losses, and the seed is one for each: that is the gradient of their sum, {count} "
                "times that of the mean, so that the batch size is a factor of the learning rate.",
                name=out, count=root.numel(),
            ),
            marks,
            Fix(say("Reduce first; if the sum is meant, write it."), f"{out}.mean().backward()", edits, "medium"),
            tensors=[audit.subject(root, "root", out)],
            confidence="low",
        )  # fmt: skip

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(3, 1)
        losses = torch.nn.functional.mse_loss(net(torch.randn(16, 3)), torch.randn(16, 1), reduction="none")
        losses.backward(torch.ones_like(losses))

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(3, 1)
        losses = torch.nn.functional.mse_loss(net(torch.randn(16, 3)), torch.randn(16, 1), reduction="none")
        losses.mean().backward()
