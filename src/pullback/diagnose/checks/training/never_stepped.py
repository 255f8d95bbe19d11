"""PBA123: an optimizer that clears gradients and never uses them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import scaler_of
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

# So often gradients were cleared unused.
TIMES = 2


@dataclass
class _Cleared:
    """The gradients of an optimizer that were cleared: where, after how many passes, and how often unused."""

    spot: Spot
    versions: list[int]
    passes: int
    times: int = 0


class NeverStepped(Fault):
    """Gradients were computed and cleared again and again, but ``optimizer.step()`` was never called.

    ``backward()`` writes gradients, ``zero_grad()`` takes them away; only ``step()`` moves the parameters. Without it a
    program runs without a word, and the loss goes up and down with the data alone.

    Call ``optimizer.step()`` after ``backward()`` in each turn (``scaler.step(optimizer)`` with a ``GradScaler``).
    ``scheduler.step()`` changes the learning rate only. Another learning rate does not help.
    """

    code = "PBA123"
    title = "The optimizer never steps: its gradients are computed and cleared, and no parameter moves."

    def __init__(self) -> None:
        self._cleared: WeakKeyDictionary[Optimizer, _Cleared] = WeakKeyDictionary()
        self._passes = 0
        self._last: Spot | None = None

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.spot is not None and backward.record.accumulates:
            self._passes, self._last = self._passes + 1, backward.spot

    def after_zero_grad(self, audit: Audit, step: Step) -> None:
        if step.spot is None or scaler_of(audit) is not None:  # a scaler leaves out steps at overflow
            return
        known = self._cleared.setdefault(step.optimizer, _Cleared(step.spot, _versions(step.optimizer), self._passes))
        known.times += self._passes > known.passes
        known.passes = self._passes

    def at_end(self, audit: Audit) -> None:
        if audit.crashed or audit.reported("PBA120"):  # its step without brackets, for one
            return
        for optimizer, known in self._cleared.items():
            stepped = audit.steps(optimizer) or optimizer.state
            if known.times >= TIMES and not stepped and known.versions == _versions(optimizer):
                audit.report(self._finding(audit, optimizer, known.spot))

    def _finding(self, audit: Audit, optimizer: Optimizer, spot: Spot) -> Diagnosis:
        name = "optimizer"
        if isinstance(spot.node, ast.Call) and isinstance(spot.node.func, ast.Attribute):
            name = spot.source.text(spot.node.func.value)
        marks = [self._last.mark(say("the gradients are computed here"))] if self._last is not None else []
        marks.append(spot.mark(say("and cleared here, unused")))
        if (made := audit.made.get(optimizer)) is not None:
            marks.append(made.mark(say("this optimizer never steps")))
        return self.found(
            say("{name}.step() was never called: its parameters are what they were.", name=name),
            marks,
            Fix(say("Step after the pass."), f"{name}.step()", (), "medium"),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


def _versions(optimizer: Optimizer) -> list[int]:
    """They change when a parameter is moved, by hand too."""
    return [each._version for group in optimizer.param_groups for each in group["params"]]
