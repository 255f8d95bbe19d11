"""PBA115: a closure that does not compute the loss anew."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import LBFGS

from pullback.diagnose.audit import Audit, Backward, Step
from pullback.diagnose.check import Fault
from pullback.diagnose.evidence.frames import Spot
from pullback.diagnose.evidence.source import source_of
from pullback.diagnose.evidence.training.loop import optimizer_name, root_numbers
from pullback.diagnose.values import Fix, Mark
from pullback.graph.recording.userfiles import user_files
from pullback.graph.values import Place
from pullback.language import say

REUSED = "reused"
NO_PASS = "no pass"


class StaleClosure(Fault):
    """The closure of ``optimizer.step(closure)`` does not compute the loss and its gradients anew.

    LBFGS evaluates the closure several times, at other parameters each time, and reads ``.grad`` after it. A closure
    that only returns a loss from before, ``lambda: loss``, gives it the same number and the same gradient for every
    point: the line search and the estimate of the curvature work on nonsense. With other optimizers the step uses
    whatever gradients are left from before, or none.

    The closure does all of it: ``optimizer.zero_grad()``, the forward pass, ``loss.backward()``, ``return loss``.
    ``retain_graph=True`` only makes it possible to go through the same old graph again.
    """

    code = "PBA115"
    title = "The closure of an optimizer does not compute the loss and its gradients anew."

    def __init__(self) -> None:
        self._next = 0
        self._roots: list[tuple[int, ...]] = []
        self._closure: CodeType | None = None
        self._inside = False
        self._fresh = False
        self._grads: list[tuple[ref[Tensor], int]] = []

    def before_backward(self, audit: Audit, backward: Backward) -> None:
        if self._inside:
            self._roots.append(root_numbers(backward))
        self._fresh = True

    def before_step(self, audit: Audit, step: Step) -> None:
        self._closure = _users(step.closure)
        self._inside = self._closure is not None
        self._roots = []
        self._grads = [(ref(each.grad), each.grad._version) for each in step.parameters if each.grad is not None]
        self._next = torch._C._autograd._get_sequence_nr()

    def after_step(self, audit: Audit, step: Step) -> None:
        inside, self._inside = self._inside, False
        fresh, self._fresh = self._fresh, False
        if not inside or self._closure is None or step.spot is None:
            return
        several = isinstance(step.optimizer, LBFGS)
        if not self._roots and (several or not fresh) and not self._by_hand(step):
            audit.report(self._finding(audit, step, step.spot, self._closure, NO_PASS))
        elif several and self._roots and all(number < self._next for one in self._roots for number in one):
            audit.report(self._finding(audit, step, step.spot, self._closure, REUSED))

    def _by_hand(self, step: Step) -> bool:
        """Whether the closure wrote other gradients: from a formula, or from torch.func."""
        now = [each.grad for each in step.parameters if each.grad is not None]
        known = [(each(), version) for each, version in self._grads]
        same = len(now) == len(known) and all(
            grad is old and grad._version == version for grad, (old, version) in zip(now, known, strict=True)
        )
        return not same

    def _finding(self, audit: Audit, step: Step, spot: Spot, code: CodeType, kind: str) -> Any:
        name = optimizer_name(audit, step.optimizer)
        source = source_of(code.co_filename)
        scope = source.function_at(code.co_firstlineno, code.co_name)
        place = Place(code.co_filename, code.co_firstlineno, code.co_name)
        marks = []
        if not isinstance(scope, ast.Module):
            place = place._replace(line=scope.lineno)
            span = source.span(scope) if isinstance(scope, ast.Lambda) else None
            marks.append(Mark.at(place, say("the closure"), span))
        marks.append(spot.mark(say("evaluates the closure")))
        if kind == NO_PASS:
            cause = say(
                "No backward pass ran while {optimizer}.step() evaluated the closure: it returns a loss from before, "
                "and the gradients are those from before, if there are any.",
                optimizer=name,
            )
        else:
            cause = say(
                "The closure differentiates a loss that was computed before {optimizer}.step() began: at each point "
                "that the step tries it gets the loss and the gradient of the first one.",
                optimizer=name,
            )
        return self.found(
            cause,
            marks,
            Fix(
                say("Let the closure clear the gradients, compute the loss, and differentiate it."),
                f"def closure():\n    {name}.zero_grad()\n    loss = ...  # the forward pass\n    loss.backward()\n"
                f"    return loss\n{name}.step(closure)",
            ),
            useless=[say("retain_graph=True: it goes through the old graph again")],
        )

    @staticmethod
    def bad():
        import torch

        net = torch.nn.Linear(4, 1)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
        for _ in range(3):
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step(lambda loss=loss: loss)

    @staticmethod
    def good():
        import torch

        net = torch.nn.Linear(4, 1)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)


def _users(closure: Any) -> CodeType | None:
    """The code of a closure, if it is the user's."""
    code = getattr(closure, "__code__", None)
    return code if isinstance(code, CodeType) and user_files(()).own_file(code.co_filename) else None
