"""PB401: the result of an operation, changed before its backward."""

from __future__ import annotations

from pullback.diagnose.evidence.overwritten.cause import KeptAndChanged
from pullback.language import say


class SavedResult(KeptAndChanged):
    """The result of an operation was changed in place, and the operation's backward computes from its result.

    `exp`, `sigmoid`, `tanh`, `softmax`, `sqrt`, `relu` and others keep what they returned: the derivative of `y =
    exp(x)` is `y` itself. A later `y += 1` or `y[mask] = 0` changes the very tensor that was kept, and torch
    refuses to compute a wrong gradient.

    Write `y = y + 1`, or change a clone: `y = y.clone()` before the change. `torch.where(mask, 0, y)` stands for an
    assignment by a mask. After operations that do not keep their result (`+`, `*`, a matrix product) a change in place
    is fine.
    """

    code = "PB401"
    title = "The result of an operation that needs it for its backward was changed in place."
    kept = "result"

    def why(self) -> str:
        return say(
            "Its derivative is computed from its own result, so that a changed result would give a wrong gradient."
        )

    @staticmethod
    def bad():
        import torch

        logits = torch.randn(4, requires_grad=True)
        gate = logits.sigmoid()
        gate *= 2
        gate.sum().backward()

    @staticmethod
    def good():
        import torch

        logits = torch.randn(4, requires_grad=True)
        gate = logits.sigmoid()
        gate = gate * 2
        gate.sum().backward()
