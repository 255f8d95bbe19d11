"""PB402: the argument of an operation, changed before its backward."""

from __future__ import annotations

from pullback.diagnose.evidence.overwritten.cause import KeptAndChanged
from pullback.language import say


class SavedInput(KeptAndChanged):
    """A tensor was given to an operation that keeps its argument for the backward, and was changed in place afterwards.

    A product keeps both factors, a power its base, a matrix product both matrices, a convolution its input. A later
    `h[0] = 0`, `h += 1` or `h.clamp_(0)` changes the kept tensor. The order matters: a change *before* the operation is
    fine.

    Make a new tensor (`h = h + 1`, `torch.where`, `h.clamp(0)`), or let `h = h.clone()` come before the change.
    """

    code = "PB402"
    title = "The argument of an operation that needs it for its backward was changed in place."
    kept = "input"

    def why(self) -> str:
        return say("The derivative by its other arguments, or by itself, is computed from that value.")

    @staticmethod
    def bad():
        import torch

        a = torch.randn(2, 3, requires_grad=True)
        b = a + 1
        product = b * b.sum()
        b[:, 0] = 0
        product.sum().backward()

    @staticmethod
    def good():
        import torch

        a = torch.randn(2, 3, requires_grad=True)
        b = a + 1
        product = b * b.sum()
        b = b.clone()
        b[:, 0] = 0
        product.sum().backward()
