"""PBA116: two steps with the same gradient."""

from __future__ import annotations

from weakref import ref

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from pullback.diagnose.audit import Audit, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.training.loop import key_of, optimizer_name, own_line, scaler_of
from pullback.diagnose.evidence.training.untrained import numbers_of
from pullback.diagnose.values import Edit, Fix
from pullback.language import say


class SteppedTwice(Fault):
    """A parameter was changed by two steps with one and the same gradient.

    Two optimizers that hold the same parameter, such as ``Adam(net.parameters())`` and ``Adam(net.head.parameters())``,
    both move it after each pass; a step in an inner function and another one in the loop do the same. The second step
    uses a gradient that was computed before the first: the step is twice as long, and the state of the optimizers
    counts each gradient twice.

    Give each parameter to one optimizer, and step once for each pass. Alternating optimizers are fine if each has a
    pass of its own before its step. Halving the learning rate hides this, but the momentum stays wrong.
    """

    code = "PBA116"
    title = "A parameter was moved by two steps with the same gradient: no pass ran in between."

    def __init__(self) -> None:
        self._used: dict[int, tuple[ref[Tensor], ref[Tensor], tuple[int, float], Spot, ref[Optimizer]]] = {}
        self._times: dict[tuple[object, object], int] = {}

    def before_step(self, audit: Audit, step: Step) -> None:
        spot = step.spot
        if spot is None or audit.reported(self.code) or isinstance(step.optimizer, LBFGS) or step.closure is not None:
            return
        for each in step.parameters:
            used = self._used.get(id(each))
            grad = each.grad
            if used is None or grad is None or used[0]() is not each or used[1]() is not grad:
                continue
            if used[2] != _state(grad) or not bool(grad.any()):
                continue
            key = key_of(used[3]), key_of(spot)
            self._times[key] = self._times.get(key, 0) + 1
            if self._times[key] >= 2 and scaler_of(audit) is None:
                self._say(audit, step, spot, used[3], each, same=used[4]() is step.optimizer)
            return

    def after_step(self, audit: Audit, step: Step) -> None:
        if step.spot is None or step.closure is not None:
            return
        for each in step.parameters:
            if each.grad is not None and each.requires_grad:
                self._used[id(each)] = (ref(each), ref(each.grad), _state(each.grad), step.spot, ref(step.optimizer))

    def _say(self, audit: Audit, step: Step, spot: Spot, first: Spot, parameter: Tensor, *, same: bool) -> None:
        name, optimizer = audit.name_of(parameter, "w"), optimizer_name(audit, step.optimizer)
        statement = spot.statement
        edits: tuple[Edit, ...] = ()
        if same and statement is not None and own_line(spot.source, statement) and first.line != spot.line:
            edits = (Edit(spot.file, statement.lineno, statement.end_lineno or statement.lineno, None),)
        marks = [spot.mark(say("moves {name} again with the same gradient", name=name))]
        made = audit.made.get(step.optimizer)
        if made is not None and not same:
            marks.append(made.mark(say("this optimizer holds {name} too", name=name)))
        marks.append(first.mark(say("the gradient was used here before")))
        audit.report(
            self.found(
                say(
                    "{optimizer} steps {name} with a gradient that the step before has used already: it was not "
                    "computed anew, and not cleared.",
                    optimizer=optimizer,
                    name=name,
                ),
                marks,
                Fix(
                    say("Step once for each pass.") if same else say("Give each parameter to one optimizer only."),
                    "",
                    edits,
                    "medium",
                ),
                tensors=[audit.subject(parameter, "parameter", name)],
            )
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        whole = torch.optim.SGD(net.parameters(), lr=0.1)
        head = torch.optim.SGD(net[2].parameters(), lr=0.5)
        for _ in range(3):
            whole.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            whole.step()
            head.step()

    @staticmethod
    def good():
        import torch

        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        body = torch.optim.SGD(net[:2].parameters(), lr=0.1)
        head = torch.optim.SGD(net[2].parameters(), lr=0.5)
        for _ in range(3):
            body.zero_grad()
            head.zero_grad()
            net(torch.randn(6, 4)).square().mean().backward()
            body.step()
            head.step()


def _state(grad: Tensor) -> tuple[int, float]:
    """It changes when the gradient is written to: what goes through ``.data`` is not counted as a write."""
    return grad._version, numbers_of(grad)
