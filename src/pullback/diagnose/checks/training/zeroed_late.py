"""PBA102: the gradients are cleared between the pass and the step."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import moved
from pullback.diagnose.values import Fix
from pullback.language import say


@dataclass
class _Seen:
    """What an optimizer did."""

    wiped: int = 0
    moved: int = 0
    step: Spot | None = None
    cleared: Spot | None = None
    passed: Spot | None = None


class ZeroedLate(Fault):
    """The gradients were cleared between ``backward()`` and ``step()``, so the step did nothing.

    ``zero_grad()`` throws away what ``backward()`` has just computed; ``step()`` then finds no gradient (or zeros) and
    leaves the parameters as they are. No error is raised and the loss stays where it was.

    The order is ``optimizer.zero_grad()``, ``loss.backward()``, ``optimizer.step()``. ``zero_grad()`` after ``step()``
    is right as well. ``set_to_none=False``, another learning rate or another optimizer do not help here.
    """

    code = "PBA102"
    title = "The gradients were cleared after backward() and before step()."

    def __init__(self) -> None:
        self._fresh: dict[int, tuple[ref[Tensor], ref[Tensor], int, Spot | None]] = {}
        self._seen: WeakKeyDictionary[Optimizer, _Seen] = WeakKeyDictionary()

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if backward.record.accumulates:
            for leaf in backward.leaves:
                if leaf.grad is not None:
                    self._fresh[id(leaf)] = ref(leaf), ref(leaf.grad), leaf.grad._version, backward.spot

    def before_step(self, audit: Audit, step: Step) -> None:
        seen = self._seen.setdefault(step.optimizer, _Seen())
        if seen.moved:
            return
        wiped, passed = 0, None
        for parameter in step.parameters:
            found = self._fresh.pop(id(parameter), None)
            if found is None or found[0]() is not parameter:
                continue
            if parameter.grad is not None and (
                (parameter.grad is found[1]() and parameter.grad._version == found[2]) or bool(parameter.grad.any())
            ):
                seen.moved += 1
                return
            wiped, passed = wiped + 1, found[3]
        if wiped:
            seen.wiped += 1
            seen.step, seen.passed = step.spot, passed
            seen.cleared = self._clearing(audit, passed)

    @staticmethod
    def _clearing(audit: Audit, passed: Spot | None) -> Spot | None:
        for call in reversed(audit.tape.calls):
            if call.name in {"set grad", "zero_", "_foreach_zero_"} and call.spot is not None:
                return call.spot
        return None

    def at_end(self, audit: Audit) -> None:
        for seen in self._seen.values():
            if seen.moved or not seen.wiped or seen.passed is None or seen.step is None:
                continue
            marks = [seen.passed.mark(say("computes the gradients")), seen.step.mark(say("finds none"))]
            if seen.cleared is not None:
                marks = [seen.cleared.mark(say("clears the gradients")), *marks]
            edits = moved(seen.cleared, seen.passed, after=False) if seen.cleared is not None else ()
            audit.report(
                self.found(
                    say(
                        "Each step of the optimizer came after its gradients had been cleared: it never moved a "
                        "parameter."
                    ),
                    marks,
                    Fix(
                        say("Clear first, then run the pass, then step."),
                        "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
                        edits,
                        "high" if edits else "medium",
                    ),
                    useless=[say("a larger learning rate: there is nothing that it could scale")],
                )
            )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            loss = net(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
