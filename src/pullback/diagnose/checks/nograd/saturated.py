"""PBA345: a parameter outside of the range that it is clamped to."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.numbers.births import watch
from pullback.diagnose.evidence.numbers.find import mark_of
from pullback.diagnose.evidence.numbers.zero import ACCUMULATE, cut_leaves
from pullback.diagnose.values import Fix
from pullback.language import say

CLAMPS = ("ClampBackward", "ClampMinBackward", "ClampMaxBackward", "HardtanhBackward")
ELEMENTWISE = ("MulBackward", "AddBackward", "SubBackward", "DivBackward", "NegBackward", "ExpBackward", "ViewBackward")


class Saturated(Fault):
    """A parameter is outside of the range that it is clamped to, and gets no gradient that could bring it back.

    The derivative of ``clamp`` is zero outside of its range. A parameter that starts or lands there stays there: its
    gradient is exactly zero, whatever the loss.

    Keep it inside by a smooth map (``torch.sigmoid``, ``torch.tanh``, ``softplus``), add a penalty for leaving the
    range, or clamp the parameter itself after each step, under ``torch.no_grad()``: ``w.clamp_(0, 1)``.
    """

    code = "PBA345"
    title = "A parameter is outside of the range that it is clamped to: its gradient is zero."

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        watch(audit).begin(audit, backward)

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        seen = watch(audit)
        seen.finish(audit, backward)
        dead = {node for node in (backward.nodes[index] for index in seen.dead) if node.name().startswith(CLAMPS)}
        for node in dead:
            leaf = _leaf_of(node)
            if leaf is None or (leaf.dim() and leaf.numel() > 1 and not _is_whole(node, leaf)):
                continue
            if any(cut is leaf for cut, _ in cut_leaves(backward, lambda each, _: each in dead)):
                self._report(audit, backward, node, leaf)

    def _report(self, audit: Audit, backward: Backward, node: Node, leaf: Tensor) -> None:
        name = audit.name_of(leaf, "the parameter")
        marks = mark_of(audit, node, say("clamped here"))
        if backward.spot is not None:
            marks.append(backward.spot.mark(say("differentiated here")))
        audit.report(
            self.found(
                say(
                    "All of {name} is outside of the range of this clamp. The derivative of a clamp is zero there: "
                    "{name} gets a gradient of exactly zero, and will never come back into the range.",
                    name=name,
                ),
                marks,
                Fix(
                    say("Use a smooth map into the range, or clamp the parameter itself after each step."),
                    f"with torch.no_grad():\n    {name}.clamp_(low, high)    # after optimizer.step()",
                ),
                tensors=[audit.subject(leaf, "parameter")],
                useless=[say("A larger learning rate: the gradient is exactly zero.")],
            )
        )

    @staticmethod
    def bad():
        import torch

        gate = torch.nn.Parameter(torch.tensor([1.5, 2.5]))
        out = torch.nn.functional.hardtanh(gate, 0.0, 1.0) * torch.randn(3, 2)
        out.square().mean().backward()

    @staticmethod
    def good():
        import torch

        gate = torch.nn.Parameter(torch.tensor([1.5, 0.5]))
        out = torch.nn.functional.hardtanh(gate, 0.0, 1.0) * torch.randn(3, 2)
        out.square().mean().backward()


def _leaf_of(node: Node) -> Tensor | None:
    """The one leaf that goes into a clamp, through operations on its elements at most."""
    stack = [child for child, _ in node.next_functions if child is not None]
    for _ in range(4):
        if len(stack) != 1:
            return None
        if stack[0].name() == ACCUMULATE:
            return stack[0].variable  # type: ignore[attr-defined, no-any-return]
        if not stack[0].name().startswith(ELEMENTWISE):
            return None
        stack = [child for child, _ in stack[0].next_functions if child is not None]
    return None


def _is_whole(node: Node, leaf: Tensor) -> bool:
    return tuple(node._input_metadata[0].shape) == tuple(leaf.shape)
