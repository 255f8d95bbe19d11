"""PBA124: gradients of micro-batches that are cleared one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of, moved
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

STEPS = 2


@dataclass
class _State:
    """What one optimizer went through.

    Attributes:
        passed: The latest pass that reached its parameters, since they were cleared or used.
        lost: The passes whose gradients were cleared since the latest step.
        cleared: Where.
        steps: How many steps there were.
        wasted: How many of them came after gradients of the same line had been cleared.
        step: The latest step.
        inside: Whether a step runs: a closure may do all this as often as it likes.
    """

    passed: Spot | None = None
    lost: set[Key] = field(default_factory=set)
    cleared: Spot | None = None
    steps: int = 0
    wasted: int = 0
    step: Spot | None = None
    inside: bool = False


class ClearedEach(Fault):
    """Several micro-batches are computed for one step, but the gradients of all but the last are cleared.

    With ``zero_grad()`` in every turn and ``step()`` in every fourth, three of four backward passes are for nothing:
    the step sees the last micro-batch only, often divided by four as well.

    Clear once for each step, right after it: ``optimizer.step()``, then ``optimizer.zero_grad()``, both in the turn
    that steps.
    """

    code = "PBA124"
    title = "Gradients of micro-batches were cleared one by one: the step uses the last one only."

    def __init__(self) -> None:
        self._states: WeakKeyDictionary[Optimizer, _State] = WeakKeyDictionary()

    def after_backward(self, audit: Audit, backward: Backward) -> None:
        if not backward.record.accumulates or backward.spot is None:
            return
        reached = {id(each) for each in backward.leaves}
        for optimizer in list(audit.optimizers):
            state = self._states.setdefault(optimizer, _State())
            if any(id(each) in reached for group in optimizer.param_groups for each in group["params"]):
                state.passed = None if state.inside else backward.spot

    def after_zero_grad(self, audit: Audit, step: Step) -> None:
        state = self._states.setdefault(step.optimizer, _State())
        if state.passed is not None:
            state.lost.add(key_of(state.passed))
            state.cleared, state.passed = step.spot, None

    def before_step(self, audit: Audit, step: Step) -> None:
        self._states.setdefault(step.optimizer, _State()).inside = True

    def after_step(self, audit: Audit, step: Step) -> None:
        state = self._states.setdefault(step.optimizer, _State())
        state.inside = False
        state.steps += 1
        if state.passed is not None and key_of(state.passed) in state.lost:
            state.wasted += 1
            state.step = step.spot
        state.lost, state.passed = set(), None

    def at_end(self, audit: Audit) -> None:
        for state in self._states.values():
            if state.wasted >= STEPS and state.wasted == state.steps:
                audit.report(self._finding(state))

    def _finding(self, state: _State) -> Diagnosis:
        assert state.cleared is not None
        marks = [state.cleared.mark(say("clears what no step has used"))]
        if state.step is not None:
            marks.append(state.step.mark(say("uses the gradients of the last pass only")))
        edits = moved(state.cleared, state.step, after=True) if state.step is not None else ()
        cleared = " ".join(state.cleared.text.split())
        stepped = " ".join(state.step.text.split()) if state.step is not None else "optimizer.step()"
        return self.found(
            say("Before each step, gradients of the same line were cleared although no step had used them."),
            marks,
            Fix(
                say("Clear the gradients once for each step, after it."),
                f"{stepped}\n{cleared}",
                edits,
                "high" if edits else "medium",
            ),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for turn in range(12):
            optimizer.zero_grad()
            (net(torch.randn(4, 4)).square().mean() / 4).backward()
            if turn % 4 == 3:
                optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for turn in range(12):
            (net(torch.randn(4, 4)).square().mean() / 4).backward()
            if turn % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
