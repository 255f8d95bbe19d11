"""PBA121: an optimizer that is made anew for each step."""

from __future__ import annotations

from weakref import ref

from torch import Tensor
from torch.optim import Optimizer

from pullback.diagnose.audit import Audit, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import Key, key_of, loop_around
from pullback.diagnose.values import Diagnosis, Fix
from pullback.language import say

# So many optimizers of one line, with one step each.
TIMES = 3


class MadeAnew(Fault):
    """An optimizer with a memory was made anew for each step, so that it never remembers anything.

    Adam, RMSprop and SGD with momentum keep averages of the gradients from step to step. An optimizer that is made
    inside of the loop begins at zero each time: Adam's first step is always ``lr * sign(grad)``, whatever the size of
    the gradient, and momentum never builds up. Schedulers of it start over too.

    Make the optimizer once, before the loop. A new optimizer for each task or each fold is right where the parameters
    are new as well. A smaller learning rate does not bring the averages back.
    """

    code = "PBA121"
    title = "An optimizer was made anew for each step: its momentum and averages are lost every time."

    def __init__(self) -> None:
        self._made: dict[Key, tuple[ref[Optimizer], ref[Tensor], int]] = {}
        self._version: dict[Key, int] = {}  # of the parameter, as the last step left it
        self._before = -1

    def before_step(self, audit: Audit, step: Step) -> None:
        first = next(step.parameters, None)
        self._before = -1 if first is None else first._version

    def after_step(self, audit: Audit, step: Step) -> None:
        made, optimizer = audit.made.get(step.optimizer), step.optimizer
        first = next(step.parameters, None)
        if made is None or first is None or step.spot is None or not optimizer.state.get(first):
            return
        key = key_of(made)
        known = self._made.get(key)
        if known is not None and known[0]() is optimizer:  # one with a second step remembers the first
            self._made[key] = ref(optimizer), ref(first), -TIMES
            return
        # parameters that were written in between, a state that was loaded say, are new
        goes_on = known is not None and known[1]() is first and self._version.get(key) == self._before
        times = known[2] + 1 if known is not None and goes_on else 1
        if known is not None and known[2] < 0:
            return
        self._made[key] = ref(optimizer), ref(first), times
        self._version[key] = first._version
        if times == TIMES and _remembers(optimizer, first):
            audit.report(self._finding(type(optimizer).__name__, made, step.spot))

    def at_end(self, audit: Audit) -> None:
        for known in self._made.values():
            if known[2] < 0:
                audit.withdraw(self.code)

    def _finding(self, kind: str, made: Spot, spot: Spot) -> Diagnosis:
        source, statement = made.source, made.statement
        loop = loop_around(source, statement) if statement is not None else None
        code = ""
        if loop is not None and statement is not None and made.code is spot.code:
            head = source.lines[loop.lineno - 1].strip()
            code = f"{source.text(statement)}\n{head}\n    ..."
        return self.found(
            say(
                "This line made {kind} anew for each step, of the same parameters: each of them steps once, with empty "
                "averages.",
                kind=kind,
            ),
            [made.mark(say("made anew each time")), spot.mark(say("its only step"))],
            Fix(say("Make the optimizer once, before the loop."), code),
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        for _ in range(5):
            optimizer = torch.optim.Adam(net.parameters())
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()


def _remembers(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Whether it keeps something of the gradients: not the number of steps alone."""
    return any(
        isinstance(each, Tensor) and each.shape == parameter.shape for each in optimizer.state[parameter].values()
    )
