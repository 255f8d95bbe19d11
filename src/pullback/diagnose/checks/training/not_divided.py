"""PBA103: means over parts of a batch are added up, and not divided by the number of parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import Tensor

from pullback.diagnose.audit import Audit, Backward
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of, loop_around
from pullback.diagnose.values import Edit, Fix
from pullback.language import say

SPLITS = frozenset({"chunk", "split", "tensor_split"})
MEANS = ("MeanBackward", "NllLoss", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "KlDiv")


class NotDivided(Fault):
    """Gradients of several micro-batches were added, each of a mean, without dividing by their number.

    The mean over a whole batch is the mean of the means of its parts, where these are of one size. Accumulating the
    gradients of ``k`` parts adds them up, so the gradient is ``k`` times that of the whole batch, as if the learning
    rate were ``k`` times larger (and gradient clipping meets the larger norm).

    Divide the loss of each part: ``(loss / k).backward()``. Losses that are sums (``reduction="sum"``) need no
    division. A normalizing optimizer such as Adam hides the factor, weight decay and clipping do not.
    """

    code = "PBA103"
    title = "The mean losses of several micro-batches were accumulated without dividing by their number."

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        spot, roots = backward.spot, backward.roots
        if spot is None or not backward.record.accumulates or not backward.had_grad or len(roots) != 1:
            return
        root = roots[0]
        if not isinstance(root, Tensor) or not self._is_mean(root):
            return
        key = key_of(spot)
        self._times[key] = self._times.get(key, 0) + 1
        if self._times[key] != 2:
            return
        parts = next(self._parts(spot), None)
        if parts is None:
            return
        node = spot.node
        edits: tuple[Edit, ...] = ()
        code = f"(loss / {parts}).backward()"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            text = f"({spot.source.text(node.func.value)} / {parts})"
            code, edits = f"{text}.backward()", (spot.source.replaced(node.func.value, text),)
        audit.report(
            self.found(
                say(
                    "Each of the {parts} passes adds the gradient of a mean over its own part: their sum is {parts} "
                    "times the gradient of the mean over the whole batch.",
                    parts=parts,
                ),
                [spot.mark(say("adds the gradient of a mean"))],
                Fix(say("Divide each loss by the number of parts."), code, edits, "medium"),
                confidence="medium",
            )
        )

    @staticmethod
    def _is_mean(root: Tensor) -> bool:
        node = root.grad_fn
        if node is None or root.dim():
            return False
        name = node.name()
        reduction = getattr(node, "_saved_reduction", 1)
        return name.startswith(MEANS) and reduction == 1

    @staticmethod
    def _parts(spot: Spot) -> Iterator[str]:
        """How many parts there are, as the source says: ``chunk(4)``, or ``if (i + 1) % k == 0: optimizer.step()``."""
        statement, source = spot.statement, spot.source
        loop = loop_around(source, statement) if statement is not None else None
        if loop is None:
            return
        if isinstance(loop, ast.For):
            for call in ast.walk(loop.iter):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in SPLITS:
                    if call.func.attr == "chunk" and call.args:
                        number = call.args[0] if not _is_torch(call) else call.args[1]
                        yield source.text(number)
                    else:
                        yield f"len({source.text(call)})"
        for test in ast.walk(loop):
            if not isinstance(test, ast.If) or "step" not in _called(test.body):
                continue
            for part in ast.walk(test.test):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    yield source.text(part.right)

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for number in range(8):
            loss = torch.nn.functional.mse_loss(net(torch.randn(8, 4)), torch.zeros(8, 1))
            loss.backward()
            if (number + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for number in range(8):
            loss = torch.nn.functional.mse_loss(net(torch.randn(8, 4)), torch.zeros(8, 1))
            (loss / 4).backward()
            if (number + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def _is_torch(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "torch" and len(call.args) > 1


def _called(body: list[ast.stmt]) -> set[str]:
    return {
        node.func.attr
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
